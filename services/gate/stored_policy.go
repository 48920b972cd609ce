package gate

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/hot"
	"weir/services/gate/policy"
)

// Policy is a stored policy. Every revision stays in the journal.
//
//	absent → STORED ⇄ DELETED
type Policy struct {
	// Bytes is the encoded Policy message, without its output-only fields.
	Bytes    []byte
	Deleted  bool
	Updated  time.Time
	Updater  string
	Revision uint64
}

func (p Policy) exists() bool { return p.Revision != 0 && !p.Deleted }

// maxPolicyBytes keeps a policy well below what NATS takes in one message.
const maxPolicyBytes = 512 << 10

// stripped is a policy without what only the gate sets.
func stripped(p *gatev1.Policy) *gatev1.Policy {
	out := proto.CloneOf(p)
	out.Revision, out.UpdateTime, out.Updater = 0, nil, ""
	return out
}

// decidePutPolicy stores a policy that compiles and was proved to open nothing.
func decidePutPolicy(p Policy, actor author, put *gatev1.Policy, expected *uint64) (*gatev1.Event, error) {
	old, err := p.message()
	if err != nil {
		return nil, err
	}
	if err := actor.mayChange(put.GetTarget(), old.GetTarget()); err != nil {
		return nil, err
	}
	if p.exists() && proto.Equal(old, put) {
		return nil, nil
	}
	if err := asExpected("policy", put.GetPolicyId(), expected, p.Revision, p.exists()); err != nil {
		return nil, err
	}
	return &gatev1.Event{Actor: actor.subject, Event: &gatev1.Event_PolicyPut{PolicyPut: &gatev1.PolicyPut{Policy: put}}}, nil
}

func decideDeletePolicy(p Policy, actor author, id string, expected *uint64) (*gatev1.Event, error) {
	switch {
	case p.Revision == 0:
		return nil, policyNotFound(id)
	case p.Deleted:
		return nil, nil
	}
	old, err := p.message()
	if err != nil {
		return nil, err
	}
	if err := actor.mayChange(old.GetTarget()); err != nil {
		return nil, err
	}
	if err := asExpected("policy", id, expected, p.Revision, true); err != nil {
		return nil, err
	}
	return &gatev1.Event{Actor: actor.subject, Event: &gatev1.Event_PolicyDeleted{PolicyDeleted: &gatev1.PolicyDeleted{PolicyId: id}}}, nil
}

// storable says what keeps a policy from being stored, before it is decided on
// who may: size, what does not compile, and what it would open.
func storable(p *gatev1.Policy, env policy.Environment) ([]*gatev1.Finding, error) {
	if size := proto.Size(p); size > maxPolicyBytes {
		return nil, fault.New(fault.TooLarge, "policy %s has %d bytes: at most %d", p.GetPolicyId(), size, maxPolicyBytes).
			Field("policy", "must be at most 512 KiB: split it, rules of several policies count together")
	}
	if err := policy.Check(p, "policy"); err != nil {
		return nil, err
	}
	findings := policy.Verify(p, env)
	var unsafe []*gatev1.Finding
	for _, f := range findings {
		if f.GetSeverity() == gatev1.Severity_SEVERITY_ERROR {
			unsafe = append(unsafe, f)
		}
	}
	if len(unsafe) == 0 {
		return findings, nil
	}
	refusal := fault.New(fault.PolicyUnsafe, "policy %s was not stored: verification found %d errors; VerifyPolicy tells them all", p.GetPolicyId(), len(unsafe))
	for _, f := range unsafe { // an error keeps the first few
		refusal = refusal.Field("policy.rules."+f.GetRuleId(), f.GetMessage())
	}
	return nil, refusal
}

func evolvePolicy(p Policy, e aggregate.Recorded[*gatev1.Event]) Policy {
	switch event := e.Event.GetEvent().(type) {
	case *gatev1.Event_PolicyPut:
		// A message that was decoded encodes.
		bytes, _ := proto.MarshalOptions{Deterministic: true}.Marshal(event.PolicyPut.GetPolicy())
		p = Policy{Bytes: bytes}
	case *gatev1.Event_PolicyDeleted:
		p.Deleted = true
	}
	p.Updated, p.Updater, p.Revision = e.Time, e.Event.GetActor(), e.Sequence
	return p
}

// message reads the stored policy.
func (p Policy) message() (*gatev1.Policy, error) {
	out := &gatev1.Policy{}
	if err := proto.Unmarshal(p.Bytes, out); err != nil {
		return nil, fault.New(fault.DocumentUnreadable, "a stored policy cannot be read").Wrap(err)
	}
	return out, nil
}

// proto shows the stored policy as it is given out.
func (p Policy) proto() (*gatev1.Policy, error) {
	out, err := p.message()
	if err != nil {
		return nil, err
	}
	out.Revision, out.UpdateTime, out.Updater = p.Revision, timestamppb.New(p.Updated), p.Updater
	return out, nil
}

const policyKindName = "policy"

func policyKind() aggregate.Kind[Policy, *gatev1.Event] {
	return aggregate.Kind[Policy, *gatev1.Event]{
		Name:   policyKindName,
		Evolve: evolvePolicy,
		Codec:  aggregate.RootCodec[Policy, *gatev1.Event]{Bytes: func(p Policy) int { return 256 + len(p.Bytes) }},
		Lists:  func(p Policy, version uint64) []hot.Entry { return storedLists(p.exists(), version) },
	}
}

func policyNotFound(id string) error {
	return fault.New(fault.PolicyNotFound, "there is no policy %s", id)
}

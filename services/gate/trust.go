package gate

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/hot"
	"weir/services/gate/policy"
)

// Trust lets one caller, in one session, repeat what people approved.
//
//	absent → HELD → REVOKED | EXPIRED → HELD (given anew) …
//
// Its id is a digest of what it covers. So a check finds the trust that covers
// it by name, and whatever a trust does not name exactly it does not cover.
type Trust struct {
	ID       string
	State    trustState
	Coverage coverage
	Terms    policy.Terms
	GivenBy  []string
	// Approval it was given with, at Given.
	Approval string
	Given    time.Time
	// Decision is the sequence of the decision that gave it, and Revoked that of its
	// last revocation: what was decided before either gives nothing.
	Decision uint64
	Revoked  uint64 `json:",omitempty"`
	Expires  time.Time
	// First is the sequence of the event that gave it, by which lists are ordered.
	First uint64
}

type trustState string

const (
	trustHeld    trustState = "HELD"
	trustRevoked trustState = "REVOKED"
	trustExpired trustState = "EXPIRED"
)

// coverage is what a trust covers. All of it is literal: a `*` is a `*`.
type coverage struct {
	Subject     string
	Session     string
	Chain       string `json:",omitempty"` // on whose behalf, as chainOf writes it
	Operation   string
	SpecDigest  string
	InputDigest string `json:",omitempty"` // empty covers any input
}

func (c coverage) id() string {
	return digestOf("trust", c.Subject, c.Session, c.Chain, c.Operation, c.SpecDigest, c.InputDigest)
}

// chainOf writes a chain as one text; subjects hold no spaces.
func chainOf(onBehalfOf []string) string { return strings.Join(onBehalfOf, " ") }

// label says exactly what it allows.
func (c coverage) label() string {
	who := c.Subject
	if c.Chain != "" {
		who += " on behalf of " + strings.ReplaceAll(c.Chain, " ", ", ")
	}
	input := "with any input"
	if c.InputDigest != "" {
		input = "with the very input of digest " + c.InputDigest
	}
	return fmt.Sprintf("%s may run %s (definition %s) %s in session %s", who, c.Operation, c.SpecDigest[:min(12, len(c.SpecDigest))], input, c.Session)
}

// holds says whether it allows something now that would be asked on these terms.
func (t Trust) holds(terms policy.Terms, now time.Time) bool {
	return t.State == trustHeld && now.Before(t.Expires) && t.Terms.Key() == terms.Key()
}

// decideGive records a trust. What was decided before the one that is there, or
// before the last revocation, changes nothing, whenever it is heard of. Both are
// in one stream, whose sequences are the order.
func decideGive(t Trust, by string, given *gatev1.TrustGiven) (*gatev1.Event, error) {
	if given.GetDecisionSequence() <= max(t.Decision, t.Revoked) {
		return nil, nil
	}
	return &gatev1.Event{Actor: by, Event: &gatev1.Event_TrustGiven{TrustGiven: given}}, nil
}

func decideRevoke(t Trust, id, by, note string) (*gatev1.Event, error) {
	switch t.State {
	case "":
		return nil, trustNotFound(id)
	case trustHeld:
		return &gatev1.Event{Actor: by, Event: &gatev1.Event_TrustRevoked{
			TrustRevoked: &gatev1.TrustRevoked{TrustId: id, Note: note},
		}}, nil
	default:
		return nil, nil
	}
}

func decideTrustExpiry(t Trust, now time.Time) (*gatev1.Event, error) {
	if t.State != trustHeld || now.Before(t.Expires) {
		return nil, nil
	}
	return &gatev1.Event{Actor: actorGate, Event: &gatev1.Event_TrustExpired{
		TrustExpired: &gatev1.TrustExpired{TrustId: t.ID},
	}}, nil
}

func evolveTrust(t Trust, e aggregate.Recorded[*gatev1.Event]) Trust {
	switch event := e.Event.GetEvent().(type) {
	case *gatev1.Event_TrustGiven:
		g := event.TrustGiven
		t = Trust{
			Revoked: t.Revoked,
			ID:      g.GetTrustId(), State: trustHeld, Terms: policy.TermsFrom(g.GetTerms()), GivenBy: g.GetGivenBy(),
			Coverage: coverage{
				Subject: g.GetSubject(), Session: g.GetSession(), Chain: chainOf(g.GetOnBehalfOf()), Operation: g.GetOperation(),
				SpecDigest: g.GetSpecDigest(), InputDigest: g.GetInputDigest(),
			},
			Decision: g.GetDecisionSequence(), Approval: g.GetApprovalId(), Given: timeOf(g.GetGiveTime()), Expires: timeOf(g.GetExpireTime()), First: e.Sequence,
		}
	case *gatev1.Event_TrustRevoked:
		t.State, t.Revoked = trustRevoked, e.Sequence
	case *gatev1.Event_TrustExpired:
		t.State = trustExpired
	}
	return t
}

const trustKindName = "trust"

func trustKind() aggregate.Kind[Trust, *gatev1.Event] {
	return aggregate.Kind[Trust, *gatev1.Event]{
		Name:   trustKindName,
		Evolve: evolveTrust,
		Codec:  aggregate.RootCodec[Trust, *gatev1.Event]{Bytes: func(Trust) int { return 1024 }},
		Lists: func(t Trust, _ uint64) []hot.Entry {
			if t.State != trustHeld {
				return nil
			}
			return []hot.Entry{{Set: trustList(""), Score: t.First}, {Set: trustList(t.Coverage.Subject), Score: t.First}}
		},
		Due: func(t Trust) time.Time {
			if t.State != trustHeld {
				return time.Time{}
			}
			return t.Expires
		},
	}
}

// trustList names the list of the trusts that one subject holds, or all.
func trustList(subject string) string { return "held/" + subject }

func trustNotFound(id string) error {
	return fault.New(fault.TrustNotFound, "there is no trust %s", id)
}

func trustToProto(t Trust) *gatev1.Trust {
	return &gatev1.Trust{
		TrustId: t.ID, State: trustStateToProto[t.State], Label: t.Coverage.label(),
		Subject: t.Coverage.Subject, Session: t.Coverage.Session, Operation: t.Coverage.Operation,
		SpecDigest: t.Coverage.SpecDigest, InputDigest: t.Coverage.InputDigest,
		CreateTime: timestamppb.New(t.Given), ExpireTime: timestamppb.New(t.Expires),
		GivenBy: t.GivenBy, ApprovalId: t.Approval, OnBehalfOf: strings.Fields(t.Coverage.Chain),
	}
}

var trustStateToProto = map[trustState]gatev1.TrustState{
	trustHeld:    gatev1.TrustState_TRUST_STATE_HELD,
	trustRevoked: gatev1.TrustState_TRUST_STATE_REVOKED,
	trustExpired: gatev1.TrustState_TRUST_STATE_EXPIRED,
}

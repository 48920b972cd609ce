package gate

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/services/gate/policy"
)

// decision is the command of a person who was asked.
type decision struct {
	RequestID   string
	Decider     string
	Chain       []string // on whose behalf the decider acts, if anyone's
	Confined    bool
	Scopes      []string // all that the decider holds
	Approve     bool
	InputDigest string
	Note        string
	Amendment   *amendment
	Remember    *remember
}

// amendment is an input in place of the one that was asked for. It was
// validated and checked before.
type amendment struct{ Input, Digest string }

// remember is the wish for a trust.
type remember struct {
	AnyInput bool `json:",omitempty"`
	TTL      time.Duration
}

func rememberFrom(p *gatev1.Remember) *remember {
	if p == nil {
		return nil
	}
	return &remember{AnyInput: p.GetScope() == gatev1.RememberScope_REMEMBER_SCOPE_OPERATION, TTL: p.GetTtl().AsDuration()}
}

func (r *remember) proto() *gatev1.Remember {
	if r == nil {
		return nil
	}
	scope := gatev1.RememberScope_REMEMBER_SCOPE_INPUT
	if r.AnyInput {
		scope = gatev1.RememberScope_REMEMBER_SCOPE_OPERATION
	}
	return &gatev1.Remember{Scope: scope, Ttl: durationpb.New(r.TTL)}
}

// decideDecision takes what a person says. They must have seen this very input,
// must be a person, must not be who asks or whom that acts for, and must be able
// to meet a requirement that nobody else has met. The first denial ends it, and
// so does the approval that meets the last requirement.
func decideDecision(a Approval, id string, cmd decision, now time.Time) (*gatev1.Event, error) {
	if a.State == "" {
		return nil, approvalNotFound(id)
	}
	if before, said := a.said(cmd.Decider, cmd.RequestID); said {
		if before.same(cmd) {
			return nil, nil
		}
		return nil, fault.New(fault.IdempotencyMismatch, "%s decided otherwise under this request_id", cmd.Decider).
			Field("request_id", "belongs to another decision")
	}
	for _, who := range append([]string{cmd.Decider}, cmd.Chain...) {
		switch {
		case who == a.Requester || slices.Contains(a.OnBehalfOf, who):
			return nil, fault.New(fault.SelfApproval, "%s asked, or it was asked on their behalf: somebody else must decide", who)
		case !identity.Human.Is(who):
			return nil, fault.New(fault.NotAPerson, "%s is not a person: approvals are decided by human: subjects, and on behalf of nobody else", who)
		}
	}
	switch {
	case cmd.Confined:
		return nil, fault.New(fault.Confined, "%s was reached from an outside channel, from where nothing is decided", cmd.Decider)
	case cmd.InputDigest != a.InputDigest:
		return nil, digestMismatch("input_digest")
	}
	if err := a.open(id, now); err != nil {
		return nil, err
	}
	if err := a.mayVote(cmd); err != nil {
		return nil, err
	}
	return &gatev1.Event{Actor: cmd.Decider, Event: &gatev1.Event_ApprovalDecided{ApprovalDecided: a.voteEvent(cmd, now)}}, nil
}

// same says whether a decision is the one that was recorded.
func (v vote) same(cmd decision) bool {
	amended := ""
	if cmd.Amendment != nil {
		amended = cmd.Amendment.Digest
	}
	wish := func(r *remember) remember {
		if r == nil {
			return remember{}
		}
		return *r
	}
	return v.Approve == cmd.Approve && v.InputDigest == cmd.InputDigest && v.Amended == amended &&
		v.Note == cmd.Note && wish(v.Remember) == wish(cmd.Remember)
}

// said finds a decision by the decider's own retry key.
func (a Approval) said(decider, id string) (vote, bool) {
	for _, v := range a.Votes {
		if v.Decider == decider && v.DecisionID == id {
			return v, true
		}
	}
	return vote{}, false
}

// maxVotes bounds an approval: each amendment starts the voting anew.
const maxVotes = 100

// open says why an approval takes no decision any more.
func (a Approval) open(id string, now time.Time) error {
	switch {
	case !a.Decided.IsZero():
		by := make([]string, 0, len(a.Votes))
		for _, v := range a.Votes {
			by = append(by, v.Decider)
		}
		if a.ByTimeout {
			by = append(by, "its time")
		}
		return fault.New(fault.ApprovalDecided, "approval %s was decided by %s", id, strings.Join(by, ", ")).With("state", string(a.State))
	case a.State == stateCancelled, a.State == stateSuperseded:
		return ended(a)
	case a.State == stateExpired, a.lapsed(now) && !a.allowsOnTimeout():
		return expired(a)
	case len(a.Votes) >= maxVotes:
		return fault.New(fault.LimitReached, "approval %s was voted on %d times, by amendments that made earlier votes void: at most %d", id, len(a.Votes), maxVotes)
	default:
		return nil
	}
}

// mayVote says why this decision is not taken.
func (a Approval) mayVote(cmd decision) error {
	me := policy.Voter{Subject: cmd.Decider, Scopes: approverScopes(cmd.Scopes)}
	switch {
	case a.Terms.NoteRequired && strings.TrimSpace(cmd.Note) == "":
		return fault.New(fault.NoteRequired, "the rule that asked wants a note").Field("note", "must say why")
	case !cmd.Approve && (cmd.Amendment != nil || cmd.Remember != nil):
		return fault.New(fault.FieldInvalid, "a denial neither amends nor remembers").
			Field("decision", "must be APPROVE with amended_input_json or remember")
	case !cmd.Approve && !a.Terms.Concerns(me):
		return scopeMissing(a.Terms.Required())
	case !cmd.Approve:
		return nil
	}
	voters := a.approvers()
	if cmd.Amendment != nil {
		voters = nil
	}
	if slices.ContainsFunc(voters, func(v policy.Voter) bool { return v.Subject == cmd.Decider }) {
		return fault.New(fault.ApprovalDecided, "%s approved it already; others are needed", cmd.Decider).With("state", string(a.State))
	}
	before := a.Terms.Missing(voters)
	if policy.People(a.Terms.Missing(append(voters, me))) >= policy.People(before) {
		return scopeMissing(before)
	}
	return a.mayRemember(cmd)
}

func (a Approval) mayRemember(cmd decision) error {
	if cmd.Remember == nil {
		return nil
	}
	refuse := func(why string) error {
		return fault.New(fault.FieldInvalid, "this can't be remembered").Field("remember", why)
	}
	switch {
	case a.Session == "":
		return refuse("the request has no session, and a trust is for one session")
	case a.Effect == policy.Admin:
		return refuse("an ADMIN operation is asked for each time")
	case cmd.Amendment != nil || a.AmendedBy != "":
		return refuse("the input was amended: what would be asked for again is not what is approved")
	default:
		return nil
	}
}

// approverScopes are those scopes that can stand in terms.
func approverScopes(all []string) []string {
	var out []string
	for _, s := range all {
		if s == policy.ScopeDecide || strings.HasPrefix(s, policy.ScopeDecide+".") {
			out = append(out, s)
		}
	}
	return out
}

func scopeMissing(open []policy.Approver) error {
	var parts []string
	for _, a := range open {
		part := a.Scope
		if len(a.People) > 0 {
			part += " of " + strings.Join(a.People, ", ")
		}
		parts = append(parts, part)
	}
	return fault.New(fault.ApproverScopeMissing, "this approval is not yours to decide: it still needs %s", strings.Join(parts, " and "))
}

func (a Approval) voteEvent(cmd decision, now time.Time) *gatev1.ApprovalDecided {
	out := &gatev1.ApprovalDecided{
		ApprovalId: a.ID, RequestId: a.RequestID, DecisionId: cmd.RequestID, Note: cmd.Note,
		Scopes: approverScopes(cmd.Scopes), Remember: cmd.Remember.proto(),
		Decision: gatev1.Decision_DECISION_DENY, Outcome: gatev1.ApprovalState_APPROVAL_STATE_DENIED,
		ExpireTime: deadline(a.Expires),
	}
	if !cmd.Approve {
		return out
	}
	out.Decision, out.Outcome = gatev1.Decision_DECISION_APPROVE, gatev1.ApprovalState_APPROVAL_STATE_PENDING
	voters := a.approvers()
	if cmd.Amendment != nil {
		out.AmendedInputJson, out.AmendedInputDigest = &cmd.Amendment.Input, cmd.Amendment.Digest
		voters = nil
	}
	voters = append(voters, policy.Voter{Subject: cmd.Decider, Scopes: out.GetScopes()})
	if len(a.Terms.Missing(voters)) == 0 {
		out.Outcome = gatev1.ApprovalState_APPROVAL_STATE_APPROVED
		// From here on it waits to be used, not for a person.
		out.ExpireTime = deadline(now.Add(a.Terms.TTL))
		out.Trust = a.trust(cmd, now)
	}
	return out
}

// trust is what all who approve asked to remember: the narrowest scope and the
// shortest time that any of them named. Nil where one of them did not.
func (a Approval) trust(cmd decision, now time.Time) *gatev1.TrustGiven {
	wish, by := cmd.Remember, []string{cmd.Decider}
	if wish == nil {
		return nil
	}
	all := *wish
	for _, v := range a.Votes {
		switch {
		case v.Void || !v.Approve:
			continue
		case v.Remember == nil:
			return nil
		}
		all.AnyInput = all.AnyInput && v.Remember.AnyInput
		all.TTL = min(all.TTL, v.Remember.TTL)
		by = append(by, v.Decider)
	}
	slices.Sort(by)
	c := coverage{Subject: a.Requester, Session: a.Session, Chain: chainOf(a.OnBehalfOf), Operation: a.Operation, SpecDigest: a.SpecDigest, InputDigest: a.InputDigest}
	if all.AnyInput {
		c.InputDigest = ""
	}
	return &gatev1.TrustGiven{
		TrustId: c.id(), Subject: c.Subject, Session: c.Session, Operation: c.Operation, SpecDigest: c.SpecDigest,
		InputDigest: c.InputDigest, OnBehalfOf: a.OnBehalfOf, Terms: a.Terms.Proto(), ExpireTime: deadline(now.Add(all.TTL)),
		GivenBy: by, ApprovalId: a.ID, GiveTime: deadline(now),
	}
}

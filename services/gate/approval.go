package gate

import (
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/services/gate/policy"
)

// Approval is the record of asking a person.
//
//	PENDING → APPROVED → REDEEMED
//	   ├→ DENIED   ├→ EXPIRED   ├→ CANCELLED   └→ SUPERSEDED
//	(APPROVED → EXPIRED, CANCELLED, SUPERSEDED too)
//
// It binds the requester, the operation, the digest of its definition and the
// digest of its input: what is redeemed is what was shown. It stays pending
// until the requirements of its terms are met, each by another person; one
// denial ends it.
type Approval struct {
	ID           string
	State        approvalState
	RequestID    string
	Operation    string
	Effect       policy.Effect
	SpecDigest   string
	Input        *string `json:",omitempty"` // masked, or as it was amended
	InputDigest  string
	Schema       string `json:",omitempty"`
	Requester    string
	Session      string   `json:",omitempty"`
	OnBehalfOf   []string `json:",omitempty"`
	Confined     bool     `json:",omitempty"`
	Conversation string   `json:",omitempty"`
	Target       string   `json:",omitempty"`
	Rules        []string `json:",omitempty"`
	Why          []string `json:",omitempty"`
	Terms        policy.Terms
	Flags        []flag `json:",omitempty"`
	Revision     uint64
	Created      time.Time
	// Expires is when it lapses, zero while it waits for an answer however long.
	Expires time.Time `json:",omitzero"`
	// Refusals is how often in a row the same request was denied before.
	Refusals int `json:",omitempty"`

	Votes     []vote    `json:",omitempty"`
	Decided   time.Time `json:",omitzero"`
	ByTimeout bool      `json:",omitempty"`
	TrustID   string    `json:",omitempty"`
	// AmendedBy amended the input; Asked is what it was before.
	AmendedBy string      `json:",omitempty"`
	Asked     *askedInput `json:",omitempty"`

	SupersededBy string `json:",omitempty"`
	// Redeemer is the request that used it.
	Redeemer string    `json:",omitempty"`
	Redeemed time.Time `json:",omitzero"`
	// First is the sequence of its first event, by which lists are ordered.
	First uint64
}

type approvalState string

const (
	statePending    approvalState = "PENDING"
	stateApproved   approvalState = "APPROVED"
	stateRedeemed   approvalState = "REDEEMED"
	stateDenied     approvalState = "DENIED"
	stateExpired    approvalState = "EXPIRED"
	stateCancelled  approvalState = "CANCELLED"
	stateSuperseded approvalState = "SUPERSEDED"
)

// vote is what one person said. Void votes were for an input that was amended
// since.
type vote struct {
	Decider     string
	DecisionID  string
	Approve     bool
	InputDigest string    // that was shown
	Amended     string    `json:",omitempty"` // digest of the input in its place
	Void        bool      `json:",omitempty"`
	Note        string    `json:",omitempty"`
	Scopes      []string  `json:",omitempty"`
	Remember    *remember `json:",omitempty"`
	At          time.Time
}

// askedInput is the input as it was asked for.
type askedInput struct {
	Input  *string `json:",omitempty"`
	Digest string
}

// live says that the approval can still be decided or redeemed, but for time.
func (a Approval) live() bool { return a.State == statePending || a.State == stateApproved }

// lapsed says that its time is over, whether or not that is recorded yet. An
// approval expires at its deadline, not when the sweeper gets to it.
func (a Approval) lapsed(now time.Time) bool {
	return a.live() && !a.Expires.IsZero() && !now.Before(a.Expires)
}

// allowsOnTimeout says that its deadline will approve it. Until that is recorded
// people can still decide, or its requester cancel.
func (a Approval) allowsOnTimeout() bool {
	return a.State == statePending && a.Terms.OnTimeout == policy.TimeoutAllow
}

// askedDigest is the digest of what the requester asked for.
func (a Approval) askedDigest() string {
	if a.Asked != nil {
		return a.Asked.Digest
	}
	return a.InputDigest
}

// approvers are the people whose approval counts.
func (a Approval) approvers() []policy.Voter {
	var voters []policy.Voter
	for _, v := range a.Votes {
		if v.Approve && !v.Void {
			voters = append(voters, policy.Voter{Subject: v.Decider, Scopes: v.Scopes})
		}
	}
	return voters
}

// request is the command that asks a person.
type request struct {
	ApprovalID   string
	RequestID    string
	Requester    string
	Session      string
	OnBehalfOf   []string
	Confined     bool
	Operation    string
	Effect       policy.Effect
	SpecDigest   string
	Input        *string
	InputDigest  string
	Schema       string
	Conversation string
	Target       string
	Asked        []policy.Asking
	Terms        policy.Terms // with nothing left open
	Flags        []flag
	Revision     uint64
	Refusals     int
}

// expires is when it lapses if nobody answers, zero for never.
func (r request) expires(now time.Time) time.Time {
	if r.Terms.OnTimeout == policy.TimeoutWait {
		return time.Time{}
	}
	return now.Add(r.Terms.TTL)
}

// errTaken says that an id belongs to an approval that is over; the request
// that recurs needs a new one. errOtherTerms says that it is pending, but on
// terms that do not hold any more. Neither ever leaves the gate.
var (
	errTaken      = errors.New("the approval is over")
	errOtherTerms = errors.New("the approval is on other terms")
)

// decideRequest creates an approval, or finds it: while it is pending, and for
// the request that it was made for, whatever became of it.
func decideRequest(a Approval, cmd request, now time.Time) (*gatev1.Event, error) {
	switch {
	case a.State == "":
		return &gatev1.Event{Actor: cmd.Requester, Event: &gatev1.Event_ApprovalRequested{
			ApprovalRequested: cmd.event(now),
		}}, nil
	case a.State == stateSuperseded:
		return nil, errTaken
	case cmd.Revision < a.Revision:
		return nil, older(a)
	case !a.lapsed(now) && (a.State == statePending || a.State == stateApproved && a.RequestID == cmd.RequestID) && !a.satisfies(cmd.Terms):
		return nil, errOtherTerms
	case a.State == statePending && !a.lapsed(now), a.RequestID == cmd.RequestID:
		return nil, nil
	default:
		return nil, errTaken
	}
}

// older says that this replica decides by policies that are older than those the
// approval was asked under, so that it can't vouch for it.
func older(a Approval) error {
	return fault.New(fault.PolicyUnreadable, "this replica has not seen revision %d of the policies yet", a.Revision).Retry(time.Second)
}

func (r request) event(now time.Time) *gatev1.ApprovalRequested {
	out := &gatev1.ApprovalRequested{
		ApprovalId:           r.ApprovalID,
		RequestId:            r.RequestID,
		Operation:            r.Operation,
		Effect:               r.Effect.Proto(),
		SpecDigest:           r.SpecDigest,
		InputJson:            r.Input,
		InputDigest:          r.InputDigest,
		InputSchema:          r.Schema,
		Requester:            r.Requester,
		Session:              r.Session,
		OnBehalfOf:           r.OnBehalfOf,
		Confined:             r.Confined,
		ConversationId:       r.Conversation,
		TargetConversationId: r.Target,
		Terms:                r.Terms.Proto(),
		ExpireTime:           deadline(r.expires(now)),
		Refusals:             int32(r.Refusals),
		PolicyRevision:       r.Revision,
	}
	for _, a := range r.Asked {
		out.Rules = append(out.Rules, a.Rule)
		if a.Why != "" {
			out.Why = append(out.Why, a.Why)
		}
	}
	for _, f := range r.Flags {
		out.Flags = append(out.Flags, f.proto())
	}
	return out
}

// deadline writes a time that may be none.
func deadline(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// redemption is the command that uses an approval.
type redemption struct {
	RequestID   string
	Requester   string
	Session     string
	OnBehalfOf  []string
	Operation   string
	SpecDigest  string
	InputDigest string
	// Now is what the policies say of the request at this moment, on terms with
	// nothing left open where they ask.
	Now policy.Answer
}

// decideRedemption uses an approved approval once. Everything that the
// approver relied on is compared again, at this moment.
func decideRedemption(a Approval, id string, cmd redemption, now time.Time) (*gatev1.Event, error) {
	switch {
	case a.State == "" || a.Requester != cmd.Requester || a.Session != cmd.Session || !slices.Equal(a.OnBehalfOf, cmd.OnBehalfOf):
		return nil, approvalNotFound(id)
	case a.Operation != cmd.Operation:
		return nil, digestMismatch("operation")
	case a.SpecDigest != cmd.SpecDigest:
		return nil, digestMismatch("spec_digest")
	case a.askedDigest() != cmd.InputDigest:
		return nil, digestMismatch("input_digest")
	case a.State == stateRedeemed && a.Redeemer == cmd.RequestID:
		return nil, nil
	case a.State == statePending && (!a.lapsed(now) || a.allowsOnTimeout()):
		return nil, fault.New(fault.ApprovalPending, "approval %s is not decided yet", id)
	case a.lapsed(now):
		return nil, expired(a)
	case a.State != stateApproved:
		return nil, ended(a)
	case cmd.Now.Revision < a.Revision:
		return nil, older(a)
	case cmd.Now.Verdict == gatev1.Verdict_VERDICT_DENY:
		return nil, refused(cmd.Now, a.Operation)
	case cmd.Now.Verdict == gatev1.Verdict_VERDICT_ASK && !a.satisfies(cmd.Now.Terms):
		return nil, errOtherTerms
	}
	return &gatev1.Event{Actor: cmd.Requester, Event: &gatev1.Event_ApprovalRedeemed{
		ApprovalRedeemed: &gatev1.ApprovalRedeemed{ApprovalId: a.ID, RequestId: cmd.RequestID},
	}}, nil
}

// satisfies says whether it is on these terms, or those who approved are enough
// for them. Where the time approved it, only the same terms will do.
func (a Approval) satisfies(t policy.Terms) bool {
	noted := !t.NoteRequired || !slices.ContainsFunc(a.Votes, func(v vote) bool { return !v.Void && strings.TrimSpace(v.Note) == "" })
	return a.Terms.Key() == t.Key() || !a.ByTimeout && noted && len(t.Missing(a.approvers())) == 0
}

// refused turns a denial into an error, for calls that have no verdict.
func refused(a policy.Answer, operation string) error {
	if a.Reason == policy.ReasonNotGranted {
		return fault.New(fault.NotGranted, "there is no grant for %s any more", operation)
	}
	refusal := fault.New(fault.PolicyDenied, "%s is denied: %s", operation, a.Reason).With("verdict_reason", a.Reason)
	if a.Rule != "" {
		refusal = refusal.With("rule", a.Rule)
	}
	return refusal
}

// decideSupersede ends an approval that is not on the terms that hold now; `by` is
// asked for in its place. Whoever approved it meanwhile may be enough for them.
func decideSupersede(a Approval, terms policy.Terms, by string) (*gatev1.Event, error) {
	if !a.live() || a.satisfies(terms) {
		return nil, nil
	}
	return &gatev1.Event{Actor: actorGate, Event: &gatev1.Event_ApprovalSuperseded{
		ApprovalSuperseded: &gatev1.ApprovalSuperseded{ApprovalId: a.ID, RequestId: a.RequestID, SupersededBy: by},
	}}, nil
}

// decideCancel lets the requester take its request back, until it is used.
func decideCancel(a Approval, id, actor string, now time.Time) (*gatev1.Event, error) {
	switch {
	case a.State == "" || a.Requester != actor:
		return nil, approvalNotFound(id)
	case a.State == stateCancelled:
		return nil, nil
	case a.lapsed(now) && !a.allowsOnTimeout():
		return nil, expired(a)
	case !a.live():
		return nil, ended(a)
	}
	return &gatev1.Event{Actor: actor, Event: &gatev1.Event_ApprovalCancelled{
		ApprovalCancelled: &gatev1.ApprovalCancelled{ApprovalId: a.ID, RequestId: a.RequestID},
	}}, nil
}

// decideExpiry records that the time is over: it expires, or, where its terms
// say so and nobody answered, it counts as approved. Two sweepers can't both.
func decideExpiry(a Approval, now time.Time) (*gatev1.Event, error) {
	switch {
	case !a.lapsed(now):
		return nil, nil
	case a.allowsOnTimeout():
		return &gatev1.Event{Actor: actorGate, Event: &gatev1.Event_ApprovalTimedOut{
			ApprovalTimedOut: &gatev1.ApprovalTimedOut{
				ApprovalId: a.ID, RequestId: a.RequestID, ExpireTime: timestamppb.New(now.Add(a.Terms.TTL)),
			},
		}}, nil
	}
	return &gatev1.Event{Actor: actorGate, Event: &gatev1.Event_ApprovalExpired{
		ApprovalExpired: &gatev1.ApprovalExpired{ApprovalId: a.ID, RequestId: a.RequestID},
	}}, nil
}

// actorGate is who acts when a deadline passes.
const actorGate = "service:gate"

func evolveApproval(a Approval, e aggregate.Recorded[*gatev1.Event]) Approval {
	switch event := e.Event.GetEvent().(type) {
	case *gatev1.Event_ApprovalRequested:
		return requested(event.ApprovalRequested, e)
	case *gatev1.Event_ApprovalDecided:
		return voted(a, event.ApprovalDecided, e)
	case *gatev1.Event_ApprovalTimedOut:
		a.State, a.ByTimeout, a.Decided = stateApproved, true, e.Time
		a.Expires = timeOf(event.ApprovalTimedOut.GetExpireTime())
	case *gatev1.Event_ApprovalRedeemed:
		a.State, a.Redeemer, a.Redeemed = stateRedeemed, event.ApprovalRedeemed.GetRequestId(), e.Time
	case *gatev1.Event_ApprovalExpired:
		a.State = stateExpired
	case *gatev1.Event_ApprovalCancelled:
		a.State = stateCancelled
	case *gatev1.Event_ApprovalSuperseded:
		a.State, a.SupersededBy = stateSuperseded, event.ApprovalSuperseded.GetSupersededBy()
	}
	return a
}

func requested(asked *gatev1.ApprovalRequested, e aggregate.Recorded[*gatev1.Event]) Approval {
	a := Approval{
		ID:           asked.GetApprovalId(),
		State:        statePending,
		RequestID:    asked.GetRequestId(),
		Operation:    asked.GetOperation(),
		Effect:       policy.EffectFrom(asked.GetEffect()),
		SpecDigest:   asked.GetSpecDigest(),
		Input:        asked.InputJson,
		InputDigest:  asked.GetInputDigest(),
		Schema:       asked.GetInputSchema(),
		Requester:    asked.GetRequester(),
		Session:      asked.GetSession(),
		OnBehalfOf:   asked.GetOnBehalfOf(),
		Confined:     asked.GetConfined(),
		Conversation: asked.GetConversationId(),
		Target:       asked.GetTargetConversationId(),
		Rules:        asked.GetRules(),
		Why:          asked.GetWhy(),
		Terms:        policy.TermsFrom(asked.GetTerms()),
		Revision:     asked.GetPolicyRevision(),
		Created:      e.Time,
		Expires:      timeOf(asked.GetExpireTime()),
		Refusals:     int(asked.GetRefusals()),
		First:        e.Sequence,
	}
	for _, f := range asked.GetFlags() {
		a.Flags = append(a.Flags, flagFrom(f))
	}
	return a
}

// voted follows what a person said. States are shared, so slices are replaced.
func voted(a Approval, decided *gatev1.ApprovalDecided, e aggregate.Recorded[*gatev1.Event]) Approval {
	a.Votes = slices.Clone(a.Votes)
	shown := a.InputDigest
	if decided.AmendedInputJson != nil {
		for i := range a.Votes {
			a.Votes[i].Void = true
		}
		if a.Asked == nil {
			a.Asked = &askedInput{Input: a.Input, Digest: a.InputDigest}
		}
		a.AmendedBy = e.Event.GetActor()
		a.Input, a.InputDigest = decided.AmendedInputJson, decided.GetAmendedInputDigest()
		a.Flags = withFlag(a.Flags, flag{Kind: gatev1.FlagKind_FLAG_KIND_AMENDED, Detail: "by " + a.AmendedBy})
	}
	a.Votes = append(a.Votes, vote{
		Decider: e.Event.GetActor(), DecisionID: decided.GetDecisionId(),
		Approve: decided.GetDecision() == gatev1.Decision_DECISION_APPROVE, InputDigest: shown, Amended: decided.GetAmendedInputDigest(),
		Note: decided.GetNote(), Scopes: decided.GetScopes(), Remember: rememberFrom(decided.GetRemember()), At: e.Time,
	})
	a.State = stateFromProto(decided.GetOutcome())
	if a.State != statePending {
		a.Decided = e.Time
	}
	a.Expires = timeOf(decided.GetExpireTime())
	a.TrustID = decided.GetTrust().GetTrustId()
	return a
}

func approvalNotFound(id string) error {
	return fault.New(fault.ApprovalNotFound, "there is no approval %s", id)
}

func expired(a Approval) error {
	return fault.New(fault.ApprovalExpired, "approval %s expired at %s", a.ID, a.Expires.Format(time.RFC3339))
}

// ended says how an approval ended that is no longer live.
func ended(a Approval) error {
	reason := map[approvalState]fault.Reason{
		stateDenied:     fault.ApprovalDenied,
		stateRedeemed:   fault.ApprovalRedeemed,
		stateExpired:    fault.ApprovalExpired,
		stateCancelled:  fault.ApprovalCancelled,
		stateSuperseded: fault.ApprovalSuperseded,
	}[a.State]
	return fault.New(reason, "approval %s is %s", a.ID, a.State).With("note", a.note())
}

// note is what those who decided said.
func (a Approval) note() string {
	var notes []string
	for _, v := range a.Votes {
		if v.Note != "" && !v.Void {
			notes = append(notes, v.Note)
		}
	}
	return strings.Join(notes, "; ")
}

func digestMismatch(field string) error {
	return fault.New(fault.DigestMismatch, "%s is not the one that the approval is for", field).
		Field(field, "must be what the approval shows")
}

package gate

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/hot"
)

// Approval is the record of asking a person.
//
//	PENDING → APPROVED → REDEEMED
//	   ├→ DENIED   ├→ EXPIRED   └→ CANCELLED      (APPROVED → EXPIRED, CANCELLED too)
//
// It binds the requester, the operation, the digest of its definition and the
// digest of its input: what is redeemed is what was shown.
type Approval struct {
	ID           string
	State        approvalState
	RequestID    string
	Operation    string
	Effect       effect
	SpecDigest   string
	Input        *string `json:",omitempty"`
	InputDigest  string
	Requester    string
	Session      string   `json:",omitempty"`
	OnBehalfOf   []string `json:",omitempty"`
	Conversation string   `json:",omitempty"`
	Rule         string
	Created      time.Time
	Expires      time.Time
	// Refusals is how often in a row the same request was denied before.
	Refusals int `json:",omitempty"`

	Decider    string    `json:",omitempty"`
	DecisionID string    `json:",omitempty"`
	Note       string    `json:",omitempty"`
	Decided    time.Time `json:",omitzero"`
	// Redeemer is the request that used it.
	Redeemer string    `json:",omitempty"`
	Redeemed time.Time `json:",omitzero"`
	// First is the sequence of its first event, by which lists are ordered.
	First uint64
}

type approvalState string

const (
	statePending   approvalState = "PENDING"
	stateApproved  approvalState = "APPROVED"
	stateRedeemed  approvalState = "REDEEMED"
	stateDenied    approvalState = "DENIED"
	stateExpired   approvalState = "EXPIRED"
	stateCancelled approvalState = "CANCELLED"
)

// live says that the approval can still be decided or redeemed, but for time.
func (a Approval) live() bool { return a.State == statePending || a.State == stateApproved }

// lapsed says that its time is over, whether or not that is recorded yet. An
// approval expires at its deadline, not when the sweeper gets to it.
func (a Approval) lapsed(now time.Time) bool { return a.live() && !now.Before(a.Expires) }

// request is the command that asks a person.
type request struct {
	ApprovalID   string
	RequestID    string
	Requester    string
	Session      string
	OnBehalfOf   []string
	Operation    string
	Effect       effect
	SpecDigest   string
	Input        *string
	InputDigest  string
	Conversation string
	Rule         string
	Refusals     int
	TTL          time.Duration
}

// errTaken says that an id belongs to an approval that is over; the request
// that recurs needs a new one. It never leaves the gate.
var errTaken = fault.New(fault.StateConflict, "the approval is over")

// decideRequest creates an approval, or finds it: while it is pending, and for
// the request that it was made for, whatever became of it.
func decideRequest(a Approval, cmd request, now time.Time) (*gatev1.Event, error) {
	switch {
	case a.State == "":
		return &gatev1.Event{Actor: cmd.Requester, Event: &gatev1.Event_ApprovalRequested{
			ApprovalRequested: &gatev1.ApprovalRequested{
				ApprovalId:     cmd.ApprovalID,
				RequestId:      cmd.RequestID,
				Operation:      cmd.Operation,
				Effect:         effectToProto[cmd.Effect],
				SpecDigest:     cmd.SpecDigest,
				InputJson:      cmd.Input,
				InputDigest:    cmd.InputDigest,
				Requester:      cmd.Requester,
				Session:        cmd.Session,
				OnBehalfOf:     cmd.OnBehalfOf,
				ConversationId: cmd.Conversation,
				Rule:           cmd.Rule,
				ExpireTime:     timestamppb.New(now.Add(cmd.TTL)),
				Refusals:       int32(cmd.Refusals),
			},
		}}, nil
	case a.State == statePending && !a.lapsed(now), a.RequestID == cmd.RequestID:
		return nil, nil
	default:
		return nil, errTaken
	}
}

// decision is the command of a person who was asked.
type decision struct {
	RequestID   string
	Decider     string
	Person      bool
	Approve     bool
	InputDigest string
	Note        string
}

// decideDecision lets one decision win. The decider must have seen this very
// input, must be a person, and must not be who asks or whom that acts for.
func decideDecision(a Approval, id string, cmd decision, now time.Time) (*gatev1.Event, error) {
	switch {
	case a.State == "":
		return nil, approvalNotFound(id)
	case cmd.Decider == a.Requester || slices.Contains(a.OnBehalfOf, cmd.Decider):
		return nil, fault.New(fault.SelfApproval, "%s asked, or it was asked on their behalf: somebody else must decide", cmd.Decider)
	case !cmd.Person:
		return nil, fault.New(fault.NotAPerson, "%s is not a person: approvals are decided by human: subjects", cmd.Decider)
	case cmd.InputDigest != a.InputDigest:
		return nil, digestMismatch("input_digest")
	case a.Decider != "":
		verdict := a.State != stateDenied
		if a.Decider == cmd.Decider && a.DecisionID == cmd.RequestID && verdict == cmd.Approve {
			return nil, nil
		}
		return nil, fault.New(fault.ApprovalDecided, "approval %s was decided by %s", id, a.Decider).With("state", string(a.State))
	case a.State == stateCancelled:
		return nil, ended(a)
	case a.State == stateExpired, a.lapsed(now):
		return nil, expired(a)
	}
	verdict := gatev1.Decision_DECISION_DENY
	if cmd.Approve {
		verdict = gatev1.Decision_DECISION_APPROVE
	}
	return &gatev1.Event{Actor: cmd.Decider, Event: &gatev1.Event_ApprovalDecided{
		ApprovalDecided: &gatev1.ApprovalDecided{
			ApprovalId: a.ID, RequestId: a.RequestID, Decision: verdict, Note: cmd.Note, DecisionId: cmd.RequestID,
		},
	}}, nil
}

// redemption is the command that uses an approval.
type redemption struct {
	RequestID   string
	Requester   string
	Operation   string
	SpecDigest  string
	InputDigest string
	// Granted says that the requester holds a grant for the operation now.
	Granted bool
}

// decideRedemption uses an approved approval once. Everything that the
// approver relied on is compared again, at this moment.
func decideRedemption(a Approval, id string, cmd redemption, now time.Time) (*gatev1.Event, error) {
	switch {
	case a.State == "" || a.Requester != cmd.Requester:
		return nil, approvalNotFound(id)
	case a.Operation != cmd.Operation:
		return nil, digestMismatch("operation")
	case a.SpecDigest != cmd.SpecDigest:
		return nil, digestMismatch("spec_digest")
	case a.InputDigest != cmd.InputDigest:
		return nil, digestMismatch("input_digest")
	case a.State == stateRedeemed && a.Redeemer == cmd.RequestID:
		return nil, nil
	case a.lapsed(now):
		return nil, expired(a)
	case a.State == statePending:
		return nil, fault.New(fault.ApprovalPending, "nobody has decided approval %s yet", id)
	case a.State != stateApproved:
		return nil, ended(a)
	case !cmd.Granted:
		return nil, fault.New(fault.NotGranted, "%s holds no grant for %s any more", a.Requester, a.Operation)
	}
	return &gatev1.Event{Actor: cmd.Requester, Event: &gatev1.Event_ApprovalRedeemed{
		ApprovalRedeemed: &gatev1.ApprovalRedeemed{ApprovalId: a.ID, RequestId: cmd.RequestID},
	}}, nil
}

// decideCancel lets the requester take its request back, until it is used.
func decideCancel(a Approval, id, actor string, now time.Time) (*gatev1.Event, error) {
	switch {
	case a.State == "" || a.Requester != actor:
		return nil, approvalNotFound(id)
	case a.State == stateCancelled:
		return nil, nil
	case a.lapsed(now):
		return nil, expired(a)
	case !a.live():
		return nil, ended(a)
	}
	return &gatev1.Event{Actor: actor, Event: &gatev1.Event_ApprovalCancelled{
		ApprovalCancelled: &gatev1.ApprovalCancelled{ApprovalId: a.ID, RequestId: a.RequestID},
	}}, nil
}

// decideExpiry records that the time is over. Two sweepers can't both.
func decideExpiry(a Approval, now time.Time) (*gatev1.Event, error) {
	if !a.lapsed(now) {
		return nil, nil
	}
	return &gatev1.Event{Actor: "service:gate", Event: &gatev1.Event_ApprovalExpired{
		ApprovalExpired: &gatev1.ApprovalExpired{ApprovalId: a.ID, RequestId: a.RequestID},
	}}, nil
}

func evolveApproval(a Approval, e aggregate.Recorded[*gatev1.Event]) Approval {
	switch event := e.Event.GetEvent().(type) {
	case *gatev1.Event_ApprovalRequested:
		asked := event.ApprovalRequested
		return Approval{
			ID:           asked.GetApprovalId(),
			State:        statePending,
			RequestID:    asked.GetRequestId(),
			Operation:    asked.GetOperation(),
			Effect:       effectFromProto(asked.GetEffect()),
			SpecDigest:   asked.GetSpecDigest(),
			Input:        asked.InputJson,
			InputDigest:  asked.GetInputDigest(),
			Requester:    asked.GetRequester(),
			Session:      asked.GetSession(),
			OnBehalfOf:   asked.GetOnBehalfOf(),
			Conversation: asked.GetConversationId(),
			Rule:         asked.GetRule(),
			Created:      e.Time,
			Expires:      asked.GetExpireTime().AsTime(),
			Refusals:     int(asked.GetRefusals()),
			First:        e.Sequence,
		}
	case *gatev1.Event_ApprovalDecided:
		decided := event.ApprovalDecided
		a.State = stateDenied
		if decided.GetDecision() == gatev1.Decision_DECISION_APPROVE {
			a.State = stateApproved
		}
		a.Decider, a.DecisionID, a.Note, a.Decided = e.Event.GetActor(), decided.GetDecisionId(), decided.GetNote(), e.Time
	case *gatev1.Event_ApprovalRedeemed:
		a.State, a.Redeemer, a.Redeemed = stateRedeemed, event.ApprovalRedeemed.GetRequestId(), e.Time
	case *gatev1.Event_ApprovalExpired:
		a.State = stateExpired
	case *gatev1.Event_ApprovalCancelled:
		a.State = stateCancelled
	}
	return a
}

const approvalKindName = "approval"

func approvalKind() aggregate.Kind[Approval, *gatev1.Event] {
	return aggregate.Kind[Approval, *gatev1.Event]{
		Name:   approvalKindName,
		Evolve: evolveApproval,
		Codec: aggregate.RootCodec[Approval, *gatev1.Event]{Bytes: func(a Approval) int {
			size := 1024 + len(a.Note)
			if a.Input != nil {
				size += len(*a.Input)
			}
			return size
		}},
		Lists: func(a Approval, _ uint64) []hot.Entry {
			return []hot.Entry{
				{Set: approvalList("", ""), Score: a.First},
				{Set: approvalList("", a.State), Score: a.First},
				{Set: approvalList(a.Requester, ""), Score: a.First},
				{Set: approvalList(a.Requester, a.State), Score: a.First},
			}
		},
		Due: func(a Approval) time.Time {
			if !a.live() {
				return time.Time{}
			}
			return a.Expires
		},
	}
}

// approvalList names the list of one requester's approvals in one state; empty
// stands for all of either.
func approvalList(requester string, state approvalState) string {
	return "approvals/" + requester + "/" + string(state)
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
		stateDenied:    fault.ApprovalDenied,
		stateRedeemed:  fault.ApprovalRedeemed,
		stateExpired:   fault.ApprovalExpired,
		stateCancelled: fault.ApprovalCancelled,
	}[a.State]
	return fault.New(reason, "approval %s is %s", a.ID, a.State).With("note", a.Note)
}

func digestMismatch(field string) error {
	return fault.New(fault.DigestMismatch, "%s is not the one that the approval is for", field).
		Field(field, "must be what the approval shows")
}

var effectToProto = map[effect]registryv1.Effect{
	effectRead:  registryv1.Effect_EFFECT_READ,
	effectWrite: registryv1.Effect_EFFECT_WRITE,
	effectAdmin: registryv1.Effect_EFFECT_ADMIN,
}

// effectFromProto counts what it does not know as WRITE.
func effectFromProto(e registryv1.Effect) effect {
	for own, proto := range effectToProto {
		if proto == e {
			return own
		}
	}
	return effectWrite
}

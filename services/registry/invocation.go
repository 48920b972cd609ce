package registry

import (
	"slices"
	"time"

	registryv1 "weir/gen/registry/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/hot"
)

// Invocation is one run of an operation, from asking to its outcome.
//
//	REQUESTED → RUNNING → SUCCEEDED | FAILED | OUTCOME_UNKNOWN
//	   └→ AWAITING_APPROVAL → RUNNING | FAILED | DENIED | EXPIRED | CANCELLED
//
// REQUESTED may end like AWAITING_APPROVAL does. It can await one approval after
// another, where somebody else used up the first. RUNNING is journaled before a
// mutation runs, so a run that died is known to have begun.
type Invocation struct {
	ID           string
	State        state
	Operation    string
	SpecDigest   string
	Input        *string `json:",omitempty"`
	InputDigest  string
	Conversation string `json:",omitempty"` // where the call and its result appear
	RunningIn    string `json:",omitempty"` // where the caller said that it is
	Caller       caller
	ApprovalID   string `json:",omitempty"`
	RunID        string `json:",omitempty"`
	Repeatable   bool   `json:",omitempty"`
	// Amended is what runs instead of Input, where an approver amended it.
	Amended       *string  `json:",omitempty"`
	AmendedDigest string   `json:",omitempty"`
	Output        *string  `json:",omitempty"`
	Failure       *failure `json:",omitempty"`
	Created       time.Time
	Updated       time.Time
	// First is the sequence of its first event, by which lists are ordered.
	First uint64
}

// caller is who asked, as the credential said then.
type caller struct {
	Subject    string
	Session    string   `json:",omitempty"`
	Confined   bool     `json:",omitempty"`
	OnBehalfOf []string `json:",omitempty"`
}

// failure is why an invocation that ended did not succeed.
type failure struct {
	Reason  string
	Message string
	Note    string `json:",omitempty"`
}

type state string

const (
	stateRequested state = "REQUESTED"
	stateAwaiting  state = "AWAITING_APPROVAL"
	stateRunning   state = "RUNNING"
	stateSucceeded state = "SUCCEEDED"
	stateFailed    state = "FAILED"
	stateUnknown   state = "OUTCOME_UNKNOWN"
	stateDenied    state = "DENIED"
	stateExpired   state = "EXPIRED"
	stateCancelled state = "CANCELLED"
)

// transitions lists, for each state, those that may follow. What is not here is
// refused; a state without a row is final.
var transitions = map[state][]state{
	"":             {stateRequested},
	stateRequested: {stateAwaiting, stateRunning, stateFailed, stateDenied, stateExpired, stateCancelled},
	stateAwaiting:  {stateAwaiting, stateRunning, stateFailed, stateDenied, stateExpired, stateCancelled},
	stateRunning:   {stateSucceeded, stateFailed, stateUnknown},
}

const (
	// driveAfter is how long an invocation may stand still in REQUESTED, or in
	// RUNNING where running again is harmless, until somebody else drives it:
	// whoever did so has died.
	driveAfter = 3 * time.Second
	// runLimit bounds one run, and lostAfter is when a run that cannot be
	// repeated counts as lost.
	runLimit  = 30 * time.Second
	lostAfter = runLimit + 5*time.Second
	// pollAfter is how often a waiting approval is asked for, beside the gate's
	// events.
	pollAfter = time.Minute
)

// runs is the input that runs.
func (i Invocation) runs() *string {
	if i.Amended != nil {
		return i.Amended
	}
	return i.Input
}

// due is when the invocation wants to be driven.
func (i Invocation) due() time.Time {
	switch {
	case i.State == stateRequested, i.State == stateRunning && i.Repeatable:
		return i.Updated.Add(driveAfter)
	case i.State == stateAwaiting:
		return i.Updated.Add(pollAfter)
	case i.State == stateRunning:
		return i.Updated.Add(lostAfter)
	default:
		return time.Time{}
	}
}

// request is the command that asks for an operation.
type request struct {
	ID           string
	Operation    string
	SpecDigest   string
	Input        *string
	InputDigest  string
	Conversation string
	RunningIn    string
	Caller       caller
}

// decideRequest records an invocation, or finds the one of the same id.
func decideRequest(i Invocation, cmd request) (*registryv1.Event, error) {
	if i.State != "" {
		if i.Operation == cmd.Operation && i.InputDigest == cmd.InputDigest && (i.Input == nil) == (cmd.Input == nil) &&
			i.Conversation == cmd.Conversation && i.RunningIn == cmd.RunningIn && i.Caller.Subject == cmd.Caller.Subject {
			return nil, nil
		}
		return nil, fault.New(fault.IdempotencyMismatch, "invocation %s was asked with another operation, input or conversation", cmd.ID).
			Field("invocation_id", "belongs to another request")
	}
	return &registryv1.Event{Actor: cmd.Caller.Subject, Event: &registryv1.Event_InvocationRequested{
		InvocationRequested: &registryv1.InvocationRequested{
			InvocationId:   cmd.ID,
			Operation:      cmd.Operation,
			SpecDigest:     cmd.SpecDigest,
			InputJson:      cmd.Input,
			InputDigest:    cmd.InputDigest,
			ConversationId: cmd.Conversation,
			RunningIn:      cmd.RunningIn,
			Caller:         cmd.Caller.Subject,
			Session:        cmd.Caller.Session,
			Confined:       cmd.Caller.Confined,
			OnBehalfOf:     cmd.Caller.OnBehalfOf,
		},
	}}, nil
}

// step is a move to another state: what the gate, the target or the clock said.
type step struct {
	To         state
	ApprovalID string
	RunID      string
	Repeatable bool
	Amended    *string
	Digest     string // of Amended
	Output     *string
	Failure    failure
}

// decideStep makes a move, from the state and run that the one who asks for it
// acted on. When the invocation has moved on meanwhile there is nothing to do:
// somebody else drove it.
func decideStep(i Invocation, from Invocation, cmd step) (*registryv1.Event, error) {
	if i.State != from.State || i.ApprovalID != from.ApprovalID || i.RunID != from.RunID {
		return nil, nil
	}
	if !slices.Contains(transitions[i.State], cmd.To) {
		return nil, fault.New(fault.Bug, "an invocation cannot go from %s to %s", i.State, cmd.To)
	}
	event := &registryv1.Event{Actor: actorRegistry}
	failure := &registryv1.InvocationError{Reason: cmd.Failure.Reason, Message: cmd.Failure.Message, Note: cmd.Failure.Note}
	switch cmd.To {
	case stateAwaiting:
		event.Event = &registryv1.Event_InvocationAwaitingApproval{InvocationAwaitingApproval: &registryv1.InvocationAwaitingApproval{
			InvocationId: i.ID, ApprovalId: cmd.ApprovalID, ConversationId: i.Conversation,
		}}
	case stateRunning:
		event.Event = &registryv1.Event_InvocationStarted{InvocationStarted: &registryv1.InvocationStarted{
			InvocationId: i.ID, ApprovalId: cmd.ApprovalID, RunId: cmd.RunID, Repeatable: cmd.Repeatable,
			AmendedInputJson: cmd.Amended, AmendedInputDigest: cmd.Digest,
		}}
	case stateSucceeded:
		event.Event = &registryv1.Event_InvocationSucceeded{InvocationSucceeded: &registryv1.InvocationSucceeded{
			InvocationId: i.ID, OutputJson: cmd.Output, ConversationId: i.Conversation,
		}}
	case stateFailed:
		event.Event = &registryv1.Event_InvocationFailed{InvocationFailed: &registryv1.InvocationFailed{
			InvocationId: i.ID, Error: failure, ConversationId: i.Conversation,
		}}
	case stateUnknown:
		event.Event = &registryv1.Event_InvocationOutcomeUnknown{InvocationOutcomeUnknown: &registryv1.InvocationOutcomeUnknown{
			InvocationId: i.ID, ConversationId: i.Conversation,
		}}
	default:
		event.Event = &registryv1.Event_InvocationRefused{InvocationRefused: &registryv1.InvocationRefused{
			InvocationId: i.ID, State: stateToProto[cmd.To], Error: failure, ConversationId: i.Conversation,
		}}
	}
	return event, nil
}

const actorRegistry = "service:registry"

func evolveInvocation(i Invocation, e aggregate.Recorded[*registryv1.Event]) Invocation {
	switch event := e.Event.GetEvent().(type) {
	case *registryv1.Event_InvocationRequested:
		asked := event.InvocationRequested
		i = Invocation{
			ID:           asked.GetInvocationId(),
			State:        stateRequested,
			Operation:    asked.GetOperation(),
			SpecDigest:   asked.GetSpecDigest(),
			Input:        asked.InputJson,
			InputDigest:  asked.GetInputDigest(),
			Conversation: asked.GetConversationId(),
			RunningIn:    asked.GetRunningIn(),
			Caller: caller{
				Subject: asked.GetCaller(), Session: asked.GetSession(), Confined: asked.GetConfined(), OnBehalfOf: asked.GetOnBehalfOf(),
			},
			Created: e.Time,
			First:   e.Sequence,
		}
	case *registryv1.Event_InvocationAwaitingApproval:
		i.State, i.ApprovalID = stateAwaiting, event.InvocationAwaitingApproval.GetApprovalId()
	case *registryv1.Event_InvocationStarted:
		i.State, i.RunID = stateRunning, event.InvocationStarted.GetRunId()
		i.Repeatable = event.InvocationStarted.GetRepeatable()
		i.Amended, i.AmendedDigest = event.InvocationStarted.AmendedInputJson, event.InvocationStarted.GetAmendedInputDigest()
	case *registryv1.Event_InvocationSucceeded:
		i.State, i.Output = stateSucceeded, event.InvocationSucceeded.OutputJson
	case *registryv1.Event_InvocationFailed:
		i.State, i.Failure = stateFailed, failureFrom(event.InvocationFailed.GetError())
	case *registryv1.Event_InvocationRefused:
		i.State = stateFromProto(event.InvocationRefused.GetState())
		i.Failure = failureFrom(event.InvocationRefused.GetError())
	case *registryv1.Event_InvocationOutcomeUnknown:
		i.State = stateUnknown
		i.Failure = &failure{Reason: string(stateUnknown), Message: "the run began, and nobody knows how it ended; it is not run again"}
	}
	i.Updated = e.Time
	return i
}

func failureFrom(e *registryv1.InvocationError) *failure {
	return &failure{Reason: e.GetReason(), Message: e.GetMessage(), Note: e.GetNote()}
}

const invocationKindName = "invocation"

func invocationKind() aggregate.Kind[Invocation, *registryv1.Event] {
	return aggregate.Kind[Invocation, *registryv1.Event]{
		Name:   invocationKindName,
		Evolve: evolveInvocation,
		Codec: aggregate.RootCodec[Invocation, *registryv1.Event]{Bytes: func(i Invocation) int {
			size := 1024
			for _, text := range []*string{i.Input, i.Amended, i.Output} {
				if text != nil {
					size += len(*text)
				}
			}
			return size
		}},
		Lists: func(i Invocation, _ uint64) []hot.Entry {
			lists := []hot.Entry{{Set: callerList(i.Caller.Subject), Score: i.First}}
			if i.State == stateAwaiting {
				lists = append(lists, hot.Entry{Set: approvalList(i.ApprovalID), Score: i.First})
			}
			return lists
		},
		Due: Invocation.due,
	}
}

// callerList names the list of one caller's invocations, approvalList that of
// the invocations that wait for one approval.
func callerList(subject string) string { return "caller/" + subject }
func approvalList(id string) string    { return "approval/" + id }

var stateToProto = map[state]registryv1.InvocationState{
	stateRequested: registryv1.InvocationState_INVOCATION_STATE_REQUESTED,
	stateAwaiting:  registryv1.InvocationState_INVOCATION_STATE_AWAITING_APPROVAL,
	stateRunning:   registryv1.InvocationState_INVOCATION_STATE_RUNNING,
	stateSucceeded: registryv1.InvocationState_INVOCATION_STATE_SUCCEEDED,
	stateFailed:    registryv1.InvocationState_INVOCATION_STATE_FAILED,
	stateUnknown:   registryv1.InvocationState_INVOCATION_STATE_OUTCOME_UNKNOWN,
	stateDenied:    registryv1.InvocationState_INVOCATION_STATE_DENIED,
	stateExpired:   registryv1.InvocationState_INVOCATION_STATE_EXPIRED,
	stateCancelled: registryv1.InvocationState_INVOCATION_STATE_CANCELLED,
}

func stateFromProto(s registryv1.InvocationState) state {
	for own, proto := range stateToProto {
		if proto == s {
			return own
		}
	}
	return ""
}

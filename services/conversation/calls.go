package conversation

import (
	"context"
	"strings"

	conversationv1 "weir/gen/conversation/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/journal"
)

const (
	registryService = "registry"
	// callsConsumer names the place in the registry's stream that the replicas
	// share.
	callsConsumer = "conversation-calls"
	callsFilter   = "weir.registry.*.invocation.*"
)

// calls makes an invocation appear in the conversation that it names: its call
// when it is asked for, its result when it ends.
type calls struct{ teller }

// handle takes one event of the registry. Events of kinds that don't show in a
// conversation are done at once.
func (c calls) handle(ctx context.Context, e journal.Event) error {
	recorded, err := aggregate.Decode[*registryv1.Event](e)
	if err != nil {
		return err
	}
	switch event := recorded.Event.GetEvent().(type) {
	case *registryv1.Event_InvocationRequested:
		_, err := c.requested(ctx, e.Key, event.InvocationRequested)
		return err
	case *registryv1.Event_InvocationSucceeded:
		return c.ended(ctx, e.Key, event.InvocationSucceeded.GetConversationId(), &conversationv1.Result{
			State:      stateName(registryv1.InvocationState_INVOCATION_STATE_SUCCEEDED),
			OutputJson: event.InvocationSucceeded.OutputJson,
		})
	case *registryv1.Event_InvocationFailed:
		return c.ended(ctx, e.Key, event.InvocationFailed.GetConversationId(), &conversationv1.Result{
			State:   stateName(registryv1.InvocationState_INVOCATION_STATE_FAILED),
			Reason:  event.InvocationFailed.GetError().GetReason(),
			Message: event.InvocationFailed.GetError().GetMessage(),
		})
	case *registryv1.Event_InvocationRefused:
		return c.ended(ctx, e.Key, event.InvocationRefused.GetConversationId(), &conversationv1.Result{
			State:   stateName(event.InvocationRefused.GetState()),
			Reason:  event.InvocationRefused.GetError().GetReason(),
			Message: event.InvocationRefused.GetError().GetMessage(),
		})
	case *registryv1.Event_InvocationOutcomeUnknown:
		return c.ended(ctx, e.Key, event.InvocationOutcomeUnknown.GetConversationId(), &conversationv1.Result{
			State:   stateName(registryv1.InvocationState_INVOCATION_STATE_OUTCOME_UNKNOWN),
			Message: "the operation began, and nobody knows how it ended",
		})
	}
	return nil
}

// requested shows a call. Shown is false where it must not appear.
func (c calls) requested(ctx context.Context, invocation journal.Key, r *registryv1.InvocationRequested) (shown bool, err error) {
	if r.GetConversationId() == "" {
		return false, nil
	}
	return c.show(ctx, invocation.Tenant, r.GetConversationId(), r.GetCaller(), callNote(r.GetCaller(), &conversationv1.Call{
		InvocationId: invocation.ID,
		Operation:    r.GetOperation(),
		InputJson:    r.InputJson,
	}))
}

// ended shows a result behind its call.
func (c calls) ended(ctx context.Context, invocation journal.Key, conversationID string, r *conversationv1.Result) error {
	if conversationID == "" {
		return nil
	}
	r.InvocationId = invocation.ID
	return c.showEnd(ctx, invocation.Tenant, conversationID, resultNote(r), func() (bool, error) {
		first, err := c.starts.start(ctx, registryService, invocation)
		if err != nil {
			return false, err
		}
		recorded, err := aggregate.Decode[*registryv1.Event](first)
		if err != nil {
			return false, err
		}
		request := recorded.Event.GetInvocationRequested()
		if request == nil {
			return false, fault.New(fault.EventUnreadable, "an invocation does not begin with its request")
		}
		return c.requested(ctx, invocation, request)
	})
}

// stateName is an invocation's state as results spell it, such as SUCCEEDED.
func stateName(s registryv1.InvocationState) string {
	return strings.TrimPrefix(s.String(), "INVOCATION_STATE_")
}

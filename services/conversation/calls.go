package conversation

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	conversationv1 "weir/gen/conversation/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/aggregate"
	"weir/internal/backend"
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
// when it is asked for, its result when it ends. Each appears once, however
// often its event comes, since its message id follows from the invocation's.
type calls struct {
	loop     *loop
	consumer *journal.Consumer
	requests requests
	log      *slog.Logger
}

func newCalls(stores *backend.Backend, l *loop) (*calls, error) {
	consumer, err := stores.Consumer(registryService, callsConsumer, callsFilter)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(stores.NATS)
	if err != nil {
		return nil, err
	}
	return &calls{loop: l, consumer: consumer, requests: registryStream{js}, log: stores.Log}, nil
}

// run hears the registry until ctx ends.
func (c *calls) run(ctx context.Context) error { return c.consumer.Run(ctx, c.handle) }

// requests finds what an invocation began with.
type requests interface {
	request(context.Context, journal.Key) (*registryv1.InvocationRequested, error)
}

// handle takes one event of the registry. Events of kinds that don't show in a
// conversation are done at once.
func (c *calls) handle(ctx context.Context, e journal.Event) error {
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
func (c *calls) requested(ctx context.Context, invocation journal.Key, r *registryv1.InvocationRequested) (shown bool, err error) {
	if r.GetConversationId() == "" {
		return false, nil
	}
	return c.show(ctx, invocation.Tenant, call(r.GetConversationId(), r.GetCaller(), &conversationv1.Call{
		InvocationId: invocation.ID,
		Operation:    r.GetOperation(),
		InputJson:    r.InputJson,
	}))
}

// ended shows a result behind its call. A call that is not there was kept out,
// and then so is its result; or its event failed, or is still with another
// replica. The state can't tell which, but the request decides it the same way
// every time, so it is looked up and the call is shown first.
func (c *calls) ended(ctx context.Context, invocation journal.Key, conversation string, r *conversationv1.Result) error {
	if conversation == "" {
		return nil
	}
	r.InvocationId = invocation.ID
	m := result(conversation, r)
	_, err := c.show(ctx, invocation.Tenant, m)
	if !fault.Is(err, fault.MessageNotFound) {
		return err
	}
	request, err := c.requests.request(ctx, invocation)
	if err != nil {
		return err
	}
	if shown, err := c.requested(ctx, invocation, request); !shown {
		return err
	}
	_, err = c.show(ctx, invocation.Tenant, m)
	return err
}

// show appends a message that weir writes. It is not shown, for good, where the
// conversation isn't there, isn't the caller's, or is full.
func (c *calls) show(ctx context.Context, tenant string, m message) (shown bool, err error) {
	key := journal.Key{Tenant: tenant, Kind: kindName, ID: m.Conversation}
	_, err = c.loop.Do(ctx, key, func(s conversation, _ time.Time) (*conversationv1.Event, error) {
		return decideAppend(s, m)
	})
	switch fault.ReasonOf(err) {
	case fault.ConversationNotFound, fault.ConversationFull:
		c.log.Debug("call not shown", "conversation", key.String(), "author", m.Author, "reason", fault.ReasonOf(err))
		return false, nil
	}
	return err == nil, err
}

// stateName is an invocation's state as results spell it, such as SUCCEEDED.
func stateName(s registryv1.InvocationState) string {
	return strings.TrimPrefix(s.String(), "INVOCATION_STATE_")
}

// registryStream reads the registry's events directly, from where the consumer
// may be past.
type registryStream struct{ js jetstream.JetStream }

func (r registryStream) request(ctx context.Context, invocation journal.Key) (*registryv1.InvocationRequested, error) {
	stream, err := r.js.Stream(ctx, journal.StreamName(registryService))
	if err != nil {
		return nil, fmt.Errorf("the request of %s: %w", invocation, err)
	}
	first, err := stream.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(invocation.Subject(registryService)))
	if err != nil {
		return nil, fmt.Errorf("the request of %s: %w", invocation, err)
	}
	recorded, err := aggregate.Decode[*registryv1.Event](journal.Event{Key: invocation, Data: first.Data, Sequence: first.Sequence})
	if err != nil {
		return nil, err
	}
	request := recorded.Event.GetInvocationRequested()
	if request == nil {
		return nil, fault.New(fault.EventUnreadable, "an invocation does not begin with its request")
	}
	return request, nil
}

package journal

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"weir/internal/fault"
)

const (
	// consumeWorkers handle events side by side; those of one aggregate stay on
	// one of them, in order.
	consumeWorkers = 32
	// ackWait is how long a handler may take before its event is given to
	// somebody else. Handlers are idempotent, so that is harmless.
	ackWait = 30 * time.Second
	// retryDelay is how long a failed event waits before it comes again. An
	// unreadable one waits unreadableDelay: only a newer program can help it,
	// and it must not hold up the others.
	retryDelay      = time.Second
	unreadableDelay = time.Minute
	maxAckPending   = 2048
)

// Handler handles one event. It returns nil only when everything that the event
// asks for is durable; any error brings the event again.
type Handler func(context.Context, Event) error

// Consumer is a durable place in a service's stream, shared by all replicas
// that use the same name.
type Consumer struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	stream  string
	name    string
	filters []string
	log     *slog.Logger
}

// NewConsumer names a place in the stream of a service, which may be another
// one's. Filters are subjects, such as weir.gate.*.approval.*.
func NewConsumer(nc *nats.Conn, service, name string, log *slog.Logger, filters ...string) (*Consumer, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", name, err)
	}
	return &Consumer{nc: nc, js: js, stream: StreamName(service), name: name, filters: filters, log: log}, nil
}

// Run handles events from the first one on, each until its handler returns nil,
// until ctx ends. It waits for the stream where it is not there yet.
//
// Events of one aggregate come in order, except one that failed before and
// comes again.
func (c *Consumer) Run(ctx context.Context, handle Handler) error {
	for {
		err := c.run(ctx, handle)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			c.log.Warn("consumer interrupted, trying on", "consumer", c.name, "stream", c.stream, "error", err)
		}
		if Pause(ctx, 200*time.Millisecond) != nil {
			return nil
		}
	}
}

func (c *Consumer) run(ctx context.Context, handle Handler) error {
	consumer, err := c.js.CreateOrUpdateConsumer(ctx, c.stream, jetstream.ConsumerConfig{
		Durable:        c.name,
		FilterSubjects: c.filters,
		DeliverPolicy:  jetstream.DeliverAllPolicy,
		AckPolicy:      jetstream.AckExplicitPolicy,
		AckWait:        ackWait,
		MaxDeliver:     -1,
		MaxAckPending:  maxAckPending,
	})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(512), jetstream.PullHeartbeat(5*time.Second))
	if err != nil {
		return err
	}
	// What the client holds already still comes, so that handle gives it back.
	stop := context.AfterFunc(ctx, messages.Drain)
	defer stop()
	defer messages.Stop()

	var workers sync.WaitGroup
	queues := make([]chan jetstream.Msg, consumeWorkers)
	for i := range queues {
		queues[i] = make(chan jetstream.Msg, 16)
		workers.Go(func() {
			for msg := range queues[i] {
				c.handle(ctx, msg, handle)
			}
		})
	}
	defer workers.Wait()
	defer func() {
		for _, queue := range queues {
			close(queue)
		}
	}()
	seed := maphash.MakeSeed()
	for {
		msg, err := messages.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		queues[maphash.String(seed, msg.Subject())%consumeWorkers] <- msg
	}
}

func (c *Consumer) handle(ctx context.Context, msg jetstream.Msg, handle Handler) {
	if ctx.Err() != nil {
		_ = msg.Nak()
		return
	}
	event, err := fromMessage(msg)
	if err == nil {
		err = handle(extractTrace(ctx, event), event)
	}
	switch {
	case err == nil:
		// An ack that is lost brings the event again, which changes nothing.
		_ = msg.Ack()
	case ctx.Err() != nil:
		// Shutting down: another replica, or the next process, gets it at once
		// and not only after ackWait.
		_ = msg.Nak()
	default:
		delay := retryDelay
		if fault.Is(err, fault.EventUnreadable) {
			delay = unreadableDelay
		}
		c.log.Warn("event not handled, it comes again",
			"consumer", c.name, "subject", msg.Subject(), "event", event.ID, "delay", delay, "error", err)
		_ = msg.NakWithDelay(delay)
	}
}

// CaughtUp says whether everything up to a sequence has been handled.
func (c *Consumer) CaughtUp(ctx context.Context, sequence uint64) (bool, error) {
	consumer, err := c.js.Consumer(ctx, c.stream, c.name)
	if err != nil {
		return false, err
	}
	info := consumer.CachedInfo()
	if info.AckFloor.Stream >= sequence {
		return true, nil
	}
	// The floor stays behind where the last events match no filter or were
	// erased. That nothing is pending is believed only when somebody waits for
	// more: a consumer that is only just being created shows zeros too.
	return info.NumWaiting > 0 && info.NumPending == 0 && info.NumAckPending == 0, nil
}

// RemoveOthers deletes the durable consumers of the stream that share a prefix
// with this one but not its name.
func (c *Consumer) RemoveOthers(ctx context.Context, prefix string) error {
	stream, err := c.js.Stream(ctx, c.stream)
	if err != nil {
		return err
	}
	var old []string
	names := stream.ConsumerNames(ctx)
	for name := range names.Name() {
		if strings.HasPrefix(name, prefix) && name != c.name {
			old = append(old, name)
		}
	}
	if err := names.Err(); err != nil {
		return err
	}
	for _, name := range old {
		if err := stream.DeleteConsumer(ctx, name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return err
		}
	}
	return nil
}

// Watch gives every replica its own view of the newest event of each aggregate
// that the consumer's filters match, then of all that follow, in order. It
// calls caughtUp once, when everything that was there at the start has been
// handled. It returns when ctx ends, or with an error after which the view may
// have a hole: start over with an empty one.
//
// An event that cannot be read comes with its key and sequence, and the error: a
// view that stopped there would go on showing what was before it.
//
// The consumer's name is not used: a view belongs to one process.
func (c *Consumer) Watch(ctx context.Context, handle func(Event, error) error, caughtUp func()) error {
	config := jetstream.OrderedConsumerConfig{
		FilterSubjects: c.filters,
		DeliverPolicy:  jetstream.DeliverLastPerSubjectPolicy,
	}
	return c.ordered(ctx, config, func(msg jetstream.Msg) error {
		event, unreadable := fromMessage(msg)
		if unreadable != nil {
			key, err := parseSubject(msg.Subject())
			if err != nil {
				c.log.Warn("an event of no aggregate", "subject", msg.Subject(), "error", err)
				return nil
			}
			meta, err := msg.Metadata()
			if err != nil {
				return err
			}
			event = Event{Key: key, Sequence: meta.Sequence.Stream}
		}
		return handle(event, unreadable)
	}, caughtUp)
}

func fromMessage(msg jetstream.Msg) (Event, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return Event{}, fmt.Errorf("%s: %w", msg.Subject(), err)
	}
	event, err := parseEvent(msg.Subject(), msg.Headers(), msg.Data(), meta.Sequence.Stream)
	if err != nil {
		return Event{}, fault.New(fault.EventUnreadable, "event %d cannot be read", meta.Sequence.Stream).Wrap(err)
	}
	return event, nil
}

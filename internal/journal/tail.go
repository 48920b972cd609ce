package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"weir/internal/fault"
)

// Stored is a message as the stream holds it, whether or not this program can
// read it as an event.
type Stored struct {
	Subject  string
	Header   nats.Header
	Data     []byte
	Sequence uint64
}

// answerHeaders are those that the server adds to the answer of a direct get.
var answerHeaders = []string{
	jetstream.StreamHeader, jetstream.SequenceHeader, jetstream.TimeStampHeaer, jetstream.SubjectHeader,
}

// newStored makes a message look the same by whichever way it was read.
func newStored(subject string, header nats.Header, data []byte, sequence uint64) Stored {
	for _, name := range answerHeaders {
		delete(header, name)
	}
	return Stored{Subject: subject, Header: header, Data: data, Sequence: sequence}
}

// Event reads it, and is EVENT_UNREADABLE where that cannot be done.
func (s Stored) Event() (Event, error) {
	event, err := parseEvent(s.Subject, s.Header, s.Data, s.Sequence)
	if err != nil {
		return Event{}, fault.New(fault.EventUnreadable, "event %d cannot be read", s.Sequence).Wrap(err)
	}
	return event, nil
}

// Tail gives one process every event that the consumer's filters match, from
// sequence `from` on (0 and 1: the first), each once and in the order of the
// stream, and then all that follow. It calls caughtUp once, when everything
// that was there at the start has been handled. Where `from` is beyond the end,
// it waits until the stream gets there.
//
// It returns nil when ctx ends, and an error otherwise: what handle returned,
// or what the connection suffered. The caller goes on by
// calling it again from behind the last sequence that it handled.
//
// The consumer's name is not used: a place belongs to one process.
func (c *Consumer) Tail(ctx context.Context, from uint64, handle func(Stored) error, caughtUp func()) error {
	from = max(from, 1)
	config := jetstream.OrderedConsumerConfig{
		FilterSubjects: c.filters,
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:    from,
	}
	return c.ordered(ctx, config, func(msg jetstream.Msg) error {
		meta, err := msg.Metadata()
		if err != nil {
			return fmt.Errorf("%s: %w", msg.Subject(), err)
		}
		return handle(newStored(msg.Subject(), msg.Headers(), msg.Data(), meta.Sequence.Stream))
	}, caughtUp)
}

// followRetry is how soon Follow tries again after the stream was lost.
const followRetry = 200 * time.Millisecond

// Follow gives one process every event that the consumer's filters match, from where
// the stream ends when it begins, and goes on from where it was whenever the stream
// was lost, until ctx ends. It calls began once that place is known: what is
// appended from then on, and maybe a little of before, is handled.
func (c *Consumer) Follow(ctx context.Context, j *Journal, began func(), handle func(Stored)) error {
	handled, err := j.LastSequence(ctx)
	for err != nil {
		if Pause(ctx, followRetry) != nil {
			return nil
		}
		handled, err = j.LastSequence(ctx)
	}
	began()
	for ctx.Err() == nil {
		err := c.Tail(ctx, handled+1, func(e Stored) error {
			handle(e)
			handled = e.Sequence
			return nil
		}, func() {})
		if err != nil {
			c.log.Warn("the stream is not followed, trying on", "stream", c.stream, "error", err)
		}
		_ = Pause(ctx, followRetry)
	}
	return nil
}

// ordered reads by a consumer that the client makes anew, from where it was,
// whenever a message is missing or the server goes quiet.
func (c *Consumer) ordered(ctx context.Context, config jetstream.OrderedConsumerConfig, handle func(jetstream.Msg) error, caughtUp func()) error {
	// Without a limit the client would try for ever in silence, and nobody would
	// know that a view is not followed.
	config.MaxResetAttempts = 5
	consumer, err := c.js.OrderedConsumer(ctx, c.stream, config)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	messages, err := consumer.Messages(jetstream.PullHeartbeat(5 * time.Second))
	if err != nil {
		return unlessEnded(ctx, err)
	}
	stop := context.AfterFunc(ctx, messages.Stop)
	defer stop()
	defer messages.Stop()
	ready := consumer.CachedInfo().NumPending == 0
	if ready {
		caughtUp()
	}
	for {
		msg, err := messages.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
			return nil
		}
		if err != nil {
			return unlessEnded(ctx, err)
		}
		if err := handle(msg); err != nil {
			return err
		}
		if meta, err := msg.Metadata(); !ready && err == nil && meta.NumPending == 0 {
			ready = true
			caughtUp()
		}
	}
}

// unlessEnded is nil where the error only says that ctx has ended.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

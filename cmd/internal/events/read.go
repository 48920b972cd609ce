package events

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"weir/internal/journal"
)

// Query says which events to read.
type Query struct {
	Subject   string // may hold wildcards
	FromStart bool   // those of the past, before those to come
	Follow    bool   // wait for those to come; false ends where the streams end now
}

// Read calls take for each event that the query asks for, one at a time: those of one
// aggregate in order, those of different services as they come. It returns when the
// query is answered, ctx ends, or take fails.
func Read(ctx context.Context, nc *nats.Conn, q Query, take func(Event) error) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	var one sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	asked := false
	for _, s := range streams {
		filter, ok := narrow(q.Subject, s.service)
		if !ok {
			continue
		}
		asked = true
		group.Go(func() error {
			return s.read(ctx, js, filter, q, func(e Event) error {
				one.Lock()
				defer one.Unlock()
				return take(e)
			})
		})
	}
	if !asked {
		return fmt.Errorf("subject %q: no service announces events there; they are weir.<service>.<tenant>.<kind>.<id>", q.Subject)
	}
	return group.Wait()
}

// narrow gives the part of a subject that lies in one service's stream, since a consumer
// may not ask a stream for what it can't hold.
func narrow(subject, service string) (string, bool) {
	const all = ">"
	first, rest, more := strings.Cut(subject, ".")
	switch {
	case subject == all:
		return "weir." + service + "." + all, true
	case !more || first != "weir" && first != "*":
		return "", false
	}
	second, rest, more := strings.Cut(rest, ".")
	switch {
	case second == all && !more:
		return "weir." + service + "." + all, true
	case !more || second != service && second != "*":
		return "", false
	}
	return "weir." + service + "." + rest, true
}

func (s stream) read(ctx context.Context, js jetstream.JetStream, filter string, q Query, take func(Event) error) error {
	name := journal.StreamName(s.service)
	config := jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}, DeliverPolicy: jetstream.DeliverNewPolicy}
	if q.FromStart {
		config.DeliverPolicy = jetstream.DeliverAllPolicy
	}
	consumer, err := awaitStream(ctx, js, name, config)
	if err != nil {
		return fmt.Errorf("stream %s: %w", name, err)
	}
	if !q.Follow && consumer.CachedInfo().NumPending == 0 {
		return nil
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("stream %s: %w", name, err)
	}
	defer context.AfterFunc(ctx, messages.Stop)()
	defer messages.Stop()
	for {
		msg, err := messages.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
			return context.Cause(ctx)
		}
		if err != nil {
			return fmt.Errorf("stream %s: %w", name, err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return fmt.Errorf("stream %s: %w", name, err)
		}
		if err := take(s.decode(name, msg, meta.Sequence.Stream)); err != nil {
			return err
		}
		if !q.Follow && meta.NumPending == 0 {
			return nil
		}
	}
}

// awaitStream waits for a stream that its service has yet to make.
func awaitStream(ctx context.Context, js jetstream.JetStream, name string, config jetstream.OrderedConsumerConfig) (jetstream.Consumer, error) {
	for {
		consumer, err := js.OrderedConsumer(ctx, name, config)
		if !errors.Is(err, jetstream.ErrStreamNotFound) {
			return consumer, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

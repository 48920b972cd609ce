package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"weir/internal/journal"
)

const workQueue = "queue"

// openWorkQueueCycle takes messages through a JetStream stream that is a work
// queue, beside weir's own: a caller publishes one, takes the next that comes and
// acknowledges it, until the server has said that it heard.
func openWorkQueueCycle(m *mesh) (workload, error) {
	nc, err := journal.Connect(m.nats.url, workQueue)
	if err != nil {
		return nil, err
	}
	m.closers = append(m.closers, nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	_, err = js.CreateStream(m.ctx, jetstream.StreamConfig{
		Name: workQueue, Subjects: []string{workQueue + ".>"},
		Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage,
	})
	if err != nil {
		return nil, err
	}
	// Not a durable one, which the bench would take for a projector.
	consumer, err := js.CreateConsumer(m.ctx, workQueue, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: -1,
	})
	if err != nil {
		return nil, err
	}
	series := 0
	return func(callers int) ([]call, error) {
		series++
		// One for all callers, so that none waits for what another has been sent.
		messages, err := consumer.Messages()
		if err != nil {
			return nil, err
		}
		m.afterSlice(func() error {
			messages.Stop()
			return nil
		})
		calls := make([]call, callers)
		for i, mine := range shares(callers, m.many) {
			name, n := fmt.Sprintf("m-%d-%d-", series, i), 0
			calls[i] = func(ctx context.Context) error {
				n++
				_, err := js.PublishMsg(ctx, &nats.Msg{
					Subject: fmt.Sprintf("%s.%d", workQueue, mine.next()),
					Header:  nats.Header{jetstream.MsgIDHeader: {name + fmt.Sprint(n)}},
					Data:    []byte(text),
				})
				if err != nil {
					return err
				}
				message, err := messages.Next(jetstream.NextContext(ctx))
				if err != nil {
					return err
				}
				if string(message.Data()) != text {
					return errors.New("a message of the work queue is not what was published")
				}
				return message.DoubleAck(ctx)
			}
		}
		return calls, nil
	}, nil
}

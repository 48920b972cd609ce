package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	conversationv1 "weir/gen/conversation/v1"
)

const (
	// tailCount is how many follow one conversation, on so many connections.
	tailCount       = 1000
	tailConnections = 4

	tailedTalk = "tailed"
)

// tails are streams that follow one conversation.
type tails struct {
	*talks
	// arrivals are the messages that are under way, by id.
	arrivals sync.Map
	appended atomic.Int64
}

// arrival is a message on its way to all tails.
type arrival struct {
	missing atomic.Int64
	all     chan struct{} // closed when the last tail has it
}

// openTailFanout appends to a conversation that a thousand follow. A call is over
// when the last of them has its message, and counts as long as that took after
// the append was acknowledged.
func openTailFanout(m *mesh) (workload, error) {
	writer, err := m.talker()
	if err != nil {
		return nil, err
	}
	t := &tails{talks: newTalks(writer, 0)}
	if err := t.begin(m.ctx, tailedTalk); err != nil {
		return nil, err
	}
	if err := t.say(m.ctx, tailedTalk, "first"); err != nil {
		return nil, err
	}
	var services []conversationv1.MessageServiceClient
	for range tailConnections {
		conn, err := m.talker()
		if err != nil {
			return nil, err
		}
		services = append(services, conversationv1.NewMessageServiceClient(conn))
	}
	var group errgroup.Group
	group.SetLimit(seeders) // a thousand at once is not what is measured
	for i := range tailCount {
		group.Go(func() error {
			stream, err := t.join(m.ctx, services[i%tailConnections])
			if err != nil {
				return err
			}
			m.background("tail", func(context.Context) error { return t.follow(stream) })
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return everyCaller(t.reach), nil
}

// tail is the stream of one that follows.
type tail = grpc.ServerStreamingClient[conversationv1.TailMessagesResponse]

// join begins a tail, which is there once it has the first message.
func (t *tails) join(ctx context.Context, service conversationv1.MessageServiceClient) (tail, error) {
	none := int64(0)
	stream, err := service.TailMessages(ctx, &conversationv1.TailMessagesRequest{ConversationId: tailedTalk, After: &none})
	if err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if first.GetMessage().GetPosition() != 1 {
		return nil, fmt.Errorf("a tail begins with %v", first)
	}
	return stream, nil
}

// reach appends a message and waits until every tail has it.
func (t *tails) reach(ctx context.Context) error {
	id := fmt.Sprintf("m%d", t.appended.Add(1))
	a := &arrival{all: make(chan struct{})}
	a.missing.Store(tailCount)
	t.arrivals.Store(id, a) // before anybody can have it
	defer t.arrivals.Delete(id)
	if err := t.say(ctx, tailedTalk, id); err != nil {
		return err
	}
	startsNow(ctx)
	select {
	case <-a.all:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// follow is one tail. That each position comes once and in order is checked, since
// a tail that leaves some out would be a fast one.
func (t *tails) follow(stream tail) error {
	position := int64(1)
	for {
		event, err := stream.Recv()
		if err != nil {
			return err
		}
		message := event.GetMessage()
		if message == nil {
			continue // a keepalive
		}
		if position++; message.GetPosition() != position {
			return fmt.Errorf("position %d came where %d was due", message.GetPosition(), position)
		}
		if a, ok := t.arrivals.Load(message.GetMessageId()); ok && a.(*arrival).missing.Add(-1) == 0 {
			close(a.(*arrival).all)
		}
	}
}

package conversation

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

const (
	// tailBatch and tailBatchBytes bound what a tail that is behind reads at once, and
	// so what it holds for a reader who does not take it.
	tailBatch      = 100
	tailBatchBytes = 256 << 10
	// keepaliveEvery is how long a tail is silent at most.
	keepaliveEvery = 15 * time.Second
	// slowAfter is how long a reader may take nothing before its tail ends.
	slowAfter = 30 * time.Second
)

// tail gives one reader the messages of a conversation as they come. It owns
// nothing but a position: what is new it learns from the feed, and what it is
// behind it reads from the journal.
type tail struct {
	history *history
	feeds   *feeds
	key     journal.Key
	caller  identity.Caller
	send    func(*conversationv1.TailMessagesResponse) error
	// patience and quiet are slowAfter and keepaliveEvery, but in tests.
	patience, quiet time.Duration

	// next is the position to send next.
	next int64
	// drafted is how far each draft was sent.
	drafted map[string]sentDraft
	// spoke is when something was last sent.
	spoke time.Time
}

// run tails until the reader leaves or may not read any more. Positions behind
// after come first, or none before the newest where after is nil.
func (t *tail) run(ctx context.Context, after *int64) error {
	it, leave, err := t.feeds.open(t.key)
	if err != nil {
		return err
	}
	defer leave()
	err = t.follow(ctx, it, after)
	if ctx.Err() != nil {
		// Whatever failed, failed because the reader left or the service stops.
		return fault.From(ctx.Err())
	}
	return err
}

func (t *tail) follow(ctx context.Context, it *feed, after *int64) error {
	// The feed was there before this is read, so what came since is heard.
	c, turn, err := t.feeds.read(ctx, it)
	if err != nil {
		return err
	}
	if err := t.mayRead(c); err != nil {
		return err
	}
	if t.next, err = start(c.Head, after); err != nil {
		return err
	}
	t.spoke = time.Now()
	for {
		// What changes from here on closes changed, so nothing is slept through.
		n := it.news(t)
		if n.turned != turn {
			if c, err = t.feeds.current(ctx, it, n.turned); err != nil {
				return err
			}
			if err := t.mayRead(c); err != nil {
				return err
			}
			turn = n.turned
		}
		batch := n.batch
		if len(batch) == 0 && t.next <= n.head {
			if batch, err = t.behind(ctx, c, n.head); err != nil {
				return err
			}
		}
		if len(batch) > 0 {
			err = t.deliver(ctx, batch)
		} else {
			err = t.wait(ctx, it, n)
		}
		if err != nil {
			return err
		}
	}
}

func (t *tail) mayRead(c *root) error {
	if !(conversation{root: *c}).readableBy(t.caller) {
		return errConversationNotFound
	}
	return nil
}

// start is the first position to send.
func start(head int64, after *int64) (int64, error) {
	switch {
	case after == nil:
		return head + 1, nil
	case *after > head:
		return 0, pastHead("after", *after, head)
	}
	return *after + 1, nil
}

// behind reads the next messages, up to the head, which the feed does not have.
func (t *tail) behind(ctx context.Context, c *root, head int64) ([]*conversationv1.TailMessagesResponse, error) {
	as := conversation{root: *c}
	as.Head = head
	wanted := span{t.next, min(head, t.next+tailBatch-1)}
	messages, err := t.history.cutAt(ctx, t.key, as, wanted, false, tailBatchBytes)
	if err != nil {
		return nil, err
	}
	batch := make([]*conversationv1.TailMessagesResponse, len(messages))
	for i, m := range messages {
		batch[i] = messageResponse(m)
	}
	return batch, nil
}

func messageResponse(m *conversationv1.Message) *conversationv1.TailMessagesResponse {
	return &conversationv1.TailMessagesResponse{Event: &conversationv1.TailMessagesResponse_Message{Message: m}}
}

// deliver sends a batch. A reader who takes nothing for too long is sent away with
// its place. Nobody can end a Send but by leaving the method, which grpc-go makes
// fail it then, so it runs beside. What it still gets through, the reader has beyond
// the place that it is told.
func (t *tail) deliver(ctx context.Context, batch []*conversationv1.TailMessagesResponse) error {
	var sent atomic.Int64
	done := make(chan error, 1)
	go func() {
		for _, response := range batch {
			if err := t.send(response); err != nil {
				done <- err
				return
			}
			sent.Add(1)
		}
		done <- nil
	}()
	timer := time.NewTimer(t.patience)
	defer timer.Stop()
	for taken := int64(0); ; {
		select {
		case err := <-done:
			t.sent(batch[:sent.Load()])
			return err
		case <-ctx.Done():
			return fault.From(ctx.Err())
		case <-timer.C:
		}
		if now := sent.Load(); now > taken {
			taken = now
			timer.Reset(t.patience)
			continue
		}
		t.sent(batch[:taken])
		return fault.New(fault.ReaderTooSlow, "the reader took nothing for %v; go on behind position %d", t.patience, t.next-1).
			With("after", strconv.FormatInt(t.next-1, 10))
	}
}

// sent moves on behind what was sent.
func (t *tail) sent(batch []*conversationv1.TailMessagesResponse) {
	t.spoke = time.Now()
	for _, response := range batch {
		if m := response.GetMessage(); m != nil {
			t.next = m.GetPosition() + 1
			delete(t.drafted, m.GetMessageId())
		}
	}
}

// wait waits for news, and keeps the stream alive meanwhile.
func (t *tail) wait(ctx context.Context, it *feed, n news) error {
	timer := time.NewTimer(time.Until(t.spoke.Add(t.quiet)))
	defer timer.Stop()
	select {
	case <-n.changed:
		return nil
	case <-ctx.Done():
		return fault.From(ctx.Err())
	case <-timer.C:
	}
	it.rest(time.Now(), t.quiet)
	return t.deliver(ctx, []*conversationv1.TailMessagesResponse{{
		Event: &conversationv1.TailMessagesResponse_Keepalive{Keepalive: &conversationv1.Keepalive{Head: n.head}},
	}})
}

// news is what a feed has for a tail, taken at one moment.
type news struct {
	// changed is closed when there is more.
	changed <-chan struct{}
	turned  int
	head    int64
	// batch is what to send next, as far as the feed has it: messages, or additions to
	// drafts where there are no messages to send.
	batch []*conversationv1.TailMessagesResponse
}

// news also marks the drafts that it gives as sent.
func (t *feed) news(to *tail) news {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := news{changed: t.changed, turned: t.turned, head: t.head}
	if to.next <= t.head {
		n.batch = t.since(to.next)
	} else {
		n.batch = t.additions(to)
	}
	return n
}

package conversation

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

const (
	// tailBatch is how many messages a tail that is behind reads at once.
	tailBatch = 100
	// keepaliveEvery is how long a tail is silent at most.
	keepaliveEvery = 15 * time.Second
	// slowAfter is how long a reader may take over one batch before its tail ends.
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
}

type sentDraft struct{ begun, length int }

// run tails until the reader leaves or may not read any more. Positions behind
// after come first, or none before the newest where after is nil.
func (t *tail) run(ctx context.Context, after *int64) error {
	it, leave, err := t.feeds.open(ctx, t.key)
	if err != nil {
		return err
	}
	defer leave()
	t.drafted = make(map[string]sentDraft)
	var c root
	turn := -1
	for {
		// What changes from here on closes changed, so nothing is slept through.
		news := it.news(t.next, t.drafted)
		if news.turned != turn {
			if c, err = t.feeds.current(ctx, it, news.turned); err != nil {
				return err
			}
			if !(conversation{root: c}).readableBy(t.caller) {
				return errConversationNotFound
			}
			if turn < 0 {
				if t.next, err = start(c.Head, news.head, after); err != nil {
					return err
				}
				news = it.news(t.next, t.drafted)
			}
			turn = news.turned
		}
		head := max(news.head, c.Head)
		batch, err := t.batch(ctx, c, news, head)
		if err != nil {
			return err
		}
		switch {
		case len(batch) > 0:
			err = t.deliver(batch)
		default:
			err = t.wait(ctx, news.changed, head)
		}
		if err != nil {
			return err
		}
	}
}

// start is the first position to send.
func start(head, heard int64, after *int64) (int64, error) {
	head = max(head, heard)
	if after == nil {
		return head + 1, nil
	}
	if *after > head {
		return 0, pastHead("after", *after, head)
	}
	return *after + 1, nil
}

// batch is what to send now: messages while the tail is behind, else what was added
// to drafts.
func (t *tail) batch(ctx context.Context, c root, news news, head int64) ([]*conversationv1.TailMessagesResponse, error) {
	messages := news.messages
	if t.next <= head && len(messages) == 0 {
		c.Head = head
		var err error
		messages, err = t.history.cut(ctx, t.key, conversation{root: c}, span{t.next, min(head, t.next+tailBatch-1)}, false)
		if err != nil {
			return nil, err
		}
	}
	var batch []*conversationv1.TailMessagesResponse
	for _, m := range messages {
		delete(t.drafted, m.GetMessageId())
		batch = append(batch, &conversationv1.TailMessagesResponse{Event: &conversationv1.TailMessagesResponse_Message{Message: m}})
	}
	if len(batch) > 0 {
		return batch, nil
	}
	for _, d := range news.deltas {
		t.drafted[d.GetMessageId()] = sentDraft{news.begun[d.GetMessageId()], int(d.GetOffset()) + len(d.GetText())}
		d.Text = strings.ToValidUTF8(d.Text, "\uFFFD")
		batch = append(batch, &conversationv1.TailMessagesResponse{Event: &conversationv1.TailMessagesResponse_Delta{Delta: d}})
	}
	return batch, nil
}

// deliver sends a batch. A reader who does not take it in time is sent away with
// its place: grpc lets nobody end a Send but by leaving the method, so it runs
// beside.
func (t *tail) deliver(batch []*conversationv1.TailMessagesResponse) error {
	var sent atomic.Int64
	sent.Store(t.next - 1)
	done := make(chan error, 1)
	go func() {
		for _, response := range batch {
			if err := t.send(response); err != nil {
				done <- err
				return
			}
			if m := response.GetMessage(); m != nil {
				sent.Store(m.GetPosition())
			}
		}
		done <- nil
	}()
	timer := time.NewTimer(t.patience)
	defer timer.Stop()
	select {
	case err := <-done:
		t.next = sent.Load() + 1
		return err
	case <-timer.C:
		after := sent.Load()
		return fault.New(fault.ReaderTooSlow, "the reader did not take what was sent for %v; go on behind position %d", t.patience, after).
			With("after", strconv.FormatInt(after, 10))
	}
}

// wait waits for news, and keeps the stream alive meanwhile.
func (t *tail) wait(ctx context.Context, changed <-chan struct{}, head int64) error {
	timer := time.NewTimer(t.quiet)
	defer timer.Stop()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return fault.From(ctx.Err())
	case <-timer.C:
		return t.deliver([]*conversationv1.TailMessagesResponse{{
			Event: &conversationv1.TailMessagesResponse_Keepalive{Keepalive: &conversationv1.Keepalive{Head: head}},
		}})
	}
}

// news is what a feed has for a tail, taken at one moment.
type news struct {
	// changed is closed when there is more.
	changed <-chan struct{}
	turned  int
	head    int64
	// messages are those from the tail's position on, where the feed still has them.
	messages []*conversationv1.Message
	deltas   []*conversationv1.Delta
	begun    map[string]int
}

func (t *feed) news(next int64, drafted map[string]sentDraft) news {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := news{changed: t.changed, turned: t.turned, head: t.head}
	if len(t.recent) > 0 && t.recent[0].GetPosition() <= next && next <= t.head {
		n.messages = t.recent[next-t.recent[0].GetPosition():]
	}
	for id, d := range t.drafts {
		sent, known := drafted[id]
		if known && sent.begun == d.begun && sent.length >= len(d.text) {
			continue
		}
		if !known || sent.begun != d.begun {
			sent.length = 0
		}
		if n.begun == nil {
			n.begun = make(map[string]int)
		}
		n.begun[id] = d.begun
		n.deltas = append(n.deltas, &conversationv1.Delta{
			MessageId: id, Author: d.author, Offset: int64(sent.length), Text: d.text[sent.length:],
		})
	}
	return n
}

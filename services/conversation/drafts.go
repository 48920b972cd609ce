package conversation

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/identity"
	"weir/internal/journal"
)

const (
	// livePrefix begins the subjects where deltas are published by plain NATS. No
	// stream listens there.
	livePrefix = "weir.live."
	// draftAttempts bounds how often a delta is looked at again because the
	// conversation moved on.
	draftAttempts = 5
	// loadTimeout bounds a look at what is written.
	loadTimeout = 5 * time.Second
)

// draftLimits bound what is being written in one conversation.
var draftLimits = hot.DraftLimits{Drafts: 16, Bytes: maxMessageBytes, Kept: 10 * time.Minute}

// drafts keeps what is being written and tells it to who tails the conversation.
// Nothing of it is in the journal: the message that is written in the end is.
type drafts struct {
	history *history
	hot     *hot.Store
	nats    *nats.Conn
	log     *slog.Logger
}

// add adds a piece to a draft and gives its length.
func (d *drafts) add(ctx context.Context, key journal.Key, caller identity.Caller, delta *conversationv1.Delta) (int64, error) {
	if strings.HasPrefix(delta.GetMessageId(), reservedPrefix) {
		return 0, fault.New(fault.IDMalformed, "the message id is one of weir's own").
			Field("message_id", "must not begin with "+reservedPrefix)
	}
	length, err := d.write(ctx, key, caller, delta)
	if err != nil {
		return 0, err
	}
	data, err := proto.Marshal(delta)
	if err != nil {
		return 0, fault.New(fault.Bug, "a delta cannot be encoded").Wrap(err)
	}
	// One that is lost is found in the draft by whoever misses it.
	if err := d.nats.Publish(key.Subject("live"), data); err != nil {
		d.log.Debug("a delta was not published", "conversation", key.String(), "error", err)
	}
	return length, nil
}

// write adds the piece to what is kept. A conversation that changed since it was
// looked at is looked at again, so that no draft outlives its message or its
// conversation.
func (d *drafts) write(ctx context.Context, key journal.Key, caller identity.Caller, delta *conversationv1.Delta) (int64, error) {
	piece := hot.Draft{ID: delta.GetMessageId(), Author: delta.GetAuthor(), Text: delta.GetText()}
	for range draftAttempts {
		s, err := d.history.loop.Newest(ctx, key)
		if err != nil {
			return 0, err
		}
		if err := draftable(s.State, caller, piece.ID); err != nil {
			return 0, err
		}
		length, err := d.hot.AppendDraft(ctx, key, s.Version, piece, delta.GetOffset(), draftLimits)
		if !errors.Is(err, hot.ErrMoved) {
			return length, err
		}
	}
	return 0, fault.New(fault.Contention, "the conversation changes faster than it can be looked at").Retry(50 * time.Millisecond)
}

// draftable refuses what could not be appended as a message either.
func draftable(c conversation, caller identity.Caller, id string) error {
	if !c.exists() || !c.isMember(caller.Subject) {
		return errConversationNotFound
	}
	if _, landed := c.ids.find(hashID(id)); landed {
		return fault.New(fault.AlreadyExists, "the message has been appended").
			Field("message_id", "names a message that is there")
	}
	return c.takesWords()
}

// landed ends the drafts of messages that were appended.
func (d *drafts) landed(ctx context.Context, key journal.Key, messages []*conversationv1.Message) {
	ids := make([]string, len(messages))
	for i, m := range messages {
		ids[i] = m.GetMessageId()
	}
	d.hot.EndDrafts(context.WithoutCancel(ctx), key, ids)
}

// written is what a feed knows of the drafts in its conversation. Redis is what
// counts; a delta that fits spares a look at it.
type written struct {
	drafts map[string]*draft
	// begun counts drafts, and how often any began anew.
	begun int
	// loading says that Redis is being read, and again that it must be once more. What
	// lands meanwhile is in ended, or in the state that was read last.
	loading, again bool
	ended          map[string]bool
	seen           conversation
}

// draft is what has been written of a message.
type draft struct {
	author string
	text   []byte
	// begun is another number whenever it begins anew.
	begun   int
	touched time.Time
}

// sentDraft is how far a tail was told of a draft.
type sentDraft struct{ begun, length int }

// end ends the draft of a message that landed.
func (w *written) end(id string) {
	delete(w.drafts, id)
	if w.loading {
		if w.ended == nil {
			w.ended = make(map[string]bool)
		}
		w.ended[id] = true
	}
}

// endLanded ends the drafts of all messages that a conversation holds.
func (w *written) endLanded(c conversation) {
	if w.loading {
		w.seen = c
	}
	maps.DeleteFunc(w.drafts, func(id string, _ *draft) bool {
		_, landed := c.ids.find(hashID(id))
		return landed
	})
}

// runOut ends the drafts that nobody has added to for as long as one is kept.
func (w *written) runOut(now time.Time) {
	maps.DeleteFunc(w.drafts, func(_ string, d *draft) bool { return now.Sub(d.touched) >= draftLimits.Kept })
}

// add takes a piece of a draft, and says false where it does not fit what is known:
// something was missed, or the draft began anew, or it may have ended.
func (w *written) add(piece *conversationv1.Delta, now time.Time) bool {
	d := w.drafts[piece.GetMessageId()]
	if d == nil || piece.GetOffset() > int64(len(d.text)) || d.author != piece.GetAuthor() {
		return false
	}
	known, text := d.text[piece.GetOffset():], []byte(piece.GetText())
	if !bytes.HasPrefix(known, text) && !bytes.HasPrefix(text, known) {
		return false
	}
	d.touched = now
	if len(text) > len(known) {
		d.text = append(d.text, text[len(known):]...)
	}
	return true
}

// take takes a draft as it was read.
func (w *written) take(found hot.Draft, now time.Time) {
	d, text := w.drafts[found.ID], []byte(found.Text)
	switch {
	case d != nil && d.author == found.Author && bytes.HasPrefix(d.text, text):
		return
	case d != nil && d.author == found.Author && bytes.HasPrefix(text, d.text):
		d.text = text
	default:
		w.begun++
		d = &draft{author: found.Author, text: text, begun: w.begun}
	}
	d.touched = now
	if w.drafts == nil {
		w.drafts = make(map[string]*draft)
	}
	w.drafts[found.ID] = d
}

// additions gives a tail what was added to drafts since it was last told, and marks
// it as told.
func (w *written) additions(to *tail) []*conversationv1.TailMessagesResponse {
	maps.DeleteFunc(to.drafted, func(id string, _ sentDraft) bool { return w.drafts[id] == nil })
	var batch []*conversationv1.TailMessagesResponse
	for id, d := range w.drafts {
		told := to.drafted[id]
		if told.begun != d.begun {
			told.length = 0
		}
		if told.length == len(d.text) {
			continue
		}
		batch = append(batch, &conversationv1.TailMessagesResponse{Event: &conversationv1.TailMessagesResponse_Delta{
			Delta: &conversationv1.Delta{MessageId: id, Author: d.author, Offset: int64(told.length), Text: string(d.text[told.length:])},
		}})
		if to.drafted == nil {
			to.drafted = make(map[string]sentDraft)
		}
		to.drafted[id] = sentDraft{d.begun, len(d.text)}
	}
	return batch
}

// passDelta tells a delta to the feed of its conversation, if there is one.
func (f *feeds) passDelta(msg *nats.Msg) {
	it := f.at(livePrefix, msg.Subject)
	if it == nil {
		return
	}
	var piece conversationv1.Delta
	if err := proto.Unmarshal(msg.Data, &piece); err != nil {
		f.log.Warn("a delta cannot be read", "subject", msg.Subject, "error", err)
		return
	}
	it.mu.Lock()
	fits := it.add(&piece, time.Now())
	if fits {
		it.wake()
	}
	it.mu.Unlock()
	if !fits {
		f.load(it)
	}
}

// load has a feed learn what has been written so far, beside its caller: tails do
// not wait for Redis. Where it is being read, it is read once more.
func (f *feeds) load(it *feed) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.loading {
		it.again = true
		return
	}
	it.loading = true
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
		defer cancel()
		for more := true; more; {
			found, err := f.openDrafts(ctx, it.key)
			if err != nil {
				// The next delta asks again. Messages come all the same.
				f.log.Debug("drafts are not known", "conversation", it.key.String(), "error", err)
			}
			more = it.loaded(found, time.Now())
		}
	}()
}

// loaded takes the drafts that were found, and says whether to look again.
func (t *feed) loaded(found []hot.Draft, now time.Time) (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range found {
		if _, landed := t.seen.ids.find(hashID(d.ID)); !landed && !t.ended[d.ID] {
			t.take(d, now)
		}
	}
	more = t.again
	t.loading, t.again, t.ended, t.seen = more, false, nil, conversation{}
	t.wake()
	return more
}

// openDrafts reads what is being written. Drafts whose message has landed may still
// be there.
func (f *feeds) openDrafts(ctx context.Context, key journal.Key) ([]hot.Draft, error) {
	found, err := f.hot.Drafts(ctx, key)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	s, err := f.loop.Newest(ctx, key)
	if err != nil {
		return nil, err
	}
	var open []hot.Draft
	for _, d := range found {
		if _, landed := s.State.ids.find(hashID(d.ID)); !landed && s.State.exists() {
			open = append(open, d)
		}
	}
	return open, nil
}

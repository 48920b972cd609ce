package conversation

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/journal"
)

const (
	// maxTails is how many tails one replica serves.
	maxTails = 20_000
	// recentMessages and recentBytes bound what a feed keeps of the newest messages,
	// so that a thousand tails need not each read what has just been said.
	recentMessages = 64
	recentBytes    = 512 << 10
)

// feeds tells the tails of this process what is new. One reader follows the whole
// stream, and each conversation that is tailed has a feed, which all its tails
// share. A feed buffers for nobody: it wakes, and a tail that is behind the newest
// few messages reads the journal at its own pace.
type feeds struct {
	consumer *journal.Consumer
	nats     *nats.Conn
	hot      *hot.Store
	loop     *loop
	log      *slog.Logger

	mu    sync.Mutex
	byKey map[journal.Key]*feed
	tails int
}

// feed is one conversation that is tailed here.
type feed struct {
	key  journal.Key
	subs *nats.Subscription

	mu    sync.Mutex
	tails int
	// changed is closed when anything below changes, and another takes its place.
	changed chan struct{}
	// head is the position of the newest message that was heard of, 0 at first.
	head int64
	// recent are the newest messages in a row, the last one at head.
	recent []*conversationv1.Message
	bytes  int
	// turned counts what may change who can read.
	turned int
	// state is the conversation as of stateTurn, without what grows: for asking who
	// can read.
	state     root
	stateTurn int
	drafts    map[string]*draft
}

// draft is what has been written of a message.
type draft struct {
	author string
	text   string
	// begun counts how often it began anew.
	begun int
}

func newFeeds(consumer *journal.Consumer, nc *nats.Conn, h *hot.Store, l *loop, log *slog.Logger) *feeds {
	return &feeds{consumer: consumer, nats: nc, hot: h, loop: l, log: log, byKey: make(map[journal.Key]*feed)}
}

// run follows the stream from where it ends now, until ctx ends.
func (f *feeds) run(ctx context.Context, j *journal.Journal) error {
	handled, err := j.LastSequence(ctx)
	for err != nil {
		if journal.Pause(ctx, feedRetry) != nil {
			return nil
		}
		handled, err = j.LastSequence(ctx)
	}
	// Tails that registered before learn of what came in between by this.
	f.wakeAll()
	for ctx.Err() == nil {
		err := f.consumer.Tail(ctx, handled+1, func(e journal.Stored) error {
			f.pass(e)
			handled = e.Sequence
			return nil
		}, func() {})
		if err != nil {
			f.log.Warn("tails wait, the stream is not followed", "error", err)
		}
		_ = journal.Pause(ctx, feedRetry)
	}
	return nil
}

// feedRetry is how soon the reader tries again after the stream was lost.
const feedRetry = 200 * time.Millisecond

// pass tells one event to the feed of its conversation, if there is one.
func (f *feeds) pass(stored journal.Stored) {
	e, err := stored.Event()
	if err != nil {
		f.log.Error("an event cannot be told to those who tail", "subject", stored.Subject, "error", err)
		return
	}
	f.mu.Lock()
	it := f.byKey[e.Key]
	f.mu.Unlock()
	if it == nil {
		return
	}
	recorded, err := aggregate.Decode[*conversationv1.Event](e)
	if err != nil {
		f.log.Error("an event cannot be told to those who tail", "subject", stored.Subject, "error", err)
		return
	}
	it.heard(recorded)
}

func (f *feeds) wakeAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, it := range f.byKey {
		it.mu.Lock()
		it.turned++
		it.wake()
		it.mu.Unlock()
	}
}

// heard takes an event of the conversation.
func (t *feed) heard(e aggregate.Recorded[*conversationv1.Event]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	held := heldBy(e, 0)
	appended := e.Event.GetMessagesAppended()
	switch {
	case e.Event.GetMessagesRedacted() != nil:
		// What was kept of these must not be shown any more.
		t.recent, t.bytes = nil, 0
	default:
		for _, r := range held.Messages {
			t.keep(toMessage(t.key.ID, r.GetPosition(), r.GetMessage(), e.Time).Message, proto.Size(r.GetMessage()))
		}
	}
	if appended == nil || changesReaders(appended) {
		t.turned++
	}
	t.wake()
}

// changesReaders says whether messages begin or end that an approver may read.
func changesReaders(appended *conversationv1.MessagesAppended) bool {
	for _, m := range appended.GetMessages() {
		for _, p := range m.GetParts() {
			if p.GetApproval() != nil {
				return true
			}
		}
	}
	return false
}

// keep makes a message the newest.
func (t *feed) keep(m *conversationv1.Message, bytes int) {
	if m.GetPosition() <= t.head {
		return
	}
	if m.GetPosition() != t.head+1 {
		t.recent, t.bytes = nil, 0
	}
	t.head = m.GetPosition()
	t.recent = append(t.recent, m)
	t.bytes += bytes
	for len(t.recent) > 1 && (len(t.recent) > recentMessages || t.bytes > recentBytes) {
		t.bytes -= proto.Size(t.recent[0])
		t.recent = t.recent[1:]
	}
	delete(t.drafts, m.GetMessageId())
}

func (t *feed) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// wrote takes a piece of a draft. It says false where a piece is missing before it.
func (t *feed) wrote(d *conversationv1.Delta) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	it := t.drafts[d.GetMessageId()]
	if it == nil {
		if d.GetOffset() != 0 {
			return false
		}
		it = &draft{author: d.GetAuthor()}
		t.drafts[d.GetMessageId()] = it
	}
	switch offset := int(d.GetOffset()); {
	case offset > len(it.text):
		return false
	case strings.HasPrefix(it.text[offset:], d.GetText()):
		return true
	case strings.HasPrefix(d.GetText(), it.text[offset:]):
		it.text = it.text[:offset] + d.GetText()
	default: // it says something else now
		it.text = it.text[:offset] + d.GetText()
		it.begun++
	}
	t.wake()
	return true
}

// open gives the feed of a conversation, for as long as its caller tails it.
func (f *feeds) open(ctx context.Context, key journal.Key) (it *feed, leave func(), err error) {
	f.mu.Lock()
	if f.tails >= maxTails {
		f.mu.Unlock()
		return nil, nil, fault.New(fault.LimitReached, "this replica serves %d tails already", maxTails).Retry(time.Second)
	}
	f.tails++
	it = f.byKey[key]
	fresh := it == nil
	if fresh {
		it = &feed{key: key, changed: make(chan struct{}), stateTurn: -1, drafts: make(map[string]*draft)}
		f.byKey[key] = it
	}
	it.tails++
	f.mu.Unlock()
	if fresh {
		f.listen(ctx, it)
	}
	return it, func() { f.leave(it) }, nil
}

func (f *feeds) leave(it *feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tails--
	if it.tails--; it.tails > 0 {
		return
	}
	delete(f.byKey, it.key)
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.subs != nil {
		_ = it.subs.Unsubscribe()
	}
}

// listen begins to hear of drafts. Without NATS or Redis there are none: messages
// come all the same.
func (f *feeds) listen(ctx context.Context, it *feed) {
	subs, err := f.nats.Subscribe(liveSubject(it.key), func(msg *nats.Msg) {
		var delta conversationv1.Delta
		if err := proto.Unmarshal(msg.Data, &delta); err != nil {
			f.log.Warn("a delta cannot be read", "conversation", it.key.String(), "error", err)
			return
		}
		if !it.wrote(&delta) {
			f.loadDrafts(context.Background(), it)
		}
	})
	if err != nil {
		f.log.Warn("drafts are not followed", "conversation", it.key.String(), "error", err)
	}
	it.mu.Lock()
	it.subs = subs
	it.mu.Unlock()
	f.loadDrafts(ctx, it)
}

// loadDrafts reads what has been written so far. Drafts whose message has landed
// are left to run out.
func (f *feeds) loadDrafts(ctx context.Context, it *feed) {
	found, err := f.hot.Drafts(ctx, it.key)
	if err != nil || len(found) == 0 {
		return
	}
	s, err := f.loop.Newest(ctx, it.key)
	if err != nil {
		return
	}
	for _, d := range found {
		if _, landed := s.State.ids.find(hashID(d.ID)); !landed {
			it.wrote(&conversationv1.Delta{MessageId: d.ID, Author: d.Author, Text: d.Text})
		}
	}
}

// current is the conversation, as new as the last change that the feed heard of.
func (f *feeds) current(ctx context.Context, it *feed, turn int) (root, error) {
	it.mu.Lock()
	if it.stateTurn >= turn {
		defer it.mu.Unlock()
		return it.state, nil
	}
	it.mu.Unlock()
	s, err := f.loop.Newest(ctx, it.key, aggregate.RootField)
	if err != nil {
		return root{}, err
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	if turn > it.stateTurn {
		it.state, it.stateTurn = s.State.root, turn
	}
	return s.State.root, nil
}

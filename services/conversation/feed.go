package conversation

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
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

// feed is one conversation that is tailed here. What always holds: no tail is ahead
// of its head, and no draft is of a message at or before it.
type feed struct {
	key journal.Key
	// tails is guarded by the mutex of feeds.
	tails int
	// asking is held by the one tail that asks the journal on behalf of all.
	asking chan struct{}

	mu sync.Mutex
	// changed is closed when anything below changes, and another takes its place.
	changed chan struct{}
	// head is the position of the newest message that was heard or read of.
	head int64
	// recent are messages in a row, the newest that were heard of.
	recent []*conversationv1.TailMessagesResponse
	bytes  int
	heard  time.Time
	// turned counts what may change who can read.
	turned int
	// state is the conversation as of stateTurn, without what grows: for asking who
	// can read.
	state     *root
	stateTurn int
	written
}

func newFeeds(consumer *journal.Consumer, nc *nats.Conn, h *hot.Store, l *loop, log *slog.Logger) *feeds {
	return &feeds{consumer: consumer, nats: nc, hot: h, loop: l, log: log, byKey: make(map[journal.Key]*feed)}
}

// run follows the stream from where it ends now, and what is being written, until
// ctx ends.
func (f *feeds) run(ctx context.Context, j *journal.Journal) error {
	// One subscription for all conversations: one for each would cost a goroutine and
	// would miss what is published while it is made.
	live, err := f.nats.Subscribe(livePrefix+"*."+kindName+".*", f.passDelta)
	if err != nil {
		return fmt.Errorf("drafts cannot be followed: %w", err)
	}
	defer func() { _ = live.Unsubscribe() }()
	// Tails that registered before it began learn of what came in between by wakeAll.
	return f.consumer.Follow(ctx, j, f.wakeAll, f.pass)
}

// at gives the feed of a conversation by the subject of an event or a delta, nil
// where nobody tails it.
func (f *feeds) at(prefix, subject string) *feed {
	key, err := journal.ParseKey(strings.TrimPrefix(subject, prefix))
	if err != nil {
		f.log.Error("a subject cannot be read", "subject", subject, "error", err)
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byKey[key]
}

// pass tells one event to the feed of its conversation, if there is one.
func (f *feeds) pass(stored journal.Stored) {
	it := f.at("weir."+serviceName+".", stored.Subject)
	if it == nil {
		return
	}
	e, err := stored.Event()
	if err == nil {
		var recorded aggregate.Recorded[*conversationv1.Event]
		if recorded, err = aggregate.Decode[*conversationv1.Event](e); err == nil {
			it.hear(recorded)
			return
		}
	}
	// It may have been anything, so who tails looks at the journal, and ends there.
	f.log.Error("an event cannot be told to those who tail", "subject", stored.Subject, "error", err)
	it.turn()
}

func (f *feeds) wakeAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, it := range f.byKey {
		it.turn()
	}
}

// turn makes all tails look who can read.
func (t *feed) turn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turned++
	t.wake()
}

// hear takes an event of the conversation.
func (t *feed) hear(e aggregate.Recorded[*conversationv1.Event]) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Event.GetMessagesRedacted() != nil || e.Event.GetConversationDeleted() != nil {
		// What was kept of these must not be shown any more, nor what is being written:
		// it was dropped.
		t.recent, t.bytes, t.drafts = nil, 0, nil
	} else {
		for _, r := range heldBy(e, 0).Messages {
			t.keep(toMessage(t.key.ID, r.GetPosition(), r.GetMessage(), e.Time).Message, now)
		}
	}
	if appended := e.Event.GetMessagesAppended(); appended == nil || changesReaders(appended) {
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
func (t *feed) keep(m *conversationv1.Message, now time.Time) {
	t.end(m.GetMessageId())
	t.head = max(t.head, m.GetPosition())
	if n := len(t.recent); n > 0 && m.GetPosition() != t.recent[n-1].GetMessage().GetPosition()+1 {
		t.recent, t.bytes = nil, 0
	}
	response := messageResponse(m)
	t.recent = append(t.recent, response)
	t.bytes += proto.Size(response)
	for len(t.recent) > 1 && (len(t.recent) > recentMessages || t.bytes > recentBytes) {
		t.bytes -= proto.Size(t.recent[0])
		t.recent[0] = nil
		t.recent = t.recent[1:]
	}
	t.heard = now
}

// since gives what was kept from a position on, nothing where that is not there.
func (t *feed) since(position int64) []*conversationv1.TailMessagesResponse {
	if len(t.recent) == 0 {
		return nil
	}
	first := t.recent[0].GetMessage().GetPosition()
	if position < first || position >= first+int64(len(t.recent)) {
		return nil
	}
	// A copy, since what leaves at the front is cleared.
	return slices.Clone(t.recent[position-first:])
}

func (t *feed) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// rest lets go of what nobody will ask for: messages that all who keep up have had
// for a while, and drafts that ran out.
func (t *feed) rest(now time.Time, quiet time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.heard) >= quiet {
		t.recent, t.bytes = nil, 0
	}
	t.runOut(now)
}

// open gives the feed of a conversation, for as long as its caller tails it.
func (f *feeds) open(key journal.Key) (it *feed, leave func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tails >= maxTails {
		return nil, nil, fault.New(fault.LimitReached, "this replica serves %d tails already", maxTails).Retry(time.Second)
	}
	it = f.byKey[key]
	if it == nil {
		it = &feed{key: key, asking: make(chan struct{}, 1), changed: make(chan struct{}), stateTurn: -1}
		f.byKey[key] = it
		f.load(it)
	}
	f.tails++
	it.tails++
	return it, func() { f.leave(it) }, nil
}

func (f *feeds) leave(it *feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tails--
	if it.tails--; it.tails == 0 {
		delete(f.byKey, it.key)
	}
}

// read asks the journal for the conversation, and gives it with the turn that it is
// as new as, at least.
func (f *feeds) read(ctx context.Context, it *feed) (*root, int, error) {
	it.mu.Lock()
	turn := it.turned
	fields := []string{aggregate.RootField}
	if it.loading || len(it.drafts) > 0 {
		fields = nil // the ids too: which of the drafts have landed
	}
	it.mu.Unlock()
	s, err := f.loop.Newest(ctx, it.key, fields...)
	if err != nil {
		return nil, 0, err
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	it.head = max(it.head, s.State.Head)
	it.endLanded(s.State)
	if turn > it.stateTurn {
		it.state, it.stateTurn = &s.State.root, turn
	}
	return &s.State.root, turn, nil
}

// current is the conversation, as new as a turn. Where a thousand tails ask at
// once, one reads for all.
func (f *feeds) current(ctx context.Context, it *feed, turn int) (*root, error) {
	select {
	case it.asking <- struct{}{}:
		defer func() { <-it.asking }()
	case <-ctx.Done():
		return nil, fault.From(ctx.Err())
	}
	it.mu.Lock()
	state, known := it.state, it.stateTurn >= turn
	it.mu.Unlock()
	if known {
		return state, nil
	}
	state, _, err := f.read(ctx, it)
	return state, err
}

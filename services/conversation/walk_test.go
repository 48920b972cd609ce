package conversation

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	conversationv1 "weir/gen/conversation/v1"
)

// walkLength is how long the conversation is that is walked. In full:
//
//	go test ./services/conversation -run TestAWalk -walk 100000
var walkLength = flag.Int("walk", 600, "messages of the conversation that is walked")

// plainList is the conversation as it should be, kept by the test.
type plainList struct {
	mu   sync.Mutex
	byID []string // message ids by position - 1
	// erased are the positions that were redacted before anybody walked, and
	// touched those that were while somebody did.
	erased, touched map[int64]bool
}

// put notes what an acknowledgement said.
func (l *plainList) put(messages ...*conversationv1.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range messages {
		for int64(len(l.byID)) < m.GetPosition() {
			l.byID = append(l.byID, "")
		}
		l.byID[m.GetPosition()-1] = m.GetMessageId()
	}
}

func (l *plainList) head() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(len(l.byID))
}

// check compares what was shown with the list, once nobody writes any more.
func (l *plainList) check(m *conversationv1.Message) error {
	at := m.GetPosition()
	if at < 1 || at > int64(len(l.byID)) || l.byID[at-1] != m.GetMessageId() {
		return fmt.Errorf("position %d shows %q", at, m.GetMessageId())
	}
	erased := m.GetErasure() != conversationv1.Erasure_ERASURE_UNSPECIFIED
	switch {
	case l.touched[at]:
	case erased != l.erased[at]:
		return fmt.Errorf("position %d: erasure %v", at, m.GetErasure())
	case !erased && m.GetParts()[0].GetText() != wordsOf(m.GetMessageId()):
		return fmt.Errorf("position %d says %v", at, m.GetParts())
	}
	return nil
}

func wordsOf(id string) string { return "what " + id + " says" }

// walker reads a conversation as one client does, and keeps what it was shown.
type walker struct {
	*mesh
	replica
	list  *plainList
	shown []*conversationv1.Message
}

// page reads one page and checks its edges: it begins where it was asked to, has no
// gap, is full where there is enough, and says where to go on.
func (w *walker) page(from int64, size int32, order conversationv1.Order) (next int64, err error) {
	before := w.list.head()
	req := &conversationv1.ListMessagesRequest{ConversationId: "c", PageSize: size, Order: order}
	if from != 0 {
		req.From = &from
	}
	messages, next, err := w.mesh.page(w.replica, req)
	if err != nil {
		return 0, fmt.Errorf("%v: %w", req, err)
	}
	after := w.get(w.replica, "c").GetHead()
	newestFirst := order == conversationv1.Order_ORDER_NEWEST_FIRST
	first, step := max(from, 1), int64(1)
	if newestFirst {
		first, step = from, -1
		if from == 0 && len(messages) > 0 {
			first = messages[0].GetPosition()
			if first < before {
				return 0, fmt.Errorf("the newest page begins at %d, %d was acknowledged", first, before)
			}
		}
	}
	for i, m := range messages {
		if m.GetPosition() != first+step*int64(i) {
			return 0, fmt.Errorf("%v: got positions %v", req, positions(messages))
		}
	}
	// How many there are must lie between what was there before and after.
	least, most := min(int64(size), before-first+1), min(int64(size), after-first+1)
	if newestFirst {
		least, most = min(int64(size), first), min(int64(size), first)
	}
	if n := int64(len(messages)); n < least || n > most {
		return 0, fmt.Errorf("%v: %d messages, want %d to %d", req, n, least, most)
	}
	last := first + step*int64(len(messages)-1)
	switch {
	case newestFirst && next != last-1, !newestFirst && next == 0 && last < before, !newestFirst && next != 0 && next != last+1:
		return 0, fmt.Errorf("%v: ends at %d and goes on at %d", req, last, next)
	}
	w.shown = append(w.shown, messages...)
	return next, nil
}

// through walks from one end to the other.
func (w *walker) through(order conversationv1.Order) error {
	seen := len(w.shown)
	for from := int64(0); ; {
		next, err := w.page(from, 1+rand.Int32N(200), order)
		if err != nil {
			return err
		}
		if next == 0 {
			break
		}
		from = next
	}
	if n := int64(len(w.shown) - seen); n != max(w.shown[seen].GetPosition(), w.shown[len(w.shown)-1].GetPosition()) {
		return fmt.Errorf("walked over %d messages from %d to %d", n, w.shown[seen].GetPosition(), w.shown[len(w.shown)-1].GetPosition())
	}
	return nil
}

// jump reads pages here and there.
func (w *walker) jump(times int) error {
	for range times {
		order := conversationv1.Order(rand.N(3))
		if _, err := w.page(1+rand.N(w.list.head()), 1+rand.Int32N(300), order); err != nil {
			return err
		}
	}
	return nil
}

// writer appends batches to the list's conversation, and between them to another
// one, so that sequences have gaps which positions must not have.
func (l *plainList) write(m *mesh, r replica, who string, batches int) error {
	for b := range batches {
		req := &conversationv1.AppendMessagesRequest{ConversationId: "c"}
		for n := range 1 + b*37%100 {
			id := fmt.Sprintf("%s-%d-%d", who, b, n)
			req.Messages = append(req.Messages, &conversationv1.NewMessage{MessageId: id, Parts: text(wordsOf(id))})
		}
		var resp *conversationv1.AppendMessagesResponse
		err := persist(func() (err error) {
			resp, err = r.messages.AppendMessages(m.as(ann), req)
			return err
		})
		if err != nil {
			return err
		}
		l.put(resp.GetMessages()...)
		if _, err := m.trySay(r, "noise", fmt.Sprint(who, b), "noise"); err != nil {
			return err
		}
	}
	return nil
}

// redact erases messages at random and notes them.
func (l *plainList) redact(m *mesh, r replica, times int, noted map[int64]bool) error {
	for range times {
		l.mu.Lock()
		at := 1 + rand.N(len(l.byID))
		id := l.byID[at-1]
		if id == "" { // appended before another one, and not acknowledged yet
			l.mu.Unlock()
			continue
		}
		noted[int64(at)] = true
		l.mu.Unlock()
		err := persist(func() error {
			_, err := r.messages.RedactMessage(m.as(ann), &conversationv1.RedactMessageRequest{ConversationId: "c", MessageId: id})
			return err
		})
		if err != nil {
			return fmt.Errorf("redact %s at %d: %w", id, at, err)
		}
	}
	return nil
}

func TestAWalkThroughALongConversationShowsThePlainListWhileOthersAppend(t *testing.T) {
	m := newMesh(t)
	replicas := []replica{m.start(), m.start()}
	m.create(replicas[0], "c")
	m.create(replicas[0], "noise")
	list := &plainList{erased: make(map[int64]bool), touched: make(map[int64]bool)}
	for round := 0; list.head() < int64(*walkLength); round++ {
		if err := list.write(m, replicas[round%2], fmt.Sprint("a", round), 4); err != nil {
			t.Fatal(err)
		}
	}
	if err := list.redact(m, replicas[0], 4, list.erased); err != nil {
		t.Fatal(err)
	}

	walkers := make([]*walker, 6)
	for i := range walkers {
		walkers[i] = &walker{mesh: m, replica: replicas[i%2], list: list}
	}
	ctx, stop := context.WithCancel(t.Context())
	writing := make(chan error, 3)
	for i, who := range []string{"x", "y"} {
		go func() {
			var err error
			for round := 0; ctx.Err() == nil && err == nil; round++ {
				err = list.write(m, replicas[i], fmt.Sprint(who, round), 3)
			}
			writing <- err
		}()
	}
	go func() { writing <- list.redact(m, replicas[1], 2, list.touched) }()
	together(t,
		func() error { return walkers[0].through(conversationv1.Order_ORDER_OLDEST_FIRST) },
		func() error { return walkers[1].through(conversationv1.Order_ORDER_OLDEST_FIRST) },
		func() error { return walkers[2].through(conversationv1.Order_ORDER_NEWEST_FIRST) },
		func() error { return walkers[3].through(conversationv1.Order_ORDER_NEWEST_FIRST) },
		func() error { return walkers[4].jump(40) },
		func() error { return walkers[5].jump(40) },
	)
	stop()
	for range cap(writing) {
		if err := <-writing; err != nil {
			t.Fatal(err)
		}
	}

	// A flushed Redis gives the same.
	m.redis.Flush()
	again := &walker{mesh: m, replica: replicas[0], list: list}
	if err := again.through(conversationv1.Order_ORDER_NEWEST_FIRST); err != nil {
		t.Fatal(err)
	}
	if n := int64(len(again.shown)); n != list.head() {
		t.Fatalf("walked over %d messages of %d", n, list.head())
	}
	for i, w := range append(walkers, again) {
		for _, shown := range w.shown {
			if err := list.check(shown); err != nil {
				t.Fatalf("walker %d: %v", i, err)
			}
		}
	}
}

// persist does something again for as long as it meets other writers, or what is
// away for a moment.
func persist(do func() error) error {
	for {
		err := do()
		if code := status.Code(err); code != codes.Aborted && code != codes.Unavailable {
			return err
		}
	}
}

// together runs some things side by side.
func together(t testing.TB, work ...func() error) {
	t.Helper()
	errs := make(chan error, len(work))
	for _, do := range work {
		go func() { errs <- do() }()
	}
	for range work {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

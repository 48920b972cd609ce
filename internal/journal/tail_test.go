package journal_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"weir/internal/fault"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

// tail follows a stream as callers do: again from behind the last sequence that
// was handled, whenever it breaks off.
type tail struct {
	mu        sync.Mutex
	sequences []uint64
	ids       []string
	caughtUp  []int // how many events had been handled each time
}

func (s *tail) handle(e journal.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sequences = append(s.sequences, e.Sequence)
	s.ids = append(s.ids, e.ID)
	return nil
}

func (s *tail) ready() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.caughtUp = append(s.caughtUp, len(s.ids))
}

func (s *tail) seen() ([]string, []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ids), slices.Clone(s.caughtUp)
}

func (s *tail) next(from uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sequences) == 0 {
		return from
	}
	return s.sequences[len(s.sequences)-1] + 1
}

func follow(t testing.TB, nc *nats.Conn, from uint64, filter string) (s *tail, stop func()) {
	t.Helper()
	s = &tail{}
	c := consumer(t, nc, "", filter)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			// What interrupts it is the test's doing.
			if err := c.Tail(ctx, s.next(from), events(s.handle), s.ready); err != nil {
				select {
				case <-time.After(20 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return s, stop
}

func waitFor(t testing.TB, s *tail, want []string) {
	t.Helper()
	meshtest.Eventually(t, fmt.Sprint(want), func() bool {
		ids, _ := s.seen()
		return len(ids) >= len(want)
	})
	if ids, _ := s.seen(); !slices.Equal(ids, want) {
		t.Fatalf("got %v, want %v", ids, want)
	}
}

// events reads what a tail gives, and ends it at what cannot be read.
func events(handle func(journal.Event) error) func(journal.Stored) error {
	return func(s journal.Stored) error {
		e, err := s.Event()
		if err != nil {
			return err
		}
		return handle(e)
	}
}

func TestTailGivesEveryEventOnceInOrderFromASequenceOn(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	versions := map[string]uint64{}
	put := func(kind, id string) string {
		k := journal.Key{Tenant: "acme", Kind: kind, ID: id}
		event := fmt.Sprintf("%s-%s-%d", kind, id, versions[kind+id])
		versions[kind+id] = appended(t, j, eventOf(k, event), versions[kind+id])
		return event
	}
	var want []string
	for range 20 {
		want = append(want, put("thing", "x"), put("thing", "y"))
		put("other", "x")
	}
	all, _ := follow(t, n.Connect(), 0, "weir.test.acme.thing.*")
	some, _ := follow(t, n.Connect(), 31, "weir.test.acme.thing.*")
	waitFor(t, all, want)
	waitFor(t, some, want[20:])
	want = append(want, put("thing", "x"), put("thing", "z"))
	waitFor(t, all, want)
	waitFor(t, some, want[20:])
	for _, s := range []*tail{all, some} {
		if ids, caughtUp := s.seen(); len(caughtUp) != 1 || caughtUp[0] != len(ids)-2 {
			t.Errorf("caught up at %v of %d events", caughtUp, len(ids))
		}
	}
}

func TestTailGoesOnOverRestartsAndCuts(t *testing.T) {
	n := meshtest.StartNATS(t)
	proxy := meshtest.StartProxy(t, n.Addr())
	j := open(t, n.URL())
	s, _ := follow(t, meshtest.Connect(t, "nats://"+proxy.Addr()), 1, everything)
	var want []string
	var version uint64
	for round := range 4 {
		for range 25 {
			id := fmt.Sprintf("e%d", len(want))
			version = appended(t, j, event(id), version)
			want = append(want, id)
		}
		if round%2 == 0 {
			proxy.Cut()
		} else {
			n.Stop()
			n.Start()
			meshtest.Eventually(t, "the journal is back", func() bool { return j.Healthy(t.Context()) == nil })
		}
	}
	waitFor(t, s, want)
}

func TestTailFromBeyondTheEndWaits(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	version := appended(t, j, event("e1"), 0)
	s, stop := follow(t, n.Connect(), 4, everything)
	meshtest.Eventually(t, "it has caught up", func() bool { _, caughtUp := s.seen(); return len(caughtUp) == 1 })
	for i := 2; i <= 5; i++ {
		version = appended(t, j, event(fmt.Sprintf("e%d", i)), version)
	}
	waitFor(t, s, []string{"e4", "e5"})
	stop()
	if _, caughtUp := s.seen(); !slices.Equal(caughtUp, []int{0}) {
		t.Errorf("caught up at %v", caughtUp)
	}
}

func TestTailEndsWhereTheHandlerFailsAndWhereAnEventCannotBeRead(t *testing.T) {
	n := meshtest.StartNATS(t)
	j, nc := open(t, n.URL()), n.Connect()
	appended(t, j, event("e1"), 0)
	c := consumer(t, nc, "", everything)
	refused := errors.New("refused")
	never := func() { t.Error("caught up") }
	if err := c.Tail(t.Context(), 1, func(journal.Stored) error { return refused }, never); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	if _, err := jetStream(t, nc).Publish(t.Context(), "weir.test.acme.thing.raw", []byte("raw")); err != nil {
		t.Fatal(err)
	}
	var s tail
	wantReason(t, c.Tail(t.Context(), 1, events(s.handle), never), fault.EventUnreadable)
	if ids, _ := s.seen(); !slices.Equal(ids, []string{"e1"}) {
		t.Errorf("handled %v", ids)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var raw journal.Stored
	if err := c.Tail(ctx, 2, func(m journal.Stored) error { raw = m; return nil }, cancel); err != nil {
		t.Error(err)
	}
	if string(raw.Data) != "raw" || raw.Sequence != 2 || raw.Subject != "weir.test.acme.thing.raw" {
		t.Errorf("got %+v", raw)
	}
	if err := consumer(t, nc, "").Tail(ctx, 1, events(s.handle), never); err != nil {
		t.Errorf("a context that ended gives %v", err)
	}
}

func TestBySequence(t *testing.T) {
	n := meshtest.StartNATS(t)
	j, nc := open(t, n.URL()), n.Connect()
	for i := 1; i <= 50; i++ {
		appended(t, j, eventOf(key(fmt.Sprint(i)), fmt.Sprintf("e%d", i)), 0)
	}
	if _, err := jetStream(t, nc).Publish(t.Context(), "weir.test.acme.thing.raw", []byte("raw")); err != nil {
		t.Fatal(err)
	}
	want := []uint64{51, 1, 50, 7}
	got := make([]journal.Stored, len(want))
	if err := j.BySequence(t.Context(), want, func(i int, m journal.Stored) error { got[i] = m; return nil }); err != nil {
		t.Fatal(err)
	}
	// It is the same message that Tail gives.
	ctx, cancel := context.WithCancel(t.Context())
	var tailed []journal.Stored
	if err := consumer(t, nc, "", everything).Tail(ctx, 1, func(m journal.Stored) error { tailed = append(tailed, m); return nil }, cancel); err != nil {
		t.Error(err)
	}
	for i, m := range got {
		if same := tailed[want[i]-1]; len(m.Header)+len(same.Header) > 0 && !reflect.DeepEqual(m, same) {
			t.Errorf("got %+v, want %+v", m, same)
		}
		if m.Sequence != want[i] {
			t.Errorf("%d: got %d", want[i], m.Sequence)
		}
	}
	if e, err := got[3].Event(); err != nil || e.ID != "e7" {
		t.Errorf("got %+v, %v", e, err)
	}
	_, err := got[0].Event()
	wantReason(t, err, fault.EventUnreadable)

	if err := j.BySequence(t.Context(), nil, nil); err != nil {
		t.Error(err)
	}
	all := make([]uint64, 60)
	for i := range all {
		all[i] = uint64(i + 1)
	}
	ignore := func(int, journal.Stored) error { return nil }
	wantReason(t, j.BySequence(t.Context(), all, ignore), fault.EventUnreadable)
	refused := errors.New("refused")
	if err := j.BySequence(t.Context(), all[:50], func(int, journal.Stored) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if err := j.BySequence(ctx, all[:50], ignore); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestBehindSeesWhatIsLeftAfterAPurge(t *testing.T) {
	n := meshtest.StartNATS(t)
	j, nc := open(t, n.URL()), n.Connect()
	behind := func(sequence uint64, want bool) {
		t.Helper()
		if got, err := j.Behind(t.Context(), sequence); err != nil || got != want {
			t.Errorf("behind %d: %v, %v", sequence, got, err)
		}
	}
	behind(0, false)
	appended(t, j, eventOf(key("a"), "a"), 0)
	appended(t, j, eventOf(key("b"), "b"), 0)
	behind(0, true)
	behind(1, true)
	behind(2, false)
	stream, err := jetStream(t, nc).Stream(t.Context(), journal.StreamName(service))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Request("$JS.API.STREAM.PURGE."+stream.CachedInfo().Config.Name, []byte(`{"filter":"weir.test.acme.thing.b"}`), meshtest.Patience); err != nil {
		t.Fatal(err)
	}
	behind(1, false)
	if last, err := j.LastSequence(t.Context()); err != nil || last != 2 {
		t.Errorf("last %d, %v", last, err)
	}
}

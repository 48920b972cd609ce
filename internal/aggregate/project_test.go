package aggregate

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

// listed gives the ids of a whole list, in its order.
func listed(ctx context.Context, l *ledgerLoop, list string) ([]string, error) {
	items, _, err := l.List(ctx, ledgerPage{Tenant: "acme", Lists: []string{list}, Size: 1000})
	ids := make([]string, len(items))
	for i, item := range items {
		ids[i] = item.ID
	}
	return ids, err
}

func TestAFlushWhileRunning(t *testing.T) {
	r := newRig(t)
	a := r.replica()
	r.project(a)
	var want []string
	for i := range 30 {
		id := fmt.Sprint("id", i)
		must(t, a, id, "one")
		must(t, a, id, "two")
		want = append([]string{id}, want...)
	}
	waitListed(t, a, "all", want...)

	for range 2 {
		r.redis.Flush()
		// Until the list is whole, it says so.
		rebuilding := 0
		meshtest.Eventually(t, "the list is back", func() bool {
			got, err := listed(t.Context(), a, "all")
			switch {
			case fault.Is(err, fault.IndexRebuilding):
				rebuilding++
				return false
			case err != nil:
				t.Fatalf("list: %v", err)
			case !slices.Equal(got, want):
				t.Fatalf("after %d times INDEX_REBUILDING it is %v", rebuilding, got)
			}
			return true
		})
		if rebuilding == 0 {
			t.Error("the list never said that it is being rebuilt")
		}
		waitListed(t, r.replica(), "active", want...)
	}
	must(t, a, "id0", "three")
	waitListed(t, a, "active", append([]string{"id0"}, want[:29]...)...)
}

// What follows a flush, written while the lists are rebuilt, is in them.
func TestWritesDuringARebuild(t *testing.T) {
	r := newRig(t)
	a, b := r.replica(), r.replica()
	r.project(a)
	r.project(b) // replicas share the work
	var want []string
	for i := range 40 {
		if i%10 == 0 {
			r.redis.Flush()
		}
		id := fmt.Sprint("id", i)
		must(t, []*ledgerLoop{a, b}[i%2], id, "one")
		want = append([]string{id}, want...)
	}
	waitListed(t, a, "all", want...)
	waitListed(t, b, "active", want...)
}

func TestRedisBackWithAnOldSnapshot(t *testing.T) {
	r := newRig(t)
	a := r.replica()
	r.project(a)
	for _, id := range []string{"old", "changed"} {
		must(t, a, id, "one")
	}
	waitListed(t, a, "active", "changed", "old")
	r.redis.Save()
	must(t, a, "changed", "two")
	must(t, a, "new", "one")
	must(t, a, "old", "two")
	r.redis.Kill()
	must(t, a, "during", "one")
	r.redis.Start()

	// The snapshot's lists are believed for a moment, until the projector has
	// looked; from then on they are whole or not given.
	waitListed(t, a, "active", "during", "old", "new", "changed")
	waitListed(t, r.replica(), "all", "during", "new", "changed", "old")
	for id, count := range map[string]int64{"old": 2, "changed": 2, "new": 1, "during": 1} {
		wantCount(t, r.replica(), id, count)
		if s, err := shown(t, a, id); err != nil || s.State.Count != count {
			t.Errorf("redis shows %s with %d, %v", id, s.State.Count, err)
		}
	}
}

func (r *rig) erase(id string) {
	r.t.Helper()
	js, err := jetstream.New(r.nc)
	if err != nil {
		r.t.Fatal(err)
	}
	stream, err := js.Stream(r.t.Context(), journal.StreamName("test"))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := stream.Purge(r.t.Context(), jetstream.WithPurgeSubject(key(id).Subject("test"))); err != nil {
		r.t.Fatal(err)
	}
}

// Erased events leave nothing that a rebuild could bring back.
func TestWhatWasErasedIsNotRebuilt(t *testing.T) {
	r := newRig(t)
	writer := r.replica()
	must(t, writer, "kept", "one")
	must(t, writer, "erased", "one")
	must(t, writer, "erased", "two") // the stream's last events
	r.erase("erased")
	r.redis.Flush()

	a := r.replica()
	r.project(a)
	waitListed(t, a, "all", "kept")
	if s, err := a.Read(t.Context(), key("erased")); err != nil || s.Exists() {
		t.Errorf("it is %+v, %v", s, err)
	}
	must(t, a, "erased", "a new one")
	waitListed(t, a, "all", "erased", "kept")
	wantCount(t, r.replica(), "erased", 1)
}

// An event may be on its way to the projector while its aggregate is erased.
func TestAnErasedAggregateIsNotProjected(t *testing.T) {
	r := newRig(t)
	writer := r.replica()
	must(t, writer, "x", "one")
	last := must(t, writer, "x", "two")
	late, err := r.journal.Get(t.Context(), last.Version)
	if err != nil {
		t.Fatal(err)
	}
	r.erase("x")
	r.redis.Flush()
	a := r.replica()
	if err := a.project(t.Context(), "epoch", late); err != nil {
		t.Fatal(err)
	}
	if d, err := r.hot.Read(t.Context(), key("x")); err != nil || d.Version != 0 {
		t.Errorf("redis shows %+v, %v", d, err)
	}
}

// An id that is used anew has nothing of its former life, not even where
// somebody remembers that.
func TestAnAggregateBegunAnewIsProjectedAlone(t *testing.T) {
	r := newRig(t)
	a := r.replica()
	must(t, a, "x", "one")
	must(t, a, "x", "two")
	r.erase("x")
	r.redis.Flush()
	first := must(t, r.replica(), "x", "three")
	r.redis.Flush()
	event, err := r.journal.Get(t.Context(), first.Version)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.project(t.Context(), "epoch", event); err != nil {
		t.Fatal(err)
	}
	s, err := a.Read(t.Context(), key("x"))
	if err != nil || s.State.Count != 1 || s.State.First != first.Version {
		t.Errorf("it is %+v, %v", s, err)
	}
	must(t, a, "x", "one") // not done already
	wantCount(t, a, "x", 2)
}

func TestListsPage(t *testing.T) {
	r := newRig(t)
	a := r.replica()
	r.project(a)
	const count = 25
	var want []string
	for i := range count {
		id := fmt.Sprint("id", i)
		must(t, a, id, "one")
		want = append([]string{id}, want...)
	}
	waitListed(t, a, "all", want...)
	for _, size := range []int{1, 7, 24, 25, 26} {
		var got []string
		for page := (ledgerPage{Tenant: "acme", Lists: []string{"all"}, Size: size}); ; {
			items, next, err := a.List(t.Context(), page)
			if err != nil {
				t.Fatal(err)
			}
			if len(items) > size {
				t.Fatalf("a page of %d has %d items", size, len(items))
			}
			for _, item := range items {
				if item.State.Count != 1 || !item.State.has("one") {
					t.Errorf("%s is %+v", item.ID, item.State)
				}
				got = append(got, item.ID)
			}
			if next == "" {
				break
			}
			page.Token = next
		}
		if !slices.Equal(got, want) {
			t.Errorf("in pages of %d it is %v", size, got)
		}
	}
	items, next, err := a.List(t.Context(), ledgerPage{Tenant: "acme", Lists: []string{"all"}, Size: 3, Fields: []string{RootField}})
	if err != nil || len(items) != 3 || items[0].State.Count != 1 || items[0].State.has("one") {
		t.Errorf("with the root alone it is %+v, %v", items, err)
	}
	_, _, err = a.List(t.Context(), ledgerPage{Tenant: "acme", Lists: []string{"active"}, Token: next})
	if !fault.Is(err, fault.PageTokenInvalid) {
		t.Errorf("with another list's token: %v", err)
	}
	if items, _, err := a.List(t.Context(), ledgerPage{Tenant: "other", Lists: []string{"all"}}); err != nil || len(items) != 0 {
		t.Errorf("another tenant sees %v, %v", items, err)
	}
}

// clock is a time that the test moves.
type clock struct{ micros atomic.Int64 }

func newClock(start time.Time) *clock {
	c := &clock{}
	c.micros.Store(start.UnixMicro())
	return c
}

func (c *clock) now() time.Time          { return time.UnixMicro(c.micros.Load()) }
func (c *clock) advance(d time.Duration) { c.micros.Add(d.Microseconds()) }

// expiring is a ledger whose deadline, an hour after its first entry, is over
// with a second one.
func (r *rig) expiring(c *clock) *ledgerLoop {
	kind := ledgerKind()
	kind.Due = func(l ledger) time.Time {
		if l.Count > 1 {
			return time.Time{}
		}
		return l.Due
	}
	j, h := r.open(r.nats.Connect())
	l := New(kind, j, h, slog.New(slog.DiscardHandler))
	l.Now = c.now
	return l
}

// sweeping sweeps until the test ends, and counts the calls for each aggregate.
type sweeping struct {
	mu    sync.Mutex
	calls map[string]int
}

func (s *sweeping) run(r *rig, l *ledgerLoop) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.Sweep(ctx, func(ctx context.Context, k journal.Key) (time.Duration, error) {
			s.mu.Lock()
			s.calls[k.ID]++
			s.mu.Unlock()
			_, err := l.Do(ctx, k, note("expired"))
			return 0, err
		})
	}()
	r.t.Cleanup(func() { cancel(); <-done })
}

func (s *sweeping) called() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.calls)
}

func TestADeadlineFiresAtItsTimeOnceAlsoAfterAFlush(t *testing.T) {
	r := newRig(t)
	c := newClock(time.Now())
	a := r.expiring(c)
	r.project(a)
	s := &sweeping{calls: map[string]int{}}
	must(t, a, "x", "one")
	c.advance(30 * time.Minute)
	must(t, a, "later", "one")
	s.run(r, a)
	// fired waits for deadlines; a fresh one that is over already shows that the
	// sweeper has looked since, so what else is due has come.
	probes := 0
	want := func(calls map[string]int) {
		t.Helper()
		probes++
		probe := fmt.Sprint("probe", probes)
		late := r.expiring(newClock(c.now().Add(-2 * time.Hour)))
		must(t, late, probe, "one")
		meshtest.Eventually(t, "the sweeper has looked", func() bool { return s.called()[probe] > 0 })
		got := s.called()
		maps.DeleteFunc(got, func(id string, _ int) bool { return id[:1] == "p" })
		if !maps.Equal(got, calls) {
			t.Fatalf("fired were %v, want %v", got, calls)
		}
	}
	want(map[string]int{})
	r.redis.Flush()
	waitComplete(t, a)
	c.advance(29 * time.Minute)
	want(map[string]int{}) // the original time stands

	c.advance(time.Minute)
	meshtest.Eventually(t, "x fires and is done", func() bool {
		x, err := a.Read(t.Context(), key("x"))
		return err == nil && x.State.Count == 2
	})
	r.redis.Flush()
	waitComplete(t, a)
	want(map[string]int{"x": 1}) // what has happened does not come again
	c.advance(30 * time.Minute)
	meshtest.Eventually(t, "the later one fires", func() bool { return s.called()["later"] == 1 })
	want(map[string]int{"x": 1, "later": 1})
}

func waitComplete(t testing.TB, l *ledgerLoop) {
	t.Helper()
	meshtest.Eventually(t, "lists are complete", func() bool {
		_, err := listed(t.Context(), l, "all")
		return err == nil
	})
}

func TestTwoReplicasSweep(t *testing.T) {
	r := newRig(t)
	c := newClock(time.Now())
	a, b := r.expiring(c), r.expiring(c)
	s := &sweeping{calls: map[string]int{}}
	const count = 60
	for i := range count {
		must(t, a, fmt.Sprint("id", i), "one")
	}
	c.advance(time.Hour)
	s.run(r, a)
	s.run(r, b)
	meshtest.Eventually(t, "all have fired", func() bool { return len(s.called()) == count })
	for id, calls := range s.called() {
		if calls != 1 {
			t.Errorf("%s fired %d times", id, calls)
		}
	}
	for i := range count {
		id := key(fmt.Sprint("id", i))
		meshtest.Eventually(t, "it is decided", func() bool {
			s, err := a.Read(t.Context(), id)
			return err == nil && s.State.Count == 2
		})
	}
}

// A deadline whose handler fails, or whose replica dies with it, comes again.
func TestAFailedDeadlineComesAgain(t *testing.T) {
	r := newRig(t)
	c := newClock(time.Now())
	a := r.expiring(c)
	must(t, a, "x", "one")
	c.advance(time.Hour)
	var calls atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = a.Sweep(ctx, func(context.Context, journal.Key) (time.Duration, error) {
			calls.Add(1)
			return 0, errRefused
		})
	}()
	meshtest.Eventually(t, "it fires", func() bool { return calls.Load() == 1 })
	c.advance(sweepHold)
	meshtest.Eventually(t, "it fires again", func() bool { return calls.Load() == 2 })
	cancel()
	<-done
	// Another replica gets it when the hold of the first is over.
	s := &sweeping{calls: map[string]int{}}
	s.run(r, r.expiring(c))
	c.advance(sweepHold)
	meshtest.Eventually(t, "another replica gets it", func() bool { return s.called()["x"] == 1 })
}

var filled = time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC)

// fill writes many events as the journal does, but without waiting for each.
func (r *rig) fill(aggregates, each int) {
	r.t.Helper()
	js, err := jetstream.New(r.nc)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := range each {
		for a := range aggregates {
			data, err := proto.Marshal(noteEvent(fmt.Sprint("entry", i), int64(i+1)))
			if err != nil {
				r.t.Fatal(err)
			}
			expected := 0 // else the sequence that the aggregate got in the round before
			if i > 0 {
				expected = (i-1)*aggregates + a + 1
			}
			msg := &nats.Msg{Subject: key(fmt.Sprint("id", a)).Subject("test"), Data: data, Header: nats.Header{
				jetstream.ExpectedLastSubjSeqHeader: {fmt.Sprint(expected)},
				"ce-id":                             {fmt.Sprintf("%d/%d", a, i)},
				"ce-time":                           {filled.Format("2006-01-02T15:04:05.000000Z")},
			}}
			if _, err := js.PublishMsgAsync(msg); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(meshtest.Patience):
		r.t.Fatal("the events are not in")
	}
}

// The whole of Redis from the journal alone, by a process that remembers nothing.
func TestARebuildEqualsAReplay(t *testing.T) {
	r := newRig(t)
	const aggregates, each = 500, 10
	r.fill(aggregates, each)

	started := time.Now()
	fresh, replayer := r.replica(), r.replica()
	r.project(fresh)
	waitComplete(t, fresh)
	t.Logf("%d events were rebuilt in %v", aggregates*each, time.Since(started))

	// fill wrote round by round, so the last aggregate is the newest.
	var want []string
	for a := range aggregates {
		want = append([]string{fmt.Sprint("id", a)}, want...)
	}
	for _, list := range []string{"all", "active"} {
		if got, err := listed(t.Context(), fresh, list); err != nil || !slices.Equal(got, want) {
			t.Fatalf("list %q holds %d, %v: %v", list, len(got), err, got)
		}
	}
	for a := range aggregates {
		id := fmt.Sprint("id", a)
		var folded Snapshot[ledger]
		for i := range each {
			folded = replayer.evolve(folded, Recorded[*conversationv1.Event]{
				Event: noteEvent(fmt.Sprint("entry", i), int64(i+1)), Time: filled, Sequence: uint64(i*aggregates + a + 1),
			})
		}
		wantInRedis(t, r, id, folded)
		if a%25 == 0 { // a replay of each takes too long
			replayed, err := replayer.catchUp(t.Context(), key(id), Snapshot[ledger]{})
			if err != nil {
				t.Fatal(err)
			}
			wantInRedis(t, r, id, replayed)
		}
	}
}

// wantInRedis compares a document field by field.
func wantInRedis(t testing.TB, r *rig, id string, s Snapshot[ledger]) {
	t.Helper()
	want, err := ledgerKind().encode(s.State, ledgerCodec{}.Names(s.State))
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.hot.Read(t.Context(), key(id))
	if err != nil {
		t.Fatal(err)
	}
	if got.Version != s.Version || len(got.Fields) != len(want.Set) {
		t.Fatalf("%s is %v at %d, want %d fields at %d", id, got.Fields, got.Version, len(want.Set), s.Version)
	}
	for name, value := range want.Set {
		if got.Fields[name] != string(value) {
			t.Fatalf("%s has %s = %q, want %q", id, name, got.Fields[name], value)
		}
	}
}

// A rebuild hears of the past. Until it is complete, no read takes what it shows
// for the present.
func TestAReadDuringARebuildShowsThePresent(t *testing.T) {
	r := newRig(t)
	writer := r.replica()
	first := must(t, writer, "x", "one")
	early, err := r.journal.Get(t.Context(), first.Version)
	if err != nil {
		t.Fatal(err)
	}
	remembers := r.replica()
	must(t, remembers, "x", "two")
	must(t, writer, "x", "three")
	for name, projector := range map[string]*ledgerLoop{"with no memory": r.replica(), "with an old memory": remembers} {
		r.redis.Flush()
		if err := projector.project(t.Context(), "epoch", early); err != nil {
			t.Fatal(err)
		}
		s, err := writer.Read(t.Context(), key("x"))
		if err != nil || s.State.Count != 3 {
			t.Errorf("%s: a read shows %d entries, %v; 3 were acknowledged", name, s.State.Count, err)
		}
	}
}

// One unreadable event must not take the lists of everybody down, and no read may
// show the time before it.
func TestAnUnreadableEventLeavesListsCompleteAndItsAggregateUnreadable(t *testing.T) {
	r := newRig(t)
	writer := r.replica()
	one := must(t, writer, "x", "one")
	must(t, writer, "y", "one")
	if _, err := r.journal.Append(t.Context(), journal.Event{
		ID: "bad", Type: "weir.conversation.v1.MessagesAppended", Key: key("x"),
		Time: time.Now().UTC().Truncate(time.Microsecond), Data: []byte("\xff\xff not protobuf"),
	}, one.Version); err != nil {
		t.Fatal(err)
	}
	r.redis.Flush()
	a := r.replica()
	r.project(a)
	meshtest.Eventually(t, "lists are complete", func() bool {
		return a.hot.Complete(t.Context(), func() error { return nil }) == nil
	})
	wantCount(t, a, "y", 1)
	if _, err := a.Read(t.Context(), key("x")); !fault.Is(err, fault.EventUnreadable) {
		t.Fatalf("read: %v, want EVENT_UNREADABLE", err)
	}
}

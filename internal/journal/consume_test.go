package journal_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"weir/internal/fault"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

const everything = "weir.test.*.*.*"

// heard collects what consumers were given.
type heard struct {
	mu     sync.Mutex
	events []journal.Event
}

func (h *heard) add(e journal.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
}

// ids gives those of one aggregate, in the order in which they came.
func (h *heard) ids(k journal.Key) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var ids []string
	for _, e := range h.events {
		if e.Key == k {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

func (h *heard) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.events)
}

func consumer(t testing.TB, nc *nats.Conn, name string, filters ...string) *journal.Consumer {
	t.Helper()
	c, err := journal.NewConsumer(nc, service, name, quiet, filters...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// consume runs a consumer until the test ends or stop is called.
func consume(t testing.TB, c *journal.Consumer, handle journal.Handler) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.Run(ctx, handle); err != nil {
			t.Errorf("consumer: %v", err)
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func TestAConsumerHearsAllFromTheFirstEventInOrderPerAggregate(t *testing.T) {
	n := meshtest.StartNATS(t)
	nc := n.Connect()
	var h heard
	// It waits for the stream, which is not there yet.
	c := consumer(t, nc, "c", everything)
	consume(t, c, func(_ context.Context, e journal.Event) error { h.add(e); return nil })

	j := open(t, n.URL())
	const aggregates, each = 20, 30
	versions := make([]uint64, aggregates)
	for i := range each {
		for a := range aggregates {
			k := key(fmt.Sprint(a))
			versions[a] = appended(t, j, eventOf(k, fmt.Sprintf("%d/%d", a, i)), versions[a])
		}
	}
	meshtest.Eventually(t, "all events were heard", func() bool { return h.count() >= aggregates*each })
	for a := range aggregates {
		var want []string
		for i := range each {
			want = append(want, fmt.Sprintf("%d/%d", a, i))
		}
		if got := h.ids(key(fmt.Sprint(a))); !slices.Equal(got, want) {
			t.Errorf("aggregate %d: %v", a, got)
		}
	}
	meshtest.Eventually(t, "it has caught up", func() bool {
		done, err := c.CaughtUp(t.Context(), aggregates*each)
		return err == nil && done
	})
}

func TestAFailedEventComesAgainAndHoldsUpNoOther(t *testing.T) {
	n := meshtest.StartNATS(t)
	j, nc := open(t, n.URL()), n.Connect()
	bad := appended(t, j, eventOf(key("bad"), "bad"), 0)
	appended(t, j, eventOf(key("good"), "good"), 0)
	var h heard
	var mended atomic.Bool
	var tries atomic.Int32
	c := consumer(t, nc, "c", everything)
	consume(t, c, func(_ context.Context, e journal.Event) error {
		if e.Key == key("bad") {
			tries.Add(1)
			if !mended.Load() {
				return errors.New("not yet")
			}
		}
		h.add(e)
		return nil
	})
	meshtest.Eventually(t, "the others are handled", func() bool { return len(h.ids(key("good"))) == 1 })
	meshtest.Eventually(t, "the event comes again", func() bool { return tries.Load() >= 2 })
	if caughtUp, err := c.CaughtUp(t.Context(), bad); err != nil || caughtUp {
		t.Errorf("caught up with an event that nobody handled: %v, %v", caughtUp, err)
	}
	mended.Store(true)
	meshtest.Eventually(t, "the event is handled", func() bool { return len(h.ids(key("bad"))) == 1 })
	meshtest.Eventually(t, "the consumer has caught up", func() bool {
		caughtUp, err := c.CaughtUp(t.Context(), bad+1)
		return err == nil && caughtUp
	})
}

func TestAnUnreadableEventHoldsUpNoOther(t *testing.T) {
	n := meshtest.StartNATS(t)
	j, nc := open(t, n.URL()), n.Connect()
	foreign := &nats.Msg{Subject: key("foreign").Subject(service), Data: []byte("x")}
	if _, err := jetStream(t, nc).PublishMsg(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	one := appended(t, j, event("one"), 0)
	appended(t, j, event("two"), one)
	var h heard
	var refused atomic.Int32
	consume(t, consumer(t, nc, "c", everything), func(_ context.Context, e journal.Event) error {
		if e.ID == "one" {
			refused.Add(1)
			return fault.New(fault.EventUnreadable, "written by a newer version")
		}
		h.add(e)
		return nil
	})
	meshtest.Eventually(t, "the readable event is handled", func() bool { return len(h.ids(key("x"))) == 1 })
	appended(t, j, eventOf(key("later"), "later"), 0)
	meshtest.Eventually(t, "later events are handled", func() bool { return len(h.ids(key("later"))) == 1 })
	if refused.Load() != 1 || h.count() != 2 {
		t.Errorf("%d tries, %d handled", refused.Load(), h.count())
	}
}

// Replicas share a name, and so the work.
func TestReplicasShareAConsumer(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	var both [2]heard
	for i := range both {
		consume(t, consumer(t, n.Connect(), "shared", everything), func(_ context.Context, e journal.Event) error {
			both[i].add(e)
			return nil
		})
	}
	const count = 200
	for i := range count {
		appended(t, j, eventOf(key(fmt.Sprint(i)), fmt.Sprint(i)), 0)
	}
	meshtest.Eventually(t, "all are handled", func() bool { return both[0].count()+both[1].count() >= count })
	if a, b := both[0].count(), both[1].count(); a+b != count {
		t.Errorf("%d and %d were handled of %d", a, b, count)
	}
}

// A replica that is told to stop leaves nothing lying with it.
func TestWhatAStoppingConsumerDidNotHandleComesToTheNextAtOnce(t *testing.T) {
	n := meshtest.StartNATS(t)
	j, nc := open(t, n.URL()), n.Connect()
	const count = 100
	for i := range count {
		appended(t, j, event(fmt.Sprint(i)), uint64(i))
	}
	reached := make(chan struct{}, count)
	stop := consume(t, consumer(t, nc, "c", everything), func(ctx context.Context, _ journal.Event) error {
		reached <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	<-reached
	stop()
	var h heard
	consume(t, consumer(t, nc, "c", everything), func(_ context.Context, e journal.Event) error { h.add(e); return nil })
	meshtest.Eventually(t, "all are handled", func() bool { return h.count() >= count })
}

func TestFiltersChooseByTenantKindAndID(t *testing.T) {
	n := meshtest.StartNATS(t)
	j, nc := open(t, n.URL()), n.Connect()
	x, other, kind := key("x"), journal.Key{Tenant: "other", Kind: "thing", ID: "x"}, journal.Key{Tenant: "acme", Kind: "else", ID: "x"}
	for _, k := range []journal.Key{x, other, kind} {
		appended(t, j, eventOf(k, k.String()), 0)
	}
	for name, row := range map[string]struct {
		filters []string
		want    []journal.Key
	}{
		"tenant":  {[]string{"weir.test.acme.*.*"}, []journal.Key{x, kind}},
		"kind":    {[]string{"weir.test.*.thing.*"}, []journal.Key{x, other}},
		"literal": {[]string{x.Subject(service)}, []journal.Key{x}},
		"two":     {[]string{"weir.test.*.else.*", "weir.test.other.*.*"}, []journal.Key{other, kind}},
		"none":    {[]string{"weir.test.*.none.*"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var h heard
			c := consumer(t, nc, name, row.filters...)
			consume(t, c, func(_ context.Context, e journal.Event) error { h.add(e); return nil })
			meshtest.Eventually(t, "it has caught up", func() bool {
				// The last event may be none of its own.
				done, err := c.CaughtUp(t.Context(), 3)
				return err == nil && done
			})
			for _, k := range row.want {
				if len(h.ids(k)) != 1 {
					t.Errorf("%s was not heard", k)
				}
			}
			if h.count() != len(row.want) {
				t.Errorf("%d were heard, want %d", h.count(), len(row.want))
			}
		})
	}
}

// A consumer that is only just being created has nothing pending either.
func TestAConsumerThatNobodyRunsHasNotCaughtUp(t *testing.T) {
	n := meshtest.StartNATS(t)
	j, nc := open(t, n.URL()), n.Connect()
	appended(t, j, event("of another kind"), 0)
	c := consumer(t, nc, "c", "weir.test.*.none.*")
	if _, err := c.CaughtUp(t.Context(), 1); err == nil {
		t.Fatal("caught up before it exists")
	}
	caughtUp := func(want bool) func() bool {
		return func() bool {
			got, err := c.CaughtUp(t.Context(), 1)
			return err == nil && got == want
		}
	}
	stop := consume(t, c, func(context.Context, journal.Event) error { return nil })
	meshtest.Eventually(t, "it has caught up", caughtUp(true))
	stop()
	meshtest.Eventually(t, "nobody waits any more", caughtUp(false))
}

func TestRemoveOthersLeavesThisOneAndThoseOfOtherPrefixes(t *testing.T) {
	n := meshtest.StartNATS(t)
	open(t, n.URL())
	nc := n.Connect()
	js := jetStream(t, nc)
	for _, name := range []string{"projector-1", "projector-2", "projector-3", "registry"} {
		stop := consume(t, consumer(t, nc, name, everything), func(context.Context, journal.Event) error { return nil })
		meshtest.Eventually(t, "the consumer is there", func() bool {
			_, err := js.Consumer(t.Context(), "WEIR_TEST", name)
			return err == nil
		})
		stop()
	}
	if err := consumer(t, nc, "projector-2").RemoveOthers(t.Context(), "projector-"); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "WEIR_TEST")
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	names := stream.ConsumerNames(t.Context())
	for name := range names.Name() {
		left = append(left, name)
	}
	slices.Sort(left)
	if names.Err() != nil || !slices.Equal(left, []string{"projector-2", "registry"}) {
		t.Errorf("left are %v, %v", left, names.Err())
	}
}

func TestHandlersGoOnUnderTheSpanThatCausedTheEvent(t *testing.T) {
	n := meshtest.StartNATS(t)
	appended(t, open(t, n.URL()), event("one"), 0)
	span := make(chan string, 1)
	consume(t, consumer(t, n.Connect(), "c", everything), func(ctx context.Context, _ journal.Event) error {
		span <- journal.Traceparent(ctx)
		return nil
	})
	if got := <-span; got != event("one").Traceparent {
		t.Errorf("the span is %q", got)
	}
}

func TestWatchSeesTheLastOfEachThenCatchesUpThenFollows(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	versions := map[string]uint64{}
	add := func(id, e string) { versions[id] = appended(t, j, eventOf(key(id), e), versions[id]) }
	for i := range 3 {
		add("a", fmt.Sprint("a", i))
		add("b", fmt.Sprint("b", i))
	}
	appended(t, j, eventOf(journal.Key{Tenant: "acme", Kind: "else", ID: "x"}, "not asked for"), 0)

	seen := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- consumer(t, n.Connect(), "", "weir.test.*.thing.*").Watch(ctx,
			func(e journal.Event, _ error) error { seen <- e.ID; return nil },
			func() { seen <- "caught up" })
	}()
	for _, want := range []string{"a2", "b2", "caught up"} {
		if got := <-seen; got != want {
			t.Fatalf("saw %q, want %q", got, want)
		}
	}
	add("a", "a3")
	add("c", "c0")
	for _, want := range []string{"a3", "c0"} {
		if got := <-seen; got != want {
			t.Fatalf("saw %q, want %q", got, want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("watch ended with %v", err)
	}
}

func TestWatchOfNothingHasCaughtUpAtOnce(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	appended(t, j, event("of another kind"), 0)
	ready := make(chan struct{})
	c := consumer(t, n.Connect(), "", "weir.test.*.none.*")
	go func() {
		_ = c.Watch(t.Context(), func(journal.Event, error) error { return nil }, func() { close(ready) })
	}()
	<-ready
}

func TestWatchEndsWhereTheViewWouldHaveAHole(t *testing.T) {
	n := meshtest.StartNATS(t)
	j, nc := open(t, n.URL()), n.Connect()
	appended(t, j, event("one"), 0)
	refused := errors.New("refused")
	err := consumer(t, nc, "", everything).Watch(t.Context(), func(journal.Event, error) error { return refused }, func() { t.Error("caught up") })
	if !errors.Is(err, refused) {
		t.Errorf("watch ended with %v", err)
	}
}

// A view that stopped at what cannot be read would go on showing what was before
// it, so it is told, and goes on.
func TestWatchTellsOfWhatCannotBeReadAndGoesOn(t *testing.T) {
	n := meshtest.StartNATS(t)
	j, nc := open(t, n.URL()), n.Connect()
	if _, err := jetStream(t, nc).PublishMsg(t.Context(), &nats.Msg{Subject: key("foreign").Subject(service)}); err != nil {
		t.Fatal(err)
	}
	appended(t, j, event("one"), 0)
	ctx, cancel := context.WithCancel(t.Context())
	var told []string
	err := consumer(t, nc, "", everything).Watch(ctx, func(e journal.Event, unreadable error) error {
		told = append(told, fmt.Sprintf("%s %d %s", e.Key.ID, e.Sequence, fault.ReasonOf(unreadable)))
		return nil
	}, cancel)
	if err != nil || len(told) != 2 || told[0] != "foreign 1 EVENT_UNREADABLE" {
		t.Errorf("told %q, %v", told, err)
	}
}

// NATS goes away and comes back: the view goes on or ends with an error, and
// never misses an event in silence.
func TestWatchOverARestartOfNATS(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	one := appended(t, j, event("one"), 0)
	seen := make(chan string, 10)
	done := make(chan error, 1)
	go func() {
		done <- consumer(t, n.Connect(), "", everything).Watch(t.Context(),
			func(e journal.Event, _ error) error { seen <- e.ID; return nil }, func() {})
	}()
	<-seen
	n.Stop()
	n.Start()
	meshtest.Eventually(t, "the journal is back", func() bool { return j.Healthy(t.Context()) == nil })
	appended(t, j, event("two"), one)
	select {
	case id := <-seen:
		if id != "two" {
			t.Errorf("saw %s", id)
		}
	case err := <-done:
		if err == nil {
			t.Error("watch ended without an error")
		}
	case <-time.After(meshtest.Patience):
		t.Error("nothing was seen and watch goes on")
	}
}

package aggregate

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

type (
	ledgerEvent = conversationv1.Event
	ledgerLoop  = Loop[ledger, *ledgerEvent]
	ledgerPage  = PageRequest[ledger]
)

// rig is a service with one kind of aggregate, over real servers.
type rig struct {
	t       testing.TB
	nats    *meshtest.NATS
	redis   *meshtest.Redis
	nc      *nats.Conn
	journal *journal.Journal
	hot     *hot.Store

	openJournal func(context.Context, *nats.Conn, string, int, *slog.Logger) (*journal.Journal, error)
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, nats: meshtest.StartNATS(t), redis: meshtest.StartRedis(t), openJournal: journal.Open}
	r.connect()
	return r
}

// newErasableRig is one from whose journal events can be erased.
func newErasableRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, nats: meshtest.StartNATS(t), redis: meshtest.StartRedis(t), openJournal: journal.OpenErasable}
	r.connect()
	return r
}

func (r *rig) connect() {
	r.t.Helper()
	r.nc = r.nats.Connect()
	r.journal, r.hot = r.open(r.nc)
}

func (r *rig) open(nc *nats.Conn) (*journal.Journal, *hot.Store) {
	r.t.Helper()
	j, err := r.openJournal(r.t.Context(), nc, "test", 1, slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	h, err := hot.Open(r.redis.URL(), "test", j.Identity())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = h.Close() })
	return j, h
}

// replica is one more process's view: its own connections and memory.
func (r *rig) replica() *ledgerLoop {
	r.t.Helper()
	j, h := r.open(r.nats.Connect())
	return New(ledgerKind(), j, h, slog.New(slog.DiscardHandler))
}

// project runs a projector until the test ends.
func (r *rig) project(loops ...Projected) {
	p := NewProjector(r.nc, r.journal, r.hot, slog.New(slog.DiscardHandler), loops...)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	r.t.Cleanup(func() { cancel(); <-done })
}

func key(id string) journal.Key { return ledgerKind().Key("acme", id) }

func must(t testing.TB, l *ledgerLoop, id, entry string) Snapshot[ledger] {
	t.Helper()
	s, err := l.Do(t.Context(), key(id), note(entry))
	if err != nil {
		t.Fatalf("note %s in %s: %v", entry, id, err)
	}
	return s
}

func wantCount(t testing.TB, l *ledgerLoop, id string, want int64) {
	t.Helper()
	s, err := l.Read(t.Context(), key(id))
	if err != nil {
		t.Fatalf("read %s: %v", id, err)
	}
	if s.State.Count != want || int64(s.State.Entries.Len()) != want {
		t.Fatalf("%s has count %d and %d entries, want %d", id, s.State.Count, s.State.Entries.Len(), want)
	}
}

// shown is the document as Redis has it, believed or not.
func shown(t testing.TB, l *ledgerLoop, id string) (Snapshot[ledger], error) {
	t.Helper()
	document, err := l.hot.Read(t.Context(), key(id))
	if err != nil || document.Version == 0 {
		return Snapshot[ledger]{}, err
	}
	return l.decode(t.Context(), key(id), document)
}

func TestACommandIsThereInEveryReplica(t *testing.T) {
	r := newRig(t)
	a, b := r.replica(), r.replica()
	must(t, a, "x", "one")
	must(t, b, "x", "two")
	must(t, a, "x", "three")
	wantCount(t, a, "x", 3)
	wantCount(t, b, "x", 3)
}

func TestARetryConvergesOnTheFirstResult(t *testing.T) {
	r := newRig(t)
	a, b := r.replica(), r.replica()
	first := must(t, a, "x", "one")
	if again := must(t, b, "x", "one"); again.Version != first.Version {
		t.Fatalf("a retry gave version %d, the first gave %d", again.Version, first.Version)
	}
}

func TestTwoLoopsRacingOnOneAggregateBothLandInOneOrder(t *testing.T) {
	r := newRig(t)
	loops := []*ledgerLoop{r.replica(), r.replica()}
	const each = 40
	var wg sync.WaitGroup
	for n, loop := range loops {
		wg.Go(func() {
			for i := range each {
				if _, err := loop.Do(t.Context(), key("x"), note(fmt.Sprintf("%d-%d", n, i))); err != nil {
					t.Errorf("note: %v", err)
				}
			}
		})
	}
	wg.Wait()
	wantCount(t, r.replica(), "x", int64(len(loops)*each))
}

func TestRacingForTheLastPlaceOneWins(t *testing.T) {
	r := newRig(t)
	loops := []*ledgerLoop{r.replica(), r.replica(), r.replica()}
	var won, refused atomic.Int32
	var wg sync.WaitGroup
	for n, loop := range loops {
		for i := range 8 {
			wg.Go(func() {
				_, err := loop.Do(t.Context(), key("x"), noteOnly(fmt.Sprintf("%d-%d", n, i), 1))
				switch err {
				case nil:
					won.Add(1)
				case errRefused:
					refused.Add(1)
				default:
					t.Errorf("note: %v", err)
				}
			})
		}
	}
	wg.Wait()
	if won.Load() != 1 || refused.Load() != 23 {
		t.Fatalf("%d won and %d were refused, want 1 and 23", won.Load(), refused.Load())
	}
}

// A refusal is a statement about now, so it must not come from stale memory.
func TestARefusalIsNeverGivenOnStaleMemory(t *testing.T) {
	r := newRig(t)
	a, b := r.replica(), r.replica()
	must(t, a, "x", "one") // a remembers one entry
	must(t, b, "x", "two")
	refuseOne := func(l ledger, _ time.Time) (*conversationv1.Event, error) {
		if l.Count == 1 {
			return nil, errRefused
		}
		return noteEvent("three", l.Count+1), nil
	}
	if _, err := a.Do(t.Context(), key("x"), refuseOne); err != nil {
		t.Fatalf("refused on a state that was history: %v", err)
	}
	wantCount(t, b, "x", 3)
}

func TestReadOfWhatNeverWas(t *testing.T) {
	r := newRig(t)
	s, err := r.replica().Read(t.Context(), key("nobody"))
	if err != nil || s.Exists() {
		t.Fatalf("got %+v, %v; want an absent aggregate", s, err)
	}
}

func TestFlushedRedisLosesNothing(t *testing.T) {
	r := newRig(t)
	a := r.replica()
	for i := range 50 {
		must(t, a, "x", fmt.Sprint(i))
	}
	r.redis.Flush()
	wantCount(t, r.replica(), "x", 50) // reads go to the journal
	must(t, r.replica(), "x", "more")  // writes too
	r.redis.Flush()
	must(t, a, "x", "from memory")
	wantCount(t, r.replica(), "x", 52)
}

func TestRedisDown(t *testing.T) {
	r := newRig(t)
	a := r.replica()
	must(t, a, "x", "before")
	r.redis.Kill()

	wantCount(t, a, "x", 1)            // a read
	must(t, a, "x", "remembered")      // a write from memory: its refresh fails
	must(t, r.replica(), "x", "fresh") // a write that has to load
	wantCount(t, a, "x", 3)
	_, _, err := a.List(t.Context(), ledgerPage{Tenant: "acme", Lists: []string{"all"}})
	if !fault.Is(err, fault.HotUnavailable) {
		t.Fatalf("list without redis: %v, want HOT_UNAVAILABLE", err)
	}

	r.redis.Start()
	r.project(a)
	waitListed(t, a, "all", "x")
	wantCount(t, a, "x", 3)
}

// Redis loses one refresh: between the append and it.
func TestTheProjectorRepairsALostRefresh(t *testing.T) {
	r := newRig(t)
	b := r.replica()
	r.project(b)
	must(t, b, "x", "one")
	waitListed(t, b, "all", "x")
	// The writer cannot reach Redis, so its append is all that happens.
	nowhere, err := hot.Open("redis://127.0.0.1:1", "test", r.journal.Identity())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nowhere.Close() }()
	must(t, New(ledgerKind(), r.journal, nowhere, slog.New(slog.DiscardHandler)), "x", "two")
	meshtest.Eventually(t, "redis shows the event that was not refreshed", func() bool {
		s, err := shown(t, b, "x")
		return err == nil && s.State.Count == 2
	})
}

func TestNATSDownRefusesAndRecovers(t *testing.T) {
	r := newRig(t)
	a := r.replica()
	r.project(a)
	must(t, a, "x", "before")
	waitListed(t, a, "all", "x")
	r.nats.Stop()
	meshtest.Eventually(t, "the journal counts as unreachable", func() bool {
		return a.journal.Healthy(t.Context()) != nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for _, id := range []string{"x", "new"} {
		if _, err := a.Do(ctx, key(id), note("during")); !fault.Is(err, fault.JournalUnavailable) {
			t.Fatalf("write to %s without a journal: %v, want JOURNAL_UNAVAILABLE", id, err)
		}
	}
	wantCount(t, a, "x", 1) // documents are still read, from Redis

	r.nats.Start()
	meshtest.Eventually(t, "the journal is back", func() bool { return a.journal.Healthy(t.Context()) == nil })
	wantCount(t, r.replica(), "x", 1) // nothing half done
	must(t, a, "x", "after")
	wantCount(t, r.replica(), "x", 2)
}

func TestACorruptDocumentIsDataLossAndKept(t *testing.T) {
	r := newRig(t)
	writer := r.replica()
	r.project(writer)
	must(t, writer, "x", "one")
	waitListed(t, writer, "all", "x")
	client := r.redis.Client()
	defer func() { _ = client.Close() }()
	keys, err := client.Keys(t.Context(), "*ledger.x}").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("documents: %v, %v", keys, err)
	}
	const garbage = "{\x00 not json"
	client.HSet(t.Context(), keys[0], RootField, garbage)

	a := r.replica()
	if _, err := a.Read(t.Context(), key("x")); !fault.Is(err, fault.DocumentUnreadable) {
		t.Fatalf("read: %v, want DOCUMENT_UNREADABLE", err)
	}
	if _, err := a.Do(t.Context(), key("x"), note("two")); !fault.Is(err, fault.DocumentUnreadable) {
		t.Fatalf("write: %v, want DOCUMENT_UNREADABLE", err)
	}
	if got := client.HGet(t.Context(), keys[0], RootField).Val(); got != garbage {
		t.Fatalf("the bytes are %q now, they were %q", got, garbage)
	}
	// The operator's way out: delete the document, the journal has it all.
	client.Del(t.Context(), keys[0])
	wantCount(t, a, "x", 1)
}

func TestACorruptEventIsDataLossAndKept(t *testing.T) {
	r := newRig(t)
	a := r.replica()
	one := must(t, a, "x", "one")
	bad := journal.Event{
		ID: "bad", Type: "weir.conversation.v1.MessagesAppended", Key: key("x"),
		Time: time.Now().UTC().Truncate(time.Microsecond), Data: []byte("\xff\xff not protobuf"),
	}
	sequence, err := r.journal.Append(t.Context(), bad, one.Version)
	if err != nil {
		t.Fatal(err)
	}
	r.redis.Flush()
	b := r.replica()
	if _, err := b.Read(t.Context(), key("x")); !fault.Is(err, fault.EventUnreadable) {
		t.Fatalf("read: %v, want EVENT_UNREADABLE", err)
	}
	if _, err := a.Do(t.Context(), key("x"), note("two")); !fault.Is(err, fault.EventUnreadable) {
		t.Fatalf("write: %v, want EVENT_UNREADABLE", err)
	}
	kept, err := r.journal.Get(t.Context(), sequence)
	if err != nil || string(kept.Data) != string(bad.Data) {
		t.Fatalf("the event is %q, %v now", kept.Data, err)
	}
	must(t, b, "y", "others go on")
}

func TestAnEventThatThisVersionDoesNotKnowIsUnreadable(t *testing.T) {
	r := newRig(t)
	unknown := journal.Event{ID: "future", Type: "weir.future.v9.Thing", Key: key("x"), Time: time.Now().UTC()}
	if _, err := r.journal.Append(t.Context(), unknown, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.replica().Read(t.Context(), key("x")); !fault.Is(err, fault.EventUnreadable) {
		t.Fatalf("read: %v, want EVENT_UNREADABLE", err)
	}
}

// waitListed waits until a list is complete and holds exactly the ids.
func waitListed(t testing.TB, l *ledgerLoop, list string, ids ...string) {
	t.Helper()
	meshtest.Eventually(t, fmt.Sprintf("list %q holds %v", list, ids), func() bool {
		items, _, err := l.List(t.Context(), ledgerPage{Tenant: "acme", Lists: []string{list}, Size: 1000})
		if err != nil || len(items) != len(ids) {
			return false
		}
		for i, item := range items {
			if item.ID != ids[i] {
				return false
			}
		}
		return true
	})
}

package aggregate

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/journal"
)

// events gives the places of an aggregate's events, oldest first.
func (r *rig) events(id string) []journal.Erased {
	r.t.Helper()
	var all []journal.Erased
	if _, err := r.journal.Replay(r.t.Context(), key(id), 0, func(e journal.Event) error {
		all = append(all, journal.Erased{Sequence: e.Sequence, Previous: e.Previous})
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
	return all
}

// mustRedact redacts an entry, and erases its event.
func mustRedact(t testing.TB, l *ledgerLoop, id, entry string, gone journal.Erased) Snapshot[ledger] {
	t.Helper()
	s, err := l.Do(t.Context(), key(id), redact(entry, gone))
	if err != nil {
		t.Fatalf("redact %s in %s: %v", entry, id, err)
	}
	if removed, err := l.journal.EraseEvents(t.Context(), key(id), []uint64{gone.Sequence}); err != nil || removed != 1 {
		t.Fatalf("erased %d, %v", removed, err)
	}
	return s
}

// mustClear clears a ledger, and erases its past.
func mustClear(t testing.TB, l *ledgerLoop, id string) Snapshot[ledger] {
	t.Helper()
	s, err := l.Do(t.Context(), key(id), clearAll)
	if err != nil {
		t.Fatalf("clear %s: %v", id, err)
	}
	if _, err := l.journal.ErasePast(t.Context(), key(id), s.Version); err != nil {
		t.Fatal(err)
	}
	return s
}

func entries(l ledger) []string {
	var ids []string
	for itr := l.Entries.Iterator(); !itr.Done(); {
		id, position, _ := itr.Next()
		ids = append(ids, fmt.Sprint(position, "=", id))
	}
	slices.Sort(ids)
	return ids
}

func wantEntries(t testing.TB, l *ledgerLoop, id string, want ...string) {
	t.Helper()
	s, err := l.Read(t.Context(), key(id))
	if err != nil {
		t.Fatalf("read %s: %v", id, err)
	}
	if got := entries(s.State); !slices.Equal(got, want) {
		t.Fatalf("%s holds %v, want %v", id, got, want)
	}
}

// redacted gives a ledger of four entries, the second of which is erased.
func (r *rig) redacted(l *ledgerLoop, id string) Snapshot[ledger] {
	r.t.Helper()
	for _, entry := range []string{"a", "b", "c"} {
		must(r.t, l, id, entry)
	}
	mustRedact(r.t, l, id, "b", r.events(id)[1])
	return must(r.t, l, id, "d")
}

// What an event erased is gone from Redis with it, whoever projects.
func TestAFieldThatTheStateDoesNotNameIsGoneFromRedis(t *testing.T) {
	r := newErasableRig(t)
	a := r.replica()
	for _, entry := range []string{"a", "b"} {
		must(t, a, "x", entry)
	}
	wantInRedis(t, r, "x", mustRedact(t, a, "x", "b", r.events("x")[1]))
	wantInRedis(t, r, "x", mustClear(t, a, "x"))
	wantInRedis(t, r, "x", must(t, a, "x", "c"))
}

func TestAHistoryWithHolesIsRebuilt(t *testing.T) {
	r := newErasableRig(t)
	writer := r.replica()
	x := r.redacted(writer, "x")
	must(t, writer, "y", "one")
	must(t, writer, "y", "two")
	y := mustClear(t, writer, "y")
	r.redacted(writer, "z")
	mustClear(t, writer, "z")
	z := must(t, writer, "z", "a new one")
	r.redis.Flush()

	fresh := r.replica()
	r.project(fresh)
	waitListed(t, fresh, "active", "z", "y", "x")
	for id, s := range map[string]Snapshot[ledger]{"x": x, "y": y, "z": z} {
		wantInRedis(t, r, id, s)
	}
	waitListed(t, r.replica(), "all", "z", "y", "x")
}

// Each event alone reaches a projector that knows nothing, or what is long past.
func TestAnyEventOfAHistoryWithHolesIsProjected(t *testing.T) {
	r := newErasableRig(t)
	writer := r.replica()
	must(t, writer, "x", "before")
	stale := r.replica()
	if _, err := stale.catchUp(t.Context(), key("x"), Snapshot[ledger]{}); err != nil {
		t.Fatal(err)
	}
	for _, entry := range []string{"a", "b", "c"} {
		must(t, writer, "x", entry)
	}
	mustRedact(t, writer, "x", "b", r.events("x")[2])
	newest := must(t, writer, "x", "d")
	project := func(name string, l *ledgerLoop, e journal.Event) {
		t.Helper()
		r.redis.Flush()
		if err := l.project(t.Context(), "epoch", e); err != nil {
			t.Errorf("%s, event %d: %v", name, e.Sequence, err)
		}
	}
	for _, at := range r.events("x")[1:] {
		e, err := r.journal.Get(t.Context(), at.Sequence)
		if err != nil {
			t.Fatal(err)
		}
		project("with no memory", r.replica(), e)
		wantInRedis(t, r, "x", newest)
	}
	last, err := r.journal.Get(t.Context(), newest.Version)
	if err != nil {
		t.Fatal(err)
	}
	project("with an old memory", stale, last)
	wantInRedis(t, r, "x", newest)

	cleared := mustClear(t, writer, "x")
	e, err := r.journal.Get(t.Context(), cleared.Version)
	if err != nil {
		t.Fatal(err)
	}
	for name, l := range map[string]*ledgerLoop{"with no memory": r.replica(), "with an old memory": stale} {
		project(name, l, e)
		wantInRedis(t, r, "x", cleared)
	}
}

// Memories of before an erasure lead to the same states as none.
func TestReplicasThatRememberWhatWasErased(t *testing.T) {
	r := newErasableRig(t)
	a := r.replica()
	for _, entry := range []string{"a", "b", "c"} {
		must(t, a, "x", entry)
	}
	remembers := func() *ledgerLoop {
		l := r.replica()
		if _, err := l.Newest(t.Context(), key("x")); err != nil {
			t.Fatal(err)
		}
		return l
	}
	reader, writer, idler := remembers(), remembers(), remembers()
	mustRedact(t, a, "x", "b", r.events("x")[1])
	mustRedact(t, a, "x", "c", r.events("x")[1])
	r.redis.Flush()
	want := []string{"1=a", "2=redacted-2", "3=redacted-3"}
	wantEntries(t, reader, "x", want...)
	r.redis.Flush()
	must(t, writer, "x", "d")
	wantEntries(t, r.replica(), "x", append(want, "4=d")...)

	cleared := mustClear(t, a, "x")
	r.redis.Flush()
	wantEntries(t, reader, "x")
	r.redis.Flush()
	s := must(t, writer, "x", "b") // which it remembers to have been there
	if s.State.Count != 1 || s.State.First != cleared.Version {
		t.Errorf("after the erasure it goes on as %+v", s)
	}
	// A refusal is about now, too.
	if _, err := idler.Do(t.Context(), key("x"), redact("a")); err != errRefused {
		t.Errorf("what was erased is redacted: %v", err)
	}
	for _, l := range []*ledgerLoop{a, reader, writer, idler, r.replica()} {
		r.redis.Flush()
		wantEntries(t, l, "x", "1=b")
	}
}

// A snapshot of before an erasure is a place to begin from like any other.
func TestASnapshotOfBeforeAnErasure(t *testing.T) {
	r := newErasableRig(t)
	a := r.brief()
	for _, id := range []string{"x", "y"} { // one after the other: one is saved at a time
		for i := range 15 {
			must(t, a, id, fmt.Sprint("e", i))
		}
		waitSnapshot(t, r.journal, id)
	}
	x := mustRedact(t, a, "x", "e3", r.events("x")[3])
	y := mustClear(t, a, "y")
	r.redis.Flush()
	fresh := r.brief()
	r.project(fresh)
	waitListed(t, fresh, "active", "y", "x")
	wantInRedis(t, r, "x", x)
	wantInRedis(t, r, "y", y)
}

// Whatever is erased, and whoever remembers what: all replicas, and one that
// knows nothing, come to the same document.
func TestAnyErasuresLeaveOneState(t *testing.T) {
	r := newErasableRig(t)
	runs := 0
	rapid.Check(t, func(d *rapid.T) {
		runs++
		id := fmt.Sprint("x", runs)
		replicas := []*ledgerLoop{r.replica(), r.replica(), r.replica()}
		must(t, replicas[0], id, "first")
		for i := range rapid.IntRange(1, 12).Draw(d, "commands") {
			l := rapid.SampledFrom(replicas).Draw(d, "replica")
			switch rapid.IntRange(0, 5).Draw(d, "command") {
			case 0:
				if s, err := l.Newest(t.Context(), key(id)); err != nil || !s.Exists() {
					d.Fatalf("it is %+v, %v", s, err)
				}
			case 1:
				r.redis.Flush()
			case 2:
				mustClear(t, l, id)
			case 3:
				// The newest event that added an entry, where there is one that
				// may go: what of the first must stay, nothing carries.
				all := r.events(id)
				for _, gone := range slices.Backward(all[1:]) {
					e, err := r.journal.Get(t.Context(), gone.Sequence)
					if err != nil {
						d.Fatal(err)
					}
					recorded, err := Decode[*ledgerEvent](e)
					if err != nil {
						d.Fatal(err)
					}
					if entry := noted(recorded.Event); entry != "" {
						mustRedact(t, l, id, entry, gone)
						break
					}
				}
			default:
				must(t, l, id, fmt.Sprint("entry", i))
			}
		}
		r.redis.Flush()
		fresh := r.replica()
		want, err := fresh.Read(t.Context(), key(id))
		if err != nil {
			d.Fatal(err)
		}
		for i, l := range replicas {
			got, err := l.Newest(t.Context(), key(id))
			if err != nil || got.Version != want.Version || fmt.Sprint(entries(got.State), got.State.ledgerRoot) != fmt.Sprint(entries(want.State), want.State.ledgerRoot) {
				d.Fatalf("replica %d comes to %+v at %d, %v; want %+v at %d", i, got.State, got.Version, err, want.State, want.Version)
			}
		}
		wantInRedis(t, r, id, want)
	})
}

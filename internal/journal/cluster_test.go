package journal_test

import (
	"errors"
	"fmt"
	"testing"

	"weir/internal/journal"
	"weir/internal/meshtest"
)

// A replicated stream refuses and finds duplicates in another order than a
// single one, with another code while a rival is in flight.
func TestAReplicatedJournal(t *testing.T) {
	servers := meshtest.StartCluster(t)
	replicated := func(url string) *journal.Journal {
		j, err := journal.Open(t.Context(), meshtest.Connect(t, url), service, 3, quiet)
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	direct := replicated(servers.URL())

	t.Run("conflict", func(t *testing.T) {
		k := key("conflict")
		one := appended(t, direct, eventOf(k, "one"), 0)
		two := appended(t, direct, eventOf(k, "two"), one)
		for _, expected := range []uint64{0, one} {
			if _, err := direct.Append(t.Context(), eventOf(k, fmt.Sprint("late", expected)), expected); !errors.Is(err, journal.ErrConflict) {
				t.Errorf("append on %d: %v, want a conflict", expected, err)
			}
		}
		if ids, version := history(t, direct, k, 0); fmt.Sprint(ids) != "[one two]" || version != two {
			t.Errorf("holds %v up to %d", ids, version)
		}
	})
	t.Run("racing writers", func(t *testing.T) {
		race(t, key("race"), 10, direct, replicated(servers.URL()))
	})
	t.Run("lost acknowledgement", func(t *testing.T) {
		proxy := meshtest.StartProxy(t, servers.Addr())
		l := &lossy{journal: replicated("nats://" + proxy.Addr()), direct: direct, proxy: proxy, observer: servers.Connect}
		k := key("lost")
		one := appended(t, l.journal, eventOf(k, "first"), 0)
		two, err := l.append(t, eventOf(k, "second"), one, nil)
		if err != nil {
			t.Fatalf("append: %v", err)
		}
		if ids, version := history(t, direct, k, 0); fmt.Sprint(ids) != "[first second]" || version != two {
			t.Fatalf("holds %v up to %d, the append gave %d", ids, version, two)
		}
	})
	t.Run("an id used before", func(t *testing.T) { wantNoFalseSuccess(t, direct, key("reused")) })
	t.Run("many events", func(t *testing.T) {
		k := key("many")
		version := uint64(0)
		for i := range 50 {
			version = appended(t, direct, eventOf(k, fmt.Sprint("many", i)), version)
			// Whichever node answers, and however far behind: what is acknowledged is there.
			if ids, reached := history(t, direct, k, 0); len(ids) != i+1 || reached != version {
				t.Fatalf("%d events up to %d, want %d up to %d", len(ids), reached, i+1, version)
			}
		}
	})
	// Of these events some can be erased, and followers lag with that too.
	erasable := func() *journal.Journal {
		j, err := journal.OpenErasable(t.Context(), meshtest.Connect(t, servers.URL()), "erasable", 3, quiet)
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	writer, reader := erasable(), erasable()
	t.Run("single events", func(t *testing.T) {
		k := key("single")
		var all []uint64
		version := uint64(0)
		for i := range 30 {
			version = appended(t, writer, eventOf(k, fmt.Sprint("single", i)), version)
			all = append(all, version)
			if got, err := readEvents(t, reader, k, all); err != nil || len(got) != len(all) {
				t.Fatalf("read %v, %v; want %v", got, err, all)
			}
		}
	})
	t.Run("replays beside erasures", func(t *testing.T) { besideErasures(t, writer, reader, key("beside"), 60) })
}

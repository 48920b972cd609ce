package hot_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/journal"
)

// counting opens a store whose lists are complete.
func (s *server) counting(t testing.TB) *hot.Store {
	t.Helper()
	h := s.open(t)
	completed(t, h, begun(t, h, 1).ID)
	return h
}

func perMinute(set string, limit int) hot.Window {
	return hot.Window{Set: set, Limit: limit, Period: time.Minute}
}

// after is noon and so much.
func after(d time.Duration) time.Time { return noon.Add(d) }

// wantSpent says that there is room for a member at a time.
func wantSpent(t testing.TB, h *hot.Store, member string, now time.Time, windows ...hot.Window) {
	t.Helper()
	wantWait(t, h, member, now, 0, windows...)
}

// wantWait says that there is room for a member only after so long.
func wantWait(t testing.TB, h *hot.Store, member string, now time.Time, want time.Duration, windows ...hot.Window) {
	t.Helper()
	got, err := h.Spend(t.Context(), "acme", "thing", member, now, windows)
	if err != nil || got != want {
		t.Fatalf("spend %s at %s: wait %v, %v; want %v", member, now.Format(time.TimeOnly), got, err, want)
	}
}

// at is a row that stands in lists at a time.
func at(when time.Time, lists ...string) hot.Row {
	return in(uint64(when.UnixMilli()), lists...)
}

func spendToTheLimit(t *testing.T, s *server) {
	h, w := s.counting(t), perMinute("spent", 3)
	wantSpent(t, h, "a", noon, w)
	wantSpent(t, h, "b", after(10*time.Second), w)
	wantSpent(t, h, "c", after(20*time.Second), w)
	wantWait(t, h, "d", after(20*time.Second), 40*time.Second, w)
	wantWait(t, h, "d", after(59999*time.Millisecond), time.Millisecond, w)
	wantList(t, h, "spent", "c", "b", "a") // what is refused is not counted
	wantSpent(t, h, "d", after(time.Minute), w)
	wantWait(t, h, "e", after(time.Minute), 10*time.Second, w)

	// A limit that was lowered has room once enough have left, not just one.
	wantWait(t, h, "e", after(time.Minute), time.Minute, perMinute("spent", 1))
	wantWait(t, h, "e", after(time.Minute), 20*time.Second, perMinute("spent", 2))
	wantSpent(t, h, "e", after(time.Minute), perMinute("spent", 4))
}

// However the times lie, a member is let in exactly where fewer than the limit
// were counted in the period before it.
func windowSlides(t *testing.T, s *server) {
	h := s.counting(t)
	const limit = 5
	w := perMinute("spent", limit)
	random := rand.New(rand.NewPCG(1, 2))
	var counted []time.Time
	now, refused := noon, 0
	for i := range 300 {
		now = now.Add(time.Duration(random.IntN(20_000)) * time.Millisecond)
		recent := slices.DeleteFunc(slices.Clone(counted), func(c time.Time) bool { return now.Sub(c) >= time.Minute })
		if len(recent) < limit {
			wantSpent(t, h, fmt.Sprint(i), now, w)
			counted = append(counted, now)
			continue
		}
		refused++
		wantWait(t, h, fmt.Sprint(i), now, time.Minute-now.Sub(recent[len(recent)-limit]), w)
	}
	if refused == 0 || len(counted) < 10*limit {
		t.Fatalf("%d were counted and %d refused: the window never filled and emptied", len(counted), refused)
	}
}

func allWindowsOrNone(t *testing.T, s *server) {
	h := s.counting(t)
	narrow, wide := perMinute("narrow", 1), hot.Window{Set: "wide", Limit: 3, Period: time.Hour}
	wantSpent(t, h, "a", noon, narrow, wide)
	wantWait(t, h, "b", after(time.Second), 59*time.Second, narrow, wide)
	wantWait(t, h, "b", after(time.Second), 59*time.Second, wide, narrow)
	wantList(t, h, "narrow", "a")
	wantList(t, h, "wide", "a")
	wantSpent(t, h, "b", after(time.Minute), narrow, wide)
	wantSpent(t, h, "c", after(2*time.Minute), narrow, wide)
	// Both are full: it takes as long as the one that takes longer.
	wantWait(t, h, "d", after(2*time.Minute), 58*time.Minute, narrow, wide)
	wantWait(t, h, "d", after(2*time.Minute), 58*time.Minute, wide, narrow)
	wantList(t, h, "narrow", "c", "b", "a")
	wantList(t, h, "wide", "c", "b", "a")
	// One list can be looked at over two periods.
	wantWait(t, h, "d", after(3*time.Minute), 57*time.Minute, perMinute("wide", 1), wide)
	wantSpent(t, h, "e", after(3*time.Minute)) // no window, no limit
}

func countedOnce(t *testing.T, s *server) {
	h, w := s.counting(t), perMinute("spent", 2)
	wantSpent(t, h, "a", noon, w)
	for range 3 {
		wantSpent(t, h, "a", noon, w)
	}
	wantSpent(t, h, "b", after(10*time.Second), w)
	wantWait(t, h, "c", after(10*time.Second), 50*time.Second, w)
	// Where there is no room for others, there still is for what is counted.
	wantSpent(t, h, "a", noon, w)
	wantSpent(t, h, "b", after(10*time.Second), w)
	// A retry does not move it: it leaves the window when it would have.
	wantSpent(t, h, "a", after(30*time.Second), w)
	wantWait(t, h, "c", after(30*time.Second), 30*time.Second, w)
	wantList(t, h, "spent", "b", "a")
	// What is counted in one window and not in another needs room in that one.
	other := perMinute("other", 1)
	wantSpent(t, h, "x", after(10*time.Second), other)
	wantWait(t, h, "a", after(10*time.Second), time.Minute, w, other)
	wantList(t, h, "other", "x")
}

// The event that says what was counted is appended a moment later, and its row
// stands in the same list.
func rowOfTheSameMember(t *testing.T, s *server) {
	const list = "spent/agent:a b"
	h, w := s.counting(t), perMinute(list, 2)
	wantSpent(t, h, "a", noon, w)
	wasPut(t, h, key("a"), 7, at(after(5*time.Millisecond), list, "used"), "root=1")
	wasPut(t, h, key("a"), 7, at(after(5*time.Millisecond), list, "used"), "root=1") // the projector's
	wantSpent(t, h, "b", after(time.Second), w)
	wantList(t, h, list, "b", "a")
	// It counts from the event's time on.
	wantWait(t, h, "c", after(time.Second), 59*time.Second+5*time.Millisecond, w)
	wantWait(t, h, "c", after(time.Minute), 5*time.Millisecond, w)
	wantSpent(t, h, "c", after(time.Minute+5*time.Millisecond), w)
}

func countedAfterARebuild(t *testing.T, s *server) {
	h, w := s.counting(t), perMinute("spent", 2)
	wantSpent(t, h, "a", noon, w)
	wantSpent(t, h, "b", after(10*time.Second), w)
	s.flush(t)
	epoch := begun(t, h, 2)
	wasPut(t, h, key("b"), 9, at(after(10*time.Second), "spent"), "root=1")
	wasPut(t, h, key("a"), 8, at(noon, "spent"), "root=1")
	wasPut(t, h, key("refused"), 10, hot.Row{}, "root=1")
	completed(t, h, epoch.ID)
	wantWait(t, h, "c", after(20*time.Second), 40*time.Second, w)
	wantSpent(t, h, "a", noon, w) // counted already, as before
	wantSpent(t, h, "c", after(time.Minute), w)
}

func nothingSpentWhileRebuilding(t *testing.T, s *server) {
	h, w := s.open(t), perMinute("spent", 1)
	refused := func(what string) {
		t.Helper()
		wait, err := h.Spend(t.Context(), "acme", "thing", "a", noon, []hot.Window{w})
		if !fault.Is(err, fault.IndexRebuilding) {
			t.Fatalf("%s: wait %v, %v; want INDEX_REBUILDING", what, wait, err)
		}
	}
	refused("without an epoch")
	epoch := begun(t, h, 1)
	refused("before the epoch is complete")
	completed(t, h, epoch.ID)
	wantList(t, h, "spent")
	wantSpent(t, h, "a", noon, w)
	s.flush(t)
	refused("after a flush")
}

func racingSpenders(t *testing.T, s *server) {
	const spenders, limit = 64, 20
	replicas := []*hot.Store{s.counting(t), s.open(t)}
	windows := []hot.Window{perMinute("spent/alice", limit), {Set: "spent", Limit: spenders, Period: time.Hour}}
	var letIn atomic.Int32
	var wg sync.WaitGroup
	for i := range spenders {
		wg.Go(func() {
			wait, err := replicas[i%len(replicas)].Spend(t.Context(), "acme", "thing", fmt.Sprint(i), noon, windows)
			switch {
			case err != nil || wait != 0 && wait != time.Minute:
				t.Errorf("spender %d: wait %v, %v; want none or a minute", i, wait, err)
			case wait == 0:
				letIn.Add(1)
			}
		})
	}
	wg.Wait()
	if letIn.Load() != limit {
		t.Errorf("%d were let in, want %d", letIn.Load(), limit)
	}
	for _, w := range windows {
		members, _, err := listPage(t.Context(), replicas[0].List("acme", "thing", w.Set), spenders, "", replicas[0])
		if err != nil || len(members) != limit {
			t.Errorf("%s counts %d, %v; want %d", w.Set, len(members), err, limit)
		}
	}
}

func windowsOfOthers(t *testing.T, s *server) {
	h, w := s.counting(t), perMinute("spent", 1)
	wasPut(t, h, journal.Key{Tenant: "other", Kind: "thing", ID: "x"}, 1, at(noon, "spent"), "root=1")
	for _, of := range [][2]string{{"acme", "thing"}, {"evil", "thing"}, {"acme", "else"}} {
		wait, err := h.Spend(t.Context(), of[0], of[1], "a", noon, []hot.Window{w})
		if err != nil || wait != 0 {
			t.Fatalf("spend as %v: wait %v, %v; it is counted with others'", of, wait, err)
		}
	}
	wantSpent(t, h, "b", noon, perMinute("spent of another", 1))
	wantWait(t, h, "b", noon, time.Minute, w)
}

func oldEntriesLeave(t *testing.T, s *server) {
	h := s.counting(t)
	w := hot.Window{Set: "spent", Limit: 3, Period: hot.LongestWindow}
	stored := func() int64 {
		t.Helper()
		i := slices.IndexFunc(s.keys(t), func(k string) bool { return strings.HasSuffix(k, ":spent") })
		if i < 0 {
			t.Fatalf("no list among %v", s.keys(t))
		}
		n, err := s.client.ZCard(t.Context(), s.keys(t)[i]).Result()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	wantSpent(t, h, "a", noon, w)
	wantSpent(t, h, "b", after(time.Hour), w)
	wantSpent(t, h, "c", after(hot.LongestWindow-time.Millisecond), w)
	if n := stored(); n != 3 {
		t.Fatalf("%d entries are stored within a day, want 3", n)
	}
	wantSpent(t, h, "d", after(hot.LongestWindow), w)
	if n := stored(); n != 3 {
		t.Fatalf("%d entries are stored after the first one's day, want 3", n)
	}
	// Also where there is no room for a new one.
	wantWait(t, h, "e", after(hot.LongestWindow+time.Hour), 23*time.Hour-time.Millisecond, hot.Window{Set: "spent", Limit: 2, Period: hot.LongestWindow})
	if n := stored(); n != 2 {
		t.Fatalf("%d entries are stored after the second one's day, want 2", n)
	}
	wantList(t, h, "spent", "d", "c")
}

func spendScriptFlushed(t *testing.T, s *server) {
	h, w := s.counting(t), perMinute("spent", 2)
	wantSpent(t, h, "a", noon, w)
	if err := s.client.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	wantSpent(t, h, "b", noon, w)
	wantWait(t, h, "c", noon, time.Minute, w)
}

package aggregate

import (
	"errors"
	"fmt"
	"testing"
	"time"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/journal"
)

// told gives a history as it is told, one line a state.
func told(t testing.TB, l *ledgerLoop, id string) ([]string, error) {
	t.Helper()
	var lines []string
	err := l.History(t.Context(), key(id), func(s Snapshot[ledger], e Recorded[*conversationv1.Event]) error {
		if s.Version != e.Sequence || e.ID == "" || e.Time.IsZero() {
			t.Errorf("the state at %d is told with event %q of %v at %d", s.Version, e.ID, e.Time, e.Sequence)
		}
		if int64(s.State.Entries.Len()) != s.State.Count {
			t.Errorf("the state at %d has count %d and %d entries", s.Version, s.State.Count, s.State.Entries.Len())
		}
		lines = append(lines, fmt.Sprintf("%s makes %d", noted(e.Event), s.State.Count))
		return nil
	})
	return lines, err
}

func TestHistoryTellsEveryStateInOrderWithItsEvent(t *testing.T) {
	r := newRig(t)
	a, b := r.replica(), r.brief() // the one that keeps snapshots begins at the beginning too
	var want []string
	for i := range 25 {
		// Two replicas write, and others' aggregates lie between.
		entry := fmt.Sprint("entry-", i)
		must(t, []*ledgerLoop{a, b}[i%2], "x", entry)
		must(t, a, "y", entry)
		want = append(want, fmt.Sprintf("%s makes %d", entry, i+1))
	}
	waitSnapshot(t, r.journal, "x")
	for name, replica := range map[string]*ledgerLoop{"a writer": a, "one that keeps snapshots": b, "another": r.replica()} {
		got, err := told(t, replica, "x")
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: told %q, %v", name, got, err)
		}
	}
	// It is the journal's: Redis is not asked.
	r.redis.Kill()
	if got, err := told(t, a, "x"); err != nil || len(got) != len(want) {
		t.Errorf("without redis: told %q, %v", got, err)
	}
}

func TestAnAbsentAggregateHasNoHistory(t *testing.T) {
	r := newRig(t)
	a := r.replica()
	must(t, a, "y", "one")
	if got, err := told(t, a, "x"); err != nil || len(got) != 0 {
		t.Fatalf("told %q, %v", got, err)
	}
}

func TestAHistoryEndsWhereItsReaderHasEnough(t *testing.T) {
	r := newRig(t)
	a := r.replica()
	must(t, a, "x", "one")
	must(t, a, "x", "two")
	enough, heard := errors.New("enough"), 0
	err := a.History(t.Context(), key("x"), func(Snapshot[ledger], Recorded[*conversationv1.Event]) error { heard++; return enough })
	if !errors.Is(err, enough) || heard != 1 {
		t.Fatalf("heard %d, %v", heard, err)
	}
}

// What cannot be read is not skipped: that would be a history that never was.
func TestAHistoryWithAnUnreadableEventIsToldUpToIt(t *testing.T) {
	r := newRig(t)
	a := r.replica()
	one := must(t, a, "x", "one")
	if _, err := r.journal.Append(t.Context(), journal.Event{
		ID: "bad", Type: "weir.conversation.v1.MessagesAppended", Key: key("x"),
		Time: time.Now().UTC().Truncate(time.Microsecond), Data: []byte("\xff\xff not protobuf"),
	}, one.Version); err != nil {
		t.Fatal(err)
	}
	got, err := told(t, a, "x")
	if !fault.Is(err, fault.EventUnreadable) || fmt.Sprint(got) != "[one makes 1]" {
		t.Fatalf("told %q, %v; want EVENT_UNREADABLE after the first", got, err)
	}
}

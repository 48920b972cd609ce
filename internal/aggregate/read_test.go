package aggregate

import (
	"log/slog"
	"testing"

	"weir/internal/hot"
)

// without is a replica that reaches no Redis: what it appends, Redis doesn't show.
func (r *rig) without() *ledgerLoop {
	r.t.Helper()
	h, err := hot.Open("redis://127.0.0.1:1", "test", r.journal.Identity())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = h.Close() })
	return New(ledgerKind(), r.journal, h, slog.New(slog.DiscardHandler))
}

// To know the newest costs no write, however large the document is.
func TestTheNewestIsToldAndRedisLeftAsItIs(t *testing.T) {
	r := newRig(t)
	a := r.replica()
	must(t, a, "x", "one")
	r.redis.Flush()
	if s, err := a.Newest(t.Context(), key("x")); err != nil || s.State.Count != 1 {
		t.Fatalf("the newest is %+v, %v", s, err)
	}
	if s, err := shown(t, a, "x"); err != nil || s.Exists() {
		t.Fatalf("redis shows %+v, %v", s, err)
	}
	// Who reads puts it there, for the next.
	wantCount(t, a, "x", 1)
	if s, err := shown(t, a, "x"); err != nil || s.State.Count != 1 {
		t.Fatalf("redis shows %+v, %v", s, err)
	}
}

func TestAFewFieldsAreNeverOlderThanTheJournal(t *testing.T) {
	r := newRig(t)
	a := r.replica()
	must(t, a, "x", "one")
	s, err := r.replica().Newest(t.Context(), key("x"), RootField)
	if err != nil || s.State.Count != 1 || s.State.Entries != nil && s.State.Entries.Len() != 0 {
		t.Fatalf("asked for the root, got %+v, %v", s, err)
	}
	newest := must(t, r.without(), "x", "two")
	for name, l := range map[string]*ledgerLoop{"who wrote before": a, "who knows nothing": r.replica()} {
		s, err := l.Newest(t.Context(), key("x"), RootField)
		if err != nil || s.Version != newest.Version || s.State.Count != 2 {
			t.Errorf("%s is told %+v, %v; the journal is at %d", name, s, err, newest.Version)
		}
	}
}

// A replica that has nothing in memory begins at what Redis shows.
func TestTheNewestIsReachedFromWhatRedisShows(t *testing.T) {
	r := newRig(t)
	must(t, r.replica(), "x", "one")
	kind := ledgerKind()
	evolved := 0
	evolve := kind.Evolve
	kind.Evolve = func(l ledger, e Recorded[*ledgerEvent]) ledger {
		evolved++
		return evolve(l, e)
	}
	must(t, r.without(), "x", "two")
	b := New(kind, r.journal, r.hot, slog.New(slog.DiscardHandler))
	if s, err := b.Newest(t.Context(), key("x")); err != nil || s.State.Count != 2 || evolved != 1 {
		t.Fatalf("came to %+v, %v by %d events, want 1", s, err, evolved)
	}
}

package aggregate

import (
	"fmt"
	"log/slog"
	"testing"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

// brief is a ledger that keeps snapshots every ten events.
func (r *rig) brief() *ledgerLoop {
	kind := ledgerKind()
	kind.SnapshotEvery = 10
	j, h := r.open(r.nats.Connect())
	return New(kind, j, h, slog.New(slog.DiscardHandler))
}

// pieced is one that keeps them in pieces.
func (r *rig) pieced() *ledgerLoop {
	kind := ledgerKind()
	kind.SnapshotEvery = 10
	kind.Piece = func(field string) int {
		if field == RootField {
			return 0
		}
		return 1 + int(field[len(field)-1])%3
	}
	j, h := r.open(r.nats.Connect())
	return New(kind, j, h, slog.New(slog.DiscardHandler))
}

func waitSnapshot(t *testing.T, j *journal.Journal, id string) journal.Snapshot {
	t.Helper()
	var saved journal.Snapshot
	meshtest.Eventually(t, "a snapshot is kept", func() bool {
		var err error
		saved, err = j.LoadSnapshot(t.Context(), key(id))
		return err == nil && saved.Version > 0
	})
	return saved
}

func TestAReplayBeginsAtTheSnapshot(t *testing.T) {
	r := newRig(t)
	a := r.brief()
	for i := range 15 {
		must(t, a, "x", fmt.Sprint(i))
	}
	saved := waitSnapshot(t, r.journal, "x")
	r.redis.Flush()

	replayed := 0
	kind := ledgerKind()
	kind.SnapshotEvery = 10
	kind.Evolve = func(l ledger, e Recorded[*conversationv1.Event]) ledger {
		replayed++
		return evolveLedger(l, e)
	}
	b := New(kind, r.journal, r.hot, slog.New(slog.DiscardHandler))
	wantCount(t, b, "x", 15)
	if replayed >= 15 {
		t.Fatalf("replayed all %d events beside a snapshot at %d", replayed, saved.Version)
	}
	must(t, b, "x", "more")
	wantCount(t, a, "x", 16)
}

func TestASnapshotThatCannotBeReadCostsOnlyALongerReplay(t *testing.T) {
	r := newRig(t)
	a := r.brief()
	for i := range 15 {
		must(t, a, "x", fmt.Sprint(i))
	}
	saved := waitSnapshot(t, r.journal, "x")
	saved.Fields[RootField] = []byte("no JSON")
	if err := r.journal.SaveSnapshot(t.Context(), key("x"), saved, nil); err != nil {
		t.Fatal(err)
	}
	r.redis.Flush()
	wantCount(t, r.brief(), "x", 15)
}

func TestALongReplayLeavesASnapshotBehind(t *testing.T) {
	r := newRig(t)
	plain := r.replica()
	for i := range 15 {
		must(t, plain, "x", fmt.Sprint(i))
	}
	r.redis.Flush()
	wantCount(t, r.brief(), "x", 15)
	waitSnapshot(t, r.journal, "x")
}

// Several replicas keep snapshots in pieces, and none ever begins at a state that
// never was.
func TestASnapshotInPieces(t *testing.T) {
	r := newErasableRig(t)
	a, b := r.pieced(), r.pieced()
	for i := range 60 {
		must(t, []*ledgerLoop{a, b}[i%2], "x", fmt.Sprint(i))
		if i%7 == 0 {
			r.redis.Flush()
			wantCount(t, r.pieced(), "x", int64(i+1))
		}
	}
	saved := waitSnapshot(t, r.journal, "x")
	if _, ok := saved.Fields["e:0"]; !ok || len(saved.Fields) < 10 {
		t.Errorf("the snapshot has the fields %v", saved.Fields)
	}
	newest := mustRedact(t, a, "x", "20", r.events("x")[20])
	r.redis.Flush()
	fresh := r.pieced()
	r.project(fresh)
	waitComplete(t, fresh)
	wantInRedis(t, r, "x", newest)
}

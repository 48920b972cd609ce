package audit

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

func TestALogThatIsBuiltAnewGivesTheSameRoot(t *testing.T) {
	b := newBook(t)
	b.story("1")
	k := newKeys(t, "weir/gate")
	first := as{b.server(k), "acme"}.checkpoint(t)
	b.restart()
	second := as{b.server(k), "acme"}.checkpoint(t)
	if first.GetCheckpoint() != second.GetCheckpoint() || first.GetTreeSize() != acmeStory {
		t.Errorf("first %s\nthen %s", first.GetCheckpoint(), second.GetCheckpoint())
	}
}

func TestALogGoesOnOverARestartOfNATS(t *testing.T) {
	b := newBook(t)
	b.story("1")
	k := newKeys(t, "weir/gate")
	server := b.server(k)
	for round := range 2 {
		b.restart()
		b.story(fmt.Sprint("again", round))
	}
	var got *gatev1.GetCheckpointResponse
	meshtest.Eventually(t, "the log covers all", func() (ok bool) {
		var err error
		got, err = as{server, "acme"}.GetCheckpoint(t.Context(), &gatev1.GetCheckpointRequest{})
		return err == nil
	})
	want := as{b.server(k), "acme"}.checkpoint(t)
	if got.GetCheckpoint() != want.GetCheckpoint() || got.GetTreeSize() != 3*acmeStory {
		t.Errorf("got %s\nwant %s", got.GetCheckpoint(), want.GetCheckpoint())
	}
}

func TestACheckpointCoversAllThatWasRecordedBefore(t *testing.T) {
	b := newBook(t)
	k := newKeys(t, "weir/gate")
	gate := as{b.server(k), "acme"}
	if empty := gate.checkpoint(t); empty.GetTreeSize() != 0 {
		t.Fatalf("got %v", empty)
	}
	var writers sync.WaitGroup
	for w := range 3 {
		writers.Go(func() {
			key := journal.Key{Tenant: "acme", Kind: "check", ID: fmt.Sprint(w)}
			var version uint64
			for i := range 30 {
				var err error
				version, err = b.journal.Append(t.Context(), journal.Event{ID: fmt.Sprint(w, "-", i), Type: "t", Key: key, Time: time.Now().UTC()}, version)
				if err != nil {
					t.Error(err)
					return
				}
				checkpoint, err := gate.GetCheckpoint(t.Context(), &gatev1.GetCheckpointRequest{})
				if err != nil {
					t.Error(err)
					return
				}
				// This writer's own, and no fewer of them than there are.
				_, size := gate.server.log.places("acme", 0, 0)
				if checkpoint.GetTreeSize() < uint64(i+1) || uint64(size) < checkpoint.GetTreeSize() {
					t.Errorf("a checkpoint of %d after %d", checkpoint.GetTreeSize(), i+1)
				}
				covered := false
				places, _ := gate.server.log.places("acme", 0, int(checkpoint.GetTreeSize()))
				for _, p := range places {
					covered = covered || p.sequence == version
				}
				if !covered {
					t.Errorf("event %d is not in a checkpoint taken after it", version)
				}
			}
		})
	}
	writers.Wait()
	if got := gate.checkpoint(t); got.GetTreeSize() != 90 {
		t.Errorf("%d records", got.GetTreeSize())
	}
}

func TestNothingIsAnsweredUntilTheLogIsBuilt(t *testing.T) {
	b := newBook(t)
	b.story("1")
	k := newKeys(t, "weir/gate")
	gate := as{NewServer(NewLog(b.consumer(), b.journal, quiet), k.signer, k.verifier), "acme"}
	_, list := gate.ListRecords(t.Context(), &gatev1.ListRecordsRequest{})
	_, get := gate.GetCheckpoint(t.Context(), &gatev1.GetCheckpointRequest{})
	_, inclusion := gate.ProveInclusion(t.Context(), &gatev1.ProveInclusionRequest{TreeSize: 1})
	_, consistency := gate.ProveConsistency(t.Context(), &gatev1.ProveConsistencyRequest{OldSize: 1, NewSize: 1})
	for _, err := range []error{list, get, inclusion, consistency, gate.server.log.Cover(t.Context())} {
		wantReason(t, err, fault.IndexRebuilding)
	}
}

func TestALogThatDoesNotHearTheNewestSaysSo(t *testing.T) {
	b := newBook(t)
	b.story("1")
	l, stop := b.run()
	stop()
	if err := l.Cover(t.Context()); err != nil {
		t.Errorf("nothing is missing: %v", err)
	}
	b.story("2")
	ctx, cancel := context.WithTimeout(t.Context(), 3*askAgain/2)
	defer cancel()
	wantReason(t, l.Cover(ctx), fault.IndexRebuilding)
	b.nats.Stop()
	ctx, cancel = context.WithTimeout(t.Context(), askAgain)
	defer cancel()
	wantReason(t, l.Cover(ctx), fault.JournalUnavailable)
}

func TestALogDoesNotWaitForEventsThatArePurged(t *testing.T) {
	b := newBook(t)
	b.story("1")
	b.write("acme", "check", "gone", denied("x"))
	b.purge("weir.gate.acme.check.gone")
	k := newKeys(t, "weir/gate")
	if got := (as{b.server(k), "acme"}).checkpoint(t); got.GetTreeSize() != acmeStory {
		t.Errorf("%d records", got.GetTreeSize())
	}
}

func TestAJournalThatBecameShorterIsNoticed(t *testing.T) {
	b := newBook(t)
	b.story("1")
	l, stop := b.run()
	stop()
	other := newBook(t)
	other.write("acme", "check", "c", denied("x"))
	l.journal = other.journal
	wantReason(t, l.Cover(t.Context()), fault.EventUnreadable)
}

func TestAnEventThatCannotBeReadIsARecordToo(t *testing.T) {
	b := newBook(t)
	b.story("1")
	b.raw("weir.gate.acme.check.raw", nil, []byte("no event"))
	b.raw("weir.gate.acme.check.%", nats.Header{"ce-type": {"weir.gate.v1.CheckDenied"}, "ce-id": {"\xff"}}, nil)
	b.raw("weir.gate.acme.check.raw", nats.Header{"ce-time": {"once"}}, nil)
	b.story("2")
	k := newKeys(t, "weir/gate")
	server := b.server(k)
	gate := as{server, "acme"}
	records := gate.records(t)
	if len(records) != 2*acmeStory+3 {
		t.Fatalf("%d records", len(records))
	}
	if r := records[acmeStory]; r.GetSubject() != "weir.gate.acme.check.raw" || r.GetEventTime() != nil || r.GetActor() != "" || r.GetPrevious() != 0 {
		t.Errorf("got %v", r)
	}
	if r := records[acmeStory+1]; r.GetType() != "weir.gate.v1.CheckDenied" || r.GetVerdict() != "" || r.GetEventId() != "\uFFFD" {
		t.Errorf("got %v", r)
	}
	kept := gate.checkpoint(t).GetCheckpoint()
	if _, err := Audit(t.Context(), as{b.server(k), "acme"}, kept, k.verifier); err != nil {
		t.Error(err)
	}
	// Not even a header of it changes unnoticed.
	messages := b.contents()
	messages[len(messages)-14].Header.Set("ce-time", "twice")
	_, err := Audit(t.Context(), as{forge(t, messages).server(k), "acme"}, kept, k.verifier)
	wantError(t, err, "other root hashes")
}

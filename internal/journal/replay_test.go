package journal_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"weir/internal/fault"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

func nothing(journal.Event) error { return nil }

func TestReplayClosesTheChain(t *testing.T) {
	j := open(t, meshtest.StartNATS(t).URL())
	var versions []uint64
	version, other := uint64(0), uint64(0)
	for i := range 5 {
		other = appended(t, j, eventOf(key("other"), fmt.Sprint("other", i)), other)
		version = appended(t, j, event(fmt.Sprint(i)), version)
		versions = append(versions, version)
	}
	var got []uint64
	previous := uint64(0)
	reached, err := j.Replay(t.Context(), key("x"), 0, func(e journal.Event) error {
		if e.Previous != previous {
			t.Errorf("event %d follows %d, it names %d", e.Sequence, previous, e.Previous)
		}
		previous = e.Sequence
		got = append(got, e.Sequence)
		return nil
	})
	if err != nil || reached != version || !slices.Equal(got, versions) {
		t.Fatalf("replayed %v up to %d, %v; want %v", got, reached, err, versions)
	}
	if ids, reached := history(t, j, key("nobody"), 0); len(ids) != 0 || reached != 0 {
		t.Fatalf("what never was has %v up to %d", ids, reached)
	}
}

func TestReplayFromAVersion(t *testing.T) {
	j := open(t, meshtest.StartNATS(t).URL())
	one := appended(t, j, event("one"), 0)
	appended(t, j, eventOf(key("other"), "other"), 0)
	two := appended(t, j, event("two"), one)
	three := appended(t, j, event("three"), two)
	for from, want := range map[uint64]string{0: "[one two three]", one: "[two three]", two: "[three]", three: "[]"} {
		if ids, reached := history(t, j, key("x"), from); fmt.Sprint(ids) != want || reached != three {
			t.Errorf("from %d: %v up to %d, want %s up to %d", from, ids, reached, want, three)
		}
	}
	// A version that isn't one of this aggregate's, or not yet.
	for _, from := range []uint64{2, three + 1, 1000} {
		_, err := j.Replay(t.Context(), key("x"), from, nothing)
		wantReason(t, err, fault.EventUnreadable)
	}
	_, err := j.Replay(t.Context(), key("nobody"), 7, nothing)
	wantReason(t, err, fault.EventUnreadable)
}

func TestReplayStopsWhereTheReaderRefuses(t *testing.T) {
	j := open(t, meshtest.StartNATS(t).URL())
	one := appended(t, j, event("one"), 0)
	appended(t, j, event("two"), one)
	stop := errors.New("stop")
	seen := 0
	_, err := j.Replay(t.Context(), key("x"), 0, func(journal.Event) error { seen++; return stop })
	if !errors.Is(err, stop) || seen != 1 {
		t.Fatalf("%d events, %v", seen, err)
	}
}

// fill publishes a chain of events without waiting for each.
func fill(t testing.TB, js jetstream.JetStream, k journal.Key, count, size int) {
	t.Helper()
	for i := range count {
		if _, err := js.PublishMsgAsync(raw(k, fmt.Sprint(i), uint64(i), size)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(meshtest.Patience):
		t.Fatal("the events are not in")
	}
}

// raw is an event as the journal would store it.
func raw(k journal.Key, id string, expected uint64, size int) *nats.Msg {
	return &nats.Msg{Subject: k.Subject(service), Data: make([]byte, size), Header: nats.Header{
		"Nats-Expected-Last-Subject-Sequence": {fmt.Sprint(expected)},
		"ce-id":                               {id},
		"ce-time":                             {"2026-01-02T03:04:05.000678Z"},
	}}
}

func TestReplayOfManyEvents(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	const count = 2000 // several batches, the last one not full
	fill(t, jetStream(t, n.Connect()), key("x"), count, 10)
	ids, reached := history(t, j, key("x"), 0)
	if len(ids) != count || reached != count {
		t.Fatalf("%d events up to %d, want %d", len(ids), reached, count)
	}
	for i, id := range ids {
		if id != fmt.Sprint(i) {
			t.Fatalf("event %d is %s", i, id)
		}
	}
}

// Large events come in more batches: one may not be more than a connection holds.
func TestReplayOfLargeEvents(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	nc := n.Connect()
	asked, err := nc.SubscribeSync("$JS.API.DIRECT.GET.WEIR_TEST")
	if err != nil {
		t.Fatal(err)
	}
	const count, each = 6, 3 << 20
	fill(t, jetStream(t, nc), key("x"), count, each)
	if ids, _ := history(t, j, key("x"), 0); len(ids) != count {
		t.Fatalf("%d events, want %d", len(ids), count)
	}
	for range count / 2 {
		if _, err := asked.NextMsg(meshtest.Patience); err != nil {
			t.Fatalf("%d MB came in fewer batches than %d: %v", count*each>>20, count/2, err)
		}
	}
}

func TestAHoleInTheChainIsUnreadableAndNeverShorter(t *testing.T) {
	const count = 7
	for name, gone := range map[string][]uint64{
		"the first":        {1},
		"the second":       {2},
		"in between":       {4, 5},
		"before the last":  {6},
		"all but the last": {1, 2, 3, 4, 5, 6},
	} {
		t.Run(name, func(t *testing.T) {
			n := meshtest.StartNATS(t)
			js := jetStream(t, n.Connect())
			// Single events of weir's stream can't be deleted; of one that is not yet weir's they can.
			stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "WEIR_TEST", Subjects: []string{"weir.test.*.*.*"}})
			if err != nil {
				t.Fatal(err)
			}
			fill(t, js, key("x"), count, 10)
			for _, sequence := range gone {
				if err := stream.DeleteMsg(t.Context(), sequence); err != nil {
					t.Fatal(err)
				}
			}
			config := stream.CachedInfo().Config
			config.DenyDelete = true
			if _, err := js.UpdateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			j := open(t, n.URL())
			var seen []uint64
			_, err = j.Replay(t.Context(), key("x"), 0, func(e journal.Event) error {
				seen = append(seen, e.Sequence)
				return nil
			})
			wantReason(t, err, fault.EventUnreadable)
			if want := gone[0] - 1; uint64(len(seen)) != want {
				t.Errorf("%v were read, want the %d before the hole", seen, want)
			}
			// From behind the hole the history is whole.
			last := gone[len(gone)-1]
			if last+1 < count {
				if ids, reached := history(t, j, key("x"), last+1); len(ids) != int(count-last-1) || reached != count {
					t.Errorf("behind the hole are %v up to %d", ids, reached)
				}
			}
			// What follows a hole can't be deleted into place.
			if err := stream.DeleteMsg(t.Context(), count); err == nil {
				t.Error("a single event of the journal was deleted")
			}
		})
	}
}

func TestAnEventOfSomebodyElseIsUnreadable(t *testing.T) {
	for name, header := range map[string]nats.Header{
		"no headers":     nil,
		"no predecessor": {"ce-id": {"foreign"}, "ce-time": {"2026-01-02T03:04:05.000678Z"}},
		"no time":        {"ce-id": {"foreign"}, "Nats-Expected-Last-Subject-Sequence": {"1"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := meshtest.StartNATS(t)
			j := open(t, n.URL())
			appended(t, j, event("one"), 0)
			foreign := &nats.Msg{Subject: key("x").Subject(service), Header: header, Data: []byte("x")}
			if _, err := jetStream(t, n.Connect()).PublishMsg(t.Context(), foreign); err != nil {
				t.Fatal(err)
			}
			_, err := j.Replay(t.Context(), key("x"), 0, nothing)
			wantReason(t, err, fault.EventUnreadable)
			_, err = j.Get(t.Context(), 2)
			wantReason(t, err, fault.EventUnreadable)
		})
	}
}

func TestAnErasedAggregateIsAbsent(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	one := appended(t, j, event("one"), 0)
	appended(t, j, event("two"), one)
	appended(t, j, eventOf(key("y"), "other"), 0)
	stream, err := jetStream(t, n.Connect()).Stream(t.Context(), "WEIR_TEST")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(key("x").Subject(service))); err != nil {
		t.Fatal(err)
	}
	wantHistory(t, j, key("x"))
	wantHistory(t, j, key("y"), "other")
	_, err = j.Replay(t.Context(), key("x"), one, nothing) // what a memory of it would ask
	wantReason(t, err, fault.EventUnreadable)
	appended(t, j, event("a new one"), 0)
	wantHistory(t, j, key("x"), "a new one")
}

// Silence is no proof of anything.
func TestALostReplyIsNotAHole(t *testing.T) {
	l := openLossy(t)
	fill(t, jetStream(t, l.nats.Connect()), key("x"), 1200, 10)
	ctx, cancel := context.WithTimeout(t.Context(), meshtest.Patience)
	defer cancel()
	seen := 0
	started := time.Now()
	_, err := l.journal.Replay(ctx, key("x"), 0, func(journal.Event) error {
		if seen++; seen == 512 { // the whole first batch is here
			l.proxy.Swallow()
		}
		return nil
	})
	wantReason(t, err, fault.JournalUnavailable)
	if seen < 512 || seen == 1200 {
		t.Fatalf("%d events were read before the connection went deaf", seen)
	}
	if took := time.Since(started); took > meshtest.Patience/3 {
		t.Errorf("it took %v", took)
	}
	l.proxy.Cut()
	meshtest.Eventually(t, "the journal is back", func() bool { return l.journal.Healthy(t.Context()) == nil })
	if ids, _ := history(t, l.journal, key("x"), 0); len(ids) != 1200 {
		t.Fatalf("%d events", len(ids))
	}
}

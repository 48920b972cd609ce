package journal_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"weir/internal/fault"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

func readEvents(t testing.TB, j *journal.Journal, k journal.Key, sequences []uint64) ([]uint64, error) {
	t.Helper()
	var got []uint64
	err := j.Events(t.Context(), k, sequences, func(e journal.Event) error {
		if e.Key != k {
			t.Errorf("event %d is of %s", e.Sequence, e.Key)
		}
		got = append(got, e.Sequence)
		return nil
	})
	return got, err
}

// every gives count sequences from first on, so far apart.
func every(first, step uint64, count int) []uint64 {
	sequences := make([]uint64, count)
	for i := range sequences {
		sequences[i] = first + uint64(i)*step
	}
	return sequences
}

func TestEventsAreExactlyThoseAskedFor(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := openErasable(t, n.URL())
	const count = 2000
	fill(t, jetStream(t, n.Connect()), key("x"), count, 10)
	observer := n.Connect()
	requests, err := observer.SubscribeSync("$JS.API.DIRECT.GET.WEIR_TEST")
	if err != nil {
		t.Fatal(err)
	}
	flush := func() {
		t.Helper()
		if err := observer.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	for name, test := range map[string]struct {
		sequences []uint64
		// The most requests it may take, and events that these may ask for.
		requests, asked int
	}{
		"none":              {nil, 0, 0},
		"one":               {[]uint64{700}, 1, 1},
		"a page":            {every(900, 1, 20), 1, 20},
		"with a few others": {slices.Concat(every(10, 1, 10), every(22, 1, 10)), 3, 50},
		"all":               {every(1, 1, count), 4, count},
		"far apart":         {every(5, 90, 20), 21, 60},
		"a page, and far":   {slices.Concat(every(100, 1, 50), []uint64{1500}, every(1990, 1, 11)), 6, 120},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readEvents(t, j, key("x"), test.sequences)
			if err != nil || !slices.Equal(got, test.sequences) {
				t.Fatalf("got %v, %v; want %v", got, err, test.sequences)
			}
			flush() // every request was heard before its answer was sent
			made, asked := 0, 0
			for {
				msg, err := requests.NextMsg(time.Nanosecond)
				if err != nil {
					break
				}
				var request struct{ Batch int }
				if err := json.Unmarshal(msg.Data, &request); err != nil {
					t.Fatal(err)
				}
				made, asked = made+1, asked+request.Batch
			}
			if made > test.requests || asked > test.asked || made == 0 && len(test.sequences) > 0 {
				t.Errorf("%d requests for %d events, want at most %d for %d", made, asked, test.requests, test.asked)
			}
		})
	}
}

func TestAnEventThatIsNotThereIsUnreadableAndNeverSkipped(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := openErasable(t, n.URL())
	fill(t, jetStream(t, n.Connect()), key("x"), 8, 10)
	foreign := appended(t, j, eventOf(key("y"), "foreign"), 0)
	last := appended(t, j, event("last"), 8)
	if _, err := j.EraseEvents(t.Context(), key("x"), []uint64{4}); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		asked, want []uint64
		ok          bool
	}{
		"around an erased one": {[]uint64{3, 5, last}, []uint64{3, 5, last}, true},
		"an erased one":        {[]uint64{2, 3, 4, 5}, []uint64{2, 3}, false},
		"erased, first":        {[]uint64{4, 5}, nil, false},
		"another aggregate's":  {[]uint64{8, foreign, last}, []uint64{8}, false},
		"one that never was":   {[]uint64{last, last + 1}, []uint64{last}, false},
	} {
		got, err := readEvents(t, j, key("x"), test.asked)
		if !slices.Equal(got, test.want) || test.ok != (err == nil) || !test.ok && !fault.Is(err, fault.EventUnreadable) {
			t.Errorf("%s: got %v, %v; want %v", name, got, err, test.want)
		}
	}
}

func TestEventsEndWhereTheReaderRefuses(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := openErasable(t, n.URL())
	fill(t, jetStream(t, n.Connect()), key("x"), 8, 10)
	enough, seen := errors.New("enough"), 0
	err := j.Events(t.Context(), key("x"), every(1, 1, 8), func(journal.Event) error {
		if seen++; seen == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || seen != 3 {
		t.Errorf("saw %d, %v", seen, err)
	}
}

// Silence is no proof that an event is not there.
func TestEventsOverALostConnectionAreNotMissing(t *testing.T) {
	l := openLossy(t)
	fill(t, jetStream(t, l.nats.Connect()), key("x"), 1200, 10)
	ctx, cancel := context.WithTimeout(t.Context(), meshtest.Patience)
	defer cancel()
	seen := 0
	err := l.journal.Events(ctx, key("x"), every(1, 1, 1200), func(journal.Event) error {
		if seen++; seen == 512 {
			l.proxy.Swallow()
		}
		return nil
	})
	wantReason(t, err, fault.JournalUnavailable)
	if seen < 512 || seen == 1200 {
		t.Errorf("%d events were read before the connection went deaf", seen)
	}
}

// Large events come in more answers than were asked for by their number.
func TestEventsThatAreLarge(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := openErasable(t, n.URL())
	fill(t, jetStream(t, n.Connect()), key("x"), 6, 3<<20)
	if got, err := readEvents(t, j, key("x"), every(1, 1, 6)); err != nil || len(got) != 6 {
		t.Errorf("got %v, %v", got, err)
	}
}

package journal_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/fault"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

// model is what a test knows of one aggregate: every event it ever had.
type model struct {
	events []modelEvent
}

type modelEvent struct {
	sequence uint64
	names    []int // of the events it says are erased
	past     bool
	gone     bool
}

func (m *model) previous(i int) uint64 {
	if i == 0 {
		return 0
	}
	return m.events[i-1].sequence
}

// replayed gives what a replay from a version must give: the sequences it reads
// up to the last, or that it must fail. Whatever is missing between where the
// history begins and where it ends must be named by an event that was read.
func (m *model) replayed(from uint64) (sequences []uint64, ok bool) {
	begins := -1 // the place of the event that the history begins behind
	known := from == 0
	for i, e := range m.events {
		if e.sequence <= from {
			begins, known = i, known || e.sequence == from
		}
	}
	last, named := -1, map[int]bool{}
	for i, e := range m.events {
		if e.gone || e.sequence <= from {
			continue
		}
		sequences = append(sequences, e.sequence)
		last = i
		for _, name := range e.names {
			named[name] = true
		}
		if e.past {
			begins, known = i, true
		}
	}
	for i := begins + 1; i < last; i++ {
		if m.events[i].gone && !named[i] {
			return nil, false
		}
	}
	if last < 0 { // nothing is behind from; then it must be the last event, or none ever
		newest := uint64(0)
		for _, e := range m.events {
			if !e.gone {
				newest = e.sequence
			}
		}
		return nil, newest == from
	}
	return sequences, known
}

// The journal's own rule against the model, over random chains, erasures with
// and without their names, half done or done, and versions to begin from.
func TestAReplayProvesItselfAcrossHoles(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := openErasable(t, n.URL())
	stream, err := jetStream(t, n.Connect()).Stream(t.Context(), "WEIR_TEST")
	if err != nil {
		t.Fatal(err)
	}
	runs, proved, refused := 0, 0, 0
	rapid.Check(t, func(r *rapid.T) {
		runs++
		k := key(fmt.Sprint("x", runs))
		m := &model{}
		other := uint64(0)
		remove := func(i int) {
			if m.events[i].gone {
				return
			}
			m.events[i].gone = true
			if err := stream.DeleteMsg(t.Context(), m.events[i].sequence); err != nil {
				r.Fatal(err)
			}
		}
		// Lawful chains lack only what a living event names, so their replay
		// succeeds from everywhere: who erases an event that named others names
		// these too, and a new beginning is erased by the next one alone.
		lawful := rapid.Bool().Draw(r, "lawful")
		for range rapid.IntRange(1, 25).Draw(r, "events") {
			e := eventOf(k, fmt.Sprint(runs, "/", len(m.events)))
			added := modelEvent{}
			switch kind := rapid.IntRange(0, 9).Draw(r, "kind"); {
			case kind == 0:
				e.ErasesPast, added.past = true, true
			case kind <= 4 && len(m.events) > 0:
				some := rapid.SliceOfNDistinct(rapid.IntRange(0, len(m.events)-1), 0, 4, rapid.ID[int]).Draw(r, "names")
				if lawful {
					some = slices.DeleteFunc(some, func(i int) bool { return m.events[i].past })
					for _, i := range some {
						some = append(some, m.events[i].names...)
					}
				}
				slices.Sort(some)
				added.names = slices.Compact(some)
				for _, i := range added.names {
					e.Erases = append(e.Erases, journal.Erased{Sequence: m.events[i].sequence, Previous: m.previous(i)})
				}
			}
			added.sequence = appended(t, j, e, m.previous(len(m.events)))
			m.events = append(m.events, added)
			gone := added.names
			if added.past {
				gone = nil
				for i := range len(m.events) - 1 {
					gone = append(gone, i)
				}
			}
			switch rapid.IntRange(0, 3).Draw(r, "carried out") {
			case 0: // not yet
			case 1: // half
				for _, i := range gone {
					if rapid.Bool().Draw(r, "gone") {
						remove(i)
					}
				}
			default:
				for _, i := range gone {
					remove(i)
				}
			}
			if rapid.IntRange(0, 2).Draw(r, "interleave") == 0 {
				other = appended(t, j, eventOf(key(fmt.Sprint("other", runs)), fmt.Sprint("other", runs, "/", len(m.events))), other)
			}
		}
		if !lawful {
			for range rapid.IntRange(0, 2).Draw(r, "deleted by nobody") {
				remove(rapid.IntRange(0, len(m.events)-1).Draw(r, "deleted"))
			}
		}

		froms := []uint64{0, other, m.events[len(m.events)-1].sequence + 5}
		for _, e := range m.events {
			froms = append(froms, e.sequence)
		}
		for _, from := range froms {
			want, ok := m.replayed(from)
			if lawful && !ok && from != froms[1] && from != froms[2] {
				r.Fatalf("the model refuses a lawful chain from %d", from)
			}
			var got []uint64
			version, err := j.Replay(t.Context(), k, from, func(e journal.Event) error {
				got = append(got, e.Sequence)
				return nil
			})
			switch {
			case !ok:
				refused++
				if !fault.Is(err, fault.EventUnreadable) {
					r.Fatalf("from %d: %v up to %d, %v; want EVENT_UNREADABLE", from, got, version, err)
				}
			case err != nil || !slices.Equal(got, want):
				r.Fatalf("from %d: %v, %v; want %v", from, got, err, want)
			default:
				proved++
				if last := max(from, slices.Max(append(want, 0))); version != last {
					r.Fatalf("from %d it reached %d, want %d", from, version, last)
				}
			}
		}
	})
	if proved < 100 || refused < 100 {
		t.Errorf("%d replays had to succeed and %d to fail: that tests little", proved, refused)
	}
}

// A deletion that no event names is an error wherever it is, but at the very end.
func TestADeletionThatNobodyNamesIsUnreadable(t *testing.T) {
	const count = 6
	for extra := uint64(1); extra < count; extra++ {
		n := meshtest.StartNATS(t)
		j := openErasable(t, n.URL())
		js := jetStream(t, n.Connect())
		fill(t, js, key("x"), count-1, 0)
		redaction := event("redaction")
		redaction.Erases = []journal.Erased{{Sequence: 3, Previous: 2}}
		appended(t, j, redaction, count-1)
		if removed, err := j.EraseEvents(t.Context(), key("x"), []uint64{3}); err != nil || removed != 1 {
			t.Fatalf("erased %d, %v", removed, err)
		}
		if _, version := history(t, j, key("x"), 0); version != count {
			t.Fatalf("reached %d", version)
		}
		if extra == 3 {
			continue
		}
		stream, err := js.Stream(t.Context(), "WEIR_TEST")
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.DeleteMsg(t.Context(), extra); err != nil {
			t.Fatal(err)
		}
		for from := range extra {
			_, err := j.Replay(t.Context(), key("x"), from, nothing)
			wantReason(t, err, fault.EventUnreadable)
		}
	}
}

// erasing appends an event that names what it erases, and carries it out.
func erasing(t testing.TB, j *journal.Journal, e journal.Event, expected uint64) uint64 {
	t.Helper()
	sequence := appended(t, j, e, expected)
	var gone []uint64
	for _, one := range e.Erases {
		gone = append(gone, one.Sequence)
	}
	if removed, err := j.EraseEvents(t.Context(), e.Key, gone); err != nil || removed != len(gone) {
		t.Fatalf("erased %d of %d, %v", removed, len(gone), err)
	}
	if e.ErasesPast {
		if _, err := j.ErasePast(t.Context(), e.Key, sequence); err != nil {
			t.Fatal(err)
		}
	}
	return sequence
}

// What is erased while a replay reads may be named by an event that was appended
// after the replay had asked where the history ends.
func TestAnErasureDuringAReplay(t *testing.T) {
	const count = 1300 // more than two batches
	for name, test := range map[string]struct {
		erases []uint64 // 0: the past
		want   int
	}{
		"of an event ahead": {[]uint64{900}, count - 1 + 1},
		"of the last event": {[]uint64{count}, count - 1 + 1},
		"of many":           {[]uint64{600, 601, 602, 1100, 1200, count - 1, count}, count - 7 + 1},
		"of the past":       {nil, 512 + 1}, // what the first batch had brought, and the new beginning
	} {
		t.Run(name, func(t *testing.T) {
			n := meshtest.StartNATS(t)
			j := openErasable(t, n.URL())
			fill(t, jetStream(t, n.Connect()), key("x"), count, 0)
			e := event("erases")
			e.ErasesPast = test.erases == nil
			for _, sequence := range test.erases {
				e.Erases = append(e.Erases, journal.Erased{Sequence: sequence, Previous: sequence - 1})
			}
			seen := 0
			version, err := j.Replay(t.Context(), key("x"), 0, func(read journal.Event) error {
				if seen++; seen == 512 { // the whole first batch is here
					erasing(t, j, e, count)
				}
				return nil
			})
			if err != nil || version != count+1 || seen != test.want {
				t.Errorf("%d events up to %d, %v; want %d up to %d", seen, version, err, test.want, count+1)
			}
		})
	}
}

// Erasures go on all the time, and no replay is ever told of a hole.
func TestReplaysBesideErasures(t *testing.T) {
	n := meshtest.StartNATS(t)
	besideErasures(t, openErasable(t, n.URL()), openErasable(t, n.URL()), key("x"), 150)
}

func besideErasures(t *testing.T, writer, reader *journal.Journal, k journal.Key, rounds int) {
	t.Helper()
	done := make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		remembered := []uint64{0}
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			version, err := reader.Replay(t.Context(), k, remembered[i%len(remembered)], nothing)
			if err != nil {
				failed <- err
				return
			}
			remembered = append(remembered, version)
		}
	}()
	version := appended(t, writer, eventOf(k, "first"), 0)
	var said []journal.Erased
	for i := range rounds {
		e := eventOf(k, fmt.Sprint(k.ID, i))
		previous := version
		if i%3 == 2 { // erase a message of before, which may be the last event
			e.Erases = []journal.Erased{said[len(said)-1-i%2]}
			version = erasing(t, writer, e, version)
			said = nil
			continue
		}
		version = appended(t, writer, e, version)
		said = append(said, journal.Erased{Sequence: version, Previous: previous})
	}
	past := eventOf(k, "past")
	past.ErasesPast = true
	version = erasing(t, writer, past, version)
	close(done)
	if err := <-failed; err != nil {
		t.Fatalf("a replay beside erasures: %v", err)
	}
	if ids, reached := history(t, reader, k, 0); fmt.Sprint(ids) != "[past]" || reached != version {
		t.Errorf("it is %v up to %d", ids, reached)
	}
}

func TestEraseEvents(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := openErasable(t, n.URL())
	fill(t, jetStream(t, n.Connect()), key("x"), 5, 0)
	foreign := appended(t, j, eventOf(key("y"), "foreign"), 0)
	e := event("erases")
	e.Erases = []journal.Erased{{Sequence: 2, Previous: 1}, {Sequence: 3, Previous: 2}, {Sequence: 5, Previous: 4}}
	appended(t, j, e, 5)
	for i, want := range []int{3, 0} {
		if removed, err := j.EraseEvents(t.Context(), key("x"), []uint64{2, 3, 5}); err != nil || removed != want {
			t.Errorf("time %d: removed %d, %v; want %d", i, removed, err, want)
		}
	}
	wantHistory(t, j, key("x"), "0", "3", "erases")
	// Nobody else's event is erased by mistake.
	removed, err := j.EraseEvents(t.Context(), key("x"), []uint64{4, foreign})
	if wantReason(t, err, fault.EventUnreadable); removed != 1 {
		t.Errorf("removed %d before it, want 1", removed)
	}
	wantHistory(t, j, key("y"), "foreign")
}

func TestErasePast(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := openErasable(t, n.URL())
	fill(t, jetStream(t, n.Connect()), key("x"), 5, 0)
	foreign := appended(t, j, eventOf(key("y"), "foreign"), 0)
	past := event("past")
	past.ErasesPast = true
	version := appended(t, j, past, 5)
	later := appended(t, j, event("later"), version)
	// Only the event that says so erases the past, and only its own aggregate's.
	for _, before := range []uint64{1, 5, later, foreign} {
		_, err := j.ErasePast(t.Context(), key("x"), before)
		wantReason(t, err, fault.EventUnreadable)
	}
	_, err := j.ErasePast(t.Context(), key("y"), version)
	wantReason(t, err, fault.EventUnreadable)
	wantHistory(t, j, key("x"), "0", "1", "2", "3", "4", "past", "later")
	for i, want := range []uint64{5, 0} {
		if removed, err := j.ErasePast(t.Context(), key("x"), version); err != nil || removed != want {
			t.Errorf("time %d: removed %d, %v; want %d", i, removed, err, want)
		}
	}
	wantHistory(t, j, key("x"), "past", "later")
	wantHistory(t, j, key("y"), "foreign")
	// The next one erases this one too; asking for the first again is nothing.
	past = event("past again")
	past.ErasesPast = true
	erasing(t, j, past, later)
	if removed, err := j.ErasePast(t.Context(), key("x"), version); err != nil || removed != 0 {
		t.Errorf("removed %d, %v", removed, err)
	}
	wantHistory(t, j, key("x"), "past again")
}

// Whether events can be erased is settled when a stream is made, and a service
// that finds the other kind says so at once.
func TestAStreamOfTheOtherKindIsRefusedWithWords(t *testing.T) {
	n := meshtest.StartNATS(t)
	nc := n.Connect()
	type opener func() error
	plain := func() error { _, err := journal.Open(t.Context(), nc, service, 1, quiet); return err }
	erasable := func() error { _, err := journal.OpenErasable(t.Context(), nc, service, 1, quiet); return err }
	js := jetStream(t, nc)
	for name, test := range map[string]struct{ first, other opener }{
		"erasable": {plain, erasable},
		"plain":    {erasable, plain},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 {
				if err := test.first(); err != nil {
					t.Fatal(err)
				}
			}
			err := test.other()
			if err == nil {
				t.Fatal("it opened the stream of the other kind")
			}
			t.Log(err)
			if err := test.first(); err != nil {
				t.Errorf("it is not what it was: %v", err)
			}
			if err := js.DeleteStream(t.Context(), "WEIR_TEST"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

package journal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"weir/internal/fault"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

func TestAnEventReadsBackAsItWasAppended(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	want := event("one")
	want.Sequence = appended(t, j, want, 0)
	if want.Sequence != 1 {
		t.Fatalf("the first event has sequence %d", want.Sequence)
	}
	next := event("two")
	next.Previous = want.Sequence
	next.Sequence = appended(t, j, next, want.Sequence)
	for _, e := range []journal.Event{want, next} {
		got, err := j.Get(t.Context(), e.Sequence)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(e) {
			t.Errorf("got %v, %v; want %v", got, err, e)
		}
	}
	_, err := j.Get(t.Context(), 3)
	wantReason(t, err, fault.EventUnreadable)
}

// A consumer outside of weir reads events with any NATS client.
func TestHeadersAreCloudEvents(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	appended(t, j, event("one"), 0)
	stream, err := jetStream(t, n.Connect()).Stream(t.Context(), "WEIR_TEST")
	if err != nil {
		t.Fatal(err)
	}
	msg, err := stream.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if msg.Subject != "weir.test.acme.thing.x" {
		t.Errorf("subject is %s", msg.Subject)
	}
	for header, want := range map[string]string{
		"Nats-Msg-Id":    "one",
		"ce-specversion": "1.0",
		"ce-id":          "one",
		"ce-type":        "weir.test.v1.Happened",
		"ce-source":      "weir/test",
		"ce-subject":     "acme/thing/x",
		"ce-time":        "2026-01-02T03:04:05.000678Z",
		"content-type":   "application/protobuf",
		"traceparent":    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	} {
		if got := msg.Header.Get(header); got != want {
			t.Errorf("%s is %q, want %q", header, got, want)
		}
	}
}

func TestAppendConflict(t *testing.T) {
	j := open(t, meshtest.StartNATS(t).URL())
	one := appended(t, j, event("one"), 0)
	two := appended(t, j, event("two"), one)
	for name, expected := range map[string]uint64{"absent": 0, "older": one, "one that never was": two + 5} {
		if _, err := j.Append(t.Context(), event("late, on "+name), expected); !errors.Is(err, journal.ErrConflict) {
			// A version that never was has no successor to conflict with.
			if expected <= two || !fault.Is(err, fault.JournalUnavailable) {
				t.Errorf("append on %s: %v, want a conflict", name, err)
			}
		}
	}
	wantHistory(t, j, key("x"), "one", "two")
}

func TestOfRacingWritersExactlyOneWinsEachVersion(t *testing.T) {
	n := meshtest.StartNATS(t)
	race(t, key("x"), 20, open(t, n.URL()), open(t, n.URL()))
}

func race(t *testing.T, k journal.Key, rounds int, writers ...*journal.Journal) {
	t.Helper()
	const each = 4
	version := uint64(0)
	for round := range rounds {
		var won, lost atomic.Int32
		var next atomic.Uint64
		var all sync.WaitGroup
		for w, j := range writers {
			for i := range each {
				all.Go(func() {
					sequence, err := j.Append(t.Context(), eventOf(k, fmt.Sprintf("%d-%d-%d", round, w, i)), version)
					switch {
					case err == nil:
						won.Add(1)
						next.Store(sequence)
					case errors.Is(err, journal.ErrConflict):
						lost.Add(1)
					default:
						t.Errorf("append: %v", err)
					}
				})
			}
		}
		all.Wait()
		if int(won.Load()) != 1 || int(lost.Load()) != len(writers)*each-1 {
			t.Fatalf("round %d: %d won, %d lost", round, won.Load(), lost.Load())
		}
		version = next.Load()
	}
	if ids, _ := history(t, writers[0], k, 0); len(ids) != rounds {
		t.Fatalf("%d events, want %d", len(ids), rounds)
	}
}

// lossy is a journal whose acknowledgements a proxy can lose, and one beside it that
// shows what really happened.
type lossy struct {
	journal, direct *journal.Journal
	proxy           *meshtest.Proxy
	nats            *meshtest.NATS
	observer        func() *nats.Conn
}

func openLossy(t testing.TB) *lossy {
	n := meshtest.StartNATS(t)
	proxy := meshtest.StartProxy(t, n.Addr())
	return &lossy{journal: open(t, "nats://"+proxy.Addr()), direct: open(t, n.URL()), proxy: proxy, nats: n, observer: n.Connect}
}

// append appends through the proxy and loses the answer: the connection goes
// deaf before, and is cut after the event reached the server and `meanwhile`
// was done.
func (l *lossy) append(t testing.TB, e journal.Event, expected uint64, meanwhile func()) (uint64, error) {
	t.Helper()
	// Whether the stream takes an event or not, a plain subscriber hears of it.
	nc := l.observer()
	heard, err := nc.SubscribeSync(e.Key.Subject(service))
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	l.proxy.Swallow()
	type result struct {
		sequence uint64
		err      error
	}
	done := make(chan result, 1)
	go func() {
		sequence, err := l.journal.Append(t.Context(), e, expected)
		done <- result{sequence, err}
	}()
	if _, err := heard.NextMsg(meshtest.Patience); err != nil {
		t.Fatalf("the event did not reach the server: %v", err)
	}
	meshtest.Eventually(t, "the server's answer is lost", func() bool { return l.proxy.Swallowed() > 0 })
	if meanwhile != nil {
		meanwhile()
	}
	l.proxy.Cut()
	r := <-done
	return r.sequence, r.err
}

func TestALostAcknowledgementIsResolvedToExactlyOneEvent(t *testing.T) {
	l := openLossy(t)
	one := appended(t, l.journal, event("one"), 0)
	two, err := l.append(t, event("two"), one, nil)
	if err != nil {
		t.Fatalf("append: %v", err)
	}
	ids, version := history(t, l.direct, key("x"), 0)
	if fmt.Sprint(ids) != "[one two]" || version != two {
		t.Fatalf("holds %v up to %d, the append gave %d", ids, version, two)
	}
	appended(t, l.journal, event("three"), two)
}

// The first successor of the expected version decides, not the last event.
func TestALostAcknowledgementIsResolvedAlsoWhenARivalFollowed(t *testing.T) {
	l := openLossy(t)
	one := appended(t, l.journal, event("one"), 0)
	two, err := l.append(t, event("two"), one, func() {
		appended(t, l.direct, event("rival"), one+1)
	})
	if err != nil || two != one+1 {
		t.Fatalf("append: %d, %v; want %d", two, err, one+1)
	}
	wantHistory(t, l.direct, key("x"), "one", "two", "rival")
}

func TestALostRefusalIsAConflict(t *testing.T) {
	l := openLossy(t)
	one := appended(t, l.journal, event("one"), 0)
	appended(t, l.direct, event("rival"), one)
	if _, err := l.append(t, event("two"), one, nil); !errors.Is(err, journal.ErrConflict) {
		t.Fatalf("append: %v, want a conflict", err)
	}
	wantHistory(t, l.direct, key("x"), "one", "rival")
}

// The stream finds duplicates by id alone, in whichever aggregate. What is not
// in this one's history is never reported as appended.
func TestAnIDThatAnotherEventHasIsNotTakenForSuccess(t *testing.T) {
	j := open(t, meshtest.StartNATS(t).URL())
	wantNoFalseSuccess(t, j, key("y"))
}

func wantNoFalseSuccess(t *testing.T, j *journal.Journal, k journal.Key) {
	t.Helper()
	one := appended(t, j, eventOf(k, "taken"), 0)
	other := key(k.ID + "2")
	if sequence, err := j.Append(t.Context(), eventOf(other, "taken"), 0); err == nil {
		t.Errorf("appended as %d", sequence)
	}
	wantHistory(t, j, other)
	if sequence, err := j.Append(t.Context(), eventOf(k, "taken"), one); err == nil {
		t.Errorf("appended to itself as %d", sequence)
	}
	wantHistory(t, j, k, "taken")
}

func TestWithoutNATSNothingIsDoneNorSentLater(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	one := appended(t, j, event("one"), 0)
	n.Stop()
	meshtest.Eventually(t, "the journal counts as unreachable", func() bool { return j.Healthy(t.Context()) != nil })
	started := time.Now()
	_, err := j.Append(t.Context(), event("refused"), one)
	wantReason(t, err, fault.JournalUnavailable)
	if took := time.Since(started); took > time.Second {
		t.Errorf("the refusal took %v", took)
	}
	_, err = j.Append(t.Context(), eventOf(key("new"), "refused too"), 0)
	wantReason(t, err, fault.JournalUnavailable)
	_, err = j.Replay(t.Context(), key("x"), 0, func(journal.Event) error { return nil })
	wantReason(t, err, fault.JournalUnavailable)
	_, err = j.LastSequence(t.Context())
	wantReason(t, err, fault.JournalUnavailable)

	n.Start()
	meshtest.Eventually(t, "the journal is back", func() bool { return j.Healthy(t.Context()) == nil })
	// Over the same connection, so anything held back would come before it.
	appended(t, j, event("two"), one)
	wantHistory(t, j, key("x"), "one", "two")
	wantHistory(t, j, key("new"))
	if last, err := j.LastSequence(t.Context()); err != nil || last != 2 {
		t.Fatalf("the stream ends at %d, %v; want 2", last, err)
	}
}

// NATS dies with the event on its way: the append waits a moment for its return.
func TestAnAppendSurvivesARestartOfNATS(t *testing.T) {
	l := openLossy(t)
	one := appended(t, l.journal, event("one"), 0)
	two, err := l.append(t, event("two"), one, func() {
		l.nats.Stop()
		meshtest.Eventually(t, "the client has tried for a while", func() bool { return l.proxy.Refused() >= 3 })
		l.nats.Start()
	})
	if err != nil {
		t.Fatalf("append: %v", err)
	}
	meshtest.Eventually(t, "the other connection is back", func() bool { return l.direct.Healthy(t.Context()) == nil })
	if ids, version := history(t, l.direct, key("x"), 0); fmt.Sprint(ids) != "[one two]" || version != two {
		t.Fatalf("holds %v up to %d, the append gave %d", ids, version, two)
	}
}

func TestOpenWaitsForNATS(t *testing.T) {
	n := meshtest.StartNATS(t)
	n.Stop()
	nc, err := journal.Connect(n.URL(), "test")
	if err != nil {
		t.Fatalf("connect without a server: %v", err)
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := journal.Open(ctx, nc, service, 1, quiet); err == nil {
		t.Fatal("opened without a server")
	}
	opened := make(chan error, 1)
	go func() {
		_, err := journal.Open(t.Context(), nc, service, 1, quiet)
		opened <- err
	}()
	n.Start()
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
}

func TestAnEventThatIsTooLargeIsRefused(t *testing.T) {
	j := open(t, meshtest.StartNATS(t).URL())
	large := event("large")
	large.Data = make([]byte, 5<<20)
	_, err := j.Append(t.Context(), large, 0)
	wantReason(t, err, fault.TooLarge)
	appended(t, j, event("one"), 0)
}

// A protocol line that is too long would cost everybody the connection.
func TestAKeyThatNoSubjectCanHoldIsRefused(t *testing.T) {
	n := meshtest.StartNATS(t)
	nc := n.Connect()
	j, err := journal.Open(t.Context(), nc, service, 1, quiet)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("é", 1000)
	for _, k := range []journal.Key{
		{}, key(""), {Kind: "thing", ID: "x"}, {Tenant: "acme", ID: "x"}, key(long), {Tenant: long, Kind: "thing", ID: "x"},
	} {
		_, err := j.Append(t.Context(), eventOf(k, "one"), 0)
		wantReason(t, err, fault.IDMalformed)
	}
	appended(t, j, eventOf(key(strings.Repeat("é", 300)), "one"), 0)
	if reconnects := nc.Stats().Reconnects; reconnects != 0 {
		t.Errorf("the connection was lost %d times", reconnects)
	}
}

func TestTheStreamKnowsItselfFromOneOfTheSameName(t *testing.T) {
	n := meshtest.StartNATS(t)
	first, again := open(t, n.URL()), open(t, n.URL())
	if first.Identity() != again.Identity() {
		t.Error("one stream has two identities")
	}
	if err := jetStream(t, n.Connect()).DeleteStream(t.Context(), "WEIR_TEST"); err != nil {
		t.Fatal(err)
	}
	if other := open(t, n.URL()); other.Identity() == first.Identity() {
		t.Error("a new stream has the old one's identity")
	}
}

package journal_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"weir/internal/fault"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

const service = "test"

var quiet = slog.New(slog.DiscardHandler)

func key(id string) journal.Key { return journal.Key{Tenant: "acme", Kind: "thing", ID: id} }

// event makes an event of the aggregate x.
func event(id string) journal.Event { return eventOf(key("x"), id) }

func eventOf(k journal.Key, id string) journal.Event {
	return journal.Event{
		ID: id, Type: "weir.test.v1.Happened", Key: k, Data: []byte("data of " + id),
		Time: time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC), Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
}

// open opens the tests' stream over a connection of its own.
func open(t testing.TB, url string) *journal.Journal {
	t.Helper()
	j, err := journal.Open(t.Context(), meshtest.Connect(t, url), service, 1, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func appended(t testing.TB, j *journal.Journal, e journal.Event, expected uint64) uint64 {
	t.Helper()
	sequence, err := j.Append(t.Context(), e, expected)
	if err != nil {
		t.Fatalf("append %s after %d: %v", e.ID, expected, err)
	}
	return sequence
}

// history gives the ids of an aggregate's events and its version.
func history(t testing.TB, j *journal.Journal, k journal.Key, from uint64) ([]string, uint64) {
	t.Helper()
	var ids []string
	version, err := j.Replay(t.Context(), k, from, func(e journal.Event) error {
		ids = append(ids, e.ID)
		return nil
	})
	if err != nil {
		t.Fatalf("replay of %s from %d: %v", k, from, err)
	}
	return ids, version
}

func wantHistory(t testing.TB, j *journal.Journal, k journal.Key, want ...string) {
	t.Helper()
	if got, _ := history(t, j, k, 0); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%s holds %v, want %v", k, got, want)
	}
}

func wantReason(t testing.TB, err error, want fault.Reason) {
	t.Helper()
	if !fault.Is(err, want) {
		t.Fatalf("got %v, want %s", err, want)
	}
}

// jetStream is the tests' own way around the journal.
func jetStream(t testing.TB, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

package main

import (
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"weir/internal/journal"
)

// What the loop is compared with is what it appends: the same headers, and as
// many bytes.
func TestTheRawMessageIsTheLoops(t *testing.T) {
	m, err := startMesh(t.Context(), quick(t), false)
	if err != nil {
		t.Fatal(err)
	}
	defer m.stop()
	l, err := m.openLedgers()
	if err != nil {
		t.Fatal(err)
	}
	key := ledgerKey(0)
	if err := l.fill(t.Context(), key, 1); err != nil {
		t.Fatal(err)
	}
	if err := l.note(t.Context(), key, entryName(0)); err != nil {
		t.Fatal(err)
	}
	stream, err := m.js.Stream(t.Context(), "WEIR_BENCH")
	if err != nil {
		t.Fatal(err)
	}
	appended, err := stream.GetLastMsgForSubject(t.Context(), key.Subject(ledgerService))
	if err != nil {
		t.Fatal(err)
	}

	for _, added := range []string{"Nats-Sequence", "Nats-Stream", "Nats-Subject", "Nats-Time-Stamp"} {
		appended.Header.Del(added) // by the server, when it is asked
	}

	data, err := proto.Marshal(noted(key.ID, entryName(0), 1))
	if err != nil {
		t.Fatal(err)
	}
	raw := rawMessage(0, 1, data)
	if got, want := slices.Sorted(maps.Keys(raw.Header)), slices.Sorted(maps.Keys(appended.Header)); !slices.Equal(got, want) {
		t.Errorf("headers are %v\nthe loop's %v", got, want)
	}
	for name := range raw.Header {
		got, want := raw.Header.Get(name), appended.Header.Get(name)
		if len(got) != len(want) && name != "ce-source" {
			t.Errorf("%s: %q, the loop's is %q", name, got, want)
		}
	}
	if len(raw.Data) != len(appended.Data) {
		t.Errorf("%d bytes, the loop's has %d", len(raw.Data), len(appended.Data))
	}
}

// What is put into Redis Streams is what the service appends to its journal for the
// same message.
func TestAStreamsEntryIsTheServicesEvent(t *testing.T) {
	m, err := startMesh(t.Context(), quick(t), false)
	if err != nil {
		t.Fatal(err)
	}
	defer m.stop()
	talks, err := m.openTalks()
	if err != nil {
		t.Fatal(err)
	}
	if err := talks.say(t.Context(), talkID(0), "m1"); err != nil {
		t.Fatal(err)
	}
	stream, err := m.js.Stream(t.Context(), "WEIR_CONVERSATION")
	if err != nil {
		t.Fatal(err)
	}
	key := journal.Key{Tenant: tenant, Kind: "conversation", ID: talkID(0)}
	appended, err := stream.GetLastMsgForSubject(t.Context(), key.Subject("conversation"))
	if err != nil {
		t.Fatal(err)
	}

	entry, err := new(streams).entry(talkID(0), "*", "m1", 1)
	if err != nil {
		t.Fatal(err)
	}
	values := entry.Values.([]any)
	if data := values[len(values)-1].([]byte); len(data) != len(appended.Data) {
		t.Errorf("%d bytes, the service's event has %d:\n%q\n%q", len(data), len(appended.Data), data, appended.Data)
	}
}

package conversation

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

// standIn is another service as this one hears it: its stream, to which it writes
// events E of one kind of aggregate.
type standIn[E proto.Message] struct {
	*mesh
	journal *journal.Journal
	js      jetstream.JetStream
	kind    string
	// consumer hears them.
	consumer string
	// last holds the version of each aggregate.
	last map[string]uint64
}

func standingIn[E proto.Message](m *mesh, service, kind, consumer string) *standIn[E] {
	m.t.Helper()
	nc := m.nats.Connect()
	j, err := journal.Open(m.t.Context(), nc, service, 1, slog.New(slog.DiscardHandler))
	if err != nil {
		m.t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		m.t.Fatal(err)
	}
	return &standIn[E]{mesh: m, journal: j, js: js, kind: kind, consumer: consumer, last: map[string]uint64{}}
}

// registry stands in for the registry service, gate for the gate.
type (
	registry struct {
		*standIn[*registryv1.Event]
	}
	gate struct {
		*standIn[*gatev1.Event]
	}
)

func newRegistry(m *mesh) *registry {
	return &registry{standingIn[*registryv1.Event](m, registryService, "invocation", callsConsumer)}
}

func newGate(m *mesh) *gate {
	return &gate{standingIn[*gatev1.Event](m, gateService, "approval", approvalsConsumer)}
}

// tell appends an event of an aggregate and gives it as a consumer gets it.
func (s *standIn[E]) tell(id string, event E) journal.Event {
	s.t.Helper()
	data, err := proto.Marshal(event)
	if err != nil {
		s.t.Fatal(err)
	}
	e := journal.Event{
		ID:   fmt.Sprintf("%s-%d", id, s.last[id]),
		Type: string(event.ProtoReflect().WhichOneof(event.ProtoReflect().Descriptor().Oneofs().Get(0)).Message().FullName()),
		Key:  journal.Key{Tenant: "acme", Kind: s.kind, ID: id},
		Time: time.Now().UTC().Truncate(time.Microsecond), Data: data,
	}
	if e.Sequence, err = s.journal.Append(s.t.Context(), e, s.last[id]); err != nil {
		s.t.Fatal(err)
	}
	s.last[id] = e.Sequence
	return e
}

// listened waits until the conversation service is done with all that was told.
func (s *standIn[E]) listened() {
	s.t.Helper()
	last, err := s.journal.LastSequence(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	meshtest.Eventually(s.t, fmt.Sprintf("event %d is acknowledged", last), func() bool {
		consumer, err := s.js.Consumer(s.t.Context(), journal.StreamName(s.journal.Service()), s.consumer)
		return err == nil && consumer.CachedInfo().AckFloor.Stream == last
	})
}

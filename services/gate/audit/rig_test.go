package audit

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

var quiet = slog.New(slog.DiscardHandler)

// book is a gate's journal on a server of its own.
type book struct {
	t        testing.TB
	nats     *meshtest.NATS
	journal  *journal.Journal
	versions map[journal.Key]uint64
	events   int
}

func newBook(t testing.TB) *book {
	t.Helper()
	n := meshtest.StartNATS(t)
	j, err := journal.Open(t.Context(), n.Connect(), "gate", 1, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return &book{t: t, nats: n, journal: j, versions: map[journal.Key]uint64{}}
}

// write appends an event as the gate does.
func (b *book) write(tenant, kind, id string, e *gatev1.Event) {
	b.t.Helper()
	data, err := proto.Marshal(e)
	if err != nil {
		b.t.Fatal(err)
	}
	m := e.ProtoReflect()
	set := m.WhichOneof(m.Descriptor().Oneofs().ByName("event"))
	k := journal.Key{Tenant: tenant, Kind: kind, ID: id}
	b.events++
	b.versions[k], err = b.journal.Append(b.t.Context(), journal.Event{
		ID: fmt.Sprintf("e%d", b.events), Type: string(set.Message().FullName()), Key: k, Data: data,
		Time: time.Date(2026, 11, 30, 12, 0, b.events, 1000, time.UTC),
	}, b.versions[k])
	if err != nil {
		b.t.Fatal(err)
	}
}

func requested(id, digest string) *gatev1.Event {
	return &gatev1.Event{Actor: "agent:alice", Event: &gatev1.Event_ApprovalRequested{ApprovalRequested: &gatev1.ApprovalRequested{
		ApprovalId: id, Operation: "files/write", InputJson: proto.String(`{"secret-input":1}`), InputDigest: digest,
		Requester: "agent:alice", Rules: []string{"p/ask"},
	}}}
}

func decided(id string) *gatev1.Event {
	return &gatev1.Event{Actor: "human:carol", Event: &gatev1.Event_ApprovalDecided{ApprovalDecided: &gatev1.ApprovalDecided{
		ApprovalId: id, Decision: gatev1.Decision_DECISION_APPROVE, Note: "looks right",
	}}}
}

func redeemed(id string) *gatev1.Event {
	return &gatev1.Event{Actor: "agent:alice", Event: &gatev1.Event_ApprovalRedeemed{ApprovalRedeemed: &gatev1.ApprovalRedeemed{ApprovalId: id}}}
}

func allowed(digest string) *gatev1.Event {
	return &gatev1.Event{Actor: "agent:bob", Event: &gatev1.Event_WriteAllowed{WriteAllowed: &gatev1.WriteAllowed{
		Request: &gatev1.CheckedRequest{Subject: "agent:bob", Operation: "files/touch", InputDigest: digest}, Reason: "RULE", Rule: "p/allow",
	}}}
}

func denied(digest string) *gatev1.Event {
	return &gatev1.Event{Actor: "agent:bob", Event: &gatev1.Event_CheckDenied{CheckDenied: &gatev1.CheckDenied{
		Request: &gatev1.CheckedRequest{Subject: "agent:bob", Operation: "files/erase", InputDigest: digest}, Reason: "NOT_GRANTED",
	}}}
}

// story writes 9 events of acme and 4 of bell, mixed.
func (b *book) story(round string) {
	b.t.Helper()
	ap := "ap" + round
	b.write("acme", "policy", "p", &gatev1.Event{Actor: "human:ann", Event: &gatev1.Event_PolicyPut{
		PolicyPut: &gatev1.PolicyPut{Policy: &gatev1.Policy{PolicyId: "p"}},
	}})
	b.write("bell", "approval", ap, requested(ap, "b1"))
	b.write("acme", "approval", ap, requested(ap, "a1"))
	b.write("acme", "check", "c1"+round, denied("d1"))
	b.write("acme", "approval", ap, decided(ap))
	b.write("bell", "approval", ap, decided(ap))
	b.write("acme", "check", "c2"+round, allowed("w1"))
	b.write("acme", "approval", ap, redeemed(ap))
	b.write("bell", "check", "c1"+round, denied("d2"))
	b.write("acme", "trust", "t"+round, &gatev1.Event{Actor: "service:gate", Event: &gatev1.Event_TrustGiven{
		TrustGiven: &gatev1.TrustGiven{TrustId: "t", Subject: "agent:alice", Operation: "files/write", InputDigest: "a1"},
	}})
	b.write("bell", "check", "c2"+round, allowed("w2"))
	b.write("acme", "check", "c3"+round, denied("d3"))
	b.write("acme", "check", "c4"+round, allowed("w3"))
}

const acmeStory, bellStory = 9, 4

// raw publishes as nobody should.
func (b *book) raw(subject string, header nats.Header, data []byte) {
	b.t.Helper()
	js, err := jetstream.New(b.nats.Connect())
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := js.PublishMsg(b.t.Context(), &nats.Msg{Subject: subject, Header: header, Data: data}); err != nil {
		b.t.Fatal(err)
	}
}

// restart restarts the server, and waits until the journal can be used again.
func (b *book) restart() {
	b.t.Helper()
	b.nats.Stop()
	b.nats.Start()
	meshtest.Eventually(b.t, "the journal is back", func() bool { return b.journal.Healthy(b.t.Context()) == nil })
}

// purge erases a subject, which leaves holes.
func (b *book) purge(subject string) {
	b.t.Helper()
	js, err := jetstream.New(b.nats.Connect())
	if err != nil {
		b.t.Fatal(err)
	}
	stream, err := js.Stream(b.t.Context(), journal.StreamName("gate"))
	if err == nil {
		err = stream.Purge(b.t.Context(), jetstream.WithPurgeSubject(subject))
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *book) consumer() *journal.Consumer {
	b.t.Helper()
	c, err := journal.NewConsumer(b.nats.Connect(), "gate", "audit", quiet, "weir.gate.*.*.*")
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// contents reads all messages as they are.
func (b *book) contents() []journal.Stored {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	var out []journal.Stored
	if err := b.consumer().Tail(ctx, 1, func(s journal.Stored) error { out = append(out, s); return nil }, cancel); err != nil {
		b.t.Fatal(err)
	}
	return out
}

// forge makes another server's journal of messages, so well that each names the
// one before it on its subject.
func forge(t testing.TB, messages []journal.Stored) *book {
	t.Helper()
	b := newBook(t)
	js, err := jetstream.New(b.nats.Connect())
	if err != nil {
		t.Fatal(err)
	}
	last := map[string]uint64{}
	for _, m := range messages {
		header := nats.Header{}
		for name, values := range m.Header {
			header[name] = values
		}
		header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last[m.Subject], 10))
		ack, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: m.Subject, Header: header, Data: m.Data})
		if err != nil {
			t.Fatal(err)
		}
		last[m.Subject] = ack.Sequence
	}
	return b
}

// run runs a new log over the journal until the test ends or stop is called.
func (b *book) run() (l *Log, stop func()) {
	b.t.Helper()
	l = NewLog(b.consumer(), b.journal, quiet)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := l.Run(ctx); err != nil {
			b.t.Errorf("run: %v", err)
		}
	}()
	stop = func() { cancel(); <-done }
	b.t.Cleanup(stop)
	meshtest.Eventually(b.t, "the log is built", func() bool { return l.Ready() == nil })
	return l, stop
}

func (b *book) server(k keys) *Server {
	b.t.Helper()
	l, _ := b.run()
	return NewServer(l, k.signer, k.verifier)
}

// as is the server as a client of a tenant sees it.
type as struct {
	server *Server
	tenant string
}

func (a as) ctx(ctx context.Context) context.Context {
	return identity.NewContext(ctx, identity.Caller{Tenant: a.tenant, Subject: "human:audrey"})
}

func (a as) ListRecords(ctx context.Context, r *gatev1.ListRecordsRequest, _ ...grpc.CallOption) (*gatev1.ListRecordsResponse, error) {
	return a.server.ListRecords(a.ctx(ctx), r)
}

func (a as) GetCheckpoint(ctx context.Context, r *gatev1.GetCheckpointRequest, _ ...grpc.CallOption) (*gatev1.GetCheckpointResponse, error) {
	return a.server.GetCheckpoint(a.ctx(ctx), r)
}

func (a as) ProveInclusion(ctx context.Context, r *gatev1.ProveInclusionRequest, _ ...grpc.CallOption) (*gatev1.ProveInclusionResponse, error) {
	return a.server.ProveInclusion(a.ctx(ctx), r)
}

func (a as) ProveConsistency(ctx context.Context, r *gatev1.ProveConsistencyRequest, _ ...grpc.CallOption) (*gatev1.ProveConsistencyResponse, error) {
	return a.server.ProveConsistency(a.ctx(ctx), r)
}

func (a as) checkpoint(t testing.TB) *gatev1.GetCheckpointResponse {
	t.Helper()
	out, err := a.GetCheckpoint(t.Context(), &gatev1.GetCheckpointRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (a as) records(t testing.TB) []*gatev1.Record {
	t.Helper()
	var out []*gatev1.Record
	if err := Records(t.Context(), a, 0, 1<<40, func(r *gatev1.Record) error { out = append(out, r); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

func wantReason(t testing.TB, err error, want fault.Reason) {
	t.Helper()
	if !fault.Is(err, want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

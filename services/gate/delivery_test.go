package gate

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	gatev1 "weir/gen/gate/v1"
	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/backend"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/internal/meshtest"
	"weir/internal/serve"
)

var (
	inboxService = identity.Caller{Tenant: identity.AnyTenant, Subject: "service:inbox", Scopes: []string{"gate.check"}}
	ida          = identity.Caller{Tenant: "acme", Subject: "human:ida", Scopes: []string{"audit.read"}}
)

func TestWhereASenderStands(t *testing.T) {
	r := newRig(t)
	disabled := filepath.Join(t.TempDir(), "standing.json")
	if err := os.WriteFile(disabled, []byte(`{"disabled": [{"tenant": "acme", "subject": "agent:mallory"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.gate.Stop(); err != nil {
		t.Fatal(err)
	}
	r.gate = r.issuer.Serve(func(ctx context.Context, c serve.Config) error {
		c.Standing = disabled
		return Run(ctx, Config{Serve: c, Stores: backend.Config{NATS: r.nats.URL(), Redis: r.redis.URL(), Replicas: 1}})
	}, identity.Caller{})
	r.put(&gatev1.Policy{PolicyId: "eve", Layer: gatev1.Layer_LAYER_AGENT, Target: "agent:eve", Confined: true})
	last := r.put(&gatev1.Policy{PolicyId: "run", Layer: gatev1.Layer_LAYER_SESSION, Target: "run-1", Confined: true})

	inbox := gatev1.NewGateServiceClient(r.dial(inboxService))
	for name, c := range map[string]struct {
		sender            identity.Caller
		operation         string
		confined, granted bool
		refusal           fault.Reason
	}{
		"an agent":                          {identity.Caller{Subject: "agent:alice"}, "", false, true, ""},
		"by an operation":                   {identity.Caller{Subject: "agent:alice"}, "conversation/say", false, true, ""},
		"by one that is not granted":        {identity.Caller{Subject: "agent:alice"}, "crm/read", false, false, ""},
		"a person":                          {identity.Caller{Subject: "human:ann"}, "", false, true, ""},
		"a service":                         {identity.Caller{Subject: "service:sender"}, "", false, true, ""},
		"confined by its policy":            {identity.Caller{Subject: "agent:eve"}, "", true, true, ""},
		"on behalf of one that is confined": {identity.Caller{Subject: "agent:alice", OnBehalfOf: []string{"human:ann", "agent:eve"}}, "", true, true, ""},
		"confined by the session's policy":  {identity.Caller{Subject: "agent:alice", Session: "run-1"}, "conversation/say", true, true, ""},
		"confined by its credential":        {identity.Caller{Subject: "agent:alice", Confined: true}, "", true, true, ""},
		"disabled":                          {identity.Caller{Subject: "agent:mallory"}, "", false, false, fault.CallerDisabled},
		"on behalf of one that is disabled": {identity.Caller{Subject: "agent:alice", OnBehalfOf: []string{"agent:mallory"}}, "", false, false, fault.CallerDisabled},
		"by what is no operation's name":    {identity.Caller{Subject: "agent:alice"}, "say", false, false, fault.FieldInvalid},
		"by a pattern":                      {identity.Caller{Subject: "agent:alice"}, "conversation/*", false, false, fault.FieldInvalid},
	} {
		c.sender.Tenant = "acme"
		got, err := inbox.CheckStanding(as(t.Context(), c.sender), &gatev1.CheckStandingRequest{Operation: c.operation})
		if fault.ReasonOf(err) != c.refusal {
			t.Errorf("%s: %v, want %q", name, err, c.refusal)
		}
		if c.refusal == fault.CallerDisabled && fault.From(err).Metadata("subject") != "agent:mallory" {
			t.Errorf("%s: the refusal names %q", name, fault.From(err).Metadata("subject"))
		}
		if err == nil && (got.GetConfined() != c.confined || got.GetGranted() != c.granted || got.GetPolicyRevision() != last.GetRevision()) {
			t.Errorf("%s: %v", name, got)
		}
	}
	// It is asked for the sender, and by nobody else.
	_, err := inbox.CheckStanding(t.Context(), &gatev1.CheckStandingRequest{})
	want(t, "for itself", err, fault.ScopeMissing)
	mesh := identity.Caller{Tenant: identity.AnyTenant, Subject: "service:conversation", Scopes: []string{"gate.check"}}
	_, err = gatev1.NewGateServiceClient(r.dial(mesh)).CheckStanding(as(t.Context(), alice), &gatev1.CheckStandingRequest{})
	want(t, "by another service", err, fault.ScopeMissing)
}

// inboxJournal is the stream of the inbox, on which the test says what the inbox did.
type inboxJournal struct {
	*journal.Journal
	last uint64
}

func (r *rig) inboxJournal() *inboxJournal {
	r.t.Helper()
	j, err := journal.Open(r.t.Context(), r.nats.Connect(), "inbox", 1, slog.New(slog.NewJSONHandler(io.Discard, nil)))
	if err != nil {
		r.t.Fatal(err)
	}
	return &inboxJournal{Journal: j}
}

var refusedAt = time.Date(2026, 11, 30, 12, 0, 0, 1000, time.UTC)

// claimed appends a claim of bob's.
func (j *inboxJournal) claimed(t *testing.T, id string, refusals ...*inboxv1.DeliveryRefusal) {
	t.Helper()
	event := &inboxv1.Event{Actor: "agent:bob", Event: &inboxv1.Event_MessagesClaimed{MessagesClaimed: &inboxv1.MessagesClaimed{
		Goal: "bob", Claimant: "agent:bob", Refusals: refusals,
	}}}
	data, err := proto.Marshal(event)
	if err != nil {
		t.Fatal(err)
	}
	j.last, err = j.Append(t.Context(), journal.Event{
		ID: id, Type: messagesClaimed, Key: journal.Key{Tenant: "acme", Kind: "inbox", ID: "bob"}, Time: refusedAt, Data: data,
	}, j.last)
	if err != nil {
		t.Fatal(err)
	}
}

// refusals are the records of refused deliveries, the oldest first.
func (r *rig) refusals() []*gatev1.Record {
	r.t.Helper()
	var found []*gatev1.Record
	meshtest.Eventually(r.t, "the audit log is read", func() bool {
		out, err := gatev1.NewAuditServiceClient(r.dial(ida)).ListRecords(r.t.Context(), &gatev1.ListRecordsRequest{})
		found = slices.DeleteFunc(out.GetRecords(), func(m *gatev1.Record) bool { return m.GetType() != "weir.gate.v1.DeliveryRefused" })
		return err == nil
	})
	return found
}

func TestARefusedDeliveryIsInTheAuditLogOnce(t *testing.T) {
	r := newRig(t)
	stream := r.inboxJournal()
	disabled := &inboxv1.DeliveryRefusal{MessageId: "m1", Sender: "agent:alice", Reason: inboxv1.RefusalReason_REFUSAL_REASON_SENDER_DISABLED}
	gone := &inboxv1.DeliveryRefusal{MessageId: "m2", Sender: "human:ann", Reason: inboxv1.RefusalReason_REFUSAL_REASON_CONVERSATION_GONE}
	watch := r.watchPending()

	// The gate is away when it happens.
	if err := r.gate.Stop(); err != nil {
		t.Fatal(err)
	}
	stream.claimed(t, "e1", disabled, gone)
	stream.claimed(t, "e2")
	r.gate = r.start(0)
	meshtest.Eventually(t, "both are recorded", func() bool { return len(r.refusals()) == 2 })
	for i, w := range []struct{ actor, reason string }{
		{"agent:alice", "SENDER_DISABLED: message m1 of goal bob, to agent:bob at 2026-11-30T12:00:00.000001Z"},
		{"human:ann", "CONVERSATION_GONE: message m2 of goal bob, to agent:bob at 2026-11-30T12:00:00.000001Z"},
	} {
		got := r.refusals()[i]
		if got.GetActor() != w.actor || got.GetReason() != w.reason || got.GetVerdict() != "REFUSED" || got.GetEventTime() == nil ||
			!strings.HasPrefix(got.GetSubject(), "weir.gate.acme.delivery.") {
			t.Errorf("recorded %v", got)
		}
	}

	// Everything is heard again, as where the gate died before it could say that it had
	// heard, and Redis is new. The same message refused by another event is another
	// refusal; there is none such, but it marks the end of what is heard.
	if err := r.gate.Stop(); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(r.nats.Connect())
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteConsumer(t.Context(), journal.StreamName("inbox"), "gate-deliveries"); err != nil {
		t.Fatal(err)
	}
	r.redis.Flush()
	stream.claimed(t, "e3", disabled)
	r.gate = r.start(0)
	meshtest.Eventually(t, "the third is recorded", func() bool { return len(r.refusals()) >= 3 })
	if got := r.refusals(); len(got) != 3 {
		t.Fatalf("heard twice, recorded %v", got)
	}
	watch()
}

// watchPending gives what looks whether those who watch approvals hear of one that is
// asked for next, and of nothing else.
func (r *rig) watchPending() func() {
	r.t.Helper()
	first, err := r.approvals(carol).WatchApprovals(r.t.Context(), &gatev1.WatchApprovalsRequest{})
	if err != nil {
		r.t.Fatal(err)
	}
	token, err := first.Recv()
	if err != nil {
		r.t.Fatal(err)
	}
	return func() {
		r.t.Helper()
		watch, err := r.approvals(carol).WatchApprovals(r.t.Context(), &gatev1.WatchApprovalsRequest{ResumeToken: token.GetResumeToken()})
		if err != nil {
			r.t.Fatal(err)
		}
		id := r.ask(say("inv-1", "hi"))
		for range 2 { // the token, then the change
			token, err = watch.Recv()
			if err != nil {
				r.t.Fatal(err)
			}
		}
		if token.GetChange() != "ApprovalRequested" || token.GetApproval().GetApprovalId() != id {
			r.t.Fatalf("those who watch heard %v", token)
		}
	}
}

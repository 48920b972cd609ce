package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/backend"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/meshtest"
	"weir/internal/serve"
)

var (
	// boss gives work away, as a service and as an agent would through the registry.
	boss     = identity.Caller{Tenant: "acme", Subject: "service:boss", Scopes: []string{"dispatch.read", "dispatch.send", "dispatch.write", "inbox.claim", "inbox.enqueue"}}
	operator = identity.Caller{Tenant: "acme", Subject: "human:omar", Scopes: []string{"dispatch.read", "dispatch.write", "inbox.operate"}}
	bobWorks = identity.Caller{Tenant: "acme", Subject: "agent:bob", Scopes: []string{"dispatch.report", "dispatch.write", "inbox.claim"}}
	// inboxItself is how this service calls others.
	inboxItself = identity.Caller{Tenant: identity.AnyTenant, Subject: "service:inbox", Scopes: []string{"conversation.read", "conversation.write", "gate.check"}}
	eveWorks    = identity.Caller{Tenant: "acme", Subject: "agent:eve", Scopes: []string{"dispatch.report", "dispatch.write", "inbox.claim"}}
)

// workRig is the service with somebody who keeps conversations.
type workRig struct {
	*rig
	talks *conversations
}

func newWorkRig(t *testing.T) *workRig {
	t.Parallel()
	r := &workRig{rig: &rig{t: t, nats: meshtest.StartNATS(t), redis: meshtest.StartRedis(t), issuer: meshtest.NewIssuer(t)}}
	r.peers = startPeers(r.issuer)
	r.peers = startPeers(r.issuer)
	r.talks = startConversations(t, r.issuer)
	r.inbox = r.replica(nil)
	return r
}

// replica starts one more, which calls before with each step that sends.
func (r *workRig) replica(before func(string)) *meshtest.Service {
	r.t.Helper()
	return r.issuer.Serve(func(ctx context.Context, c serve.Config) error {
		return Run(ctx, Config{
			Serve: c, Limit: 60, Gate: r.peers.Addr, Conversation: r.talks.addr, before: before,
			Stores: backend.Config{NATS: r.nats.URL(), Redis: r.redis.URL(), Replicas: 1},
		})
	}, inboxItself)
}

func order(item, request string, waits ...string) *inboxv1.DispatchRequest {
	return &inboxv1.DispatchRequest{
		Goal: "build", Item: item, RequestId: request, Worker: "bob", Seed: "do " + item, Priority: 3, WaitsFor: waits,
	}
}

func (c client) dispatch(in *inboxv1.DispatchRequest) *inboxv1.Dispatch {
	c.t.Helper()
	out, err := c.Dispatch(c.t.Context(), in)
	if err != nil {
		c.t.Fatalf("dispatch %s: %v", in.GetItem(), err)
	}
	return out.GetDispatch()
}

func (c client) item(item string) *inboxv1.Dispatch {
	c.t.Helper()
	out, err := c.GetDispatch(c.t.Context(), &inboxv1.GetDispatchRequest{Goal: "build", Item: item})
	if err != nil {
		c.t.Fatalf("get dispatch %s: %v", item, err)
	}
	return out.GetDispatch()
}

func (c client) report(item, request string, kind inboxv1.ReportKind, waits ...string) *inboxv1.Dispatch {
	c.t.Helper()
	in := &inboxv1.ReportRequest{Goal: "build", Item: item, RequestId: request, Kind: kind, Text: "words", WaitsFor: waits}
	if kind == inboxv1.ReportKind_REPORT_KIND_DONE {
		in.Evidence = []*inboxv1.Evidence{{Uri: "https://example.com/" + request, Title: "it"}}
	}
	out, err := c.Report(c.t.Context(), in)
	if err != nil {
		c.t.Fatalf("report on %s: %v", item, err)
	}
	return out.GetDispatch()
}

func (c client) accept(item string) {
	c.t.Helper()
	if _, err := c.Accept(c.t.Context(), &inboxv1.AcceptRequest{Goal: "build", Item: item, Note: "good"}); err != nil {
		c.t.Fatalf("accept %s: %v", item, err)
	}
}

func (c client) reject(item string) {
	c.t.Helper()
	if _, err := c.Reject(c.t.Context(), &inboxv1.RejectRequest{Goal: "build", Item: item, Note: "not yet"}); err != nil {
		c.t.Fatalf("reject %s: %v", item, err)
	}
}

// wantSent holds that an item was sent once, and so often said and told.
func (r *workRig) wantSent(item string, attempts int) {
	r.t.Helper()
	d := r.as(boss).item(item)
	if d.GetState() != inboxv1.DispatchState_DISPATCH_STATE_SENT || d.GetFailure() != "" {
		r.t.Fatalf("the item is %v", d)
	}
	created, messages := r.talks.said("acme", d.GetConversationId())
	if created != 1 || len(messages) != attempts {
		r.t.Fatalf("%d conversations, in it %d messages: %v", created, len(messages), messages)
	}
	inbox := r.as(boss).peek("bob")
	if len(inbox) != attempts {
		r.t.Fatalf("bob's inbox has %v", inbox)
	}
	newest := messages[len(messages)-1]
	var body work
	if err := json.Unmarshal([]byte(inbox[len(inbox)-1].GetBody()), &body); err != nil {
		r.t.Fatal(err)
	}
	if body.Goal != "build" || body.Item != item || body.DispatchID != d.GetDispatchId() || body.ConversationID != d.GetConversationId() ||
		body.MessageID != newest.id || newest.to != nil {
		r.t.Fatalf("the inbox says %+v, the seed is %+v", body, newest)
	}
	sent := 0
	for _, e := range r.events("weir.inbox.acme.dispatch.build%3A" + item)() {
		if e.GetDispatchSent() != nil {
			sent++
		}
	}
	if sent != attempts {
		r.t.Fatalf("%d DispatchSent for %d attempts", sent, attempts)
	}
}

func TestDispatchDoesItAll(t *testing.T) {
	r := newWorkRig(t)
	b := r.as(boss)
	d := b.dispatch(order("1", "a"))
	if d.GetWorker() != "bob" || d.GetOwner() != boss.Subject || d.GetAttempts() != 1 || d.GetConversationId() == "" {
		t.Fatalf("the item is %v", d)
	}
	r.wantSent("1", 1)
	_, messages := r.talks.said("acme", d.GetConversationId())
	if m := messages[0]; m.text != "do 1" || m.author != boss.Subject || m.caller.Via != "service:inbox" {
		t.Fatalf("the seed is %+v", m)
	}
	m := b.peek("bob")[0]
	if m.GetSender() != boss.Subject || m.GetPriority() != 3 || m.GetCorrelationId() != d.GetConversationId() {
		t.Fatalf("the message is %v", m)
	}

	out, err := b.Dispatch(t.Context(), order("1", "a"))
	if err != nil || !out.GetReplay() || !proto.Equal(out.GetDispatch(), b.item("1")) {
		t.Fatalf("the same again: %v, %v", out, err)
	}
	other := order("1", "a")
	other.Seed = "do something else"
	_, err = b.Dispatch(t.Context(), other)
	wantReason(t, err, fault.IdempotencyMismatch)
	_, err = b.Dispatch(t.Context(), order("1", "b"))
	wantReason(t, err, fault.DispatchMismatch)
	_, err = r.as(identity.Caller{Tenant: "acme", Subject: "service:else", Scopes: boss.Scopes}).Dispatch(t.Context(), order("1", "b"))
	wantReason(t, err, fault.NotOwner)
	large := order("2", "a")
	large.Seed = strings.Repeat("x", maxSeed+1)
	_, err = b.Dispatch(t.Context(), large)
	wantReason(t, err, fault.TooLarge)
	large.Seed = large.Seed[1:]
	b.dispatch(large)
	if d := b.item("2"); d.GetState() != inboxv1.DispatchState_DISPATCH_STATE_SENT {
		t.Fatalf("a seed of 64 KiB: %v", d)
	}
	_, err = b.Enqueue(t.Context(), &inboxv1.EnqueueRequest{Goal: "bob", MessageId: "work-x", Body: "x"})
	wantReason(t, err, fault.IDMalformed)
}

func TestManyDispatchesAtTwoReplicasAreOne(t *testing.T) {
	const callers = 20
	r := newWorkRig(t)
	replicas := []*meshtest.Service{r.inbox, r.replica(nil)}
	var wg sync.WaitGroup
	for n := range callers {
		c := r.at(replicas[n%2], boss)
		wg.Go(func() {
			_, err := c.Dispatch(t.Context(), order("1", "a"))
			for fault.Is(err, fault.Contention) {
				_, err = c.Dispatch(t.Context(), order("1", "a"))
			}
			if err != nil {
				t.Errorf("dispatch: %v", err)
			}
		})
	}
	wg.Wait()
	r.wantSent("1", 1)
}

func TestWorkIsReportedRejectedSentAgainAndAccepted(t *testing.T) {
	r := newWorkRig(t)
	b, w := r.as(boss), r.as(bobWorks)
	b.dispatch(order("1", "a"))
	first := b.item("1").GetConversationId()
	for n, kind := range []inboxv1.ReportKind{
		inboxv1.ReportKind_REPORT_KIND_PROGRESS, inboxv1.ReportKind_REPORT_KIND_QUESTION, inboxv1.ReportKind_REPORT_KIND_BLOCKED,
	} {
		for range 2 { // the second is a retry
			if d := w.report("1", fmt.Sprint("r", n), kind); d.GetReport().GetKind() != kind || d.GetReport().GetReporter() != bob.Subject {
				t.Fatalf("after the report: %v", d)
			}
		}
	}
	_, err := b.Accept(t.Context(), &inboxv1.AcceptRequest{Goal: "build", Item: "1"})
	wantReason(t, err, fault.StateConflict)
	if d := w.report("1", "done", inboxv1.ReportKind_REPORT_KIND_DONE); len(d.GetReport().GetEvidence()) != 1 || d.GetState() != inboxv1.DispatchState_DISPATCH_STATE_DONE {
		t.Fatalf("done: %v", d)
	}
	_, err = w.Accept(t.Context(), &inboxv1.AcceptRequest{Goal: "build", Item: "1"})
	wantReason(t, err, fault.NotOwner)
	_, err = r.as(eveWorks).Report(t.Context(), &inboxv1.ReportRequest{Goal: "build", Item: "1", RequestId: "x", Kind: inboxv1.ReportKind_REPORT_KIND_PROGRESS})
	wantReason(t, err, fault.NotWorker)
	b.reject("1")
	if d := b.dispatch(order("1", "b")); d.GetAttempts() != 2 || d.GetConversationId() != first {
		t.Fatalf("the second attempt: %v", d)
	}
	r.wantSent("1", 2)
	w.report("1", "done2", inboxv1.ReportKind_REPORT_KIND_DONE)
	b.accept("1")
	b.accept("1")
	if d := b.item("1"); d.GetState() != inboxv1.DispatchState_DISPATCH_STATE_ACCEPTED || d.GetVerdictNote() != "good" {
		t.Fatalf("in the end: %v", d)
	}
	_, err = b.Abandon(t.Context(), &inboxv1.AbandonRequest{Goal: "build", Item: "1"})
	wantReason(t, err, fault.StateConflict)
	_, err = b.Dispatch(t.Context(), order("1", "c"))
	wantReason(t, err, fault.StateConflict)
}

func TestReportsAreRefusedByTheirField(t *testing.T) {
	r := newWorkRig(t)
	r.as(boss).dispatch(order("1", "a"))
	w := r.as(bobWorks)
	link := []*inboxv1.Evidence{{Uri: "https://example.com"}}
	for what, c := range map[string]struct {
		field string
		in    *inboxv1.ReportRequest
	}{
		"done without evidence":      {"evidence", &inboxv1.ReportRequest{Kind: inboxv1.ReportKind_REPORT_KIND_DONE}},
		"evidence of progress":       {"evidence", &inboxv1.ReportRequest{Kind: inboxv1.ReportKind_REPORT_KIND_PROGRESS, Evidence: link}},
		"blocked without a word":     {"text", &inboxv1.ReportRequest{Kind: inboxv1.ReportKind_REPORT_KIND_BLOCKED}},
		"a blank question":           {"text", &inboxv1.ReportRequest{Kind: inboxv1.ReportKind_REPORT_KIND_QUESTION, Text: " \n"}},
		"done and waiting":           {"waits_for", &inboxv1.ReportRequest{Kind: inboxv1.ReportKind_REPORT_KIND_DONE, Evidence: link, WaitsFor: []string{"2"}}},
		"a link that is not one":     {"evidence[0].uri", &inboxv1.ReportRequest{Kind: inboxv1.ReportKind_REPORT_KIND_DONE, Evidence: []*inboxv1.Evidence{{Uri: "not a link"}}}},
		"no kind":                    {"kind", &inboxv1.ReportRequest{}},
		"too many links":             {"evidence", &inboxv1.ReportRequest{Kind: inboxv1.ReportKind_REPORT_KIND_DONE, Evidence: repeated(link[0], 21)}},
		"a text of 2,001 characters": {"text", &inboxv1.ReportRequest{Kind: inboxv1.ReportKind_REPORT_KIND_PROGRESS, Text: strings.Repeat("ü", 2001)}},
	} {
		c.in.Goal, c.in.Item, c.in.RequestId = "build", "1", "x"
		_, err := w.Report(t.Context(), c.in)
		if violations := fault.From(err).Violations(); !fault.Is(err, fault.FieldInvalid) || violations[0].Field != c.field {
			t.Errorf("%s: %v, %v", what, err, violations)
		}
	}
	if d := r.as(boss).item("1"); d.GetReport() != nil {
		t.Fatalf("a refused report changed %v", d)
	}
}

func repeated[E any](e E, n int) []E {
	all := make([]E, n)
	for i := range all {
		all[i] = e
	}
	return all
}

// What the conversation service refuses is shown, kept among what was never sent, and
// sent once it is not refused any more, without anybody calling again.
func TestARefusalIsShownAndTriedAgain(t *testing.T) {
	for _, method := range []string{"create", "append"} {
		t.Run(method, func(t *testing.T) {
			r := newWorkRig(t)
			b := r.as(boss)
			r.talks.refusing(func(called string, caller identity.Caller) error {
				if called == method {
					return fault.New(fault.CallerDisabled, "the caller is disabled")
				}
				return nil
			})
			d := b.dispatch(order("1", "a"))
			if d.GetState() != inboxv1.DispatchState_DISPATCH_STATE_BEGUN || !strings.Contains(d.GetFailure(), "CALLER_DISABLED") {
				t.Fatalf("refused: %v", d)
			}
			unsent, err := b.ListDispatches(t.Context(), &inboxv1.ListDispatchesRequest{States: []inboxv1.DispatchState{inboxv1.DispatchState_DISPATCH_STATE_BEGUN}})
			if err != nil || len(unsent.GetDispatches()) != 1 || unsent.GetDispatches()[0].GetFailure() == "" {
				t.Fatalf("unsent: %v, %v", unsent, err)
			}
			again, err := b.Begin(t.Context(), &inboxv1.BeginRequest{Goal: "build", Item: "1"})
			if err != nil || !again.GetReplay() || !strings.Contains(again.GetWarning(), d.GetConversationId()) {
				t.Fatalf("begin: %v, %v", again, err)
			}
			r.talks.refusing(nil)
			meshtest.Eventually(t, "it is sent", func() bool {
				return b.item("1").GetState() == inboxv1.DispatchState_DISPATCH_STATE_SENT
			})
			r.wantSent("1", 1)
		})
	}
}

// An id that somebody else's conversation has is never used.
func TestAConversationThatIsNotOursIsNotUsed(t *testing.T) {
	r := newWorkRig(t)
	b := r.as(boss)
	r.talks.refusing(func(called string, _ identity.Caller) error {
		return fault.New(fault.PeerUnavailable, "away")
	})
	d := b.dispatch(order("1", "a"))
	r.talks.mu.Lock()
	r.talks.talks["acme/"+d.GetConversationId()] = &talk{creation: "eve's", members: []string{"agent:eve", boss.Subject}}
	r.talks.mu.Unlock()
	r.talks.refusing(nil)
	meshtest.Eventually(t, "it is refused", func() bool {
		return strings.Contains(b.item("1").GetFailure(), "IDEMPOTENCY_MISMATCH")
	})
	if _, messages := r.talks.said("acme", d.GetConversationId()); len(messages) != 0 {
		t.Fatalf("in eve's conversation was said %v", messages)
	}
	if _, err := b.GetInbox(t.Context(), &inboxv1.GetInboxRequest{Goal: "bob"}); !fault.Is(err, fault.InboxNotFound) {
		t.Fatalf("bob was told: %v", err)
	}
}

func TestAFullInboxIsWaitedFor(t *testing.T) {
	r := newWorkRig(t)
	b := r.as(boss)
	for i := range 60 {
		b.enqueue("bob", fmt.Sprint("m", i))
	}
	if d := b.dispatch(order("1", "a")); !strings.Contains(d.GetFailure(), "INBOX_FULL") {
		t.Fatalf("with a full inbox: %v", d)
	}
	b.mustDone("bob", b.claim("bob", "c", 1, time.Minute).GetClaimToken(), "m0")
	meshtest.Eventually(t, "it is sent", func() bool {
		return b.item("1").GetState() == inboxv1.DispatchState_DISPATCH_STATE_SENT
	})
}

// A replica that dies before any of its steps, while many ask for the same.
//
// The replica is a process of its own, which kills itself; nobody calls after that.
func TestADispatchWhoseReplicaDiesIsFinishedByAnother(t *testing.T) {
	const callers = 20
	for _, step := range steps {
		t.Run("before "+step.name, func(t *testing.T) {
			r := newWorkRig(t)
			if err := r.inbox.Stop(); err != nil {
				t.Fatal(err)
			}
			dying := r.mortal(step.name)
			var wg sync.WaitGroup
			for range callers {
				c := r.at(dying, boss)
				wg.Go(func() {
					if out, err := c.Dispatch(t.Context(), order("1", "a")); err == nil && out.GetDispatch().GetState() == inboxv1.DispatchState_DISPATCH_STATE_SENT {
						t.Errorf("it died and answered %v", out)
					}
				})
			}
			wg.Wait()
			r.inbox = r.replica(nil)
			meshtest.Eventually(t, "it is sent", func() bool {
				return r.as(boss).item("1").GetState() == inboxv1.DispatchState_DISPATCH_STATE_SENT
			})
			r.wantSent("1", 1)
		})
	}
}

// dieAt names what a replica in a process of its own dies before, and how to run it.
const (
	dieAt   = "WEIR_TEST_INBOX_DIES_AT"
	dieWith = "WEIR_TEST_INBOX_CONFIG"
)

// mortal starts a replica that kills itself before a step.
func (r *workRig) mortal(step string) *meshtest.Service {
	r.t.Helper()
	config, err := json.Marshal(map[string]string{
		"jwks": r.issuer.JWKS(), "token": r.issuer.TokenFile(inboxItself), "conversation": r.talks.addr,
		"nats": r.nats.URL(), "redis": r.redis.URL(),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return r.issuer.ServeProcess(func(addr string) *exec.Cmd {
		cmd := exec.Command(os.Args[0], "-test.run=^TestReplicaThatDies$")
		cmd.Env = append(os.Environ(), dieAt+"="+step, dieWith+"="+string(config), "WEIR_TEST_INBOX_LISTEN="+addr)
		return cmd
	})
}

// TestReplicaThatDies is no test but the process that mortal starts.
func TestReplicaThatDies(t *testing.T) {
	step := os.Getenv(dieAt)
	if step == "" {
		return
	}
	var config map[string]string
	if err := json.Unmarshal([]byte(os.Getenv(dieWith)), &config); err != nil {
		t.Fatal(err)
	}
	c := serve.Config{Listen: os.Getenv("WEIR_TEST_INBOX_LISTEN"), JWKS: config["jwks"], Audience: "weir", LogLevel: slog.LevelError}
	c.Peer.TokenFile = config["token"]
	err := Run(t.Context(), Config{
		Serve: c, Limit: 60, Gate: nobody, Conversation: config["conversation"],
		Stores: backend.Config{NATS: config["nats"], Redis: config["redis"], Replicas: 1},
		before: func(name string) {
			if name == step {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		},
	})
	t.Fatalf("it ended by itself: %v", err)
}

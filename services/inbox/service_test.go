package inbox

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/backend"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/internal/meshtest"
	"weir/internal/serve"
)

var (
	// worker and sender stand for services of a tenant, bob and eve for agents.
	worker = identity.Caller{Tenant: "acme", Subject: "service:worker", Scopes: []string{"dispatch.write", "inbox.claim", "inbox.enqueue", "inbox.operate"}}
	sender = identity.Caller{Tenant: "acme", Subject: "service:sender", Scopes: []string{"inbox.enqueue"}}
	bob    = identity.Caller{Tenant: "acme", Subject: "agent:bob", Scopes: []string{"inbox.claim"}}
	eve    = identity.Caller{Tenant: "acme", Subject: "agent:eve", Scopes: []string{"inbox.claim"}}
	alien  = identity.Caller{Tenant: "other", Subject: "service:worker", Scopes: worker.Scopes}
)

// nobody is where nobody answers.
const nobody = "dns:///127.0.0.1:1"

// rig is the service over real servers.
type rig struct {
	t      *testing.T
	nats   *meshtest.NATS
	redis  *meshtest.Redis
	issuer *meshtest.Issuer
	peers  *peers
	inbox  *meshtest.Service
	// change, unless nil, is what the service is told beside where its stores are.
	change func(*Config)
}

func newRig(t *testing.T) *rig { return newRigWith(t, nil) }

func newRigWith(t *testing.T, change func(*Config)) *rig {
	t.Parallel() // the tests wait more than they work
	r := &rig{t: t, change: change, nats: meshtest.StartNATS(t), redis: meshtest.StartRedis(t), issuer: meshtest.NewIssuer(t)}
	r.peers = startPeers(r.issuer)
	r.inbox = r.start()
	return r
}

// start runs one more replica.
func (r *rig) start() *meshtest.Service {
	r.t.Helper()
	return r.startWith(func(*Config) {})
}

func (r *rig) startWith(change func(*Config)) *meshtest.Service {
	r.t.Helper()
	return r.issuer.Serve(func(ctx context.Context, c serve.Config) error {
		cfg := Config{
			Serve: c, Limit: 60, Gate: r.peers.Addr, Conversation: r.peers.Addr,
			Stores: backend.Config{NATS: r.nats.URL(), Redis: r.redis.URL(), Replicas: 1},
		}
		if r.change != nil {
			r.change(&cfg)
		}
		change(&cfg)
		return Run(ctx, cfg)
	}, inboxItself)
}

// client calls a replica as somebody.
type client struct {
	t *testing.T
	inboxv1.InboxServiceClient
	inboxv1.DispatchServiceClient
}

func (r *rig) at(s *meshtest.Service, c identity.Caller) client {
	r.t.Helper()
	conn := r.issuer.Dial(s.Addr, c)
	return client{r.t, inboxv1.NewInboxServiceClient(conn), inboxv1.NewDispatchServiceClient(conn)}
}

func (r *rig) as(c identity.Caller) client {
	r.t.Helper()
	return r.at(r.inbox, c)
}

func (c client) enqueue(goal, id string) *inboxv1.EnqueueResponse {
	c.t.Helper()
	out, err := c.Enqueue(c.t.Context(), &inboxv1.EnqueueRequest{Goal: goal, MessageId: id, Body: "body of " + id})
	if err != nil {
		c.t.Fatalf("enqueue %s in %s: %v", id, goal, err)
	}
	return out
}

func (c client) claim(goal, request string, most int32, lease time.Duration) *inboxv1.ClaimResponse {
	c.t.Helper()
	out, err := c.Claim(c.t.Context(), &inboxv1.ClaimRequest{Goal: goal, RequestId: request, Max: most, Lease: durationpb.New(lease)})
	if err != nil {
		c.t.Fatalf("claim %s of %s: %v", request, goal, err)
	}
	return out
}

func (c client) done(goal, token string, ids ...string) error {
	_, err := c.Done(c.t.Context(), &inboxv1.DoneRequest{Goal: goal, ClaimToken: token, MessageIds: ids})
	return err
}

func (c client) mustDone(goal, token string, ids ...string) {
	c.t.Helper()
	if err := c.done(goal, token, ids...); err != nil {
		c.t.Fatalf("done %v in %s: %v", ids, goal, err)
	}
}

func (c client) inbox(goal string) *inboxv1.Inbox {
	c.t.Helper()
	out, err := c.GetInbox(c.t.Context(), &inboxv1.GetInboxRequest{Goal: goal})
	if err != nil {
		c.t.Fatalf("get inbox %s: %v", goal, err)
	}
	return out.GetInbox()
}

func (c client) peek(goal string) []*inboxv1.Message {
	c.t.Helper()
	out, err := c.Peek(c.t.Context(), &inboxv1.PeekRequest{Goal: goal, PageSize: 100})
	if err != nil {
		c.t.Fatalf("peek into %s: %v", goal, err)
	}
	return out.GetMessages()
}

func messageIDs(messages []*inboxv1.Message) []string {
	var out []string
	for _, m := range messages {
		out = append(out, m.GetMessageId())
	}
	return out
}

func wantIDs(t *testing.T, messages []*inboxv1.Message, ids ...string) {
	t.Helper()
	if got := messageIDs(messages); !slices.Equal(got, ids) {
		t.Fatalf("messages %v, want %v", got, ids)
	}
}

func wantReason(t *testing.T, err error, reason fault.Reason) {
	t.Helper()
	if !fault.Is(err, reason) {
		t.Fatalf("got %v, want %s", err, reason)
	}
}

func TestAMessageIsEnqueuedClaimedAndDone(t *testing.T) {
	r := newRig(t)
	from, to := r.as(sender), r.as(bob)
	out, err := from.Enqueue(t.Context(), &inboxv1.EnqueueRequest{
		Goal: "bob", MessageId: "m", Body: "héllo\x00", Priority: 3, CorrelationId: "c",
	})
	if err != nil || out.GetState() != inboxv1.MessageState_MESSAGE_STATE_PENDING || out.GetDepth() != 1 {
		t.Fatalf("enqueue: %v, %v", out, err)
	}
	claimed := to.claim("bob", "1", 10, time.Minute)
	wantIDs(t, claimed.GetMessages(), "m")
	m := claimed.GetMessages()[0]
	if m.GetBody() != "héllo\x00" || m.GetSender() != sender.Subject || m.GetPriority() != 3 || m.GetCorrelationId() != "c" ||
		m.GetClaimant() != bob.Subject || m.GetDeliveries() != 1 || m.GetReclaimed() ||
		m.GetState() != inboxv1.MessageState_MESSAGE_STATE_CLAIMED || m.GetEnqueueTime() == nil {
		t.Fatalf("claimed %v", m)
	}
	if left := time.Until(m.GetLeaseExpireTime().AsTime()); left < 50*time.Second || left > time.Minute {
		t.Fatalf("the lease lasts %v more, want about a minute", left)
	}
	to.mustDone("bob", claimed.GetClaimToken(), "m")
	if in := to.inbox("bob"); in.GetDepth() != 0 || in.GetLimit() != 60 || in.GetUpdateTime() == nil {
		t.Fatalf("the inbox is %v after the end", in)
	}
	if again := to.claim("bob", "2", 10, time.Minute); len(again.GetMessages()) != 0 || again.GetClaimToken() != "" {
		t.Fatalf("a finished message came again: %v", again)
	}
}

func TestAStaleTokenChangesNothing(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	w.enqueue("build", "a")
	w.enqueue("build", "b")
	old := w.claim("build", "1", 1, time.Minute)
	if _, err := w.Release(t.Context(), &inboxv1.ReleaseRequest{Goal: "build", ClaimToken: old.GetClaimToken(), MessageIds: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	held := w.claim("build", "2", 2, time.Minute)
	before := w.peek("build")
	ids := []string{"a", "b"}
	for _, token := range []string{old.GetClaimToken(), "guess", held.GetClaimToken() + "x"} {
		wantReason(t, w.done("build", token, ids...), fault.StaleClaim)
		_, err := w.Extend(t.Context(), &inboxv1.ExtendRequest{Goal: "build", ClaimToken: token, MessageIds: ids, Lease: durationpb.New(time.Hour)})
		wantReason(t, err, fault.StaleClaim)
		_, err = w.Release(t.Context(), &inboxv1.ReleaseRequest{Goal: "build", ClaimToken: token, MessageIds: ids})
		wantReason(t, err, fault.StaleClaim)
	}
	for i, m := range w.peek("build") {
		if !proto.Equal(m, before[i]) {
			t.Fatalf("a stale token made %v of %v", m, before[i])
		}
	}
	extended, err := w.Extend(t.Context(), &inboxv1.ExtendRequest{Goal: "build", ClaimToken: held.GetClaimToken(), MessageIds: ids, Lease: durationpb.New(time.Hour)})
	if err != nil || time.Until(extended.GetLeaseExpireTime().AsTime()) < 59*time.Minute {
		t.Fatalf("extend by the holder: %v, %v", extended, err)
	}
	w.mustDone("build", held.GetClaimToken(), ids...)
}

func TestAMessageWhoseLeaseEndedIsServedAgain(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	w.enqueue("build", "a")
	dead := w.claim("build", "1", 1, time.Second)
	if other := w.claim("build", "2", 1, time.Second); len(other.GetMessages()) != 0 {
		t.Fatalf("served while the lease lasts: %v", other)
	}
	var again *inboxv1.ClaimResponse
	meshtest.Eventually(t, "it is served again", func() bool {
		again = w.claim("build", "3", 1, time.Minute)
		return len(again.GetMessages()) == 1
	})
	m := again.GetMessages()[0]
	if early := time.Until(dead.GetMessages()[0].GetLeaseExpireTime().AsTime()); early > 0 {
		t.Fatalf("served %v before the lease ended", early)
	}
	if !m.GetReclaimed() || m.GetDeliveries() != 2 {
		t.Fatalf("served again as %v", m)
	}
	wantReason(t, w.done("build", dead.GetClaimToken(), "a"), fault.StaleClaim)
	w.mustDone("build", again.GetClaimToken(), "a")
}

// Nobody claims and nobody asks: the sweeper records the end of the lease.
func TestTheEndOfALeaseIsRecordedWithoutACaller(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	w.enqueue("build", "a")
	w.claim("build", "1", 1, time.Second)
	r.redis.Flush() // the deadline comes back from the journal
	events := r.events("weir.inbox.acme.inbox.build")
	meshtest.Eventually(t, "the end is in the journal", func() bool {
		for _, e := range events() {
			if expired := e.GetDeadlinesPassed(); expired != nil {
				return e.GetActor() == "service:inbox" && slices.Equal(expired.GetLapsedMessageIds(), []string{"a"})
			}
		}
		return false
	})
	if in := w.inbox("build"); in.GetPending() != 1 || in.GetClaimed() != 0 {
		t.Fatalf("the inbox is %v", in)
	}
}

// events gives what the service has appended on a subject so far.
func (r *rig) events(subject string) func() []*inboxv1.Event {
	r.t.Helper()
	j, err := journal.Open(r.t.Context(), r.nats.Connect(), "inbox", 1, slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	key, err := journal.ParseKey(strings.TrimPrefix(subject, "weir.inbox."))
	if err != nil {
		r.t.Fatal(err)
	}
	return func() []*inboxv1.Event {
		var all []*inboxv1.Event
		_, err := j.Replay(r.t.Context(), key, 0, func(e journal.Event) error {
			event := &inboxv1.Event{}
			all = append(all, event)
			return proto.Unmarshal(e.Data, event)
		})
		if err != nil {
			r.t.Fatal(err)
		}
		return all
	}
}

func TestADelayedMessageWaitsAndThenComesWithoutAnEvent(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	due := time.Now().Add(1500 * time.Millisecond)
	_, err := w.Enqueue(t.Context(), &inboxv1.EnqueueRequest{Goal: "build", MessageId: "later", Body: "x", NotBefore: timestamppb.New(due)})
	if err != nil {
		t.Fatal(err)
	}
	w.enqueue("build", "now")
	wantIDs(t, w.claim("build", "1", 10, time.Minute).GetMessages(), "now")
	if in := w.inbox("build"); in.GetDelayed() != 1 || in.GetClaimed() != 1 || in.GetDepth() != 2 {
		t.Fatalf("the inbox is %v", in)
	}
	meshtest.Eventually(t, "it counts as pending", func() bool { return w.inbox("build").GetPending() == 1 })
	wantIDs(t, w.claim("build", "2", 10, time.Minute).GetMessages(), "later")
	if time.Now().Before(due) {
		t.Fatal("it came before its time")
	}
}

func TestConcurrentClaimsAtTwoReplicasNeverShareAMessage(t *testing.T) {
	const messages, claims = 50, 20
	r := newRig(t)
	replicas := []*meshtest.Service{r.inbox, r.start()}
	w := r.as(worker)
	var all []string
	for i := range messages {
		all = append(all, fmt.Sprintf("m%02d", i))
		w.enqueue("build", all[i])
	}
	var mu sync.Mutex
	var got []string
	var wg sync.WaitGroup
	for n := range claims {
		c := r.at(replicas[n%2], worker)
		wg.Go(func() {
			out, err := c.Claim(t.Context(), &inboxv1.ClaimRequest{Goal: "build", RequestId: fmt.Sprint("r", n), Max: 3})
			for fault.Is(err, fault.Contention) { // as the error says, try again
				out, err = c.Claim(t.Context(), &inboxv1.ClaimRequest{Goal: "build", RequestId: fmt.Sprint("r", n), Max: 3})
			}
			if err != nil {
				t.Errorf("claim: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, messageIDs(out.GetMessages())...)
		})
	}
	wg.Wait()
	slices.Sort(got)
	if !slices.Equal(got, all) {
		t.Fatalf("%d claims of 3 got %d messages of %d: %v", claims, len(got), messages, got)
	}
}

func TestRetriesConvergeAtAnyReplicaAlsoAfterRedisWasFlushed(t *testing.T) {
	r := newRig(t)
	replicas := []client{r.as(worker), r.at(r.start(), worker)}
	again := func(what func(client)) {
		t.Helper()
		for _, w := range replicas {
			what(w)
			r.redis.Flush()
			what(w)
		}
	}
	again(func(w client) {
		if out := w.enqueue("build", "a"); out.GetState() != inboxv1.MessageState_MESSAGE_STATE_PENDING || out.GetDepth() != 1 {
			t.Fatalf("a retry of the enqueue: %v", out)
		}
	})
	var token string
	again(func(w client) {
		out := w.claim("build", "1", 1, time.Minute)
		wantIDs(t, out.GetMessages(), "a")
		if token == "" {
			token = out.GetClaimToken()
		}
		if m := out.GetMessages()[0]; out.GetClaimToken() != token || m.GetDeliveries() != 1 || m.GetBody() != "body of a" {
			t.Fatalf("a retry of the claim: %v", out)
		}
	})
	again(func(w client) { w.mustDone("build", token, "a") })
	again(func(w client) {
		if out := w.enqueue("build", "a"); out.GetState() != inboxv1.MessageState_MESSAGE_STATE_DONE || out.GetDepth() != 0 {
			t.Fatalf("a retry of the enqueue after the end: %v", out)
		}
		_, err := w.Enqueue(t.Context(), &inboxv1.EnqueueRequest{Goal: "build", MessageId: "a", Body: "other"})
		wantReason(t, err, fault.IdempotencyMismatch)
	})
	if events := r.events("weir.inbox.acme.inbox.build")(); len(events) != 3 {
		t.Fatalf("enqueue, claim and done made %d events: %v", len(events), events)
	}
}

func TestAFullInboxRefusesAndKeepsWhatItHas(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	for i := range 60 {
		w.enqueue("build", fmt.Sprint("m", i))
	}
	claimed := w.claim("build", "1", 1, time.Minute) // claimed ones count
	_, err := w.Enqueue(t.Context(), &inboxv1.EnqueueRequest{Goal: "build", MessageId: "over", Body: "x"})
	wantReason(t, err, fault.InboxFull)
	full := fault.From(err)
	if full.Metadata("limit") != "60" || full.Metadata("depth") != "60" || !strings.Contains(full.Message(), "60") {
		t.Fatalf("the refusal does not say limit and depth: %v", full)
	}
	if in := w.inbox("build"); in.GetDepth() != 60 {
		t.Fatalf("the inbox is %v", in)
	}
	w.enqueue("build", "m1") // a retry is not refused
	w.mustDone("build", claimed.GetClaimToken(), "m0")
	w.enqueue("build", "over")
}

func TestAnOversizeBodyIsRefused(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	body := strings.Repeat("ü", defaultBody/2)
	if _, err := w.Enqueue(t.Context(), &inboxv1.EnqueueRequest{Goal: "build", MessageId: "fits", Body: body}); err != nil {
		t.Fatal(err)
	}
	_, err := w.Enqueue(t.Context(), &inboxv1.EnqueueRequest{Goal: "build", MessageId: "over", Body: body + "x"})
	wantReason(t, err, fault.TooLarge)
	large := fault.From(err)
	if large.Metadata("limit") != "65536" || large.Metadata("size") != "65537" || large.Metadata("depth") != "1" {
		t.Fatalf("the refusal does not say limit, size and depth: %v", large)
	}
	out := w.claim("build", "1", 10, time.Minute)
	wantIDs(t, out.GetMessages(), "fits")
	if out.GetMessages()[0].GetBody() != body {
		t.Fatal("the body is not what was enqueued")
	}
}

// What a client cannot receive must not be claimed: gRPC takes 4 MiB by default.
func TestOneClaimFitsIntoOneAnswer(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	body := strings.Repeat("x", defaultBody)
	for i := range 60 {
		if _, err := w.Enqueue(t.Context(), &inboxv1.EnqueueRequest{Goal: "build", MessageId: fmt.Sprint("m", i), Body: body}); err != nil {
			t.Fatal(err)
		}
	}
	first := w.claim("build", "1", 100, time.Minute)
	if size := proto.Size(first); len(first.GetMessages()) != maxServed/defaultBody || size > 4<<20 {
		t.Fatalf("one claim got %d messages, %d bytes", len(first.GetMessages()), size)
	}
	if second := w.claim("build", "2", 100, time.Minute); len(second.GetMessages()) != 60-maxServed/defaultBody {
		t.Fatalf("the next claim got %d messages", len(second.GetMessages()))
	}
}

func TestConcurrentBeginsHaveOneIdAndCountedAttempts(t *testing.T) {
	const begins = 20
	r := newRig(t)
	replicas := []*meshtest.Service{r.inbox, r.start()}
	in := &inboxv1.BeginRequest{Goal: "build", Item: "issue 7: ship * it > now."}
	var mu sync.Mutex
	ids, attempts, replays := map[string]bool{}, map[int32]bool{}, 0
	var wg sync.WaitGroup
	for n := range begins {
		c := r.at(replicas[n%2], worker)
		wg.Go(func() {
			out, err := c.Begin(t.Context(), in)
			for fault.Is(err, fault.Contention) {
				out, err = c.Begin(t.Context(), in)
			}
			if err != nil {
				t.Errorf("begin: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			ids[out.GetDispatch().GetDispatchId()] = true
			attempts[out.GetDispatch().GetAttempts()] = true
			if out.GetReplay() {
				replays++
			}
			if (out.GetWarning() != "") != out.GetReplay() {
				t.Errorf("replay %v with warning %q", out.GetReplay(), out.GetWarning())
			}
		})
	}
	wg.Wait()
	if len(ids) != 1 || len(attempts) != begins || replays != begins-1 {
		t.Fatalf("%d begins gave %d ids, %d attempts, %d replays", begins, len(ids), len(attempts), replays)
	}
	got, err := r.as(worker).GetDispatch(t.Context(), &inboxv1.GetDispatchRequest{Goal: in.GetGoal(), Item: in.GetItem()})
	if d := got.GetDispatch(); err != nil || d.GetAttempts() != begins || d.GetItem() != in.GetItem() || d.GetOwner() != worker.Subject ||
		d.GetState() != inboxv1.DispatchState_DISPATCH_STATE_BEGUN || !ids[d.GetDispatchId()] {
		t.Fatalf("the record is %v, %v", got, err)
	}
}

func TestADispatchIsMarkedSentOnce(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	mark := func(item, conversation string) (*inboxv1.Dispatch, error) {
		out, err := w.MarkSent(t.Context(), &inboxv1.MarkSentRequest{Goal: "build", Item: item, ConversationId: conversation})
		return out.GetDispatch(), err
	}
	begun, err := w.Begin(t.Context(), &inboxv1.BeginRequest{Goal: "build", Item: "1"})
	if err != nil || begun.GetReplay() || begun.GetWarning() != "" {
		t.Fatalf("begin: %v, %v", begun, err)
	}
	for range 2 { // the second is a retry
		d, err := mark("1", "here")
		if err != nil || d.GetState() != inboxv1.DispatchState_DISPATCH_STATE_SENT || d.GetConversationId() != "here" ||
			d.GetDispatchId() != begun.GetDispatch().GetDispatchId() || d.GetUnbegun() {
			t.Fatalf("mark sent: %v, %v", d, err)
		}
		r.redis.Flush()
	}
	_, err = mark("1", "elsewhere")
	wantReason(t, err, fault.DispatchMismatch)
	again, err := w.Begin(t.Context(), &inboxv1.BeginRequest{Goal: "build", Item: "1"})
	if err != nil || !again.GetReplay() || again.GetWarning() != "" || again.GetDispatch().GetConversationId() != "here" {
		t.Fatalf("begin after it was sent: %v, %v", again, err)
	}
	d, err := mark("2", "there")
	if err != nil || !d.GetUnbegun() || d.GetAttempts() != 0 || d.GetDispatchId() == "" {
		t.Fatalf("mark sent without a begin: %v, %v", d, err)
	}
	late, err := w.Begin(t.Context(), &inboxv1.BeginRequest{Goal: "build", Item: "2"})
	if err != nil || !late.GetReplay() || late.GetDispatch().GetDispatchId() != d.GetDispatchId() {
		t.Fatalf("begin of what was sent already: %v, %v", late, err)
	}
	_, err = w.GetDispatch(t.Context(), &inboxv1.GetDispatchRequest{Goal: "build", Item: "3"})
	wantReason(t, err, fault.DispatchNotFound)
	_, err = r.as(alien).GetDispatch(t.Context(), &inboxv1.GetDispatchRequest{Goal: "build", Item: "1"})
	wantReason(t, err, fault.DispatchNotFound)
}

func TestEveryMethodIsInTheTable(t *testing.T) {
	s := grpc.NewServer()
	register(s, &inboxServer{}, &dispatchServer{})
	if missing := identity.Methods.Missing(s); len(missing) != 0 {
		t.Errorf("nobody may call %v", missing)
	}
}

func TestSettingsThatCannotWorkAreRefusedByTheirFlag(t *testing.T) {
	works := Config{Serve: serve.Config{Listen: "127.0.0.1:0", JWKS: "jwks.json"}, Stores: backend.Config{NATS: "nats://x", Redis: "redis://x", Replicas: 1}, Gate: nobody, Conversation: nobody}
	if err := works.Validate(); err != nil {
		t.Fatal(err)
	}
	for flag, change := range map[string]func(*Config){
		"--inbox-limit":    func(c *Config) { c.Limit = maxLimit + 1 },
		"--max-body":       func(c *Config) { c.MaxBody = maxBody + 1 },
		"--max-deliveries": func(c *Config) { c.MaxDeliveries = maxDeliveries + 1 },
		"--keep-ids":       func(c *Config) { c.KeepIDs = minKeepIDs - 1 },
		"--gate":           func(c *Config) { c.Gate = "" },
		"--nats":           func(c *Config) { c.Stores.NATS = "" },
		"--listen":         func(c *Config) { c.Serve.Listen = "x" },
	} {
		c := works
		change(&c)
		if err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), flag) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

func TestBeingStoppedWhileWaitingForTheJournalIsNoError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := Run(ctx, Config{
		Serve:  serve.Config{Listen: "127.0.0.1:0", JWKS: "jwks.json", Logger: slog.New(slog.DiscardHandler)},
		Stores: backend.Config{NATS: "nats://127.0.0.1:1", Redis: "redis://127.0.0.1:1", Replicas: 1},
		Gate:   nobody, Conversation: nobody,
	})
	if err != nil {
		t.Fatal(err)
	}
}

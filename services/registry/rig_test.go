package registry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/backend"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/internal/meshtest"
	"weir/internal/serve"
	"weir/internal/strictjson"
)

// rig is a registry over real servers, with a gate and a target that the test
// steers and looks into.
type rig struct {
	t        *testing.T
	nats     *meshtest.NATS
	redis    *meshtest.Redis
	issuer   *meshtest.Issuer
	gate     *steeredGate
	target   *recordingTarget
	peers    string
	registry *meshtest.Service
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, nats: meshtest.StartNATS(t), redis: meshtest.StartRedis(t), issuer: meshtest.NewIssuer(t)}
	log := slog.New(slog.NewJSONHandler(io.Discard, nil))
	events, err := journal.Open(t.Context(), r.nats.Connect(), "gate", 1, log)
	if err != nil {
		t.Fatal(err)
	}
	r.gate = &steeredGate{
		t: t, events: events, verdict: gatev1.Verdict_VERDICT_ASK,
		states: map[string]fault.Reason{}, rounds: map[string]int{}, amended: map[string]string{},
	}
	r.target = &recordingTarget{effects: map[string]int{}}
	s := grpc.NewServer()
	gatev1.RegisterGateServiceServer(s, r.gate)
	conversationv1.RegisterMessageServiceServer(s, r.target)
	r.peers = meshtest.Loopback(t, s).Target()
	r.registry = r.start()
	return r
}

func (r *rig) start() *meshtest.Service {
	return r.issuer.Serve(func(ctx context.Context, c serve.Config) error {
		return Run(ctx, Config{
			Serve: c, Gate: r.peers, Conversation: r.peers, Inbox: r.peers,
			Stores: backend.Config{NATS: r.nats.URL(), Redis: r.redis.URL(), Replicas: 1},
		})
	}, identity.Caller{Tenant: identity.AnyTenant, Subject: "service:registry", Scopes: []string{"gate.check"}})
}

var (
	alice = identity.Caller{Tenant: "acme", Subject: "agent:alice", Scopes: []string{"operation.invoke"}}
	bob   = identity.Caller{Tenant: "acme", Subject: "agent:bob", Scopes: []string{"operation.invoke"}}
)

func (r *rig) operations(c identity.Caller) registryv1.OperationServiceClient {
	return registryv1.NewOperationServiceClient(r.issuer.Dial(r.registry.Addr, c))
}

// say invokes conversation/say.
func say(id, text string) *registryv1.InvokeRequest {
	input := fmt.Sprintf(`{"conversation_id":"c1","to":["agent:bob"],"parts":[{"text":%q}]}`, text)
	return &registryv1.InvokeRequest{InvocationId: id, Operation: "conversation/say", InputJson: &input}
}

func (r *rig) invoke(in *registryv1.InvokeRequest) *registryv1.Invocation {
	r.t.Helper()
	out, err := r.operations(alice).Invoke(r.t.Context(), in)
	if err != nil {
		r.t.Fatalf("invoke: %v", err)
	}
	return out.GetInvocation()
}

func (r *rig) state(id string) registryv1.InvocationState {
	r.t.Helper()
	return r.get(id).GetState()
}

func (r *rig) waitState(id string, want registryv1.InvocationState) {
	r.t.Helper()
	meshtest.Eventually(r.t, fmt.Sprintf("%s is %v", id, want), func() bool { return r.state(id) == want })
}

func (r *rig) get(id string) *registryv1.Invocation {
	r.t.Helper()
	out, err := r.operations(alice).GetInvocation(r.t.Context(), &registryv1.GetInvocationRequest{InvocationId: id})
	if err != nil {
		r.t.Fatalf("get: %v", err)
	}
	return out.GetInvocation()
}

// restart stops the registry, takes all that Redis knows, and starts it again.
func (r *rig) restart() {
	r.t.Helper()
	if err := r.registry.Stop(); err != nil {
		r.t.Fatal(err)
	}
	r.redis.Flush()
	r.registry = r.start()
}

// steeredGate is a gate whose answers the test sets. It keeps one approval for
// each request, as the real one does, until that is superseded.
type steeredGate struct {
	gatev1.UnimplementedGateServiceServer
	t      *testing.T
	events *journal.Journal

	mu      sync.Mutex
	verdict gatev1.Verdict
	rule    string // that decided
	refusal error  // in place of a verdict
	hidden  bool
	down    bool
	checks  int
	checked *gatev1.CheckRequest // the last one
	joined  string               // the approval that every check finds, if set
	// states says how redeeming an approval is refused; empty lets it through.
	states map[string]fault.Reason
	// rounds counts how often the approval of a request was superseded.
	rounds map[string]int
	// amended is what an approver put in place of a request's input.
	amended map[string]string

	// announced is every catalogue that was announced, heard or refused.
	announced []*gatev1.AnnounceOperationsRequest
	deaf      error // to what is announced
}

// approval is the one that a request has now.
func (g *steeredGate) approval(request string) string {
	if round := g.rounds[request]; round > 0 {
		return fmt.Sprintf("approval-%s-%d", request, round+1)
	}
	return "approval-" + request
}

func (g *steeredGate) steer(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
}

func (g *steeredGate) Check(_ context.Context, in *gatev1.CheckRequest) (*gatev1.CheckResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.down {
		return nil, fault.New(fault.JournalUnavailable, "down")
	}
	g.checks++
	g.checked = in
	if g.refusal != nil {
		return nil, g.refusal
	}
	out := &gatev1.CheckResponse{Verdict: g.verdict, Reason: "TEST", Rule: g.rule}
	if g.verdict == gatev1.Verdict_VERDICT_ASK {
		out.ApprovalId = g.approval(in.GetRequestId())
		if g.joined != "" {
			out.ApprovalId = g.joined
		}
		if _, ok := g.states[out.ApprovalId]; !ok {
			g.states[out.ApprovalId] = fault.ApprovalPending
		}
	}
	return out, nil
}

func (g *steeredGate) MatchGrants(_ context.Context, in *gatev1.MatchGrantsRequest) (*gatev1.MatchGrantsResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hidden {
		return &gatev1.MatchGrantsResponse{}, nil
	}
	return &gatev1.MatchGrantsResponse{Granted: in.GetOperations()}, nil
}

func (g *steeredGate) Redeem(_ context.Context, in *gatev1.RedeemRequest) (*gatev1.RedeemResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.down {
		return nil, fault.New(fault.JournalUnavailable, "down")
	}
	if reason := g.states[in.GetApprovalId()]; reason != "" {
		return nil, fault.New(reason, "refused").With("note", "a note")
	}
	out := &gatev1.RedeemResponse{}
	if amended, ok := g.amended[in.GetRequestId()]; ok {
		out.AmendedInputJson, out.AmendedInputDigest = &amended, strictjson.Digest([]byte(amended))
	}
	return out, nil
}

func (g *steeredGate) AnnounceOperations(_ context.Context, in *gatev1.AnnounceOperationsRequest) (*gatev1.AnnounceOperationsResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.announced = append(g.announced, in)
	return &gatev1.AnnounceOperationsResponse{}, g.deaf
}

// heard gives how often a catalogue was announced.
func (g *steeredGate) heard() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.announced)
}

// decide sets how an approval stands and says so in an event, as the gate does.
func (g *steeredGate) decide(request string, refusal fault.Reason) {
	g.t.Helper()
	g.steer(func() { g.states[g.approval(request)] = refusal })
	g.announce(request)
}

// supersede approves a request on terms that do not hold any more when it is
// redeemed: the next check makes another approval.
func (g *steeredGate) supersede(request string) {
	g.t.Helper()
	var approval string
	g.steer(func() {
		approval = g.approval(request)
		g.states[approval] = fault.ApprovalSuperseded
		g.rounds[request]++
	})
	g.append(approval, decided(approval, request))
}

// announce says that the approval of a request was decided.
func (g *steeredGate) announce(request string) {
	g.t.Helper()
	var approval string
	g.steer(func() { approval = g.approval(request) })
	g.append(approval, decided(approval, request))
}

func decided(approval, request string) *gatev1.Event {
	return &gatev1.Event{Actor: "human:carol", Event: &gatev1.Event_ApprovalDecided{
		ApprovalDecided: &gatev1.ApprovalDecided{ApprovalId: approval, RequestId: request},
	}}
}

func (g *steeredGate) append(approval string, event *gatev1.Event) {
	g.t.Helper()
	data, err := proto.Marshal(event)
	if err != nil {
		g.t.Fatal(err)
	}
	m := event.ProtoReflect()
	kind := m.Get(m.WhichOneof(m.Descriptor().Oneofs().ByName("event"))).Message().Descriptor().FullName()
	key := journal.Key{Tenant: "acme", Kind: "approval", ID: approval}
	last, err := g.events.Replay(g.t.Context(), key, 0, func(journal.Event) error { return nil })
	if err != nil {
		g.t.Fatal(err)
	}
	_, err = g.events.Append(g.t.Context(), journal.Event{
		ID: fmt.Sprintf("%s-%d", approval, last), Type: string(kind), Key: key, Time: time.Now().UTC(), Data: data,
	}, last)
	if err != nil {
		g.t.Fatal(err)
	}
}

// recordingTarget counts what was really done, by the key of the retry.
type recordingTarget struct {
	conversationv1.UnimplementedMessageServiceServer
	mu      sync.Mutex
	calls   int
	said    []string // in each call
	stated  []string // for whom each call was made, as JSON
	effects map[string]int
	refuse  error
	block   chan struct{}
	// mute makes it act and then answer with an error, as a lost answer does.
	mute bool
}

func (r *recordingTarget) steer(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

func (r *recordingTarget) AppendMessage(ctx context.Context, in *conversationv1.AppendMessageRequest) (*conversationv1.AppendMessageResponse, error) {
	r.mu.Lock()
	block := r.block
	r.calls++
	text := ""
	for _, part := range in.GetParts() {
		text += part.GetText()
	}
	r.said = append(r.said, text)
	r.stated = append(r.stated, actsFor(ctx))
	r.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse != nil {
		return nil, r.refuse
	}
	r.effects[in.GetMessageId()]++
	if r.mute {
		return nil, fault.New(fault.JournalUnavailable, "the answer is lost")
	}
	return &conversationv1.AppendMessageResponse{Message: &conversationv1.Message{
		ConversationId: in.GetConversationId(), MessageId: in.GetMessageId(), Position: 1, Author: "agent:alice",
		Parts: in.GetParts(), To: in.GetTo(),
	}}, nil
}

// actsFor is the statement for whom a call is made.
func actsFor(ctx context.Context) string {
	return strings.Join(metadata.ValueFromIncomingContext(ctx, "weir-acts-for-bin"), " ")
}

func (r *recordingTarget) ListMessages(ctx context.Context, _ *conversationv1.ListMessagesRequest) (*conversationv1.ListMessagesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	r.stated = append(r.stated, actsFor(ctx))
	return &conversationv1.ListMessagesResponse{}, r.refuse
}

// messages gives the ids of what was done, sorted; done twice is not seen here
// but in calls, since the id is what makes a retry harmless.
func (r *recordingTarget) messages() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := make([]string, 0, len(r.effects))
	for id := range r.effects {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

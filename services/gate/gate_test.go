package gate

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/backend"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/meshtest"
	"weir/internal/serve"
	"weir/internal/strictjson"
	"weir/services/gate/audit"
	"weir/services/gate/policy"
)

// rig is a gate over real servers.
type rig struct {
	t      *testing.T
	nats   *meshtest.NATS
	redis  *meshtest.Redis
	issuer *meshtest.Issuer
	gate   *meshtest.Service
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, nats: meshtest.StartNATS(t), redis: meshtest.StartRedis(t), issuer: meshtest.NewIssuer(t)}
	r.gate = r.start(0)
	r.grant("alice", "agent:alice", "conversation/*")
	return r
}

// start runs one more replica of the gate.
func (r *rig) start(ttl time.Duration) *meshtest.Service {
	return r.issuer.Serve(func(ctx context.Context, c serve.Config) error {
		return Run(ctx, Config{
			Serve: c, ApprovalTTL: ttl,
			Stores: backend.Config{NATS: r.nats.URL(), Redis: r.redis.URL(), Replicas: 1},
		})
	}, identity.Caller{})
}

var (
	alice    = identity.Caller{Tenant: "acme", Subject: "agent:alice", Session: "s-1", OnBehalfOf: []string{"human:boss"}, Scopes: []string{"approval.cancel", "approval.read"}}
	carol    = identity.Caller{Tenant: "acme", Subject: "human:carol", Scopes: []string{"approval.decide"}}
	dan      = identity.Caller{Tenant: "acme", Subject: "human:dan", Scopes: []string{"approval.decide"}}
	ann      = identity.Caller{Tenant: "acme", Subject: "human:ann", Scopes: []string{"policy.admin"}}
	registry = identity.Caller{Tenant: identity.AnyTenant, Subject: "service:registry", Scopes: []string{"gate.check"}}
)

func (r *rig) dial(c identity.Caller) *grpc.ClientConn { return r.issuer.Dial(r.gate.Addr, c) }

func (r *rig) approvals(c identity.Caller) gatev1.ApprovalServiceClient {
	return gatev1.NewApprovalServiceClient(r.dial(c))
}

func (r *rig) checks() gatev1.GateServiceClient { return gatev1.NewGateServiceClient(r.dial(registry)) }

func (r *rig) policies() gatev1.PolicyServiceClient {
	return gatev1.NewPolicyServiceClient(r.dial(ann))
}

func (r *rig) grant(id, subject string, operations ...string) {
	r.t.Helper()
	_, err := r.policies().PutGrant(r.t.Context(), &gatev1.PutGrantRequest{
		Grant: &gatev1.Grant{GrantId: id, Subject: subject, Operations: operations},
	})
	if err != nil {
		r.t.Fatalf("put grant: %v", err)
	}
}

func as(ctx context.Context, c identity.Caller) context.Context { return identity.ActFor(ctx, c) }

func say(request, text string) *gatev1.CheckRequest {
	input := fmt.Sprintf(`{"text":%q}`, text)
	return &gatev1.CheckRequest{
		RequestId: request, Operation: "conversation/say", Effect: registryv1.Effect_EFFECT_WRITE,
		SpecDigest: strings.Repeat("a", 64), InputJson: &input, InputDigest: strictjson.Digest([]byte(input)),
	}
}

func redeem(approval string, c *gatev1.CheckRequest) *gatev1.RedeemRequest {
	return &gatev1.RedeemRequest{
		ApprovalId: approval, RequestId: c.GetRequestId(), Operation: c.GetOperation(),
		SpecDigest: c.GetSpecDigest(), InputDigest: c.GetInputDigest(),
	}
}

func decideAs(approval string, c *gatev1.CheckRequest, verdict gatev1.Decision, request string) *gatev1.DecideApprovalRequest {
	return &gatev1.DecideApprovalRequest{ApprovalId: approval, RequestId: request, Decision: verdict, InputDigest: c.GetInputDigest()}
}

// ask checks as alice and gives the approval's id.
func (r *rig) ask(c *gatev1.CheckRequest) string {
	r.t.Helper()
	answer, err := r.checks().Check(as(r.t.Context(), alice), c)
	if err != nil {
		r.t.Fatalf("check: %v", err)
	}
	if answer.GetVerdict() != gatev1.Verdict_VERDICT_ASK {
		r.t.Fatalf("check: %v, want ASK", answer)
	}
	return answer.GetApprovalId()
}

func (r *rig) approve(approval string, c *gatev1.CheckRequest) {
	r.t.Helper()
	_, err := r.approvals(carol).DecideApproval(r.t.Context(), decideAs(approval, c, gatev1.Decision_DECISION_APPROVE, "d1"))
	if err != nil {
		r.t.Fatalf("approve: %v", err)
	}
}

func want(t testing.TB, what string, err error, reason fault.Reason) {
	t.Helper()
	if got := fault.ReasonOf(err); err == nil || got != reason {
		t.Fatalf("%s: %v (%v), want %s", what, err, got, reason)
	}
}

func TestAWriteIsAskedApprovedAndRedeemedOnce(t *testing.T) {
	r := newRig(t)
	c := say("inv-1", "hi")
	id := r.ask(c)

	_, err := r.checks().Redeem(as(t.Context(), alice), redeem(id, c))
	want(t, "redeem before anybody decided", err, fault.ApprovalPending)
	shown, err := r.approvals(carol).GetApproval(t.Context(), &gatev1.GetApprovalRequest{ApprovalId: id})
	if err != nil || shown.GetApproval().GetInputJson() != c.GetInputJson() || shown.GetApproval().GetInputDigest() != c.GetInputDigest() {
		t.Fatalf("what the approver sees: %v, %v", shown, err)
	}
	r.approve(id, c)
	first, err := r.checks().Redeem(as(t.Context(), alice), redeem(id, c))
	if err != nil {
		t.Fatalf("redeem: %v", err)
	}
	again, err := r.checks().Redeem(as(t.Context(), alice), redeem(id, c))
	if err != nil || !again.GetRedeemTime().AsTime().Equal(first.GetRedeemTime().AsTime()) {
		t.Fatalf("the retry: %v, %v; want the first answer %v", again, err, first)
	}
	other := redeem(id, c)
	other.RequestId = "inv-2"
	_, err = r.checks().Redeem(as(t.Context(), alice), other)
	want(t, "redeem by another request", err, fault.ApprovalRedeemed)
}

func TestTheSameRequestWhilePendingIsTheSameApproval(t *testing.T) {
	r := newRig(t)
	second := r.start(0) // another replica
	clients := []gatev1.GateServiceClient{r.checks(), gatev1.NewGateServiceClient(r.issuer.Dial(second.Addr, registry))}
	ids := make([]string, 20)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			answer, err := clients[i%2].Check(as(t.Context(), alice), say(fmt.Sprintf("inv-%d", i), "hi"))
			if err != nil {
				t.Errorf("check: %v", err)
			}
			ids[i] = answer.GetApprovalId()
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] || id == "" {
			t.Fatalf("one request, several approvals: %v", ids)
		}
	}
	if other := r.ask(say("inv-x", "something else")); other == ids[0] {
		t.Fatal("another input got the same approval")
	}
}

func TestARecurringRequestGetsANewApprovalAndAnOldIDIsRefused(t *testing.T) {
	r := newRig(t)
	first := say("inv-1", "hi")
	id := r.ask(first)
	r.approve(id, first)
	if _, err := r.checks().Redeem(as(t.Context(), alice), redeem(id, first)); err != nil {
		t.Fatal(err)
	}
	if again := r.ask(first); again != id {
		t.Fatalf("a retried check gave %s, the first gave %s", again, id)
	}
	second := say("inv-2", "hi")
	next := r.ask(second)
	if next == id {
		t.Fatal("an approval that was used served again")
	}
	_, err := r.approvals(carol).DecideApproval(t.Context(), decideAs(id, second, gatev1.Decision_DECISION_APPROVE, "d2"))
	want(t, "deciding the old id", err, fault.ApprovalDecided)
}

func TestAfterThreeDenialsTheRequestIsNotBroughtBeforeAPersonAgain(t *testing.T) {
	r := newRig(t)
	for i := range askLimit {
		c := say(fmt.Sprintf("inv-%d", i), "please")
		id := r.ask(c)
		if _, err := r.approvals(carol).DecideApproval(t.Context(), decideAs(id, c, gatev1.Decision_DECISION_DENY, "no")); err != nil {
			t.Fatal(err)
		}
		_, err := r.checks().Redeem(as(t.Context(), alice), redeem(id, c))
		want(t, "redeem what was denied", err, fault.ApprovalDenied)
	}
	answer, err := r.checks().Check(as(t.Context(), alice), say("inv-x", "please"))
	if err != nil || answer.GetVerdict() != gatev1.Verdict_VERDICT_DENY || answer.GetReason() != reasonAskLimit {
		t.Fatalf("check: %v, %v; want ASK_LIMIT", answer, err)
	}
}

func TestOneOfManyRacingDecisionsWins(t *testing.T) {
	r := newRig(t)
	c := say("inv-1", "hi")
	id := r.ask(c)
	people := []gatev1.ApprovalServiceClient{r.approvals(carol), r.approvals(dan)}
	var won, lost atomic.Int32
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			verdict := gatev1.Decision(1 + i/2%2)
			_, err := people[i%2].DecideApproval(t.Context(), decideAs(id, c, verdict, fmt.Sprintf("d-%d", i)))
			switch {
			case err == nil:
				won.Add(1)
			case fault.ReasonOf(err) == fault.ApprovalDecided:
				lost.Add(1)
			default:
				t.Errorf("decide: %v", err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || lost.Load() != 19 {
		t.Fatalf("%d won, %d lost", won.Load(), lost.Load())
	}
}

func TestOneOfManyRacingRedeemsWins(t *testing.T) {
	r := newRig(t)
	c := say("inv-0", "hi")
	id := r.ask(c)
	r.approve(id, c)
	client := r.checks()
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			in := redeem(id, c)
			in.RequestId = fmt.Sprintf("inv-%d", i)
			if _, err := client.Redeem(as(t.Context(), alice), in); err == nil {
				won.Add(1)
			} else if fault.ReasonOf(err) != fault.ApprovalRedeemed {
				t.Errorf("redeem: %v", err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Fatalf("%d redeems won", won.Load())
	}
}

func TestWhoMayDecide(t *testing.T) {
	r := newRig(t)
	input := `{"text":"hi"}`
	c := say("inv-1", "hi")
	c.InputJson = &input
	chained := alice
	chained.OnBehalfOf = []string{"human:dan"}
	answer, err := r.checks().Check(as(t.Context(), chained), c)
	if err != nil {
		t.Fatal(err)
	}
	id := answer.GetApprovalId()
	selfish := alice
	selfish.Scopes = []string{"approval.decide"}
	robot := identity.Caller{Tenant: "acme", Subject: "agent:robot", Scopes: []string{"approval.decide"}}
	stranger := carol
	stranger.Tenant = "other"
	for _, tc := range []struct {
		name   string
		caller identity.Caller
		reason fault.Reason
	}{
		{"the requester without the scope", alice, fault.ScopeMissing},
		{"the requester with the scope", selfish, fault.SelfApproval},
		{"whom the requester acts for", dan, fault.SelfApproval},
		{"an agent", robot, fault.NotAPerson},
		{"another tenant", stranger, fault.ApprovalNotFound},
	} {
		_, err := r.approvals(tc.caller).DecideApproval(t.Context(), decideAs(id, c, gatev1.Decision_DECISION_APPROVE, "d"))
		want(t, tc.name, err, tc.reason)
	}
	wrong := decideAs(id, c, gatev1.Decision_DECISION_APPROVE, "d")
	wrong.InputDigest = strings.Repeat("0", 64)
	_, err = r.approvals(carol).DecideApproval(t.Context(), wrong)
	want(t, "a wrong digest", err, fault.DigestMismatch)
	r.approve(id, c)
	_, err = r.approvals(carol).DecideApproval(t.Context(), decideAs(id, c, gatev1.Decision_DECISION_DENY, "d2"))
	want(t, "a second decision", err, fault.ApprovalDecided)
}

func TestWhatChangesBetweenApprovalAndRedeemIsRefused(t *testing.T) {
	r := newRig(t)
	c := say("inv-1", "hi")
	id := r.ask(c)
	r.approve(id, c)
	for field, change := range map[string]func(*gatev1.RedeemRequest){
		"operation":    func(in *gatev1.RedeemRequest) { in.Operation = "conversation/start" },
		"spec_digest":  func(in *gatev1.RedeemRequest) { in.SpecDigest = strings.Repeat("b", 64) },
		"input_digest": func(in *gatev1.RedeemRequest) { in.InputDigest = strings.Repeat("b", 64) },
	} {
		in := redeem(id, c)
		change(in)
		_, err := r.checks().Redeem(as(t.Context(), alice), in)
		want(t, field, err, fault.DigestMismatch)
	}
	bob := alice
	bob.Subject = "agent:bob"
	_, err := r.checks().Redeem(as(t.Context(), bob), redeem(id, c))
	want(t, "another caller", err, fault.ApprovalNotFound)

	if _, err := r.policies().DeleteGrant(t.Context(), &gatev1.DeleteGrantRequest{GrantId: "alice"}); err != nil {
		t.Fatal(err)
	}
	_, err = r.checks().Redeem(as(t.Context(), alice), redeem(id, c))
	want(t, "a grant that was taken away", err, fault.NotGranted)
}

func TestAPendingApprovalExpiresAtItsTimeAcrossRestartsAndFlushes(t *testing.T) {
	r := newRig(t)
	if err := r.gate.Stop(); err != nil {
		t.Fatal(err)
	}
	const ttl = 2 * time.Second
	r.gate = r.start(ttl)
	c := say("inv-1", "hi")
	asked := time.Now()
	id := r.ask(c)
	if err := r.gate.Stop(); err != nil {
		t.Fatal(err)
	}
	r.redis.Flush()
	r.gate = r.start(ttl)
	client := r.approvals(carol)
	meshtest.Eventually(t, "the approval expires", func() bool {
		found, err := client.GetApproval(t.Context(), &gatev1.GetApprovalRequest{ApprovalId: id})
		return err == nil && found.GetApproval().GetState() == gatev1.ApprovalState_APPROVAL_STATE_EXPIRED
	})
	if waited := time.Since(asked); waited < ttl {
		t.Fatalf("it expired after %v, its time was %v", waited, ttl)
	}
	_, err := client.DecideApproval(t.Context(), decideAs(id, c, gatev1.Decision_DECISION_APPROVE, "d"))
	want(t, "deciding what expired", err, fault.ApprovalExpired)
}

func TestListsShowOnlyWhatIsTheCallers(t *testing.T) {
	r := newRig(t)
	r.grant("bob", "agent:bob", "conversation/**")
	bob := alice
	bob.Subject = "agent:bob"
	mine := r.ask(say("inv-1", "mine"))
	answer, err := r.checks().Check(as(t.Context(), bob), say("inv-2", "his"))
	if err != nil {
		t.Fatal(err)
	}
	his := answer.GetApprovalId()
	list := func(c identity.Caller) []string {
		var ids []string
		meshtest.Eventually(t, "lists are complete", func() bool {
			page, err := r.approvals(c).ListApprovals(t.Context(), &gatev1.ListApprovalsRequest{State: gatev1.ApprovalState_APPROVAL_STATE_PENDING})
			ids = nil
			for _, a := range page.GetApprovals() {
				ids = append(ids, a.GetApprovalId())
			}
			return err == nil
		})
		return ids
	}
	if got := list(alice); fmt.Sprint(got) != fmt.Sprint([]string{mine}) {
		t.Errorf("alice sees %v", got)
	}
	if got := list(carol); fmt.Sprint(got) != fmt.Sprint([]string{his, mine}) {
		t.Errorf("the approver sees %v, want newest first", got)
	}
	_, err = r.approvals(alice).GetApproval(t.Context(), &gatev1.GetApprovalRequest{ApprovalId: his})
	want(t, "another's approval", err, fault.ApprovalNotFound)
}

func TestRefusalsOfACheck(t *testing.T) {
	r := newRig(t)
	r.grant("wide", "agent:alice", "admin/**", "conversation/**")
	confined := alice
	confined.Confined = true
	input := func(op string, effect registryv1.Effect) *gatev1.CheckRequest {
		c := say("inv-1", "hi")
		c.Operation, c.Effect = op, effect
		return c
	}
	own := input("conversation/say", registryv1.Effect_EFFECT_WRITE)
	own.ConversationId, own.TargetConversationId = "c1", "c1"
	unknownEffect := input("conversation/say", registryv1.Effect_EFFECT_UNSPECIFIED)
	for _, tc := range []struct {
		name    string
		caller  identity.Caller
		in      *gatev1.CheckRequest
		verdict gatev1.Verdict
		reason  string
	}{
		{"nothing granted", identity.Caller{Tenant: "acme", Subject: "agent:nobody"}, input("conversation/say", 1), gatev1.Verdict_VERDICT_DENY, policy.ReasonNotGranted},
		{"granted in another tenant", identity.Caller{Tenant: "other", Subject: "agent:alice"}, input("conversation/say", 1), gatev1.Verdict_VERDICT_DENY, policy.ReasonNotGranted},
		{"an agent and ADMIN", alice, input("admin/wipe", registryv1.Effect_EFFECT_ADMIN), gatev1.Verdict_VERDICT_DENY, policy.ReasonAgentAdmin},
		{"its own conversation", alice, own, gatev1.Verdict_VERDICT_DENY, policy.ReasonSelfTarget},
		{"confined and WRITE", confined, input("conversation/say", registryv1.Effect_EFFECT_WRITE), gatev1.Verdict_VERDICT_DENY, policy.ReasonConfined},
		{"READ", alice, input("conversation/read", registryv1.Effect_EFFECT_READ), gatev1.Verdict_VERDICT_ALLOW, policy.ReasonReadAllowed},
		{"an unknown effect is WRITE", alice, unknownEffect, gatev1.Verdict_VERDICT_ASK, policy.ReasonWriteAsks},
	} {
		answer, err := r.checks().Check(as(t.Context(), tc.caller), tc.in)
		if err != nil || answer.GetVerdict() != tc.verdict || answer.GetReason() != tc.reason {
			t.Errorf("%s: %v, %v; want %v %s", tc.name, answer, err, tc.verdict, tc.reason)
		}
	}
}

func TestBadInputMakesNoApproval(t *testing.T) {
	r := newRig(t)
	for name, input := range map[string]string{
		"no JSON": "{", "a duplicate key": `{"a":1,"a":2}`, "text behind": `{} {}`, "inexact": `9007199254740993`,
	} {
		c := say("inv-1", "x")
		c.InputJson = &input
		_, err := r.checks().Check(as(t.Context(), alice), c)
		want(t, name, err, fault.JSONInvalid)
	}
	hostile := say("inv-1", "x")
	hostile.Operation = "conversation/../say"
	_, err := r.checks().Check(as(t.Context(), alice), hostile)
	want(t, "a hostile operation", err, fault.FieldInvalid)
	meshtest.Eventually(t, "the list shows that nobody was asked", func() bool {
		page, err := r.approvals(carol).ListApprovals(t.Context(), &gatev1.ListApprovalsRequest{})
		return err == nil && len(page.GetApprovals()) == 0
	})
}

func TestAGrantThatCannotBeReadAllowsNothing(t *testing.T) {
	v := newBookView(nil, nil)
	if _, err := v.of("acme"); fault.ReasonOf(err) != fault.PolicyUnreadable {
		t.Fatalf("before it has caught up: %v", err)
	}
}

func TestEveryMethodHasARow(t *testing.T) {
	s := grpc.NewServer()
	gatev1.RegisterGateServiceServer(s, &gateServer{})
	gatev1.RegisterApprovalServiceServer(s, &approvalServer{})
	gatev1.RegisterPolicyServiceServer(s, &policyServer{})
	gatev1.RegisterAuditServiceServer(s, &audit.Server{})
	if missing := identity.Methods.Missing(s); len(missing) > 0 {
		t.Fatalf("no row for %v", missing)
	}
}

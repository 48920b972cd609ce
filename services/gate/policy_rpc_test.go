package gate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/meshtest"
)

func tenantPolicy(id string, rules ...*gatev1.Rule) *gatev1.Policy {
	return &gatev1.Policy{PolicyId: id, Layer: gatev1.Layer_LAYER_TENANT, Rules: rules}
}

func rule(id string, verdict gatev1.Verdict, operations ...string) *gatev1.Rule {
	return &gatev1.Rule{RuleId: id, Verdict: verdict, Operations: operations}
}

// allowing lets the operation run without asking.
func allowing(operations ...string) *gatev1.Rule {
	r := rule("allow", gatev1.Verdict_VERDICT_ALLOW, operations...)
	r.AllowWrites = true
	return r
}

func (r *rig) put(p *gatev1.Policy) *gatev1.Policy {
	r.t.Helper()
	out, err := r.policies().PutPolicy(r.t.Context(), &gatev1.PutPolicyRequest{Policy: p})
	if err != nil {
		r.t.Fatalf("put policy: %v", err)
	}
	return out.GetPolicy()
}

func (r *rig) check(c *gatev1.CheckRequest) *gatev1.CheckResponse {
	r.t.Helper()
	var answer *gatev1.CheckResponse
	meshtest.Eventually(r.t, "the gate answers a check", func() bool {
		var err error
		answer, err = r.checks().Check(as(r.t.Context(), alice), c)
		if reason := fault.ReasonOf(err); err != nil && reason != fault.IndexRebuilding {
			r.t.Fatalf("check: %v", err)
		}
		return err == nil
	})
	return answer
}

// A policy is in force, in every replica, when the gate has answered it or within
// a second, and a check says by which revision it was decided.
func TestAPolicyIsInForceInEveryReplicaWithinASecond(t *testing.T) {
	r := newRig(t)
	second := gatev1.NewGateServiceClient(r.issuer.Dial(r.start(0).Addr, registry))
	if got := r.check(say("inv-1", "hi")); got.GetVerdict() != gatev1.Verdict_VERDICT_ASK {
		t.Fatalf("before: %v", got)
	}
	fastest := time.Hour
	for i, verdict := range []gatev1.Verdict{gatev1.Verdict_VERDICT_DENY, gatev1.Verdict_VERDICT_ASK, gatev1.Verdict_VERDICT_DENY} {
		stored := r.put(tenantPolicy("base", rule("talk", verdict, "conversation/*")))
		put := time.Now()
		c := say(fmt.Sprintf("inv-x%d", i), "hi")
		if got := r.check(c); got.GetVerdict() != verdict || got.GetRule() != "base/talk" || got.GetPolicyRevision() != stored.GetRevision() {
			t.Fatalf("right after: %v, want %v by %d", got, verdict, stored.GetRevision())
		}
		meshtest.Eventually(t, "the other replica follows", func() bool {
			got, err := second.Check(as(t.Context(), alice), c)
			return err == nil && got.GetVerdict() == verdict && got.GetPolicyRevision() == stored.GetRevision()
		})
		fastest = min(fastest, time.Since(put))
	}
	// The machine may be busy with other tests, but not all three times.
	if fastest > time.Second {
		t.Errorf("the other replica took %v", fastest)
	}
}

func TestWhatIsPutIsKeptInAllItsRevisions(t *testing.T) {
	r := newRig(t)
	first := r.put(tenantPolicy("base", rule("a", gatev1.Verdict_VERDICT_DENY, "crm/*")))
	if again := r.put(tenantPolicy("base", rule("a", gatev1.Verdict_VERDICT_DENY, "crm/*"))); again.GetRevision() != first.GetRevision() {
		t.Errorf("putting the same again made revision %d of %d", again.GetRevision(), first.GetRevision())
	}
	second := r.put(tenantPolicy("base", rule("b", gatev1.Verdict_VERDICT_ASK, "crm/*")))
	if first.GetUpdater() != "human:ann" || second.GetRevision() <= first.GetRevision() {
		t.Errorf("revisions %v, %v", first, second)
	}
	stale := first.GetRevision()
	_, err := r.policies().PutPolicy(t.Context(), &gatev1.PutPolicyRequest{Policy: tenantPolicy("base"), ExpectedRevision: &stale})
	want(t, "putting over a revision that was replaced", err, fault.StateConflict)
	none := uint64(0)
	_, err = r.policies().PutPolicy(t.Context(), &gatev1.PutPolicyRequest{Policy: tenantPolicy("base"), ExpectedRevision: &none})
	want(t, "creating what exists", err, fault.StateConflict)

	for range 2 { // deleting twice is fine
		if _, err := r.policies().DeletePolicy(t.Context(), &gatev1.DeletePolicyRequest{PolicyId: "base"}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = r.policies().GetPolicy(t.Context(), &gatev1.GetPolicyRequest{PolicyId: "base"})
	want(t, "a deleted policy", err, fault.PolicyNotFound)
	old, err := r.policies().GetPolicy(t.Context(), &gatev1.GetPolicyRequest{PolicyId: "base", Revision: first.GetRevision()})
	if err != nil || !proto.Equal(old.GetPolicy(), first) {
		t.Errorf("the first revision: %v, %v", old, err)
	}
	var revisions []*gatev1.PolicyRevision
	token := ""
	for {
		page, err := r.policies().ListPolicyRevisions(t.Context(), &gatev1.ListPolicyRevisionsRequest{PolicyId: "base", PageSize: 1, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		revisions = append(revisions, page.GetRevisions()...)
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(revisions) != 3 || !revisions[0].GetDeleted() || revisions[1].GetRevision() != second.GetRevision() || revisions[2].GetRevision() != first.GetRevision() {
		t.Errorf("revisions %v", revisions)
	}
	verified, err := r.policies().VerifyPolicy(t.Context(), &gatev1.VerifyPolicyRequest{Subject: &gatev1.VerifyPolicyRequest_PolicyId{PolicyId: "base"}})
	if err != nil || verified.GetVerified() != 2 {
		t.Errorf("verifying all: %v, %v", verified, err)
	}
}

func TestAPolicyThatWouldOpenAWriteIsRefusedAndChangesNothing(t *testing.T) {
	r := newRig(t)
	r.put(tenantPolicy("base", rule("no", gatev1.Verdict_VERDICT_DENY, "crm/delete")))
	_, err := r.policies().PutPolicy(t.Context(), &gatev1.PutPolicyRequest{
		Policy: tenantPolicy("base", rule("wide", gatev1.Verdict_VERDICT_ALLOW, "conversation/**")),
	})
	want(t, "an ALLOW by a pattern", err, fault.PolicyUnsafe)
	violations := fault.From(err).Violations()
	if len(violations) != 1 || !strings.Contains(violations[0].Field, "wide") || !strings.Contains(violations[0].Description, "conversation/") {
		t.Errorf("the refusal names no rule and operation: %+v", violations)
	}
	if got := r.check(say("inv-1", "hi")); got.GetVerdict() != gatev1.Verdict_VERDICT_ASK {
		t.Errorf("after it: %v", got)
	}
	found, err := r.policies().GetPolicy(t.Context(), &gatev1.GetPolicyRequest{PolicyId: "base"})
	if err != nil || found.GetPolicy().GetRules()[0].GetRuleId() != "no" {
		t.Errorf("the stored one: %v, %v", found, err)
	}
}

func TestADryRunSaysWhyAtAnyRevision(t *testing.T) {
	r := newRig(t)
	first := r.put(tenantPolicy("base", rule("never", gatev1.Verdict_VERDICT_DENY, "conversation/say")))
	ask := rule("big", gatev1.Verdict_VERDICT_ASK, "conversation/*")
	ask.When, ask.Description = "input.amount > 10", "big ones"
	r.put(tenantPolicy("base", ask, rule("reads", gatev1.Verdict_VERDICT_ASK, "conversation/read")))
	input := `{"amount": 11}`
	run := &gatev1.DryRun{Caller: &gatev1.Caller{Subject: "agent:alice"}, Operation: "conversation/say", Effect: registryv1.Effect_EFFECT_WRITE, InputJson: &input}
	now, err := r.policies().ExplainCheck(t.Context(), &gatev1.ExplainCheckRequest{Check: run})
	if err != nil || now.GetVerdict() != gatev1.Verdict_VERDICT_ASK || now.GetRule() != "base/big" || len(now.GetMatches()) != 1 ||
		now.GetMatches()[0].GetPredicate() != gatev1.Predicate_PREDICATE_TRUE || now.GetGrantIds()[0] != "alice" {
		t.Fatalf("now: %v, %v", now, err)
	}
	var then *gatev1.ExplainCheckResponse
	meshtest.Eventually(t, "lists are complete", func() bool {
		then, err = r.policies().ExplainCheck(t.Context(), &gatev1.ExplainCheckRequest{Check: run, Revision: first.GetRevision()})
		return fault.ReasonOf(err) != fault.IndexRebuilding
	})
	if err != nil || then.GetVerdict() != gatev1.Verdict_VERDICT_DENY || then.GetRule() != "base/never" || then.GetPolicyRevision() != first.GetRevision() {
		t.Fatalf("at the first revision: %v, %v", then, err)
	}
	before, err := r.policies().ExplainCheck(t.Context(), &gatev1.ExplainCheckRequest{Check: run, Revision: 1})
	if err != nil || before.GetVerdict() == gatev1.Verdict_VERDICT_DENY && before.GetReason() == "RULE" {
		t.Fatalf("before any policy: %v, %v", before, err)
	}
	_, err = r.policies().ExplainCheck(t.Context(), &gatev1.ExplainCheckRequest{Check: run, Revision: 1 << 40})
	want(t, "a revision to come", err, fault.FieldInvalid)

	page, err := r.approvals(carol).ListApprovals(t.Context(), &gatev1.ListApprovalsRequest{})
	if err != nil || len(page.GetApprovals()) > 0 {
		t.Errorf("a dry run asked somebody: %v, %v", page, err)
	}
	tested, err := r.policies().TestPolicy(t.Context(), &gatev1.TestPolicyRequest{
		Policies: []*gatev1.Policy{tenantPolicy("base")},
		Cases: []*gatev1.Case{
			{Name: "without rules it asks", Check: run, Verdict: gatev1.Verdict_VERDICT_ASK, Reason: "WRITE_ASKS"},
			{Name: "and does not deny", Check: run, Verdict: gatev1.Verdict_VERDICT_DENY},
		},
	})
	if err != nil || tested.GetPassed() != 1 || tested.GetFailed() != 1 || !tested.GetResults()[0].GetPassed() {
		t.Errorf("tested: %v, %v", tested, err)
	}
}

// What an administrator, or those for whom they act, may themselves do is for
// others to say.
func TestNobodyChangesTheirOwnRights(t *testing.T) {
	r := newRig(t)
	r.grant("boss", "human:boss", "conversation/*")
	assistant := identity.Caller{Tenant: "acme", Subject: "service:helper", OnBehalfOf: []string{"human:boss"}, Scopes: []string{"policy.admin"}}
	client := gatev1.NewPolicyServiceClient(r.dial(assistant))
	for name, call := range map[string]func() error{
		"a grant to itself": func() error {
			_, err := client.PutGrant(t.Context(), &gatev1.PutGrantRequest{Grant: &gatev1.Grant{GrantId: "g", Subject: "service:helper", Operations: []string{"a/*"}}})
			return err
		},
		"a grant to whom it acts for": func() error {
			_, err := client.PutGrant(t.Context(), &gatev1.PutGrantRequest{Grant: &gatev1.Grant{GrantId: "g", Subject: "human:boss", Operations: []string{"a/*"}}})
			return err
		},
		"taking over their grant": func() error {
			_, err := client.PutGrant(t.Context(), &gatev1.PutGrantRequest{Grant: &gatev1.Grant{GrantId: "boss", Subject: "agent:x", Operations: []string{"a/*"}}})
			return err
		},
		"deleting it": func() error {
			_, err := client.DeleteGrant(t.Context(), &gatev1.DeleteGrantRequest{GrantId: "boss"})
			return err
		},
	} {
		want(t, name, call(), fault.SelfTarget)
	}
	for _, c := range []identity.Caller{
		{Tenant: "acme", Subject: "agent:helper", Scopes: []string{"policy.admin"}},
		{Tenant: "acme", Subject: "service:helper", OnBehalfOf: []string{"agent:helper"}, Scopes: []string{"policy.admin"}},
	} {
		client := gatev1.NewPolicyServiceClient(r.dial(c))
		_, err := client.PutGrant(t.Context(), &gatev1.PutGrantRequest{Grant: &gatev1.Grant{GrantId: "g", Subject: "agent:x", Operations: []string{"a/*"}}})
		want(t, "a grant by an agent", err, fault.AgentAdmin)
		_, err = client.PutPolicy(t.Context(), &gatev1.PutPolicyRequest{Policy: tenantPolicy("p")})
		want(t, "a policy by an agent", err, fault.AgentAdmin)
	}
}

func TestAPatternThatMatchesNothingKnownIsReported(t *testing.T) {
	r := newRig(t)
	_, err := r.checks().AnnounceOperations(t.Context(), &gatev1.AnnounceOperationsRequest{
		Digest: strings.Repeat("a", 64), Operations: []string{"conversation/say", "conversation/read"},
	})
	if err != nil {
		t.Fatal(err)
	}
	put, err := r.policies().PutGrant(t.Context(), &gatev1.PutGrantRequest{
		Grant: &gatev1.Grant{GrantId: "g", Subject: "agent:x", Operations: []string{"conversation/*", "conversaton/say"}},
	})
	if err != nil || !slices.Equal(put.GetUnmatchedOperations(), []string{"conversaton/say"}) {
		t.Errorf("a typo in a grant: %v, %v", put, err)
	}
	stored, err := r.policies().PutPolicy(t.Context(), &gatev1.PutPolicyRequest{Policy: tenantPolicy("p", rule("r", gatev1.Verdict_VERDICT_DENY, "conversation/sya"))})
	if err != nil || len(stored.GetFindings()) != 1 || stored.GetFindings()[0].GetKind() != gatev1.FindingKind_FINDING_KIND_UNKNOWN_OPERATION {
		t.Errorf("a typo in a rule: %v, %v", stored, err)
	}
}

// Denies and confinement pass to those who act on behalf of somebody.
func TestDeniesAndConfinementPassToDescendants(t *testing.T) {
	r := newRig(t)
	r.put(&gatev1.Policy{
		PolicyId: "parent", Layer: gatev1.Layer_LAYER_AGENT, Target: "agent:parent", Confined: true,
		Rules: []*gatev1.Rule{rule("no", gatev1.Verdict_VERDICT_DENY, "conversation/read")},
	})
	child := alice
	child.OnBehalfOf = []string{"agent:parent", "human:boss"}
	read := say("inv-1", "x")
	read.Operation, read.Effect = "conversation/read", registryv1.Effect_EFFECT_READ
	for _, tc := range []struct {
		in     *gatev1.CheckRequest
		reason string
	}{{say("inv-2", "x"), "CONFINED"}, {read, "RULE"}} {
		got, err := r.checks().Check(as(t.Context(), child), tc.in)
		if err != nil || got.GetVerdict() != gatev1.Verdict_VERDICT_DENY || got.GetReason() != tc.reason {
			t.Errorf("the child: %v, %v; want DENY %s", got, err, tc.reason)
		}
	}
	if got := r.check(say("inv-3", "x")); got.GetVerdict() != gatev1.Verdict_VERDICT_ASK {
		t.Errorf("somebody else: %v", got)
	}
}

func TestABatchAnswersEachCheckByItself(t *testing.T) {
	r := newRig(t)
	own := say("inv-own", "x")
	own.ConversationId, own.TargetConversationId = "c1", "c1"
	broken := say("inv-broken", "x")
	text := "{"
	broken.InputJson = &text
	ungranted := say("inv-none", "x")
	ungranted.Operation = "crm/delete"
	out, err := r.checks().CheckBatch(as(t.Context(), alice), &gatev1.CheckBatchRequest{Checks: []*gatev1.CheckRequest{say("inv-1", "a"), own, broken, ungranted, say("inv-2", "a")}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, result := range out.GetResults() {
		got = append(got, result.GetAnswer().GetReason()+result.GetFailure().GetReason())
	}
	if fmt.Sprint(got) != "[WRITE_ASKS SELF_TARGET JSON_INVALID NOT_GRANTED WRITE_ASKS]" {
		t.Errorf("answered %v", got)
	}
	if a, b := out.GetResults()[0].GetAnswer().GetApprovalId(), out.GetResults()[4].GetAnswer().GetApprovalId(); a != b {
		t.Errorf("one request, two approvals: %s, %s", a, b)
	}
}

func TestAllowedWritesRunWithinBudgetsAcrossReplicasAndFlushes(t *testing.T) {
	r := newRig(t)
	second := gatev1.NewGateServiceClient(r.issuer.Dial(r.start(0).Addr, registry))
	allow := allowing("conversation/say")
	allow.Budget = &gatev1.Window{Limit: 3, Period: durationpb.New(time.Hour)}
	r.put(tenantPolicy("base", allow))
	clients := []gatev1.GateServiceClient{r.checks(), second}
	ask := func(i int) (*gatev1.CheckResponse, error) {
		var answer *gatev1.CheckResponse
		var err error
		meshtest.Eventually(t, "budgets can be counted and the policy is there", func() bool {
			answer, err = clients[i%2].Check(as(t.Context(), alice), say(fmt.Sprintf("inv-%d", i), "hi"))
			return fault.ReasonOf(err) != fault.IndexRebuilding && (err != nil || answer.GetVerdict() == gatev1.Verdict_VERDICT_ALLOW)
		})
		return answer, err
	}
	for i := range 3 {
		for range 2 { // a retry is counted once
			if _, err := ask(i); err != nil {
				t.Fatalf("write %d: %v", i, err)
			}
		}
	}
	_, err := ask(3)
	want(t, "one too many", err, fault.RateLimited)
	if after := fault.From(err).RetryAfter(); after <= 0 || after > time.Hour {
		t.Errorf("to be tried again after %v", after)
	}
	r.redis.Flush()
	_, err = ask(4)
	want(t, "one too many after a flush", err, fault.RateLimited)
	if _, err := ask(0); err != nil {
		t.Errorf("a retry of one that was allowed: %v", err)
	}
}

func as2(ctx context.Context, session string) context.Context {
	c := alice
	c.Session = session
	return as(ctx, c)
}

func TestATrustAllowsExactlyWhatItCoversUntilItIsRevoked(t *testing.T) {
	r := newRig(t)
	c := say("inv-1", "hi")
	id := r.ask(c)
	in := decideAs(id, c, gatev1.Decision_DECISION_APPROVE, "d1")
	in.Remember = &gatev1.Remember{Scope: gatev1.RememberScope_REMEMBER_SCOPE_INPUT, Ttl: durationpb.New(time.Hour)}
	decided, err := r.approvals(carol).DecideApproval(t.Context(), in)
	if err != nil || decided.GetApproval().GetTrustId() == "" {
		t.Fatalf("decide: %v, %v", decided, err)
	}
	trust := decided.GetApproval().GetTrustId()
	// Over a restart and a flush.
	if err := r.gate.Stop(); err != nil {
		t.Fatal(err)
	}
	r.redis.Flush()
	r.gate = r.start(0)
	if got := r.check(say("inv-2", "hi")); got.GetVerdict() != gatev1.Verdict_VERDICT_ALLOW || got.GetReason() != "TRUSTED" || got.GetTrustId() != trust {
		t.Fatalf("the same again: %v", got)
	}
	spec := say("inv-3", "hi")
	spec.SpecDigest = strings.Repeat("b", 64)
	for name, tc := range map[string]struct {
		ctx context.Context
		in  *gatev1.CheckRequest
	}{
		"another input":   {as(t.Context(), alice), say("inv-4", "ho")},
		"a star":          {as(t.Context(), alice), say("inv-5", "*")},
		"another session": {as2(t.Context(), "s-2"), say("inv-6", "hi")},
		"another spec":    {as(t.Context(), alice), spec},
	} {
		if got, err := r.checks().Check(tc.ctx, tc.in); err != nil || got.GetVerdict() != gatev1.Verdict_VERDICT_ASK {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	child := alice
	child.Subject, child.OnBehalfOf = "agent:child", []string{"agent:alice"}
	r.grant("child", "agent:child", "conversation/*")
	if got, err := r.checks().Check(as(t.Context(), child), say("inv-7", "hi")); err != nil || got.GetVerdict() != gatev1.Verdict_VERDICT_ASK {
		t.Errorf("a descendant: %v, %v; a trust passes to nobody", got, err)
	}
	others := alice
	others.OnBehalfOf = []string{"human:carol"}
	if got, err := r.checks().Check(as(t.Context(), others), say("inv-9", "hi")); err != nil || got.GetVerdict() != gatev1.Verdict_VERDICT_ASK {
		t.Errorf("on behalf of who approved it: %v, %v", got, err)
	}
	held, err := r.approvals(alice).ListTrusts(t.Context(), &gatev1.ListTrustsRequest{})
	if err != nil || len(held.GetTrusts()) != 1 || !strings.Contains(held.GetTrusts()[0].GetLabel(), "agent:alice on behalf of human:boss may run conversation/say") {
		t.Errorf("held: %v, %v", held, err)
	}
	for range 2 {
		if _, err := r.approvals(carol).RevokeTrust(t.Context(), &gatev1.RevokeTrustRequest{TrustId: trust, Note: "enough"}); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.check(say("inv-8", "hi")); got.GetVerdict() != gatev1.Verdict_VERDICT_ASK {
		t.Errorf("after it was revoked: %v", got)
	}
}

package gate

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

var (
	fay = identity.Caller{Tenant: "acme", Subject: "human:fay", Scopes: []string{"approval.decide", "approval.decide.finance"}}
	sam = identity.Caller{Tenant: "acme", Subject: "human:sam", Scopes: []string{"approval.decide", "approval.decide.security"}}
)

// two groups must agree.
func bothGroups() *gatev1.Rule {
	r := rule("both", gatev1.Verdict_VERDICT_ASK, "conversation/say")
	r.Description = "what is said costs money"
	r.Terms = &gatev1.Terms{Approvers: []*gatev1.Approver{{Scope: "approval.decide.finance"}, {Scope: "approval.decide.security", Count: 1}}, Ttl: durationpb.New(time.Minute)}
	return r
}

func TestAQuorumOfTwoGroupsOverARestart(t *testing.T) {
	r := newRig(t)
	r.put(tenantPolicy("base", bothGroups()))
	c := say("inv-1", "hi")
	id := r.ask(c)
	first, err := r.approvals(fay).DecideApproval(t.Context(), decideAs(id, c, gatev1.Decision_DECISION_APPROVE, "d1"))
	if err != nil || first.GetApproval().GetState() != gatev1.ApprovalState_APPROVAL_STATE_PENDING || len(first.GetApproval().GetMissing()) != 1 {
		t.Fatalf("one of two: %v, %v", first, err)
	}
	_, err = r.approvals(carol).DecideApproval(t.Context(), decideAs(id, c, gatev1.Decision_DECISION_APPROVE, "d2"))
	want(t, "somebody of neither group", err, fault.ApproverScopeMissing)
	_, err = r.checks().Redeem(as(t.Context(), alice), redeem(id, c))
	want(t, "redeeming with one of two", err, fault.ApprovalPending)
	if err := r.gate.Stop(); err != nil {
		t.Fatal(err)
	}
	r.redis.Flush()
	r.gate = r.start(0)
	second, err := r.approvals(sam).DecideApproval(t.Context(), decideAs(id, c, gatev1.Decision_DECISION_APPROVE, "d3"))
	if err != nil || second.GetApproval().GetState() != gatev1.ApprovalState_APPROVAL_STATE_APPROVED {
		t.Fatalf("two of two: %v, %v", second, err)
	}
	if _, err := r.checks().Redeem(as(t.Context(), alice), redeem(id, c)); err != nil {
		t.Fatalf("redeem: %v", err)
	}
}

func TestRacingApproversOfAQuorumMakeOneApproval(t *testing.T) {
	r := newRig(t)
	r.put(tenantPolicy("base", bothGroups()))
	c := say("inv-1", "hi")
	id := r.ask(c)
	done := make(chan error, 2)
	for i, who := range []identity.Caller{fay, sam} {
		client := r.approvals(who)
		go func() {
			_, err := client.DecideApproval(t.Context(), decideAs(id, c, gatev1.Decision_DECISION_APPROVE, fmt.Sprint("d", i)))
			done <- err
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Errorf("decide: %v", err)
		}
	}
	found, err := r.approvals(carol).GetApproval(t.Context(), &gatev1.GetApprovalRequest{ApprovalId: id})
	if err != nil || found.GetApproval().GetState() != gatev1.ApprovalState_APPROVAL_STATE_APPROVED || len(found.GetApproval().GetVotes()) != 2 {
		t.Errorf("after both: %v, %v", found, err)
	}
}

// What was approved on old terms is asked for again on the new ones.
func TestStricterTermsSupersedeWhatIsOpenAndWhatIsApproved(t *testing.T) {
	r := newRig(t)
	pending := say("inv-p", "pending")
	pendingID := r.ask(pending)
	ready := say("inv-a", "approved")
	readyID := r.ask(ready)
	r.approve(readyID, ready)
	r.put(tenantPolicy("base", bothGroups()))

	_, err := r.checks().Redeem(as(t.Context(), alice), redeem(readyID, ready))
	want(t, "redeeming what too few approved", err, fault.ApprovalSuperseded)
	if next := r.ask(ready); next == readyID {
		t.Error("a superseded approval serves again")
	}
	next := r.ask(pending)
	if next == pendingID {
		t.Fatal("the pending one is still asked on the old terms")
	}
	found, err := r.approvals(carol).GetApproval(t.Context(), &gatev1.GetApprovalRequest{ApprovalId: pendingID})
	if err != nil || found.GetApproval().GetState() != gatev1.ApprovalState_APPROVAL_STATE_SUPERSEDED || found.GetApproval().GetSupersededBy() != next {
		t.Errorf("the old one: %v, %v", found, err)
	}
	_, err = r.approvals(carol).DecideApproval(t.Context(), decideAs(pendingID, pending, gatev1.Decision_DECISION_APPROVE, "d"))
	want(t, "deciding the old id", err, fault.ApprovalSuperseded)
}

func TestADenialThatCameInForceStopsWhatWasApproved(t *testing.T) {
	r := newRig(t)
	c := say("inv-1", "hi")
	id := r.ask(c)
	r.approve(id, c)
	r.put(tenantPolicy("stop", rule("all", gatev1.Verdict_VERDICT_DENY, "conversation/**")))
	_, err := r.checks().Redeem(as(t.Context(), alice), redeem(id, c))
	want(t, "redeem", err, fault.PolicyDenied)
	if _, err := r.policies().DeletePolicy(t.Context(), &gatev1.DeletePolicyRequest{PolicyId: "stop"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.checks().Redeem(as(t.Context(), alice), redeem(id, c)); err != nil {
		t.Errorf("once it is gone: %v", err)
	}
}

func TestAnAmendmentIsCheckedLikeANewRequest(t *testing.T) {
	r := newRig(t)
	big := bothGroups()
	big.RuleId, big.When = "big", "input.amount > 100"
	never := rule("never", gatev1.Verdict_VERDICT_DENY, "conversation/say")
	never.When = "input.amount > 1000"
	r.put(tenantPolicy("base", big, never))
	input := `{"amount":50}`
	c := say("inv-1", "hi")
	c.InputJson = &input
	c.InputSchema = `{"type":"object","additionalProperties":false,"properties":{"amount":{"type":"number"},"to":{"type":"string"}}}`
	id := r.ask(c)
	amend := func(request, text string) (*gatev1.DecideApprovalResponse, error) {
		in := decideAs(id, c, gatev1.Decision_DECISION_APPROVE, request)
		in.AmendedInputJson = &text
		return r.approvals(carol).DecideApproval(t.Context(), in)
	}
	for text, reason := range map[string]fault.Reason{
		`{"amount":`:                    fault.JSONInvalid,
		`{"amount":1,"amount":2}`:       fault.JSONInvalid,
		`{"amount":"much"}`:             fault.SchemaMismatch,
		`{"amount":1,"other":true}`:     fault.SchemaMismatch,
		`{"amount":500}`:                fault.AmendmentRefused, // would need both groups
		`{"amount":5000}`:               fault.AmendmentRefused, // is denied
		`{"to":"AKIAABCDEFGHIJKLMNOP"}`: fault.AmendmentRefused, // a credential
	} {
		_, err := amend("x", text)
		want(t, text, err, reason)
	}
	decided, err := amend("yes", `{ "amount": 25.0 }`)
	if err != nil || decided.GetApproval().GetState() != gatev1.ApprovalState_APPROVAL_STATE_APPROVED {
		t.Fatalf("a smaller amount: %v, %v", decided, err)
	}
	if decided.GetApproval().GetInputJson() != `{"amount":25}` || decided.GetApproval().GetInputDigest() == c.GetInputDigest() {
		t.Errorf("the approval is for %v", decided.GetApproval())
	}
	out, err := r.checks().Redeem(as(t.Context(), alice), redeem(id, c))
	if err != nil || out.GetAmendedInputJson() != `{"amount":25}` || out.GetAmendedInputDigest() != decided.GetApproval().GetInputDigest() {
		t.Errorf("redeemed: %v, %v", out, err)
	}
}

func TestAnApproverSeesWhatIsNeededAndNoCredential(t *testing.T) {
	r := newRig(t)
	r.put(tenantPolicy("base", bothGroups()))
	input := "{\"text\":\"pay\u202e\",\"password\":\"hunter2hunter2\"}"
	c := say("inv-1", "hi")
	c.InputJson = &input
	id := r.ask(c)
	found, err := r.approvals(carol).GetApproval(t.Context(), &gatev1.GetApprovalRequest{ApprovalId: id})
	if err != nil {
		t.Fatal(err)
	}
	a := found.GetApproval()
	if strings.Contains(a.String(), "hunter2") || !strings.Contains(a.GetInputJson(), `\u202e`) {
		t.Errorf("shown is %s", a.GetInputJson())
	}
	if a.GetRules()[0] != "base/both" || a.GetWhy()[0] != "what is said costs money" || len(a.GetMissing()) != 2 || a.GetPolicyRevision() == 0 {
		t.Errorf("why and who: %v", a)
	}
	kinds := map[gatev1.FlagKind]bool{}
	for _, f := range a.GetFlags() {
		kinds[f.GetKind()] = true
	}
	if !kinds[gatev1.FlagKind_FLAG_KIND_CREDENTIAL] || !kinds[gatev1.FlagKind_FLAG_KIND_FIRST_USE] {
		t.Errorf("flags: %v", a.GetFlags())
	}
}

func TestDecidingABatchAnswersEachByItself(t *testing.T) {
	r := newRig(t)
	one, two := say("inv-1", "one"), say("inv-2", "two")
	idOne, idTwo := r.ask(one), r.ask(two)
	wrong := decideAs(idTwo, one, gatev1.Decision_DECISION_APPROVE, "d2")
	out, err := r.approvals(carol).DecideApprovals(t.Context(), &gatev1.DecideApprovalsRequest{Decisions: []*gatev1.DecideApprovalRequest{
		decideAs(idOne, one, gatev1.Decision_DECISION_APPROVE, "d1"), wrong, decideAs(idTwo, two, gatev1.Decision_DECISION_DENY, "d3"), decideAs("none", two, gatev1.Decision_DECISION_DENY, "d4"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, result := range out.GetResults() {
		got = append(got, strings.TrimPrefix(result.GetApproval().GetState().String(), "APPROVAL_STATE_")+" "+result.GetFailure().GetReason())
	}
	if fmt.Sprint(got) != "[APPROVED  UNSPECIFIED DIGEST_MISMATCH DENIED  UNSPECIFIED APPROVAL_NOT_FOUND]" {
		t.Errorf("answered %q", got)
	}
}

// watcher reads changes until it is told to stop.
func changes(t *testing.T, stream gatev1.ApprovalService_WatchApprovalsClient, want int) (seen []string, token string) {
	t.Helper()
	for len(seen) < want {
		change, err := stream.Recv()
		if err != nil {
			t.Fatalf("after %v: %v", seen, err)
		}
		token = change.GetResumeToken()
		if change.GetChange() != "" {
			seen = append(seen, change.GetChange()+" "+change.GetApproval().GetApprovalId())
		}
	}
	return seen, token
}

func TestAWatchGivesEveryChangeFromItsTokenOnThroughARestart(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := r.approvals(carol).WatchApprovals(ctx, &gatev1.WatchApprovalsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	opened, err := stream.Recv()
	if err != nil || opened.GetResumeToken() == "" || opened.GetChange() != "" {
		t.Fatalf("the first answer: %v, %v", opened, err)
	}
	first := say("inv-1", "one")
	id := r.ask(first)
	seen, token := changes(t, stream, 1)
	if seen[0] != "ApprovalRequested "+id {
		t.Fatalf("seen %v", seen)
	}
	// The replica goes away; things happen; another one comes.
	if err := r.gate.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err == nil || err == io.EOF {
		t.Errorf("the watch of a gate that stopped ended with %v", err)
	}
	r.redis.Flush()
	r.gate = r.start(0)
	r.approve(id, first)
	second := r.ask(say("inv-2", "two"))
	if _, err := r.checks().Redeem(as(t.Context(), alice), redeem(id, first)); err != nil {
		t.Fatal(err)
	}
	want := []string{"ApprovalDecided " + id, "ApprovalRequested " + second, "ApprovalRedeemed " + id}
	for _, from := range []string{token, token} { // as often as one likes
		stream, err := r.approvals(carol).WatchApprovals(ctx, &gatev1.WatchApprovalsRequest{ResumeToken: from})
		if err != nil {
			t.Fatal(err)
		}
		if seen, _ := changes(t, stream, 3); fmt.Sprint(seen) != fmt.Sprint(want) {
			t.Errorf("seen %v, want %v", seen, want)
		}
	}

	// Others see what is theirs.
	bob := alice
	bob.Subject = "agent:bob"
	r.grant("bob", "agent:bob", "conversation/*")
	his, err := r.approvals(bob).WatchApprovals(ctx, &gatev1.WatchApprovalsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := his.Recv(); err != nil {
		t.Fatal(err)
	}
	r.ask(say("inv-3", "of alice"))
	answer, err := r.checks().Check(as(t.Context(), bob), say("inv-4", "of bob"))
	if err != nil {
		t.Fatal(err)
	}
	if seen, _ := changes(t, his, 1); seen[0] != "ApprovalRequested "+answer.GetApprovalId() {
		t.Errorf("bob saw %v", seen)
	}
}

func TestResumeTokensThatWereNeverGiven(t *testing.T) {
	r := newRig(t)
	elsewhere := journal.SealToken("other", 1)
	for name, token := range map[string]string{
		"no token": "x", "another tenant's": elsewhere, "beyond the end": journal.SealToken("acme", 1<<40), "not base64": "%%%",
	} {
		stream, err := r.approvals(carol).WatchApprovals(t.Context(), &gatev1.WatchApprovalsRequest{ResumeToken: token})
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		want(t, name, err, fault.CursorUnavailable)
	}
}

// A redeem at the very moment of expiry is decided by the one clock that both
// see: it is used or it expires, never both.
func TestARedeemAtTheMomentOfExpiryIsOneOrTheOther(t *testing.T) {
	r := newRig(t)
	ask := rule("quick", gatev1.Verdict_VERDICT_ASK, "conversation/say")
	ask.Terms = &gatev1.Terms{Ttl: durationpb.New(time.Second), OnTimeout: gatev1.OnTimeout_ON_TIMEOUT_DENY}
	r.put(tenantPolicy("base", ask))
	client := r.checks()
	for i := range 3 {
		c := say(fmt.Sprintf("inv-%d", i), fmt.Sprint(i))
		id := r.ask(c)
		r.approve(id, c)
		found, err := r.approvals(carol).GetApproval(t.Context(), &gatev1.GetApprovalRequest{ApprovalId: id})
		if err != nil {
			t.Fatal(err)
		}
		deadline := found.GetApproval().GetExpireTime().AsTime()
		var redeemed bool
		meshtest.Eventually(t, "the deadline comes", func() bool { return time.Until(deadline) < 2*time.Millisecond })
		_, err = client.Redeem(as(t.Context(), alice), redeem(id, c))
		switch fault.ReasonOf(err) {
		case fault.ApprovalExpired:
		default:
			if err != nil {
				t.Fatalf("redeem: %v", err)
			}
			redeemed = true
		}
		meshtest.Eventually(t, "it is over", func() bool {
			found, err = r.approvals(carol).GetApproval(t.Context(), &gatev1.GetApprovalRequest{ApprovalId: id})
			state := found.GetApproval().GetState()
			return err == nil && (state == gatev1.ApprovalState_APPROVAL_STATE_REDEEMED || state == gatev1.ApprovalState_APPROVAL_STATE_EXPIRED)
		})
		if got := found.GetApproval().GetState() == gatev1.ApprovalState_APPROVAL_STATE_REDEEMED; got != redeemed {
			t.Errorf("redeemed says %v, the approval is %v", redeemed, found.GetApproval().GetState())
		}
	}
}

// Rules look at the input itself when it is used, not at the mask that people saw.
func TestAnInputWithACredentialIsUsedOnTheTermsItWasAskedOn(t *testing.T) {
	r := newRig(t)
	plain := bothGroups()
	plain.RuleId, plain.When = "plain", `!input.url.startsWith("https://")`
	r.put(tenantPolicy("base", plain))
	input := `{"url":"https://me:secret@example.com/"}`
	c := say("inv-1", "hi")
	c.InputJson = &input
	id := r.ask(c)
	r.approve(id, c)
	in := redeem(id, c)
	in.InputJson = &input
	if _, err := r.checks().Redeem(as(t.Context(), alice), in); err != nil {
		t.Errorf("redeem: %v", err)
	}
	// Another input under the same mask changes nothing: it is the digest that binds.
	c2 := say("inv-2", "hi")
	other := `{"url":"http://me:secret@example.com/"}`
	c2.InputJson, c2.InputDigest = &other, c.InputDigest
	if _, err := r.checks().Redeem(as(t.Context(), alice), redeem(id, c2)); fault.ReasonOf(err) != fault.ApprovalRedeemed {
		t.Errorf("another request: %v", err)
	}
}

// What an agent asks with large inputs does not close the approvers' list: the
// largest page of them can be sent.
func TestAPageOfLargeInputsCanBeSent(t *testing.T) {
	large := strings.Repeat("x", 512<<10)
	a := askedOn(both).approval
	a.Input, a.Asked = &large, &askedInput{Input: &large}
	listed := approvalInList(a)
	if !listed.GetInputOmitted() || 1000*proto.Size(listed) > 8<<20 {
		t.Errorf("in a list it has %d bytes", proto.Size(listed))
	}
	if whole := approvalToProto(a); whole.GetInputJson() != large || whole.GetInputOmitted() {
		t.Error("by itself it is not whole")
	}
	small := `{"a":1}`
	a.Input, a.Asked = &small, nil
	if listed := approvalInList(a); listed.GetInputOmitted() || listed.GetInputJson() != small {
		t.Errorf("a small one is listed as %v", listed)
	}
}

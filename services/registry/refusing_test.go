package registry

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/fault"
	"weir/internal/meshtest"
	"weir/internal/schema"
)

// read invokes conversation/read, a query.
func read(id string) *registryv1.InvokeRequest {
	return &registryv1.InvokeRequest{
		InvocationId: id, Operation: "conversation/read", InputJson: proto.String(`{"conversation_id":"c1"}`),
	}
}

func TestAnInvocationWhoseApprovalIsSupersededAwaitsTheNewOne(t *testing.T) {
	r := newRig(t)
	r.invoke(say("inv-1", "hi"))
	r.gate.supersede("inv-1")
	meshtest.Eventually(t, "it awaits the new approval", func() bool {
		got := r.get("inv-1")
		return got.GetState() == awaiting && got.GetApprovalId() == "approval-inv-1-2"
	})
	r.gate.supersede("inv-1")
	meshtest.Eventually(t, "it awaits the third", func() bool { return r.get("inv-1").GetApprovalId() == "approval-inv-1-3" })
	if r.gate.checks != 3 || r.target.calls != 0 {
		t.Fatalf("the gate was asked %d times, and the target called %d times", r.gate.checks, r.target.calls)
	}
	r.gate.decide("inv-1", "")
	r.gate.announce("inv-1") // and once more
	r.waitState("inv-1", succeeded)
	if got := r.target.messages(); len(got) != 1 || r.target.calls != 1 {
		t.Fatalf("done %v in %d calls, want one of each", got, r.target.calls)
	}
}

func TestAnInvocationWhoseApprovalIsSupersededWhileItIsPendingAwaitsTheNewOne(t *testing.T) {
	r := newRig(t)
	r.invoke(say("inv-1", "hi"))
	r.gate.steer(func() {
		r.gate.states["approval-inv-1"] = fault.ApprovalSuperseded
		r.gate.rounds["inv-1"]++
	})
	r.gate.append("approval-inv-1", &gatev1.Event{Event: &gatev1.Event_ApprovalSuperseded{
		ApprovalSuperseded: &gatev1.ApprovalSuperseded{ApprovalId: "approval-inv-1", RequestId: "inv-1"},
	}})
	meshtest.Eventually(t, "it awaits the new approval", func() bool { return r.get("inv-1").GetApprovalId() == "approval-inv-1-2" })
}

func TestWhatTheClockApprovesRunsByItself(t *testing.T) {
	r := newRig(t)
	r.invoke(say("inv-1", "hi"))
	r.gate.steer(func() { r.gate.states["approval-inv-1"] = "" })
	r.gate.append("approval-inv-1", &gatev1.Event{Event: &gatev1.Event_ApprovalTimedOut{
		ApprovalTimedOut: &gatev1.ApprovalTimedOut{ApprovalId: "approval-inv-1", RequestId: "inv-1"},
	}})
	r.waitState("inv-1", succeeded)
}

// What the gate says when it is asked again holds, whatever that is.
func TestASupersededApprovalIsNotTheLastWord(t *testing.T) {
	r := newRig(t)
	for id, tc := range map[string]struct {
		now    func()
		state  registryv1.InvocationState
		reason string
	}{
		"allowed": {func() { r.gate.verdict = gatev1.Verdict_VERDICT_ALLOW }, succeeded, ""},
		"denied":  {func() { r.gate.verdict = gatev1.Verdict_VERDICT_DENY }, denied, "TEST"},
		"limited": {func() { r.gate.refusal = fault.New(fault.RateLimited, "too often") }, denied, "RATE_LIMITED"},
	} {
		r.gate.steer(func() { r.gate.verdict, r.gate.refusal = gatev1.Verdict_VERDICT_ASK, nil })
		r.invoke(say(id, "hi"))
		r.gate.steer(tc.now)
		r.gate.supersede(id)
		r.waitState(id, tc.state)
		if got := r.get(id); got.GetError().GetReason() != tc.reason {
			t.Errorf("%s: the caller learns %v", id, got.GetError())
		}
	}
	if r.target.calls != 1 {
		t.Fatalf("the target was called %d times", r.target.calls)
	}
}

// To run it later by itself, when there is room, would be a surprise.
func TestAMutationOverABudgetIsDeniedForGood(t *testing.T) {
	r := newRig(t)
	r.gate.steer(func() { r.gate.refusal = fault.New(fault.RateLimited, "as often as may be").Retry(time.Minute) })
	got := r.invoke(say("inv-1", "hi"))
	if got.GetState() != denied || got.GetError().GetReason() != "RATE_LIMITED" ||
		got.GetError().GetMessage() != "as often as may be; there is room in 1m0s" {
		t.Fatalf("got %v", got)
	}
	r.gate.steer(func() { r.gate.refusal, r.gate.verdict = nil, gatev1.Verdict_VERDICT_ALLOW })
	if again := r.invoke(say("inv-1", "hi")); !proto.Equal(again, got) || r.gate.checks != 1 {
		t.Fatalf("the retry gave %v after %d checks", again, r.gate.checks)
	}
	r.restart()
	if again := r.invoke(say("inv-1", "hi")); !proto.Equal(again, got) || r.gate.checks != 1 || r.target.calls != 0 {
		t.Fatalf("after a restart the retry gave %v after %d checks", again, r.gate.checks)
	}
	if anew := r.invoke(say("inv-2", "hi")); anew.GetState() != succeeded {
		t.Fatalf("asked anew it is %v", anew)
	}
}

// What the gate refuses for good does not run by itself once the reason is gone.
func TestWhatTheGateRefusesForGoodDoesNotRunLater(t *testing.T) {
	r := newRig(t)
	for reason, want := range map[fault.Reason]registryv1.InvocationState{
		fault.CallerDisabled: denied, fault.FieldInvalid: failed, fault.JSONInvalid: failed, fault.TooLarge: failed,
	} {
		id := strings.ToLower(string(reason))
		r.gate.steer(func() { r.gate.refusal = fault.New(reason, "refused") })
		if got := r.invoke(say(id, "hi")); got.GetState() != want || got.GetError().GetReason() != string(reason) {
			t.Errorf("%s: %v", reason, got)
		}
		r.gate.steer(func() { r.gate.refusal, r.gate.verdict = nil, gatev1.Verdict_VERDICT_ALLOW })
		if got := r.invoke(say(id, "hi")); got.GetState() != want {
			t.Errorf("%s, once it is allowed: %v", reason, got)
		}
	}
	if got := r.target.messages(); len(got) != 0 {
		t.Errorf("done all the same: %v", got)
	}
}

func TestAQueryThatIsOverALimitIsTheError(t *testing.T) {
	r := newRig(t)
	for _, reason := range []fault.Reason{fault.RateLimited, fault.LimitReached} {
		r.gate.steer(func() { r.gate.refusal = fault.New(reason, "as often as may be").Retry(7 * time.Second) })
		_, err := r.operations(alice).Invoke(t.Context(), read("q-1"))
		want(t, "invoke", err, reason)
		if f := fault.From(err); f.RetryAfter() != 7*time.Second || f.Message() != "as often as may be" {
			t.Errorf("%s: %q, and again after %v", reason, f.Message(), f.RetryAfter())
		}
	}
	_, err := r.operations(alice).GetInvocation(t.Context(), &registryv1.GetInvocationRequest{InvocationId: "q-1"})
	want(t, "its record", err, fault.InvocationNotFound)
	if r.target.calls != 0 {
		t.Fatalf("the target was called %d times", r.target.calls)
	}
	// It is no answer to remember: the same id may be asked again.
	r.gate.steer(func() { r.gate.refusal, r.gate.verdict = nil, gatev1.Verdict_VERDICT_ALLOW })
	if got := r.invoke(read("q-1")); got.GetState() != succeeded {
		t.Fatalf("got %v", got)
	}
}

func TestADenialNamesTheRule(t *testing.T) {
	r := newRig(t)
	for message, rule := range map[string]string{
		"the gate does not allow it":                         "",
		"the gate does not allow it: rule house/no-shouting": "house/no-shouting",
	} {
		r.gate.steer(func() { r.gate.verdict, r.gate.rule = gatev1.Verdict_VERDICT_DENY, rule })
		for what, in := range map[string]*registryv1.InvokeRequest{
			"mutation": say(fmt.Sprintf("inv-%d", len(message)), "hi"), "query": read("q-1"),
		} {
			got := r.invoke(in)
			if got.GetState() != denied || got.GetError().GetReason() != "TEST" || got.GetError().GetMessage() != message {
				t.Errorf("%s that rule %q denies: the caller learns %v", what, rule, got)
			}
		}
	}
	if r.target.calls != 0 {
		t.Fatalf("the target was called %d times", r.target.calls)
	}
}

// The gate validates an approver's amendment against it.
func TestTheGateIsShownTheInputsSchema(t *testing.T) {
	r := newRig(t)
	for _, in := range []*registryv1.InvokeRequest{say("inv-1", "hi"), read("q-1")} {
		r.invoke(in)
		described, err := r.operations(alice).DescribeOperation(t.Context(), &registryv1.DescribeOperationRequest{Operation: in.GetOperation()})
		if err != nil {
			t.Fatal(err)
		}
		r.gate.steer(func() {
			if got := r.gate.checked.GetInputSchema(); got == "" || got != described.GetOperation().GetInputSchema() {
				t.Errorf("%s: the gate is shown %q", in.GetOperation(), got)
			}
		})
	}
}

// A schema that is too large for the gate is not shown: then nobody can amend, and
// everything else goes on.
func TestASchemaThatIsTooLargeIsNotShown(t *testing.T) {
	const around = len(`{"description":""}`)
	for size, shown := range map[int]bool{maxShownSchema: true, maxShownSchema + 1: false} {
		input, err := schema.Compile([]byte(`{"description":"` + strings.Repeat("x", size-around) + `"}`))
		if err != nil {
			t.Fatal(err)
		}
		got := checkRequest("inv-1", &Operation{Name: "x/y", Effect: effectWrite, Input: input}, nil, "", "")
		if (got.GetInputSchema() != "") != shown || shown && len(got.GetInputSchema()) != size {
			t.Errorf("of %d bytes the gate is shown %d", size, len(got.GetInputSchema()))
		}
	}
}

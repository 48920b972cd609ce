package registry

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/meshtest"
)

const (
	awaiting  = registryv1.InvocationState_INVOCATION_STATE_AWAITING_APPROVAL
	running   = registryv1.InvocationState_INVOCATION_STATE_RUNNING
	succeeded = registryv1.InvocationState_INVOCATION_STATE_SUCCEEDED
	failed    = registryv1.InvocationState_INVOCATION_STATE_FAILED
	denied    = registryv1.InvocationState_INVOCATION_STATE_DENIED
	expired   = registryv1.InvocationState_INVOCATION_STATE_EXPIRED
	cancelled = registryv1.InvocationState_INVOCATION_STATE_CANCELLED
)

func want(t testing.TB, what string, err error, reason fault.Reason) {
	t.Helper()
	if got := fault.ReasonOf(err); err == nil || got != reason {
		t.Fatalf("%s: %v (%v), want %s", what, err, got, reason)
	}
}

func TestAnApprovedInvocationRunsByItself(t *testing.T) {
	r := newRig(t)
	asked := r.invoke(say("inv-1", "hi"))
	if asked.GetState() != awaiting || asked.GetApprovalId() != "approval-inv-1" || asked.GetConversationId() != "c1" {
		t.Fatalf("asked: %v", asked)
	}
	if len(r.target.messages()) != 0 {
		t.Fatal("it ran before anybody approved")
	}
	r.gate.decide("inv-1", "")
	r.waitState("inv-1", succeeded)
	if got := r.target.messages(); len(got) != 1 || r.target.calls != 1 {
		t.Fatalf("done %v in %d calls, want one of each", got, r.target.calls)
	}
	again := r.invoke(say("inv-1", "hi"))
	if again.GetState() != succeeded || !strings.Contains(again.GetOutputJson(), `"position":"1"`) || r.target.calls != 1 {
		t.Fatalf("the retry gave %v after %d calls", again, r.target.calls)
	}
}

// The gate refuses what an agent aims at the conversation that it is running in. Where a
// caller names none, the call appears in the one that it aims at, and that alone must
// not make it one that it is running in.
func TestTheGateIsToldWhereTheCallerIsRunning(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct{ id, runningIn, appearsIn string }{{"inv-1", "", "c1"}, {"inv-2", "c2", "c2"}} {
		in := say(c.id, "hi")
		in.ConversationId = c.runningIn
		asked := r.invoke(in)
		r.gate.steer(func() {
			if got := r.gate.checked; got.GetConversationId() != c.runningIn || got.GetTargetConversationId() != "c1" {
				t.Errorf("%s: the gate was asked %v", c.id, got)
			}
		})
		if asked.GetConversationId() != c.appearsIn {
			t.Errorf("%s appears in %q, want %q", c.id, asked.GetConversationId(), c.appearsIn)
		}
	}
}

func TestADecisionThatComesBeforeTheInvocationWaitsForItIsNotMissed(t *testing.T) {
	r := newRig(t)
	// The approval is there and approved, and its event is old news, by the time
	// the registry gets the gate's answer.
	r.gate.steer(func() { r.gate.states["approval-inv-1"] = "" })
	if got := r.invoke(say("inv-1", "hi")); got.GetState() != succeeded {
		t.Fatalf("got %v", got)
	}
}

func TestHowAnInvocationEndsThatIsNotApproved(t *testing.T) {
	r := newRig(t)
	ends := map[fault.Reason]registryv1.InvocationState{
		fault.ApprovalDenied:    denied,
		fault.NotGranted:        denied,
		fault.PolicyDenied:      denied,
		fault.CallerDisabled:    denied,
		fault.RateLimited:       denied,
		fault.ApprovalExpired:   expired,
		fault.ApprovalCancelled: cancelled,
		fault.ApprovalNotFound:  failed,
		fault.DigestMismatch:    failed,
	}
	for reason := range refusals {
		if _, ok := ends[reason]; !ok {
			t.Errorf("%s ends an invocation, and no test says how", reason)
		}
	}
	for reason, state := range ends {
		id := strings.ToLower(string(reason))
		r.invoke(say(id, "hi"))
		r.gate.decide(id, reason)
		r.waitState(id, state)
		got := r.invoke(say(id, "hi")).GetError()
		if got.GetReason() != string(reason) || got.GetMessage() != "refused" || got.GetNote() != "a note" {
			t.Errorf("%s: the caller learns %v", reason, got)
		}
	}
	if got := r.target.messages(); len(got) != 0 {
		t.Fatalf("done all the same: %v", got)
	}
}

func TestRefusedBeforeAnythingIsRecorded(t *testing.T) {
	r := newRig(t)
	bad := func(input string) *registryv1.InvokeRequest {
		in := say("inv-1", "")
		in.InputJson = &input
		return in
	}
	missing := say("inv-1", "")
	missing.InputJson = nil
	for _, tc := range []struct {
		name   string
		in     *registryv1.InvokeRequest
		reason fault.Reason
	}{
		{"no JSON", bad(`{"conversation_id":`), fault.JSONInvalid},
		{"a duplicate key", bad(`{"conversation_id":"c1","conversation_id":"c2","parts":[{"text":"x"}]}`), fault.JSONInvalid},
		{"an inexact number", bad(`{"conversation_id":9007199254740993}`), fault.JSONInvalid},
		{"a missing property", bad(`{"conversation_id":"c1"}`), fault.SchemaMismatch},
		{"another property", bad(`{"conversation_id":"c1","parts":[{"text":"x"}],"author":"human:carol"}`), fault.SchemaMismatch},
		{"null", bad(`null`), fault.SchemaMismatch},
		{"no input", missing, fault.SchemaMismatch},
	} {
		_, err := r.operations(alice).Invoke(t.Context(), tc.in)
		want(t, tc.name, err, tc.reason)
	}
	_, err := r.operations(alice).GetInvocation(t.Context(), &registryv1.GetInvocationRequest{InvocationId: "inv-1"})
	want(t, "what was refused", err, fault.InvocationNotFound)
	if r.gate.checks != 0 {
		t.Fatalf("the gate was asked %d times", r.gate.checks)
	}
}

func TestARefusalNamesPlacesAndNeverValues(t *testing.T) {
	r := newRig(t)
	const secret = "hunter2"
	in := say("inv-1", "")
	input := `{"conversation_id":"` + secret + ` with spaces","parts":[{"text":""}],"` + `x":"` + secret + `"}`
	in.InputJson = &input
	_, err := r.operations(alice).Invoke(t.Context(), in)
	want(t, "invoke", err, fault.SchemaMismatch)
	text := status.Convert(err).Proto().String()
	if strings.Contains(text, secret) {
		t.Fatalf("the refusal echoes a value: %s", text)
	}
	for _, place := range []string{"input_json/conversation_id", "input_json/parts/0/text"} {
		if !strings.Contains(text, place) {
			t.Errorf("the refusal does not name %s: %s", place, text)
		}
	}
}

func TestUngrantedAndUnknownAreTheSame(t *testing.T) {
	r := newRig(t)
	client := r.operations(alice)
	invoke := func(operation, input string) *status.Status {
		_, err := client.Invoke(t.Context(), &registryv1.InvokeRequest{InvocationId: "inv-1", Operation: operation, InputJson: &input})
		return status.Convert(err)
	}
	describe := func(operation string) *status.Status {
		_, err := client.DescribeOperation(t.Context(), &registryv1.DescribeOperationRequest{Operation: operation})
		return status.Convert(err)
	}
	unknown, unknownDescribed := invoke("conversation/shout", `{}`), describe("conversation/shout")
	r.gate.steer(func() { r.gate.hidden = true })
	// With a body that its schema would refuse: that must not show either.
	ungranted, ungrantedDescribed := invoke("conversation/say", `{}`), describe("conversation/say")
	if !proto.Equal(unknown.Proto(), ungranted.Proto()) || !proto.Equal(unknownDescribed.Proto(), ungrantedDescribed.Proto()) {
		t.Fatalf("they differ:\n%v\n%v\n%v\n%v", unknown, ungranted, unknownDescribed, ungrantedDescribed)
	}
	if fault.ReasonOf(unknown.Err()) != fault.OperationNotFound {
		t.Fatalf("got %v", unknown)
	}
	page, err := client.ListOperations(t.Context(), &registryv1.ListOperationsRequest{})
	if err != nil || len(page.GetOperations()) != 0 {
		t.Fatalf("list shows %v, %v", page, err)
	}
}

func TestTheSameIDWithOtherContentIsRefused(t *testing.T) {
	r := newRig(t)
	r.invoke(say("inv-1", "hi"))
	_, err := r.operations(alice).Invoke(t.Context(), say("inv-1", "something else"))
	want(t, "another input", err, fault.IdempotencyMismatch)
	_, err = r.operations(bob).Invoke(t.Context(), say("inv-1", "hi"))
	want(t, "another caller", err, fault.IdempotencyMismatch)
	_, err = r.operations(bob).GetInvocation(t.Context(), &registryv1.GetInvocationRequest{InvocationId: "inv-1"})
	want(t, "another's invocation", err, fault.InvocationNotFound)
}

func TestAQueryThatIsAllowedLeavesNoRecord(t *testing.T) {
	r := newRig(t)
	r.gate.steer(func() { r.gate.verdict = gatev1.Verdict_VERDICT_ALLOW })
	input := `{"conversation_id":"c1"}`
	got := r.invoke(&registryv1.InvokeRequest{InvocationId: "q-1", Operation: "conversation/read", InputJson: &input})
	if got.GetState() != succeeded || got.GetOutputJson() != `{}` {
		t.Fatalf("got %v", got)
	}
	_, err := r.operations(alice).GetInvocation(t.Context(), &registryv1.GetInvocationRequest{InvocationId: "q-1"})
	want(t, "its record", err, fault.InvocationNotFound)
}

// Who delivers what somebody sent asks by it whether the sender still may.
func TestATargetIsToldThroughWhichOperationTheCallerActs(t *testing.T) {
	r := newRig(t)
	r.gate.steer(func() { r.gate.verdict = gatev1.Verdict_VERDICT_ALLOW })
	input := `{"conversation_id":"c1"}`
	r.invoke(&registryv1.InvokeRequest{InvocationId: "q-1", Operation: "conversation/read", InputJson: &input})
	r.invoke(say("inv-1", "hi"))
	r.target.steer(func() {
		if len(r.target.stated) != 2 || !strings.Contains(r.target.stated[0], `"operation":"conversation/read"`) ||
			!strings.Contains(r.target.stated[1], `"operation":"conversation/say"`) {
			t.Errorf("calls were made for %v", r.target.stated)
		}
	})
}

func TestAnErrorOfTheTargetIsTheOutcome(t *testing.T) {
	r := newRig(t)
	r.gate.steer(func() { r.gate.verdict = gatev1.Verdict_VERDICT_ALLOW })
	r.target.steer(func() { r.target.refuse = fault.New(fault.ConversationNotFound, "there is no conversation c1") })
	got := r.invoke(say("inv-1", "hi"))
	if got.GetState() != failed || got.GetError().GetReason() != "CONVERSATION_NOT_FOUND" {
		t.Fatalf("got %v", got)
	}
}

func TestAnInvocationWhoseApprovalAnotherUsedUpAsksAgain(t *testing.T) {
	r := newRig(t)
	r.gate.steer(func() { r.gate.joined = "approval-inv-1" })
	r.invoke(say("inv-1", "hi"))
	if joined := r.invoke(say("inv-2", "hi")); joined.GetApprovalId() != "approval-inv-1" {
		t.Fatalf("joined %v", joined)
	}
	r.gate.steer(func() { r.gate.joined = "" })
	// Only the first is named in the gate's event; the other stands in the list.
	r.gate.decide("inv-1", fault.ApprovalRedeemed)
	meshtest.Eventually(t, "inv-2 waits for an approval of its own", func() bool {
		out, err := r.operations(alice).GetInvocation(t.Context(), &registryv1.GetInvocationRequest{InvocationId: "inv-2"})
		return err == nil && out.GetInvocation().GetApprovalId() == "approval-inv-2"
	})
	r.gate.decide("inv-2", "")
	r.waitState("inv-2", succeeded)
	if got := r.target.messages(); len(got) != 1 {
		t.Fatalf("done: %v", got)
	}
}

// What somebody else has moved on is left alone; what may not follow is a bug.
func TestAStepIsMadeFromWhereItWasSeenOnly(t *testing.T) {
	waiting := Invocation{ID: "inv-1", State: stateAwaiting, ApprovalID: "a-1"}
	for name, now := range map[string]Invocation{
		"another state":    {ID: "inv-1", State: stateDenied, ApprovalID: "a-1"},
		"another approval": {ID: "inv-1", State: stateAwaiting, ApprovalID: "a-2"},
		"another run":      {ID: "inv-1", State: stateAwaiting, ApprovalID: "a-1", RunID: "r"},
	} {
		if event, err := decideStep(now, waiting, step{To: stateRunning}); event != nil || err != nil {
			t.Errorf("%s: %v, %v; want nothing", name, event, err)
		}
	}
	for from := range stateToProto {
		for to := range stateToProto {
			i := Invocation{ID: "inv-1", State: from}
			event, err := decideStep(i, i, step{To: to})
			if allowed := slices.Contains(transitions[from], to); allowed != (event != nil) || allowed != (err == nil) {
				t.Errorf("%s → %s: %v, %v; allowed %v", from, to, event, err, allowed)
			}
		}
	}
}

func TestTwoReplicasThatHearTheSameEventRunItOnce(t *testing.T) {
	r := newRig(t)
	r.start()
	const n = 20
	for i := range n {
		r.invoke(say(fmt.Sprintf("inv-%d", i), "hi"))
	}
	for i := range n {
		id := fmt.Sprintf("inv-%d", i)
		r.gate.decide(id, "")
		r.gate.announce(id) // and once more
	}
	for i := range n {
		r.waitState(fmt.Sprintf("inv-%d", i), succeeded)
	}
	if got := r.target.messages(); len(got) != n || r.target.calls != n {
		t.Fatalf("%d things done in %d calls, want %d", len(got), r.target.calls, n)
	}
}

func TestInvokeAnswersWithTheStateSoFarWhenTimeIsUp(t *testing.T) {
	r := newRig(t)
	r.gate.steer(func() { r.gate.verdict = gatev1.Verdict_VERDICT_ALLOW })
	block := make(chan struct{})
	r.target.steer(func() { r.target.block = block })
	release := sync.OnceFunc(func() { close(block) })
	defer release()
	client := r.operations(alice)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := client.Invoke(ctx, say("inv-1", "hi")); err == nil {
		t.Fatal("it answered before the target did")
	}
	if got := r.state("inv-1"); got != running {
		t.Fatalf("it is %v", got)
	}
	release()
	r.waitState("inv-1", succeeded)
}

func TestARunWhoseAnswerIsLostIsRepeatedUnderTheSameKey(t *testing.T) {
	r := newRig(t)
	r.gate.steer(func() { r.gate.verdict = gatev1.Verdict_VERDICT_ALLOW })
	r.target.steer(func() { r.target.mute = true })
	if got := r.invoke(say("inv-1", "hi")); got.GetState() != running {
		t.Fatalf("got %v", got)
	}
	r.target.steer(func() { r.target.mute = false })
	r.waitState("inv-1", succeeded)
	if got := r.target.messages(); len(got) != 1 {
		t.Fatalf("done under several keys: %v", got)
	}
}

// The gate is away between the record and its answer; nobody calls again.
func TestARecordedInvocationIsDrivenOnAfterARestart(t *testing.T) {
	r := newRig(t)
	r.gate.steer(func() { r.gate.down = true })
	if got := r.invoke(say("inv-1", "hi")); got.GetState() != registryv1.InvocationState_INVOCATION_STATE_REQUESTED {
		t.Fatalf("got %v", got)
	}
	if err := r.registry.Stop(); err != nil {
		t.Fatal(err)
	}
	r.redis.Flush()
	r.gate.steer(func() { r.gate.down = false })
	r.registry = r.start()
	r.waitState("inv-1", awaiting)
	r.gate.decide("inv-1", "")
	r.waitState("inv-1", succeeded)
}

func TestListInvocationsShowsOnesOwnNewestFirst(t *testing.T) {
	r := newRig(t)
	for i := range 5 {
		r.invoke(say(fmt.Sprintf("inv-%d", i), "hi"))
	}
	var got []string
	meshtest.Eventually(t, "lists are complete", func() bool {
		got = nil
		token := ""
		for {
			page, err := r.operations(alice).ListInvocations(t.Context(), &registryv1.ListInvocationsRequest{PageSize: 2, PageToken: token})
			if err != nil {
				return false
			}
			for _, i := range page.GetInvocations() {
				got = append(got, i.GetInvocationId())
			}
			if token = page.GetNextPageToken(); token == "" {
				return true
			}
		}
	})
	if fmt.Sprint(got) != "[inv-4 inv-3 inv-2 inv-1 inv-0]" {
		t.Fatalf("got %v", got)
	}
	page, err := r.operations(bob).ListInvocations(t.Context(), &registryv1.ListInvocationsRequest{})
	if err != nil || len(page.GetInvocations()) != 0 {
		t.Fatalf("bob sees %v, %v", page, err)
	}
}

func TestListOperationsPages(t *testing.T) {
	r := newRig(t)
	var got []string
	token := ""
	for {
		page, err := r.operations(alice).ListOperations(t.Context(), &registryv1.ListOperationsRequest{PageSize: 3, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.GetOperations() {
			got = append(got, o.GetName())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if fmt.Sprint(got) != "[conversation/list conversation/read conversation/say conversation/start dispatch/start group/start inbox/send]" {
		t.Fatalf("got %v", got)
	}
	_, err := r.operations(alice).ListOperations(t.Context(), &registryv1.ListOperationsRequest{PageToken: "../x"})
	want(t, "a made-up token", err, fault.PageTokenInvalid)
}

func TestACatalogueIsValidatedWhole(t *testing.T) {
	_, err := loadCatalogue(fstest.MapFS{"x/a.yaml": {Data: []byte(`
operations:
  - name: Bad Name
  - name: ok/one
    description: Does a thing.
    kind: QUERY
    effect: WRITE
    visibility: EXTERNAL
  - name: ok/two
    description: Does a thing.
    kind: QUERY
    effect: READ
    visibility: EXTERNAL
    input: {$ref: "https://example.com/schema"}
    output: true
`)}, "x/b.yaml": {Data: []byte("operations:\n  - nmae: typo\n")}})
	if err == nil {
		t.Fatal("it loaded")
	}
	for _, problem := range []string{"operations[0]", "operations[1]", "operations[2]", "x/b.yaml", "may only refer to itself"} {
		if !strings.Contains(err.Error(), problem) {
			t.Errorf("%q is not reported in: %v", problem, err)
		}
	}
}

func TestTheOwnCatalogueIsValidAndItsDigestStands(t *testing.T) {
	one, err := loadCatalogue(ownCatalogue)
	if err != nil {
		t.Fatal(err)
	}
	two, err := loadCatalogue(ownCatalogue)
	if err != nil || one.digest != two.digest {
		t.Fatalf("%s and %s, %v", one.digest, two.digest, err)
	}
}

func TestEveryMethodHasARow(t *testing.T) {
	s := grpc.NewServer()
	registryv1.RegisterOperationServiceServer(s, &server{})
	if missing := identity.Methods.Missing(s); len(missing) > 0 {
		t.Fatalf("no row for %v", missing)
	}
}

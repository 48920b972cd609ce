package registry

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/fault"
	"weir/internal/meshtest"
	"weir/internal/strictjson"
)

// amend approves what a request asks for with another input in its place.
func (g *steeredGate) amend(request, input string) {
	g.t.Helper()
	g.steer(func() { g.amended[request] = input })
	g.decide(request, "")
}

const politely = `{"conversation_id":"c1","parts":[{"text":"would you, please"}]}`

func TestAnAmendedInputRunsInPlaceOfWhatWasAsked(t *testing.T) {
	r := newRig(t)
	asked := r.invoke(say("inv-1", "do it"))
	r.gate.amend("inv-1", politely)
	r.waitState("inv-1", succeeded)
	if !slices.Equal(r.target.said, []string{"would you, please"}) {
		t.Fatalf("the target heard %q", r.target.said)
	}
	got := r.get("inv-1")
	if got.GetInputJson() != asked.GetInputJson() || got.GetInputDigest() != strictjson.Digest([]byte(asked.GetInputJson())) {
		t.Errorf("what was asked shows as %s, %s", got.GetInputJson(), got.GetInputDigest())
	}
	if got.GetAmendedInputJson() != politely || got.GetAmendedInputDigest() != strictjson.Digest([]byte(politely)) {
		t.Errorf("what ran shows as %s, %s", got.GetAmendedInputJson(), got.GetAmendedInputDigest())
	}
	// To its caller the invocation is still the one that it asked for.
	if again := r.invoke(say("inv-1", "do it")); !proto.Equal(again, got) {
		t.Errorf("the retry gave %v", again)
	}
	_, err := r.operations(alice).Invoke(t.Context(), &registryv1.InvokeRequest{
		InvocationId: "inv-1", Operation: "conversation/say", InputJson: proto.String(politely),
	})
	want(t, "the amended input under the same id", err, fault.IdempotencyMismatch)

	r.restart()
	if after := r.get("inv-1"); !proto.Equal(after, got) {
		t.Errorf("after a restart it is %v, it was %v", after, got)
	}
}

func TestWithoutAnAmendmentNoneIsShown(t *testing.T) {
	r := newRig(t)
	r.invoke(say("inv-1", "hi"))
	r.gate.decide("inv-1", "")
	r.waitState("inv-1", succeeded)
	if got := r.get("inv-1"); got.AmendedInputJson != nil || got.GetAmendedInputDigest() != "" {
		t.Fatalf("got %v", got)
	}
}

// The gate gave the amendment once; what is run again is in the journal.
func TestARunThatWasCutOffIsRunAgainWithTheAmendedInput(t *testing.T) {
	r := newRig(t)
	r.invoke(say("inv-1", "do it"))
	r.target.steer(func() { r.target.mute = true })
	r.gate.amend("inv-1", politely)
	meshtest.Eventually(t, "the target acted and its answer was lost", func() bool { return len(r.target.messages()) == 1 })
	r.waitState("inv-1", running)
	r.gate.steer(func() { delete(r.gate.amended, "inv-1") })
	before := r.get("inv-1")
	if before.GetAmendedInputJson() != politely {
		t.Fatalf("while it runs it shows %v", before)
	}

	if err := r.registry.Stop(); err != nil {
		t.Fatal(err)
	}
	cutOff := r.target.calls
	r.redis.Flush()
	r.target.steer(func() { r.target.mute = false })
	r.registry = r.start()
	r.waitState("inv-1", succeeded)
	if got := r.target.messages(); len(got) != 1 || r.target.calls != cutOff+1 {
		t.Errorf("done under %v in %d calls, of which %d were cut off; want one more", got, r.target.calls, cutOff)
	}
	for _, text := range r.target.said {
		if text != "would you, please" {
			t.Errorf("the target heard %q", r.target.said)
		}
	}
	if after := r.get("inv-1"); after.GetAmendedInputJson() != politely || after.GetAmendedInputDigest() != before.GetAmendedInputDigest() {
		t.Errorf("after the second run it shows %v", after)
	}
}

func TestAnAmendmentThatTheCallerCouldNotHaveAskedForNeverRuns(t *testing.T) {
	r := newRig(t)
	for id, tc := range map[string]struct {
		amended string
		state   registryv1.InvocationState
		reason  fault.Reason
		says    string
	}{
		"lacks":     {`{"conversation_id":"c1"}`, failed, fault.SchemaMismatch, "amended_input_json must have parts"},
		"adds":      {`{"author":"human:carol","conversation_id":"c1","parts":[{"text":"x"}]}`, failed, fault.SchemaMismatch, "amended_input_json must not have other properties"},
		"deeper":    {`{"conversation_id":"hunter2","parts":[{"text":""}]}`, failed, fault.SchemaMismatch, "amended_input_json/parts/0/text must have at least 1"},
		"null":      {`null`, failed, fault.SchemaMismatch, "amended_input_json must be of type object"},
		"no-object": {`"hunter2"`, failed, fault.SchemaMismatch, "amended_input_json must be of type object"},
		"no-json":   {`{"conversation_id":`, failed, fault.JSONInvalid, "amended_input_json is no JSON"},
		"nothing":   {``, failed, fault.JSONInvalid, "amended_input_json is no JSON"},
		"self":      {`{"conversation_id":"c2","parts":[{"text":"x"}]}`, denied, fault.SelfTarget, "the conversation that the caller is running in"},
	} {
		in := say(id, "hi")
		in.ConversationId = "c2" // where the caller is running
		r.invoke(in)
		r.gate.amend(id, tc.amended)
		r.waitState(id, tc.state)
		got := r.get(id)
		message := got.GetError().GetMessage()
		if got.GetError().GetReason() != string(tc.reason) || !strings.Contains(message, tc.says) || strings.Contains(message, "hunter2") {
			t.Errorf("%s: the caller learns %v, want %s: %s", id, got.GetError(), tc.reason, tc.says)
		}
		if got.AmendedInputJson != nil || got.OutputJson != nil {
			t.Errorf("%s: it shows %v, and nothing ran", id, got)
		}
	}
	if r.target.calls != 0 {
		t.Fatalf("the target was called %d times: %q", r.target.calls, r.target.said)
	}
}

// Only the caller's own conversation is closed to an amendment, and only where the
// caller is running in one.
func TestAnAmendmentMayAimAtAnotherConversation(t *testing.T) {
	r := newRig(t)
	for id, runningIn := range map[string]string{"elsewhere": "c2", "nowhere": ""} {
		in := say(id, "hi")
		in.ConversationId = runningIn
		asked := r.invoke(in)
		r.gate.amend(id, `{"conversation_id":"c3","parts":[{"text":"moved"}]}`)
		r.waitState(id, succeeded)
		if got := r.get(id); got.GetConversationId() != asked.GetConversationId() {
			t.Errorf("%s appears in %s now, its caller looks for it in %s", id, got.GetConversationId(), asked.GetConversationId())
		}
	}
	if !slices.Equal(r.target.said, []string{"moved", "moved"}) {
		t.Fatalf("the target heard %q", r.target.said)
	}
}

// An operation that acts on no conversation aims at none, wherever its caller is
// running, or is not.
func TestAnAmendmentOfWhatAimsAtNoConversationIsNoSelfTarget(t *testing.T) {
	own, err := loadCatalogue(ownCatalogue)
	if err != nil {
		t.Fatal(err)
	}
	for _, runningIn := range []string{"", "c1"} {
		next := started(own.operations["conversation/start"], Invocation{RunningIn: runningIn}, &gatev1.RedeemResponse{
			AmendedInputJson: proto.String(`{"conversation_id":"c2","participants":[]}`),
		})
		if next.To != stateRunning || next.Amended == nil {
			t.Errorf("running in %q: got %+v", runningIn, next)
		}
	}
}

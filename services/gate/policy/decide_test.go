package policy

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	gatev1 "weir/gen/gate/v1"
)

func allowing(id string, layer gatev1.Layer, target string, budget *gatev1.Window, when string) *gatev1.Policy {
	return &gatev1.Policy{
		PolicyId: id, Layer: layer, Target: target,
		Rules: []*gatev1.Rule{{
			RuleId: "r", Verdict: gatev1.Verdict_VERDICT_ALLOW, Operations: []string{"x/y"}, AllowWrites: true, Budget: budget, When: when,
		}},
	}
}

func a(limit int32, period time.Duration) *gatev1.Window {
	return &gatev1.Window{Limit: limit, Period: durationpb.New(period)}
}

// Of all rules that allow a write, whichever is named, the rarest budget holds.
func TestTheRarestBudgetOfAllThatAllowHolds(t *testing.T) {
	tenant, agent := gatev1.Layer_LAYER_TENANT, gatev1.Layer_LAYER_AGENT
	for name, tc := range map[string]struct {
		policies []*gatev1.Policy
		want     Window
	}{
		"none says":           {[]*gatev1.Policy{allowing("a", tenant, "", nil, "")}, Window{}},
		"the second is rarer": {[]*gatev1.Policy{allowing("a", tenant, "", a(1000, time.Minute), ""), allowing("b", tenant, "", a(1, time.Minute), "")}, Window{1, time.Minute}},
		"only one says":       {[]*gatev1.Policy{allowing("a", tenant, "", nil, ""), allowing("b", tenant, "", a(5, time.Hour), "")}, Window{5, time.Hour}},
		"a predicate holds":   {[]*gatev1.Policy{allowing("a", tenant, "", a(9, time.Minute), ""), allowing("b", tenant, "", a(2, time.Minute), "true")}, Window{2, time.Minute}},
		"a predicate fails":   {[]*gatev1.Policy{allowing("a", tenant, "", a(9, time.Minute), ""), allowing("b", tenant, "", a(2, time.Minute), "false")}, Window{9, time.Minute}},
		"a lower layer's": {[]*gatev1.Policy{
			{PolicyId: "d", Layer: tenant, DelegatedOperations: []string{"x/y"}},
			allowing("a", tenant, "", a(9, time.Minute), ""), allowing("b", agent, "agent:a", a(2, time.Minute), ""),
		}, Window{2, time.Minute}},
		"a lower layer's that is not delegated": {[]*gatev1.Policy{allowing("a", tenant, "", a(9, time.Minute), ""), allowing("b", agent, "agent:a", a(2, time.Minute), "")}, Window{9, time.Minute}},
	} {
		book, err := NewBook(1, tc.policies, []*gatev1.Grant{{GrantId: "g", Subject: "agent:a", Operations: []string{"x/y"}}})
		if err != nil {
			t.Fatal(err)
		}
		got := book.Decide(&Question{Subject: "agent:a", Agent: true, Operation: "x/y"})
		if got.Verdict != gatev1.Verdict_VERDICT_ALLOW || got.Budget != tc.want {
			t.Errorf("%s: %v with %v, want %v", name, got.Verdict, got.Budget, tc.want)
		}
	}
}

// Verification refuses an allow on timeout that is not the tenant's, exact and
// acknowledged. Should one be stored all the same, it denies.
func TestAnUnsafeAllowOnTimeoutDenies(t *testing.T) {
	for name, tc := range map[string]struct {
		layer        gatev1.Layer
		target       string
		operation    string
		acknowledged bool
		want         OnTimeout
	}{
		"safe":               {gatev1.Layer_LAYER_TENANT, "", "x/y", true, TimeoutAllow},
		"not acknowledged":   {gatev1.Layer_LAYER_TENANT, "", "x/y", false, TimeoutDeny},
		"by a pattern":       {gatev1.Layer_LAYER_TENANT, "", "x/*", true, TimeoutDeny},
		"of an agent's rule": {gatev1.Layer_LAYER_AGENT, "agent:a", "x/y", true, TimeoutDeny},
	} {
		p := &gatev1.Policy{PolicyId: "p", Layer: tc.layer, Target: tc.target, Rules: []*gatev1.Rule{{
			RuleId: "r", Verdict: gatev1.Verdict_VERDICT_ASK, Operations: []string{tc.operation}, AllowWrites: tc.acknowledged,
			Terms: &gatev1.Terms{OnTimeout: gatev1.OnTimeout_ON_TIMEOUT_ALLOW},
		}}}
		book, err := NewBook(1, []*gatev1.Policy{p}, []*gatev1.Grant{{GrantId: "g", Subject: "agent:a", Operations: []string{"x/y"}}})
		if err != nil {
			t.Fatal(err)
		}
		if got := book.Decide(&Question{Subject: "agent:a", Agent: true, Operation: "x/y"}); got.Terms.OnTimeout != tc.want {
			t.Errorf("%s: %v on %s, want %s", name, got.Verdict, got.Terms.OnTimeout, tc.want)
		}
	}
}

package policy

import (
	"fmt"
	"strings"
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
		"none says":                   {[]*gatev1.Policy{allowing("a", tenant, "", nil, "")}, DefaultBudgets.PerOperation},
		"the second is rarer":         {[]*gatev1.Policy{allowing("a", tenant, "", a(1000, time.Minute), ""), allowing("b", tenant, "", a(1, time.Minute), "")}, Window{1, time.Minute}},
		"only one says":               {[]*gatev1.Policy{allowing("a", tenant, "", nil, ""), allowing("b", tenant, "", a(5, time.Hour), "")}, Window{5, time.Hour}},
		"a predicate holds":           {[]*gatev1.Policy{allowing("a", tenant, "", a(9, time.Minute), ""), allowing("b", tenant, "", a(2, time.Minute), "true")}, Window{2, time.Minute}},
		"a predicate fails":           {[]*gatev1.Policy{allowing("a", tenant, "", a(9, time.Minute), ""), allowing("b", tenant, "", a(2, time.Minute), "false")}, Window{9, time.Minute}},
		"one without is the tenant's": {[]*gatev1.Policy{allowing("a", tenant, "", nil, ""), allowing("b", tenant, "", a(100_000, time.Second), "")}, DefaultBudgets.PerOperation},
		"a rule's own may be larger":  {[]*gatev1.Policy{allowing("b", tenant, "", a(100_000, time.Second), "")}, Window{100_000, time.Second}},
		"but not below the tenant": {[]*gatev1.Policy{
			{PolicyId: "d", Layer: tenant, DelegatedOperations: []string{"x/y"}}, allowing("b", agent, "agent:a", a(100_000, time.Second), ""),
		}, DefaultBudgets.PerOperation},
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
		got := book.Decide(&Question{Subject: "agent:a", Operation: "x/y"})
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
		if got := book.Decide(&Question{Subject: "agent:a", Operation: "x/y"}); got.Terms.OnTimeout != tc.want {
			t.Errorf("%s: %v on %s, want %s", name, got.Verdict, got.Terms.OnTimeout, tc.want)
		}
	}
}

// Terms of several rules come together, also where nobody could meet them.
func TestTermsThatNobodyCouldMeetTogetherDeny(t *testing.T) {
	asking := func(id string, approvers ...*gatev1.Approver) *gatev1.Policy {
		return &gatev1.Policy{PolicyId: id, Layer: gatev1.Layer_LAYER_TENANT, Rules: []*gatev1.Rule{{
			RuleId: "r", Verdict: gatev1.Verdict_VERDICT_ASK, Operations: []string{"x/y"}, Terms: &gatev1.Terms{Approvers: approvers},
		}}}
	}
	finance, security := "approval.decide.finance", "approval.decide.security"
	carol := []string{"human:carol"}
	for name, tc := range map[string]struct {
		policies []*gatev1.Policy
		verdict  gatev1.Verdict
		people   int
	}{
		"two groups":                     {[]*gatev1.Policy{asking("a", &gatev1.Approver{Scope: finance}), asking("b", &gatev1.Approver{Scope: security})}, gatev1.Verdict_VERDICT_ASK, 2},
		"the same group of two rules":    {[]*gatev1.Policy{asking("a", &gatev1.Approver{Scope: finance}), asking("b", &gatev1.Approver{Scope: finance, Count: 2})}, gatev1.Verdict_VERDICT_ASK, 2},
		"the same group twice in a rule": {[]*gatev1.Policy{asking("a", &gatev1.Approver{Scope: finance}, &gatev1.Approver{Scope: finance})}, gatev1.Verdict_VERDICT_ASK, 2},
		"one person for two":             {[]*gatev1.Policy{asking("a", &gatev1.Approver{Scope: finance, People: carol}), asking("b", &gatev1.Approver{Scope: security, People: carol})}, gatev1.Verdict_VERDICT_DENY, 0},
		"more than an approval takes": {[]*gatev1.Policy{
			asking("a", &gatev1.Approver{Scope: finance, Count: 10}), asking("b", &gatev1.Approver{Scope: security, Count: 10}), asking("c", &gatev1.Approver{Scope: ScopeDecide, Count: 1}),
		}, gatev1.Verdict_VERDICT_DENY, 0},
	} {
		book, err := NewBook(1, tc.policies, []*gatev1.Grant{{GrantId: "g", Subject: "agent:a", Operations: []string{"x/y"}}})
		if err != nil {
			t.Fatal(err)
		}
		got := book.Decide(&Question{Subject: "agent:a", Operation: "x/y"})
		if got.Verdict != tc.verdict || got.Verdict == gatev1.Verdict_VERDICT_ASK && People(got.Terms.Required()) != tc.people {
			t.Errorf("%s: %v %s of %v", name, got.Verdict, got.Reason, got.Terms)
		}
	}
}

// A rule of a newer version that is understood by half is another rule.
func TestWhatThisVersionDoesNotKnowIsNotCompiled(t *testing.T) {
	for name, change := range map[string]func(*gatev1.Policy){
		"a verdict": func(p *gatev1.Policy) { p.Rules[0].Verdict = 9 },
		"an effect": func(p *gatev1.Policy) { p.Rules[0].Effects = append(p.Rules[0].Effects, 9) },
		"a timeout": func(p *gatev1.Policy) { p.Rules[0].Terms = &gatev1.Terms{OnTimeout: 9} },
		"a layer":   func(p *gatev1.Policy) { p.Layer = 9 },
		"a field":   func(p *gatev1.Policy) { p.Rules[0].ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 0x01}) },
	} {
		p := allowing("p", gatev1.Layer_LAYER_TENANT, "", nil, "")
		change(p)
		if _, err := NewBook(1, []*gatev1.Policy{p}, nil); err == nil {
			t.Errorf("%s that is not known compiles", name)
		}
	}
}

// Who asks chooses the input that makes rules dear, so all of them share a bound.
func TestManyDearPredicatesAreBoundedAndCountAgainstTheCaller(t *testing.T) {
	p := &gatev1.Policy{PolicyId: "p", Layer: gatev1.Layer_LAYER_TENANT}
	for i := range 1000 {
		p.Rules = append(p.Rules, &gatev1.Rule{
			RuleId: fmt.Sprint(i), Verdict: gatev1.Verdict_VERDICT_DENY, Operations: []string{"x/y"}, When: fmt.Sprintf("input.l.exists(x, x == %d)", -1-i),
		})
	}
	book, err := NewBook(1, []*gatev1.Policy{p}, []*gatev1.Grant{{GrantId: "g", Subject: "agent:a", Operations: []string{"x/y"}}})
	if err != nil {
		t.Fatal(err)
	}
	input := `{"l":[` + strings.Repeat("1,", 899) + `1]}`
	q := &Question{Subject: "agent:a", Operation: "x/y", Effect: Read, Input: NewInput(&input)}
	if got := book.Decide(q); got.Verdict != gatev1.Verdict_VERDICT_DENY {
		t.Errorf("it is %v", got.Verdict)
	}
	// Counted in steps, so that it does not depend on the machine.
	if q.spent <= questionCost || q.spent > questionCost+predicateCost {
		t.Errorf("it cost %d, want just over %d", q.spent, questionCost)
	}
}

// The same question has the same answer however often it is asked.
func TestAQuestionCanBeAskedAgain(t *testing.T) {
	book, err := NewBook(1, []*gatev1.Policy{allowing("p", gatev1.Layer_LAYER_TENANT, "", nil, "subject == 'agent:a'")},
		[]*gatev1.Grant{{GrantId: "g", Subject: "agent:a", Operations: []string{"x/y"}}})
	if err != nil {
		t.Fatal(err)
	}
	q := &Question{Subject: "agent:a", Operation: "x/y"}
	for i := range 2 * questionCost / plainCost {
		if got := book.Decide(q); got.Verdict != gatev1.Verdict_VERDICT_ALLOW {
			t.Fatalf("the %dth time it is %v %s", i, got.Verdict, got.Reason)
		}
	}
}

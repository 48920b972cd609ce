package policies

import (
	"fmt"
	"maps"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/services/gate/policy"
)

// Whatever is changed to whatever, no state in between allows what neither the first nor
// the last one does.
func TestNoStepOpensAGap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for range 10 {
			walk(t, drawState(t, "before"), drawState(t, "after"))
		}
	})
}

func walk(t *rapid.T, before, after *Stored) {
	files := &Files{}
	files.Policies, files.Grants = sorted(after.Policies), sorted(after.Grants)
	plan, err := NewPlan(before, files, true)
	if err != nil {
		return // a policy changes whom it is for
	}
	first, last := verdicts(t, before), verdicts(t, after)
	now := &Stored{Policies: maps.Clone(before.Policies), Grants: maps.Clone(before.Grants)}
	for i, s := range plan.steps() {
		s.do(now)
		for question, verdict := range verdicts(t, now) {
			if strictness[verdict] < min(strictness[first[question]], strictness[last[question]]) {
				t.Fatalf("%s is %v after step %d, %s; first it was %v, and %v in the end\n%v\n%v",
					question, verdict, i, s.name(), first[question], last[question], before, after)
			}
		}
	}
	for question, verdict := range verdicts(t, now) {
		if verdict != last[question] {
			t.Fatalf("%s is %v in the end, want %v", question, verdict, last[question])
		}
	}
	if again, err := NewPlan(now, files, true); err != nil || !again.Empty() {
		t.Fatalf("there is more to do: %v, %v", again, err)
	}
}

var strictness = map[gatev1.Verdict]int{
	gatev1.Verdict_VERDICT_ALLOW: 0, gatev1.Verdict_VERDICT_ASK: 1, gatev1.Verdict_VERDICT_DENY: 2,
}

func (s step) do(on *Stored) {
	switch {
	case s.policy != nil:
		on.Policies[s.policy.GetPolicyId()] = s.policy
	case s.deletedPolicy != nil:
		delete(on.Policies, s.deletedPolicy.GetPolicyId())
	case s.grant != nil:
		on.Grants[s.grant.GetGrantId()] = s.grant
	default:
		delete(on.Grants, s.deletedGrant.GetGrantId())
	}
}

var (
	operations = []string{"a/x", "a/y", "b/x"}
	subjects   = []string{"agent:alice", "agent:bob"}
)

// verdicts are the answers to every question there is here.
func verdicts(t *rapid.T, s *Stored) map[string]gatev1.Verdict {
	book, err := policy.NewBook(1, sorted(s.Policies), sorted(s.Grants))
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]gatev1.Verdict)
	for _, subject := range subjects {
		for _, operation := range operations {
			for _, effect := range []registryv1.Effect{registryv1.Effect_EFFECT_READ, registryv1.Effect_EFFECT_WRITE} {
				answer := book.Explain(&gatev1.DryRun{Caller: &gatev1.Caller{Subject: subject}, Operation: operation, Effect: effect})
				all[fmt.Sprint(subject, " ", operation, " ", effect)] = answer.GetVerdict()
			}
		}
	}
	return all
}

func drawState(t *rapid.T, label string) *Stored {
	s := &Stored{Policies: make(map[string]*gatev1.Policy), Grants: make(map[string]*gatev1.Grant)}
	patterns := rapid.SliceOfNDistinct(rapid.SampledFrom(append([]string{"a/*", "*/x"}, operations...)), 1, 2, rapid.ID)
	for i := range rapid.IntRange(0, 3).Draw(t, label+" policies") {
		p := &gatev1.Policy{PolicyId: fmt.Sprintf("p%d", i), Layer: gatev1.Layer_LAYER_TENANT}
		if i == 0 {
			p.Layer, p.Target = gatev1.Layer_LAYER_AGENT, rapid.SampledFrom(subjects).Draw(t, "target")
			p.Confined = rapid.Bool().Draw(t, "confined")
		} else {
			p.DelegatedOperations = rapid.SliceOfNDistinct(rapid.SampledFrom(operations), 0, 2, rapid.ID).Draw(t, "delegated")
		}
		for j := range rapid.IntRange(0, 3).Draw(t, "rules") {
			r := &gatev1.Rule{RuleId: fmt.Sprintf("r%d", j), Verdict: gatev1.Verdict(rapid.IntRange(1, 3).Draw(t, "verdict")), Operations: patterns.Draw(t, "patterns")}
			r.AllowWrites = r.GetVerdict() == gatev1.Verdict_VERDICT_ALLOW
			p.Rules = append(p.Rules, r)
		}
		s.Policies[p.GetPolicyId()] = p
	}
	if rapid.Bool().Draw(t, "granted all") { // or else most questions end with NOT_GRANTED
		for _, subject := range subjects {
			s.Grants["all-"+subject] = &gatev1.Grant{GrantId: "all-" + subject, Subject: subject, Operations: []string{"*/*"}}
		}
	}
	for i := range rapid.IntRange(0, 3).Draw(t, label+" grants") {
		g := &gatev1.Grant{GrantId: fmt.Sprintf("g%d", i), Subject: rapid.SampledFrom(subjects).Draw(t, "subject"), Operations: patterns.Draw(t, "patterns")}
		s.Grants[g.GetGrantId()] = g
	}
	return s
}

// One policy among grants is put once, however much it changes.
func TestOnePolicyIsOneRevision(t *testing.T) {
	base := &gatev1.Policy{PolicyId: "base", Layer: gatev1.Layer_LAYER_TENANT, Rules: []*gatev1.Rule{
		{RuleId: "a", Verdict: gatev1.Verdict_VERDICT_ASK, Operations: []string{"a/x"}},
		{RuleId: "b", Verdict: gatev1.Verdict_VERDICT_ALLOW, Operations: []string{"b/x"}, AllowWrites: true},
	}}
	was := proto.CloneOf(base)
	was.Rules = []*gatev1.Rule{{RuleId: "a", Verdict: gatev1.Verdict_VERDICT_DENY, Operations: []string{"a/x"}}}
	files := &Files{}
	files.Policies = []*gatev1.Policy{base}
	files.Grants = []*gatev1.Grant{{GrantId: "new", Subject: "agent:a", Operations: []string{"a/x"}}}
	stored := &Stored{Policies: map[string]*gatev1.Policy{"base": was}, Grants: map[string]*gatev1.Grant{
		"old": {GrantId: "old", Subject: "agent:a", Operations: []string{"b/x"}},
	}}
	plan, err := NewPlan(stored, files, true)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range plan.steps() {
		names = append(names, s.name())
	}
	if got := fmt.Sprint(names); got != "[grant old, deleted policy base grant new]" {
		t.Errorf("the steps are %s", got)
	}
}

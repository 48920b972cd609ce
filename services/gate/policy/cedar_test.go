package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cedar-policy/cedar-go"
	"pgregory.net/rapid"

	gatev1 "weir/gen/gate/v1"
)

// Cedar knows permit and forbid, no asking and no layers. On a tenant's DENY and
// ALLOW rules over names of two segments both can say the same, and must.
func TestWhatCedarCanSayItSaysToo(t *testing.T) {
	allowed := 0
	rapid.Check(t, func(t *rapid.T) {
		grants := []*gatev1.Grant{{GrantId: "g", Subject: "agent:a", Operations: twoSegments(t, "granted")}}
		p := &gatev1.Policy{PolicyId: "p", Layer: gatev1.Layer_LAYER_TENANT}
		for i := range rapid.IntRange(1, 6).Draw(t, "rules") {
			verdict := rapid.SampledFrom([]gatev1.Verdict{gatev1.Verdict_VERDICT_DENY, gatev1.Verdict_VERDICT_ALLOW, gatev1.Verdict_VERDICT_ALLOW}).Draw(t, "verdict")
			p.Rules = append(p.Rules, &gatev1.Rule{
				RuleId: fmt.Sprintf("r%d", i), Verdict: verdict, Operations: twoSegments(t, "operations"),
				AllowWrites: rapid.Bool().Draw(t, "allow writes"),
			})
		}
		book, err := NewBook(1, []*gatev1.Policy{p}, grants)
		if err != nil {
			t.Fatal(err)
		}
		policies, err := cedar.NewPolicySetFromBytes("p.cedar", []byte(inCedar(p, grants[0])))
		if err != nil {
			t.Fatalf("%v in\n%s", err, inCedar(p, grants[0]))
		}
		for _, name := range []string{"a/a", "a/b", "b/a", "b/b"} {
			for _, effect := range []Effect{Read, Write} {
				got := book.Decide(&Question{Subject: "agent:a", Operation: name, Effect: effect})
				says, _ := cedar.Authorize(policies, cedar.EntityMap{}, cedar.Request{
					Principal: cedar.NewEntityUID("Agent", "a"), Action: cedar.NewEntityUID("Action", cedar.String(effect.String())),
					Resource: cedar.NewEntityUID("Operation", cedar.String(name)),
					Context:  cedar.NewRecord(cedar.RecordMap{"name": cedar.String(name)}),
				})
				if weir := got.Verdict == gatev1.Verdict_VERDICT_ALLOW && got.Reason == ReasonRule; weir != (says == cedar.Allow) {
					t.Fatalf("%s %s: weir says %v %s, cedar %v, in\n%s", effect, name, got.Verdict, got.Reason, says, inCedar(p, grants[0]))
				}
				if says == cedar.Allow {
					allowed++
				}
			}
		}
	})
	if allowed == 0 {
		t.Error("nothing was ever allowed")
	}
}

func twoSegments(t *rapid.T, label string) []string {
	return rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a/a", "a/b", "b/a", "b/b", "a/*", "*/a", "*/*"}), 1, 3, rapid.ID[string]).Draw(t, label)
}

// inCedar writes the rules in Cedar's language.
func inCedar(p *gatev1.Policy, grant *gatev1.Grant) string {
	var b strings.Builder
	like := func(patterns []string) string {
		var parts []string
		for _, pattern := range patterns {
			parts = append(parts, fmt.Sprintf("context.name like %q", pattern))
		}
		return strings.Join(parts, " || ")
	}
	for _, r := range p.GetRules() {
		if r.GetVerdict() == gatev1.Verdict_VERDICT_DENY {
			fmt.Fprintf(&b, "forbid(principal, action, resource) when { %s };\n", like(r.GetOperations()))
			continue
		}
		fmt.Fprintf(&b, "permit(principal, action == Action::\"READ\", resource) when { (%s) && (%s) };\n", like(grant.GetOperations()), like(r.GetOperations()))
		exact := slices.DeleteFunc(slices.Clone(r.GetOperations()), func(s string) bool { return strings.Contains(s, "*") })
		if r.GetAllowWrites() && len(exact) > 0 {
			fmt.Fprintf(&b, "permit(principal, action == Action::\"WRITE\", resource) when { (%s) && (%s) };\n", like(grant.GetOperations()), like(exact))
		}
	}
	return b.String()
}

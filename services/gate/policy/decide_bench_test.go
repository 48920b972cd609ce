package policy

import (
	"fmt"
	"testing"
	"time"

	gatev1 "weir/gen/gate/v1"
)

// manyRules is a tenant with n rules, of which those for one operation decide,
// as the tables of bench/README.md have them.
func manyRules(t testing.TB, n int, when string) *Book {
	rules := make([]*gatev1.Rule, 0, n)
	for i := range n - 1 {
		r := &gatev1.Rule{RuleId: fmt.Sprintf("r%d", i), Operations: []string{fmt.Sprintf("ns%d/op%d", i/10, i)}}
		switch i % 3 {
		case 0:
			r.Verdict = gatev1.Verdict_VERDICT_DENY
		case 1:
			r.Verdict = gatev1.Verdict_VERDICT_ASK
		default:
			r.Verdict, r.AllowWrites = gatev1.Verdict_VERDICT_ALLOW, true
		}
		rules = append(rules, r)
	}
	rules = append(rules, &gatev1.Rule{
		RuleId: "last", Verdict: gatev1.Verdict_VERDICT_ALLOW, AllowWrites: true, Operations: []string{"crm/notes/add"}, When: when,
	})
	b, err := NewBook(1,
		[]*gatev1.Policy{{PolicyId: "p", Layer: gatev1.Layer_LAYER_TENANT, Rules: rules}},
		[]*gatev1.Grant{{GrantId: "g", Subject: "agent:alice", Operations: []string{"crm/**"}}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func BenchmarkDecide(b *testing.B) {
	input := `{"amount": 50, "currency": "EUR"}`
	for _, bench := range []struct {
		name  string
		rules int
		when  string
	}{
		{"10 rules", 10, ""},
		{"1,000 rules", 1000, ""},
		{"1,000 rules and a predicate", 1000, "input.amount < 100.0 && subject == 'agent:alice'"},
	} {
		b.Run(bench.name, func(b *testing.B) {
			book := manyRules(b, bench.rules, bench.when)
			q := Question{
				Subject: "agent:alice", Session: "s", OnBehalfOf: []string{"human:boss"},
				Operation: "crm/notes/add", Input: NewInput(&input), Now: time.Now(),
			}
			b.ReportAllocs()
			for b.Loop() {
				if a := book.Decide(&q); a.Verdict != gatev1.Verdict_VERDICT_ALLOW {
					b.Fatal(a)
				}
			}
		})
	}
}

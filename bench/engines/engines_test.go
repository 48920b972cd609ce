package engines

import (
	"fmt"
	"testing"
)

var sizes = []int{10, 100, 1000}

var kinds = map[string]bool{"names only": false, "a predicate": true}

func TestAllEnginesDecideAlike(t *testing.T) {
	for kind, predicate := range kinds {
		for _, n := range sizes {
			rules := Rules(n, predicate)
			for _, f := range Forms {
				t.Run(fmt.Sprintf("%s with %s, %d rules, %s", f.Engine, f.Name, n, kind), func(t *testing.T) {
					e, err := f.New(rules)
					if err != nil {
						t.Fatal(err)
					}
					if err := Prove(e, rules); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

func TestThePredicateDecides(t *testing.T) {
	rules := Rules(10, true)
	if !Allowed(rules, LastOperation, LastAmount) || Allowed(rules, LastOperation, limit) {
		t.Errorf("the last rule is %+v", rules[9])
	}
	e, err := New("weir", Rules(10, false))
	if err != nil {
		t.Fatal(err)
	}
	if err := Prove(e, rules); err == nil {
		t.Error("rules without the predicate passed for those with it")
	}
}

// What engines are held to says something only if rules of every kind decide.
func TestQuestionsMeetEveryKindOfRule(t *testing.T) {
	for _, n := range sizes {
		rules := Rules(n, false)
		if len(rules) != n {
			t.Fatalf("%d rules, want %d", len(rules), n)
		}
		questions := Questions(rules)
		if len(questions) < 50 {
			t.Errorf("%d rules: %d questions", n, len(questions))
		}
		type kind struct {
			verdict Verdict
			exact   bool
		}
		met := make(map[kind]int)
		several, unheard := 0, 0
		for _, operation := range questions {
			heard := 0
			for _, r := range rules {
				if r.covers(operation) {
					met[kind{r.Verdict, r.exact()}]++
					heard++
				}
			}
			if heard > 1 {
				several++
			}
			if heard == 0 {
				unheard++
			}
		}
		for _, verdict := range []Verdict{Deny, Ask, Allow} {
			if met[kind{verdict, true}] == 0 {
				t.Errorf("%d rules: no question meets an exact %s", n, verdict)
			}
		}
		if met[kind{Deny, false}] == 0 || n > 10 && met[kind{Ask, false}] == 0 {
			t.Errorf("%d rules: patterns are met %v", n, met)
		}
		if several == 0 || unheard == 0 {
			t.Errorf("%d rules: %d questions meet several, %d none", n, several, unheard)
		}
		patterns := 0
		for _, r := range rules {
			if !r.exact() {
				patterns++
			}
		}
		if patterns != n/10 {
			t.Errorf("%d of %d rules are patterns", patterns, n)
		}
	}
}

// The measured question meets no rule before the last.
func TestOnlyTheLastRuleIsAboutTheMeasuredQuestion(t *testing.T) {
	for _, n := range sizes {
		for i, r := range Rules(n, false) {
			if last := i == n-1; r.covers(LastOperation) != last {
				t.Errorf("rule %d of %d: %+v", i, n, r)
			}
		}
	}
}

func TestAWrongAnswerIsFound(t *testing.T) {
	rules := Rules(100, false)
	e, err := New("weir", rules[:50])
	if err != nil {
		t.Fatal(err)
	}
	if err := Prove(e, rules); err == nil {
		t.Error("half of the rules passed for all")
	}
	if _, err := New("none", rules); err == nil {
		t.Error("an engine that does not exist")
	}
}

func BenchmarkForms(b *testing.B) {
	for kind, predicate := range kinds {
		for _, n := range sizes {
			rules := Rules(n, predicate)
			for _, f := range Forms {
				b.Run(fmt.Sprintf("%s/%s/%s/%d", kind, f.Engine, f.Name, n), func(b *testing.B) {
					e, err := f.New(rules)
					if err != nil {
						b.Fatal(err)
					}
					ask, err := e.Question(LastOperation, LastAmount)
					if err != nil {
						b.Fatal(err)
					}
					b.ReportAllocs()
					for b.Loop() {
						if allowed, err := ask(); !allowed || err != nil {
							b.Fatal(allowed, err)
						}
					}
				})
			}
		}
	}
}

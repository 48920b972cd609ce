// Package engines puts the same rules to weir's gate and to three general policy
// engines, so that bench can compare how fast they decide the same thing.
//
// Each engine is given its rules in the forms that somebody who knows it would
// write them in. The tests hold all forms to the same answers, and bench
// measures each engine in its fastest.
package engines

import (
	"fmt"
	"slices"
	"strings"
)

// Verdict of a rule.
type Verdict string

// DENY beats ASK beats ALLOW.
const (
	Deny  Verdict = "deny"
	Ask   Verdict = "ask"
	Allow Verdict = "allow"
)

// Rule is one verdict on the operations that a pattern matches: segments split at
// `/`, and `*` for any text within one of them.
type Rule struct {
	Verdict Verdict
	Pattern string
	// Below is what the amount in the input must be below for the rule to hold, 0 if
	// it holds for every input.
	Below int
}

func (r Rule) exact() bool { return !strings.Contains(r.Pattern, "*") }

func hasPredicate(rules []Rule) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.Below > 0 })
}

// LastOperation is what the last of the rules allows, and no other rule says
// anything about: an engine that looks at its rules one by one looks at all.
const LastOperation = "crm/notes/add"

// The measured question: LastAmount is below the predicate of the last rule, if it
// has one.
const (
	LastAmount = 50
	limit      = 100
)

// Rules makes n rules, of which one in ten is a pattern. With predicate, the last
// one looks at the input.
//
// Only DENY and ASK stand on patterns: weir opens no write by one. One pattern in
// three has its `*` behind a literal segment, one in front of it, and one within
// the first segment, where weir's trie has to try them one by one too.
func Rules(n int, predicate bool) []Rule {
	rules := make([]Rule, 0, n)
	for i := range n - 1 {
		rules = append(rules, rule(i))
	}
	last := Rule{Verdict: Allow, Pattern: LastOperation}
	if predicate {
		last.Below = limit
	}
	return append(rules, last)
}

func rule(i int) Rule {
	const perNamespace = 10
	namespace := i / perNamespace
	if i%perNamespace == 4 {
		verdict := []Verdict{Deny, Ask}[namespace%2]
		switch namespace % 3 {
		case 0:
			// Over one exact rule of the same namespace.
			return Rule{Verdict: verdict, Pattern: fmt.Sprintf("ns%d/*5", namespace)}
		case 1:
			return Rule{Verdict: verdict, Pattern: fmt.Sprintf("*/purge%d", i)}
		default:
			return Rule{Verdict: verdict, Pattern: fmt.Sprintf("team%d-*/export", i)}
		}
	}
	verdict := []Verdict{Deny, Ask, Allow}[i%3]
	if i%2 == 0 {
		return Rule{Verdict: verdict, Pattern: fmt.Sprintf("ns%d/area/op%d", namespace, i)}
	}
	return Rule{Verdict: verdict, Pattern: fmt.Sprintf("ns%d/op%d", namespace, i)}
}

// Engine holds rules.
type Engine interface {
	// Question prepares one, with an amount for input, in the engine's own form;
	// no measurement pays for that. What it gives is not safe for concurrent use.
	Question(operation string, amount int) (Question, error)
}

// Question says whether its operation may run now, without asking anybody.
type Question func() (allowed bool, err error)

// Form is an engine with its rules in one of the forms that it offers for them.
type Form struct {
	Engine, Name string
	// From is the least number of rules with which the form is its engine's fastest,
	// as BenchmarkForms shows; 0 for never. It is measured from there on.
	From int
	New  func([]Rule) (Engine, error)
}

// Forms of all engines. Of one engine, those with a greater From stand later.
var Forms = []Form{
	{Engine: "weir", Name: "rules", From: 1, New: newWeir},
	{Engine: "opa", Name: "rules", From: 1, New: newOPARules},
	{Engine: "opa", Name: "data", New: newOPAData},
	{Engine: "cedar", Name: "policies", From: 1, New: newCedarPolicies},
	{Engine: "cedar", Name: "groups", From: 20, New: newCedarGroups},
	{Engine: "casbin", Name: "roles", From: 1, New: newCasbinRoles},
	{Engine: "casbin", Name: "policies", New: newCasbinPolicies},
}

// New gives rules to an engine in its fastest form.
func New(engine string, rules []Rule) (Engine, error) {
	var fastest *Form
	for i, f := range Forms {
		if f.Engine == engine && f.From > 0 && f.From <= len(rules) {
			fastest = &Forms[i]
		}
	}
	if fastest == nil {
		return nil, fmt.Errorf("there is no engine %q", engine)
	}
	e, err := fastest.New(rules)
	if err != nil {
		return nil, fmt.Errorf("%s with %d rules: %w", engine, len(rules), err)
	}
	return e, nil
}

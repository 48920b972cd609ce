package engines

import (
	"fmt"
	"strconv"

	"github.com/casbin/casbin/v2"
	"github.com/casbin/casbin/v2/model"
	"github.com/casbin/casbin/v2/util"
)

// casbinEngine knows allow and deny: ASK is a deny. It only says whether, not by
// which rule, which is the faster of the questions that it answers.
type casbinEngine struct {
	enforcer  *casbin.Enforcer
	predicate bool
}

// casbinModel has a field that tells a pattern from a name, so that only
// patterns cost a match.
const casbinModel = `
[request_definition]
r = obj

[policy_definition]
p = kind, obj, eft

[policy_effect]
e = some(where (p.eft == allow)) && !some(where (p.eft == deny))

[matchers]
m = r.obj == p.obj || p.kind == "pattern" && globMatch(r.obj, p.obj)
`

// casbinRoleModel has a role for each effect; who is in it says which rules hold.
const casbinRoleModel = `
[request_definition]
r = obj

[policy_definition]
p = role, eft

[role_definition]
g = _, _

[policy_effect]
e = some(where (p.eft == allow)) && !some(where (p.eft == deny))

[matchers]
m = g(r.obj, p.role)
`

// With a predicate somewhere, every policy has a limit or an empty one. A
// condition in the policy itself, by eval(), would be parsed for each question.
const (
	casbinPredicateModel = `
[request_definition]
r = obj, amount

[policy_definition]
p = kind, obj, eft, below

[policy_effect]
e = some(where (p.eft == allow)) && !some(where (p.eft == deny))

[matchers]
m = (r.obj == p.obj || p.kind == "pattern" && globMatch(r.obj, p.obj)) && (p.below == "" || below(r.amount, p.below))
`
	casbinRolePredicateModel = `
[request_definition]
r = obj, amount

[policy_definition]
p = role, eft, below

[role_definition]
g = _, _

[policy_effect]
e = some(where (p.eft == allow)) && !some(where (p.eft == deny))

[matchers]
m = g(r.obj, p.role) && (p.below == "" || below(r.amount, p.below))
`
)

var casbinEffects = map[Verdict]string{Deny: "deny", Ask: "deny", Allow: "allow"}

// casbinLimit is how a policy names its predicate.
func casbinLimit(r Rule) string {
	if r.Below == 0 {
		return ""
	}
	return strconv.Itoa(r.Below)
}

// newCasbinPolicies writes each rule as a policy.
func newCasbinPolicies(rules []Rule) (Engine, error) {
	predicate, text := hasPredicate(rules), casbinModel
	if predicate {
		text = casbinPredicateModel
	}
	policies := make([][]string, 0, len(rules))
	for _, r := range rules {
		kind := "exact"
		if !r.exact() {
			kind = "pattern"
		}
		policy := []string{kind, r.Pattern, casbinEffects[r.Verdict]}
		if predicate {
			policy = append(policy, casbinLimit(r))
		}
		policies = append(policies, policy)
	}
	return newCasbin(text, predicate, policies, nil)
}

// newCasbinRoles makes names and patterns alike members of a role for each effect
// and limit. casbin remembers for each name which roles it is in, so that the
// measured question, which is always the same, is a look-up of what it remembers.
func newCasbinRoles(rules []Rule) (Engine, error) {
	predicate, text := hasPredicate(rules), casbinRoleModel
	if predicate {
		text = casbinRolePredicateModel
	}
	var policies, members [][]string
	seen := make(map[string]bool)
	for _, r := range rules {
		effect, below := casbinEffects[r.Verdict], casbinLimit(r)
		role := effect + below
		if !seen[role] {
			seen[role] = true
			policy := []string{role, effect}
			if predicate {
				policy = append(policy, below)
			}
			policies = append(policies, policy)
		}
		members = append(members, []string{r.Pattern, role})
	}
	return newCasbin(text, predicate, policies, members)
}

func newCasbin(text string, predicate bool, policies, members [][]string) (Engine, error) {
	m, err := model.NewModelFromString(text)
	if err != nil {
		return nil, err
	}
	enforcer, err := casbin.NewEnforcer(m)
	if err != nil {
		return nil, err
	}
	if predicate {
		enforcer.AddFunction("below", below)
	}
	if _, err := enforcer.AddPolicies(policies); err != nil {
		return nil, err
	}
	if len(members) > 0 {
		enforcer.AddNamedMatchingFunc("g", "globMatch", matchGlob)
		if _, err := enforcer.AddGroupingPolicies(members); err != nil {
			return nil, err
		}
	}
	return casbinEngine{enforcer, predicate}, nil
}

func (c casbinEngine) Question(operation string, amount int) (Question, error) {
	request := []any{operation}
	if c.predicate {
		request = append(request, float64(amount))
	}
	return func() (bool, error) { return c.enforcer.Enforce(request...) }, nil
}

func matchGlob(name, pattern string) bool {
	matched, err := util.GlobMatch(name, pattern)
	return err == nil && matched
}

// below compares an amount with a policy's limit.
func below(args ...any) (any, error) {
	if len(args) != 2 {
		return nil, fmt.Errorf("below takes an amount and a limit, not %d arguments", len(args))
	}
	amount, isNumber := args[0].(float64)
	text, isText := args[1].(string)
	if !isNumber || !isText {
		return nil, fmt.Errorf("below(%v, %v): want a number and a text", args[0], args[1])
	}
	limit, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil, err
	}
	return amount < limit, nil
}

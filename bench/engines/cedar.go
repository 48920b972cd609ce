package engines

import (
	"fmt"
	"iter"
	"strings"

	"github.com/cedar-policy/cedar-go"
)

// cedarEngine holds policies, and entities where exact names are members of groups.
// Cedar knows permit and forbid only: ASK is a forbid.
type cedarEngine struct {
	policies cedar.PolicyIterator
	entities cedar.EntityMap
}

var cedarEffects = map[Verdict]string{Deny: "forbid", Ask: "forbid", Allow: "permit"}

// newCedarPolicies writes each rule as a policy.
func newCedarPolicies(rules []Rule) (Engine, error) {
	var text strings.Builder
	for _, r := range rules {
		text.WriteString(cedarRule(r))
	}
	return newCedar(text.String(), nil)
}

func cedarRule(r Rule) string {
	if !r.exact() {
		return cedarPattern(r)
	}
	condition := ""
	if r.Below > 0 {
		condition = fmt.Sprintf(" when { context.amount < %d }", r.Below)
	}
	return fmt.Sprintf("%s(principal, action == Action::%q, resource)%s;\n", cedarEffects[r.Verdict], r.Pattern, condition)
}

// newCedarGroups makes exact names members of one action group for each verdict,
// with one policy for each group. Patterns and rules with a predicate are policies.
func newCedarGroups(rules []Rule) (Engine, error) {
	var text strings.Builder
	entities := make(cedar.EntityMap)
	for _, verdict := range []Verdict{Deny, Ask, Allow} {
		fmt.Fprintf(&text, "%s(principal, action in Action::%q, resource);\n", cedarEffects[verdict], verdict)
	}
	for _, r := range rules {
		if !r.exact() || r.Below > 0 {
			text.WriteString(cedarRule(r))
			continue
		}
		name := cedarAction(r.Pattern)
		entities[name] = cedar.Entity{UID: name, Parents: cedar.NewEntityUIDSet(cedarAction(string(r.Verdict)))}
	}
	return newCedar(text.String(), entities)
}

// cedarPattern compares segment by segment: a `*` of Cedar would also match a `/`.
func cedarPattern(r Rule) string {
	var conditions []string
	segments := strings.Split(r.Pattern, "/")
	for i, segment := range segments {
		switch {
		case segment == "*":
		case strings.Contains(segment, "*"):
			conditions = append(conditions, fmt.Sprintf("context.s%d like %q", i, segment))
		default:
			conditions = append(conditions, fmt.Sprintf("context.s%d == %q", i, segment))
		}
	}
	conditions = append(conditions, fmt.Sprintf("context.segments == %d", len(segments)))
	return fmt.Sprintf("%s(principal, action, resource) when { %s };\n", cedarEffects[r.Verdict], strings.Join(conditions, " && "))
}

func newCedar(text string, entities cedar.EntityMap) (Engine, error) {
	policies, err := cedar.NewPolicySetFromBytes("rules.cedar", []byte(text))
	if err != nil {
		return nil, err
	}
	var list cedarPolicies
	for id, p := range policies.All() {
		list = append(list, cedarPolicy{id, p})
	}
	return cedarEngine{list, entities}, nil
}

// cedarPolicies is a list, over which Authorize gets faster than over the map that
// a PolicySet is.
type cedarPolicies []cedarPolicy

type cedarPolicy struct {
	id     cedar.PolicyID
	policy *cedar.Policy
}

func (c cedarPolicies) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] {
	return func(yield func(cedar.PolicyID, *cedar.Policy) bool) {
		for _, p := range c {
			if !yield(p.id, p.policy) {
				return
			}
		}
	}
}

func cedarAction(name string) cedar.EntityUID {
	return cedar.NewEntityUID("Action", cedar.String(name))
}

func (c cedarEngine) Question(operation string, amount int) (Question, error) {
	segments := strings.Split(operation, "/")
	context := cedar.RecordMap{"segments": cedar.Long(len(segments)), "amount": cedar.Long(amount)}
	for i, segment := range segments {
		context[cedar.String(fmt.Sprintf("s%d", i))] = cedar.String(segment)
	}
	request := cedar.Request{
		Principal: cedar.NewEntityUID("Agent", "alice"), Action: cedarAction(operation),
		Resource: cedar.NewEntityUID("Tenant", "acme"), Context: cedar.NewRecord(context),
	}
	return func() (bool, error) {
		decision, diagnostic := cedar.Authorize(c.policies, c.entities, request)
		if len(diagnostic.Errors) > 0 {
			return false, fmt.Errorf("%v", diagnostic.Errors)
		}
		return decision == cedar.Allow, nil
	}, nil
}

package policy

import (
	"fmt"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
)

// Check says what of a policy does not compile or contradicts itself, with
// fields below `at`, the policy's own place in a request. What it lets pass,
// compileLayer compiles.
func Check(p *gatev1.Policy, at string) error {
	refusal := fault.New(fault.FieldInvalid, "policy %s cannot be stored", p.GetPolicyId())
	bad := false
	report := func(field, format string, args ...any) {
		bad = true // an error keeps the first few
		refusal = refusal.Field(at+"."+field, fmt.Sprintf(format, args...))
	}
	checkTarget(p, report)
	seen := make(map[string]bool)
	for i, r := range p.GetRules() {
		place := fmt.Sprintf("rules[%d].", i)
		if seen[r.GetRuleId()] {
			report(place+"rule_id", "%s is the id of another rule too", r.GetRuleId())
		}
		seen[r.GetRuleId()] = true
		checkRule(r, place, report)
	}
	if bad {
		return refusal
	}
	return nil
}

func checkTarget(p *gatev1.Policy, report func(string, string, ...any)) {
	switch p.GetLayer() {
	case gatev1.Layer_LAYER_TENANT:
		if p.GetTarget() != "" {
			report("target", "must be empty in the TENANT layer")
		}
		if p.GetConfined() {
			report("confined", "is for agents and sessions: deny what a whole tenant may not do")
		}
		return
	case gatev1.Layer_LAYER_AGENT:
		if !agentSubject.MatchString(p.GetTarget()) {
			report("target", "must be a whole subject such as agent:alice")
		}
	default:
		if !sessionID.MatchString(p.GetTarget()) {
			report("target", "must be a session's id: 1 to 128 printable characters")
		}
	}
	if len(p.GetDelegatedOperations()) > 0 {
		report("delegated_operations", "are for the TENANT layer: a tenant delegates")
	}
	if p.GetBudgets() != nil {
		report("budgets", "are for the TENANT layer; here a rule may have one")
	}
}

func checkRule(r *gatev1.Rule, at string, report func(string, string, ...any)) {
	for j, text := range r.GetOperations() {
		if _, err := compilePattern(text); err != nil {
			report(fmt.Sprintf("%soperations[%d]", at, j), "%v", err)
		}
	}
	if r.GetWhen() != "" {
		if _, err := compilePredicate(r.GetWhen()); err != nil {
			report(at+"when", "%v", err)
		}
	}
	ask, allow := r.GetVerdict() == gatev1.Verdict_VERDICT_ASK, r.GetVerdict() == gatev1.Verdict_VERDICT_ALLOW
	if r.GetTerms() != nil && !ask {
		report(at+"terms", "are for ASK")
	}
	if r.GetBudget() != nil && !allow {
		report(at+"budget", "is for ALLOW")
	}
	if r.GetAllowWrites() && !allow && r.GetTerms().GetOnTimeout() != gatev1.OnTimeout_ON_TIMEOUT_ALLOW {
		report(at+"allow_writes", "is for ALLOW, and for ASK with an allow on timeout")
	}
}

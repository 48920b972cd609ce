package policies

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	gatev1 "weir/gen/gate/v1"
)

// A plan is carried out one call at a time, and checks are decided all the while. So the
// order is such that no state in between allows what neither the old nor the new one
// does, whatever is decided when, and wherever it breaks off:
//
//  1. grants: those that go, and of those that change what stays of them
//  2. policies: what closes something, without what the same change opens
//  3. policies: as they are to be
//  4. policies that go
//  5. grants as they are to be
//
// After 1 and 2 everything is at least as strict as before and as it will be. What
// follows only opens what the new state opens too. Where a single policy changes, 2 is not
// needed.

// step is one call.
type step struct {
	policy, deletedPolicy *gatev1.Policy
	grant, deletedGrant   *gatev1.Grant
	// partly says that another step follows for the same one.
	partly bool
}

func (p *Plan) steps() []step {
	if len(p.changes) == 1 {
		return p.changes[0].whole()
	}
	touched := 0
	for _, c := range p.changes {
		if c.policy() {
			touched++
		}
	}
	var grants, closing, policies, gone, opening []step
	for _, c := range p.changes {
		switch {
		case !c.policy():
			first, last := narrowing(c.grantWas, c.grants)
			grants, opening = append(grants, first...), append(opening, last...)
		case touched == 1: // at once, with nothing beside it that it could be too early for
			policies = append(policies, c.whole()...)
		default:
			tight := strictest(c.before, c.after)
			if sameRules(tight, c.after) { // it only closes
				closing = append(closing, c.whole()...)
				continue
			}
			if !sameRules(tight, c.before) {
				closing = append(closing, step{policy: tight, partly: true})
			}
			if c.deletes() {
				gone = append(gone, c.whole()...)
			} else {
				policies = append(policies, c.whole()...)
			}
		}
	}
	return slices.Concat(grants, closing, policies, gone, opening)
}

// whole makes a change at once.
func (c change) whole() []step {
	switch {
	case c.after != nil:
		return []step{{policy: c.after}}
	case c.before != nil:
		return []step{{deletedPolicy: c.before}}
	case c.grants == nil:
		return []step{{deletedGrant: c.grantWas}}
	case c.grantWas != nil && c.grantWas.GetSubject() != c.grants.GetSubject():
		return []step{{deletedGrant: c.grantWas}, {grant: c.grants}}
	default:
		return []step{{grant: c.grants}}
	}
}

// narrowing takes from a grant what goes, before anything is opened, and gives what comes
// at the end.
func narrowing(before, after *gatev1.Grant) (first, last []step) {
	switch {
	case before == nil:
		return nil, []step{{grant: after}}
	case after == nil:
		return []step{{deletedGrant: before}}, nil
	}
	kept := proto.CloneOf(after)
	kept.Operations = slices.DeleteFunc(kept.GetOperations(), func(o string) bool { return !slices.Contains(before.GetOperations(), o) })
	whole := len(kept.GetOperations()) == len(after.GetOperations())
	switch {
	case before.GetSubject() != after.GetSubject() || len(kept.GetOperations()) == 0:
		return []step{{deletedGrant: before}}, []step{{grant: after}}
	case whole: // it only narrows
		return []step{{grant: after}}, nil
	case !slices.ContainsFunc(before.GetOperations(), func(o string) bool { return !slices.Contains(kept.GetOperations(), o) }):
		return nil, []step{{grant: after}} // it only widens
	default:
		return []step{{grant: kept, partly: true}}, []step{{grant: after}}
	}
}

// strictest is a policy that allows nothing that one of two does not: it denies and asks
// for what either does, and allows what both allow by the same rule. One of the two may
// be missing.
func strictest(before, after *gatev1.Policy) *gatev1.Policy {
	p := proto.CloneOf(after)
	if after == nil {
		p = proto.CloneOf(before)
	}
	p.Rules = nil
	ids := make(map[string]bool)
	add := func(r *gatev1.Rule) {
		r = proto.CloneOf(r)
		for n := 1; ids[r.GetRuleId()]; n++ {
			r.RuleId = fmt.Sprintf("%.56s.%d", r.GetRuleId(), n)
		}
		ids[r.GetRuleId()] = true
		p.Rules = append(p.Rules, r)
	}
	was, is := rulesOf(before), rulesOf(after)
	for _, r := range after.GetRules() {
		if r.GetVerdict() != gatev1.Verdict_VERDICT_ALLOW || was[meaning(r)] {
			add(r)
		}
	}
	for _, r := range before.GetRules() {
		if r.GetVerdict() != gatev1.Verdict_VERDICT_ALLOW && !is[meaning(r)] {
			add(r)
		}
	}
	p.DelegatedOperations = slices.DeleteFunc(slices.Clone(after.GetDelegatedOperations()), func(o string) bool {
		return !slices.Contains(before.GetDelegatedOperations(), o)
	})
	p.Confined = before.GetConfined() || after.GetConfined()
	p.Budgets = smallest(before.GetBudgets(), after.GetBudgets())
	return p
}

func rulesOf(p *gatev1.Policy) map[string]bool {
	all := make(map[string]bool)
	for _, r := range p.GetRules() {
		all[meaning(r)] = true
	}
	return all
}

// meaning is the same for rules that decide alike. Their ids and descriptions don't.
func meaning(r *gatev1.Rule) string {
	r = proto.CloneOf(r)
	r.RuleId, r.Description = "", ""
	bytes, _ := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	return string(bytes)
}

// sameRules says whether two policies decide alike. One that is missing is like one that
// says nothing.
func sameRules(a, b *gatev1.Policy) bool {
	delegates := func(p *gatev1.Policy) []string { return slices.Sorted(slices.Values(p.GetDelegatedOperations())) }
	return maps.Equal(rulesOf(a), rulesOf(b)) && a.GetConfined() == b.GetConfined() &&
		slices.Equal(delegates(a), delegates(b)) && sameBudgets(a.GetBudgets(), b.GetBudgets())
}

func sameBudgets(a, b *gatev1.Budgets) bool {
	return proto.Equal(a.GetPerOperation(), b.GetPerOperation()) && proto.Equal(a.GetPerCaller(), b.GetPerCaller()) &&
		proto.Equal(a.GetPerTenant(), b.GetPerTenant())
}

// smallest has the rarer window of each kind. Where one has none, the other's holds
// unless it is looser than the gate's default.
func smallest(a, b *gatev1.Budgets) *gatev1.Budgets {
	s := &gatev1.Budgets{
		PerOperation: rarer(a.GetPerOperation(), b.GetPerOperation(), 60),
		PerCaller:    rarer(a.GetPerCaller(), b.GetPerCaller(), 600),
		PerTenant:    rarer(a.GetPerTenant(), b.GetPerTenant(), 6000),
	}
	if sameBudgets(s, nil) {
		return nil
	}
	return s
}

func rarer(a, b *gatev1.Window, perMinute float64) *gatev1.Window {
	rate := func(w *gatev1.Window) float64 {
		if w == nil {
			return perMinute
		}
		return float64(w.GetLimit()) / w.GetPeriod().AsDuration().Minutes()
	}
	if rate(a) < rate(b) {
		return a
	}
	return b
}

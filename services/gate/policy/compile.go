package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
)

// rule is a compiled rule.
type rule struct {
	ref     string // policy/rule
	source  *gatev1.Rule
	policy  *gatev1.Policy
	verdict gatev1.Verdict
	when    *predicate
	terms   Terms
	budget  Window // of an ALLOW; below the tenant it may have none, Limit 0
}

// cell is what stands under one pattern for one effect. Rules without a
// predicate are boiled down when they are compiled, so that deciding costs the
// same however many there are.
type cell struct {
	deny  *rule   // the first without a predicate
	asks  []*rule // all without a predicate
	allow *rule   // the first without a predicate
	// budget is the rarest of all that allow without a predicate.
	budget Window

	conditional []*rule
}

// place is what stands under one pattern.
type place struct {
	cells [effects]cell
	rules []*rule // all, for explaining
}

// layer is the compiled policies of one target.
type layer struct {
	rules     trie[place]
	delegated map[string]bool
	confined  bool
	budgets   Budgets
}

// compileLayer compiles all policies of one target together. Their order does
// not count.
func compileLayer(policies []*gatev1.Policy) (*layer, error) {
	l := &layer{delegated: make(map[string]bool), budgets: budgetsOf(policies)}
	// In a fixed order, so that of several rules that decide alike every replica
	// names the same one.
	policies = slices.Clone(policies)
	slices.SortFunc(policies, func(a, b *gatev1.Policy) int { return strings.Compare(a.GetPolicyId(), b.GetPolicyId()) })
	for _, p := range policies {
		if err := known(p.ProtoReflect()); err != nil {
			return nil, fault.New(fault.PolicyUnreadable, "policy %s: %v", p.GetPolicyId(), err)
		}
		l.confined = l.confined || p.GetConfined()
		for _, name := range p.GetDelegatedOperations() {
			l.delegated[name] = true
		}
		rules := slices.Clone(p.GetRules())
		slices.SortFunc(rules, func(a, b *gatev1.Rule) int { return strings.Compare(a.GetRuleId(), b.GetRuleId()) })
		for _, source := range rules {
			if err := l.add(p, source); err != nil {
				return nil, fault.New(fault.PolicyUnreadable, "policy %s, rule %s: %v", p.GetPolicyId(), source.GetRuleId(), err)
			}
		}
	}
	return l, nil
}

func (l *layer) add(p *gatev1.Policy, source *gatev1.Rule) error {
	r := &rule{
		ref: p.GetPolicyId() + "/" + source.GetRuleId(), source: source, policy: p,
		verdict: source.GetVerdict(), terms: TermsFrom(source.GetTerms()), budget: windowFrom(source.GetBudget()),
	}
	if r.verdict == gatev1.Verdict_VERDICT_ALLOW && r.budget.Limit == 0 && p.GetLayer() == gatev1.Layer_LAYER_TENANT {
		r.budget = l.budgets.PerOperation
	}
	if source.GetWhen() != "" {
		var err error
		if r.when, err = compilePredicate(source.GetWhen()); err != nil {
			return fmt.Errorf("when: %w", err)
		}
	}
	for _, text := range source.GetOperations() {
		pat, err := compilePattern(text)
		if err != nil {
			return err
		}
		there := l.rules.at(pat)
		if !slices.Contains(there.rules, r) {
			there.rules = append(there.rules, r)
		}
		for e := range Effect(effects) {
			if r.reaches(e, pat) {
				there.cells[e].add(r.unlessUnsafe(pat))
			}
		}
	}
	return nil
}

// known says that a message, and all in it, holds nothing this version does not
// know. A rule of a newer gate that was half understood would be another rule.
func known(m protoreflect.Message) error {
	if len(m.GetUnknown()) > 0 {
		return errors.New("it holds a field that this version does not know")
	}
	var err error
	check := func(f protoreflect.FieldDescriptor, v protoreflect.Value) {
		switch {
		case f.Enum() != nil && f.Enum().Values().ByNumber(v.Enum()) == nil:
			err = fmt.Errorf("%s %d is not known to this version", f.Name(), v.Enum())
		case f.Message() != nil && err == nil:
			err = known(v.Message())
		}
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if !f.IsList() {
			check(f, v)
			return err == nil
		}
		for i := range v.List().Len() {
			check(f, v.List().Get(i))
		}
		return err == nil
	})
	return err
}

// unlessUnsafe is the rule as it counts by one of its patterns: an allow on
// timeout that is not the tenant's, exact and acknowledged counts as a denial
// then. Verification refuses such a one; should it be stored all the same, it
// opens nothing.
func (r *rule) unlessUnsafe(p pattern) *rule {
	safe := r.policy.GetLayer() == gatev1.Layer_LAYER_TENANT && r.source.GetAllowWrites() && p.exact()
	if r.terms.OnTimeout != TimeoutAllow || r.verdict != gatev1.Verdict_VERDICT_ASK || safe {
		return r
	}
	strict := *r
	strict.terms.OnTimeout = TimeoutDeny
	return &strict
}

// reaches says whether a rule has a say by one of its patterns on operations of
// an effect. Verification refuses an ALLOW that would open a write by a pattern
// or unsaid; should such a one be stored all the same, it opens nothing.
func (r *rule) reaches(e Effect, p pattern) bool {
	return r.coversEffect(e) && (r.verdict != gatev1.Verdict_VERDICT_ALLOW || e == Read || p.exact() && r.source.GetAllowWrites())
}

func (r *rule) coversEffect(e Effect) bool {
	listed := r.source.GetEffects()
	return len(listed) == 0 || slices.Contains(listed, e.Proto())
}

func (c *cell) add(r *rule) {
	switch {
	case r.when != nil:
		c.conditional = append(c.conditional, r)
	case r.verdict == gatev1.Verdict_VERDICT_DENY && c.deny == nil:
		c.deny = r
	case r.verdict == gatev1.Verdict_VERDICT_ASK:
		c.asks = append(c.asks, r)
	case r.verdict == gatev1.Verdict_VERDICT_ALLOW:
		if c.allow == nil {
			c.allow = r
		}
		c.budget = c.budget.rarest(r.budget)
	}
}

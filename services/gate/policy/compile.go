package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/fault"
)

// Effect says how far an operation reaches.
type Effect uint8

// The zero Effect is WRITE: that is what an unknown one counts as.
const (
	Write Effect = iota
	Read
	Admin
)

const effects = 3

func (e Effect) String() string { return [effects]string{"WRITE", "READ", "ADMIN"}[e] }

// EffectFrom counts what it does not know as WRITE.
func EffectFrom(e registryv1.Effect) Effect {
	switch e {
	case registryv1.Effect_EFFECT_READ:
		return Read
	case registryv1.Effect_EFFECT_ADMIN:
		return Admin
	default:
		return Write
	}
}

// Proto gives the wire form.
func (e Effect) Proto() registryv1.Effect {
	return [effects]registryv1.Effect{registryv1.Effect_EFFECT_WRITE, registryv1.Effect_EFFECT_READ, registryv1.Effect_EFFECT_ADMIN}[e]
}

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
		if p.GetLayer().Descriptor().Values().ByNumber(p.GetLayer().Number()) == nil || len(p.ProtoReflect().GetUnknown()) > 0 {
			return nil, fault.New(fault.PolicyUnreadable, "policy %s holds what this version does not know", p.GetPolicyId())
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
	if err := known(source.ProtoReflect()); err != nil {
		return err
	}
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

// known says that a message holds nothing this version does not know. A rule of a
// newer gate that was half understood would be another rule.
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
	if listed := r.source.GetEffects(); len(listed) > 0 && !slices.Contains(listed, e.Proto()) {
		return false
	}
	return r.verdict != gatev1.Verdict_VERDICT_ALLOW || e == Read || p.exact() && r.source.GetAllowWrites()
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

// Grants are the compiled patterns of one subject's grants.
type Grants struct{ ids trie[[]string] }

func compileGrants(grants []*gatev1.Grant) (*Grants, error) {
	g := &Grants{}
	for _, grant := range grants {
		for _, text := range grant.GetOperations() {
			p, err := compilePattern(text)
			if err != nil {
				return nil, fault.New(fault.PolicyUnreadable, "grant %s: %v", grant.GetGrantId(), err)
			}
			at := g.ids.at(p)
			*at = append(*at, grant.GetGrantId())
		}
	}
	return g, nil
}

// Match says whether any grant matches. A nil Grants has none.
func (g *Grants) Match(operation string) bool {
	if g == nil || !isName(operation) {
		return false
	}
	var h hits[[]string]
	g.ids.find(operation, &h)
	return h.n > 0
}

// matching gives the ids of the grants that match, in order.
func (g *Grants) matching(operation string) []string {
	if g == nil || !isName(operation) {
		return nil
	}
	var h hits[[]string]
	g.ids.find(operation, &h)
	var ids []string
	for i := range h.n {
		ids = append(ids, *h.at(i)...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// CheckGrant says which patterns of a grant could match no operation, with fields
// below `at`.
func CheckGrant(g *gatev1.Grant, at string) error {
	refusal, bad := fault.New(fault.FieldInvalid, "grant %s cannot be stored", g.GetGrantId()), false
	for i, text := range g.GetOperations() {
		if _, err := compilePattern(text); err != nil {
			refusal, bad = refusal.Field(fmt.Sprintf("%s.operations[%d]", at, i), err.Error()), true
		}
	}
	if bad {
		return refusal
	}
	return nil
}

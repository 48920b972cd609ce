package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	gatev1 "weir/gen/gate/v1"
)

// A policy is verified by itself. Rules of others never count as cover for what
// one of its rules would open: they can be deleted later, and this policy would
// not be verified again.

// Bounds on one verification, beside those on each search.
const (
	// maxFindings keeps the answer to a policy of 100,000 bad patterns small.
	maxFindings = 1000
	// What proofs of errors may cost together, and then those of warnings.
	maxErrorSteps   = 10_000_000
	maxWarningSteps = 3_000_000
)

// Environment is what a policy is verified against, besides itself.
type Environment struct {
	// Known are the operations that exist now; nil if that is not known.
	Known []string
	// Delegated are the operations the tenant delegated, by exact name; nil if
	// that is not known.
	Delegated map[string]bool
	// NeverTrue says that a predicate is constantly false. Nil: none is.
	NeverTrue func(when string) bool
}

// Verify says what is wrong with a policy, errors first. Where rules are
// compared it speaks of all operation names that could ever exist, each with any
// effect. A rule with a pattern that does not compile is left out: policies with
// such a one are refused before.
func Verify(p *gatev1.Policy, env Environment) []*gatev1.Finding {
	v := &verification{
		policy:    p,
		env:       env,
		residuals: newResiduals(),
		known:     newNameIndex(env.Known),
		delegated: newNameIndex(delegatedNames(env.Delegated)),
		covers:    newCoverIndex(),
		denies:    newCoverIndex(),
	}
	for _, r := range p.GetRules() {
		rule, ok := v.prepare(r)
		if !ok {
			continue
		}
		v.rules = append(v.rules, rule)
		// A predicate may be false, so a rule with one covers nothing.
		if r.GetWhen() == "" && r.GetVerdict() != gatev1.Verdict_VERDICT_ALLOW {
			v.covers.add(rule)
			if r.GetVerdict() == gatev1.Verdict_VERDICT_DENY {
				v.denies.add(rule)
			}
		}
	}
	v.budget = proofBudget{steps: maxErrorSteps}
	for _, check := range []func(*verifiedRule){
		v.neverMatches, v.unsatisfiable, v.opensOnTimeout, v.opensWrite,
	} {
		v.each(check)
	}
	v.budget = proofBudget{steps: maxWarningSteps}
	for _, check := range []func(*verifiedRule){
		v.unknownOperation, v.notDelegated, v.saysNothing, // the cheap ones first
	} {
		v.each(check)
	}
	return v.findings
}

type verification struct {
	policy           *gatev1.Policy
	env              Environment
	rules            []*verifiedRule
	covers, denies   *coverIndex // unconditional DENY and ASK rules; only DENY
	known, delegated nameIndex
	residuals        *residuals
	budget           proofBudget
	findings         []*gatev1.Finding
	full             bool
}

type verifiedRule struct {
	*gatev1.Rule
	patterns    []verifiedPattern // each text once
	effects     effectSet
	neverTrue   bool
	acknowledge []string // the exact names whose writes an ALLOW acknowledges
}

type verifiedPattern struct {
	pattern
	text  string
	empty bool // no name matches
}

// An effectSet has the bit 1<<e for an effect.
type effectSet uint8

var (
	allEffects     = []Effect{Write, Admin, Read}
	writingEffects = allEffects[:2]
)

func (s effectSet) has(e Effect) bool { return s&(1<<e) != 0 }

func (v *verification) prepare(r *gatev1.Rule) (*verifiedRule, bool) {
	rule := &verifiedRule{Rule: r}
	for _, e := range allEffects {
		if len(r.GetEffects()) == 0 || slices.Contains(r.GetEffects(), e.Proto()) {
			rule.effects |= 1 << e
		}
	}
	rule.neverTrue = r.GetWhen() != "" && v.env.NeverTrue != nil && v.env.NeverTrue(r.GetWhen())
	seen := map[string]bool{}
	for _, text := range r.GetOperations() {
		if seen[text] {
			continue
		}
		seen[text] = true
		compiled, err := compilePattern(text)
		if err != nil {
			return nil, false
		}
		rule.patterns = append(rule.patterns, verifiedPattern{pattern: compiled, text: text, empty: compiled.shortest() > maxNameLength})
		if r.GetAllowWrites() && compiled.exact() {
			rule.acknowledge = append(rule.acknowledge, text)
		}
	}
	return rule, true
}

func (v *verification) each(check func(*verifiedRule)) {
	for _, rule := range v.rules {
		if v.full {
			return
		}
		check(rule)
	}
}

// find adds a finding about a rule, and about one of its patterns if there is
// one.
func (v *verification) find(kind gatev1.FindingKind, rule *verifiedRule, pattern, message string, args ...any) *gatev1.Finding {
	if len(v.findings) == maxFindings {
		if !v.full {
			v.full = true
			v.findings[maxFindings-1].Message += fmt.Sprintf(". Verification stopped here: it says at most %d things", maxFindings)
		}
		return &gatev1.Finding{}
	}
	severity := gatev1.Severity_SEVERITY_ERROR
	if warnings[kind] {
		severity = gatev1.Severity_SEVERITY_WARNING
	}
	f := &gatev1.Finding{
		Severity: severity,
		Kind:     kind,
		PolicyId: v.policy.GetPolicyId(),
		Revision: v.policy.GetRevision(),
		RuleId:   rule.GetRuleId(),
		Pattern:  pattern,
		Message:  fmt.Sprintf("rule %q ", rule.GetRuleId()) + fmt.Sprintf(message, args...),
	}
	v.findings = append(v.findings, f)
	return f
}

// warnings are the kinds that do not keep a policy from being stored.
var warnings = map[gatev1.FindingKind]bool{
	gatev1.FindingKind_FINDING_KIND_GATES_NOTHING:     true,
	gatev1.FindingKind_FINDING_KIND_ALLOWS_NOTHING:    true,
	gatev1.FindingKind_FINDING_KIND_UNKNOWN_OPERATION: true,
	gatev1.FindingKind_FINDING_KIND_NOT_DELEGATED:     true,
}

func (v *verification) neverMatches(rule *verifiedRule) {
	if rule.neverTrue {
		v.find(gatev1.FindingKind_FINDING_KIND_NEVER_MATCHES, rule, "", "never matches: its predicate is never true")
	}
	for _, p := range rule.patterns {
		if p.empty {
			v.find(gatev1.FindingKind_FINDING_KIND_NEVER_MATCHES, rule, p.text,
				"has the pattern %s, which matches no operation name: each segment of one begins with a letter or digit, and it has at most %d bytes",
				p.text, maxNameLength)
		}
	}
}

func (v *verification) opensOnTimeout(rule *verifiedRule) {
	if rule.GetVerdict() != gatev1.Verdict_VERDICT_ASK || rule.GetTerms().GetOnTimeout() != gatev1.OnTimeout_ON_TIMEOUT_ALLOW {
		return
	}
	wildcard := slices.IndexFunc(rule.patterns, func(p verifiedPattern) bool { return !p.exact() })
	var pattern, reason string
	switch {
	case v.policy.GetLayer() != gatev1.Layer_LAYER_TENANT:
		reason = "only a policy of the tenant may do that"
	case wildcard >= 0:
		pattern = rule.patterns[wildcard].text
		reason = fmt.Sprintf("its pattern %s does not name one operation exactly", pattern)
	case !rule.GetAllowWrites():
		reason = "set allow_writes to acknowledge that"
	default:
		return
	}
	v.find(gatev1.FindingKind_FINDING_KIND_OPENS_ON_TIMEOUT, rule, pattern, "would allow what nobody answered in time: %s", reason)
}

// opensWrite proves that an ALLOW lets no write run which it does not name
// exactly and acknowledge, or finds one that it does let run.
func (v *verification) opensWrite(rule *verifiedRule) {
	if rule.GetVerdict() != gatev1.Verdict_VERDICT_ALLOW || rule.neverTrue {
		return
	}
	for _, p := range rule.patterns {
		if p.empty || p.exact() && rule.GetAllowWrites() {
			continue
		}
		name, effect, result := v.firstUncovered(p, rule.effects, writingEffects, v.covers, rule.acknowledge)
		switch {
		case v.budget.spent():
			v.find(gatev1.FindingKind_FINDING_KIND_TOO_COMPLEX, rule, p.text,
				"could not be proven to open nothing, nor could what follows it: the policy as a whole takes more than %d steps. Use exact names, fewer wildcards or smaller policies",
				maxErrorSteps)
			v.full = true
			return
		case result == gaveUp:
			v.find(gatev1.FindingKind_FINDING_KIND_TOO_COMPLEX, rule, p.text,
				"could not be proven to open nothing by its pattern %s: that takes more than %d steps or %d states. Use exact names or fewer wildcards, there and where the policy denies or asks",
				p.text, maxSearchSteps, maxSearchStates)
		case result == foundName:
			advice := "name such an operation exactly and set allow_writes, or narrow effects to READ"
			if p.exact() {
				advice = "set allow_writes to acknowledge that, or narrow effects to READ"
			}
			f := v.find(gatev1.FindingKind_FINDING_KIND_OPENS_WRITE, rule, p.text,
				"would let %s, if its effect is %s, run without asking, by its pattern %s: %s",
				name, effect, p.text, advice)
			f.Operation, f.Effect = name, effect.Proto()
		}
		if v.full {
			return
		}
	}
}

// saysNothing finds rules that never decide anything, since the same policy is
// always stricter. One for which that takes too long to prove is left alone:
// nothing depends on it.
func (v *verification) saysNothing(rule *verifiedRule) {
	kind, covers := gatev1.FindingKind_FINDING_KIND_GATES_NOTHING, v.denies
	message := "asks for nothing: the policy denies all that it matches"
	switch rule.GetVerdict() {
	case gatev1.Verdict_VERDICT_ASK:
	case gatev1.Verdict_VERDICT_ALLOW:
		kind, covers = gatev1.FindingKind_FINDING_KIND_ALLOWS_NOTHING, v.covers
		message = "allows nothing: the policy denies, or asks for, all that it matches"
	default:
		return
	}
	matches := false
	for _, p := range rule.patterns {
		if p.empty || rule.neverTrue {
			continue
		}
		matches = true
		if _, _, result := v.firstUncovered(p, rule.effects, allEffects, covers, nil); result != foundNone {
			return
		}
	}
	if matches {
		v.find(kind, rule, "", "%s", message)
	}
}

func (v *verification) unknownOperation(rule *verifiedRule) {
	if v.env.Known == nil {
		return
	}
	for _, p := range rule.patterns {
		if !p.empty && !v.known.matched(p, &v.budget) {
			v.find(gatev1.FindingKind_FINDING_KIND_UNKNOWN_OPERATION, rule, p.text,
				"has the pattern %s, which matches no operation that is known now", p.text)
		}
	}
}

// notDelegated also finds wildcards, but only those that match nothing that is
// delegated: of the others a part counts, which may be what is meant.
func (v *verification) notDelegated(rule *verifiedRule) {
	layer := v.policy.GetLayer()
	below := layer == gatev1.Layer_LAYER_AGENT || layer == gatev1.Layer_LAYER_SESSION
	if !below || v.env.Delegated == nil || rule.GetVerdict() != gatev1.Verdict_VERDICT_ALLOW {
		return
	}
	for _, p := range rule.patterns {
		if !p.empty && !v.delegated.matched(p, &v.budget) {
			v.find(gatev1.FindingKind_FINDING_KIND_NOT_DELEGATED, rule, p.text,
				"has no say by its pattern %s: an ALLOW below the tenant counts only for what the tenant delegated by exact name", p.text)
		}
	}
}

// firstUncovered looks for a name that the pattern matches, with one of the
// effects that are of interest and that the rule is for, which the covers leave
// to it. But names that are excepted do not count.
func (v *verification) firstUncovered(
	p verifiedPattern, of effectSet, interest []Effect, index *coverIndex, excepted []string,
) (string, Effect, searchResult) {
	var proven [][]string
	for _, effect := range interest {
		if !of.has(effect) {
			continue
		}
		covers, whole := index.meeting(p, effect, &v.budget)
		if whole {
			continue
		}
		for _, name := range excepted {
			if p.match(name) {
				covers = append(covers, name)
			}
		}
		// Most rules cover all effects alike.
		if slices.ContainsFunc(proven, func(same []string) bool { return slices.Equal(same, covers) }) {
			continue
		}
		name, result := v.residuals.firstUncovered(p.text, covers, &v.budget)
		if result != foundNone {
			return name, effect, result
		}
		proven = append(proven, covers)
	}
	return "", 0, foundNone
}

// A coverIndex finds the patterns of rules that could match the same names as
// a given pattern does.
type coverIndex struct {
	byFirst map[string][]cover // by the first segment, if that has no wildcard
	others  []cover
	all     []cover
}

type cover struct {
	verifiedPattern
	effects effectSet
}

func newCoverIndex() *coverIndex { return &coverIndex{byFirst: map[string][]cover{}} }

func (x *coverIndex) add(rule *verifiedRule) {
	for _, p := range rule.patterns {
		if p.empty {
			continue
		}
		c := cover{verifiedPattern: p, effects: rule.effects}
		x.all = append(x.all, c)
		if first := p.segments[0]; strings.Contains(first, "*") {
			x.others = append(x.others, c)
		} else {
			x.byFirst[first] = append(x.byFirst[first], c)
		}
	}
}

// meeting gives the covers that have names in common with the pattern, or says
// that one of them is plainly the whole of it.
func (x *coverIndex) meeting(p verifiedPattern, effect Effect, budget *proofBudget) (meeting []string, whole bool) {
	candidates := [][]cover{x.others, x.byFirst[p.segments[0]]}
	if strings.Contains(p.segments[0], "*") {
		candidates = [][]cover{x.all}
	}
	for _, covers := range candidates {
		for i := range covers {
			// To compare two patterns takes as long as two steps. When the budget
			// is spent the search that follows gives up at once.
			if !budget.spend(2) {
				return nil, false
			}
			switch c := &covers[i]; {
			case !c.effects.has(effect):
			case c.includes(p.pattern):
				return nil, true
			case c.meets(p.pattern):
				meeting = append(meeting, c.text)
			}
		}
	}
	return meeting, false
}

// A nameIndex is sorted.
type nameIndex []string

func newNameIndex(names []string) nameIndex { return slices.Sorted(slices.Values(names)) }

func delegatedNames(delegated map[string]bool) []string {
	names := slices.Collect(maps.Keys(delegated))
	return slices.DeleteFunc(names, func(name string) bool { return !delegated[name] })
}

// matched says that the pattern matches one of the names, and also when the
// budget does not suffice to tell.
func (x nameIndex) matched(p verifiedPattern, budget *proofBudget) bool {
	prefix, _, _ := strings.Cut(p.text, "*")
	start, _ := slices.BinarySearch(x, prefix)
	for _, name := range x[start:] {
		if !strings.HasPrefix(name, prefix) {
			return false
		}
		if !budget.spend(1) || p.match(name) {
			return true
		}
	}
	return false
}

// Unmatched gives those patterns that match none of the known operations, in
// their order.
func Unmatched(patterns, known []string) []string {
	index := newNameIndex(known)
	var unmatched []string
	for _, text := range patterns {
		compiled, err := compilePattern(text)
		unlimited := proofBudget{steps: len(known)}
		if err != nil || !index.matched(verifiedPattern{pattern: compiled, text: text}, &unlimited) {
			unmatched = append(unmatched, text)
		}
	}
	return unmatched
}

func (v *verification) unsatisfiable(rule *verifiedRule) {
	if rule.GetVerdict() != gatev1.Verdict_VERDICT_ASK {
		return
	}
	if reason := TermsFrom(rule.GetTerms()).unmeetable(); reason != "" {
		v.find(gatev1.FindingKind_FINDING_KIND_UNSATISFIABLE, rule, "", "asks for approvers it cannot have: %s", reason)
	}
}

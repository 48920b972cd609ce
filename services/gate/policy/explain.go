package policy

import (
	"slices"
	"strings"

	gatev1 "weir/gen/gate/v1"
)

// QuestionFrom reads the question of a dry run.
func QuestionFrom(run *gatev1.DryRun) *Question {
	caller := run.GetCaller()
	return &Question{
		Subject: caller.GetSubject(), Session: caller.GetSession(), Confined: caller.GetConfined(), OnBehalfOf: caller.GetOnBehalfOf(),
		Operation: run.GetOperation(), Effect: EffectFrom(run.GetEffect()),
		Conversation: run.GetConversationId(), Target: run.GetTargetConversationId(),
		Input: NewInput(run.InputJson), Now: timeOf(run.GetNow().AsTime()),
	}
}

// Explain decides a question and says which rules it rests on, and which others
// match.
func (b *Book) Explain(run *gatev1.DryRun) *gatev1.ExplainCheckResponse {
	q := QuestionFrom(run)
	answer := b.Decide(q)
	out := &gatev1.ExplainCheckResponse{
		Verdict: answer.Verdict, Reason: answer.Reason, Rule: answer.Rule, PolicyRevision: answer.Revision,
		GrantIds: b.grants[q.Subject].matching(q.Operation),
	}
	if answer.Verdict == gatev1.Verdict_VERDICT_ASK {
		out.Terms = answer.Terms.Proto()
	}
	b.eachLayer(q, func(l *layer, counts part) {
		out.Matches = append(out.Matches, l.matches(q, counts, answer)...)
	})
	return out
}

// matches describes every rule of a layer whose pattern and effects match.
func (l *layer) matches(q *Question, counts part, answer Answer) []*gatev1.RuleMatch {
	var found hits[place]
	l.rules.find(q.Operation, &found)
	seen := make(map[*rule]bool)
	var out []*gatev1.RuleMatch
	for i := range found.n {
		for _, r := range found.at(i).rules {
			if seen[r] || !r.coversEffect(q.Effect) {
				continue
			}
			seen[r] = true
			out = append(out, r.match(q, counts, answer))
		}
	}
	return out
}

func (r *rule) match(q *Question, counts part, answer Answer) *gatev1.RuleMatch {
	m := &gatev1.RuleMatch{
		PolicyId: r.policy.GetPolicyId(), RuleId: r.source.GetRuleId(), Layer: r.policy.GetLayer(), Target: r.policy.GetTarget(),
		Verdict: r.verdict, Predicate: gatev1.Predicate_PREDICATE_NONE,
	}
	holds := true
	if r.when != nil {
		said, err := r.when.eval(q)
		holds = r.holds(said, err)
		switch {
		case err != nil:
			m.Predicate, m.PredicateError = gatev1.Predicate_PREDICATE_ERROR, shortened(err.Error())
		case said:
			m.Predicate = gatev1.Predicate_PREDICATE_TRUE
		default:
			m.Predicate = gatev1.Predicate_PREDICATE_FALSE
		}
	}
	m.WhyNot = r.whyNot(q, counts, answer, holds)
	m.Counted = m.WhyNot == ""
	return m
}

// shortened cuts what CEL says, which may repeat a value of the input.
func shortened(text string) string {
	const limit = 200
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}

// whyNot says why a rule that matches had no say; empty where it had.
func (r *rule) whyNot(q *Question, counts part, answer Answer, holds bool) string {
	allows := r.verdict == gatev1.Verdict_VERDICT_ALLOW
	switch {
	case !holds && r.when != nil && allows:
		return "its predicate does not hold, or could not be evaluated"
	case !holds:
		return "its predicate does not hold"
	case answer.Verdict == gatev1.Verdict_VERDICT_DENY && answer.Reason != ReasonRule:
		return "refused before rules are asked: " + answer.Reason
	case counts == denyOnly && r.verdict != gatev1.Verdict_VERDICT_DENY:
		return "only denials pass to those who act on behalf of its target"
	case allows && counts == allowIgnored:
		return "the tenant has not delegated this operation"
	case allows && q.Effect != Read && !(r.source.GetAllowWrites() && slices.Contains(r.source.GetOperations(), q.Operation)):
		return "it does not name this operation exactly, or does not say allow_writes"
	case r.verdict != answer.Verdict:
		return "a stricter rule beats it"
	default:
		return ""
	}
}

// RunCases decides cases and compares with what their author expects.
func RunCases(b *Book, cases []*gatev1.Case) []*gatev1.CaseResult {
	out := make([]*gatev1.CaseResult, len(cases))
	for i, c := range cases {
		answer := b.Decide(QuestionFrom(c.GetCheck()))
		out[i] = &gatev1.CaseResult{
			Name: c.GetName(), Verdict: answer.Verdict, Reason: answer.Reason, Rule: answer.Rule,
			Passed: answer.Verdict == c.GetVerdict() &&
				(c.GetReason() == "" || c.GetReason() == answer.Reason) &&
				(c.GetRule() == "" || c.GetRule() == answer.Rule || answer.asked(c.GetRule())),
		}
	}
	return out
}

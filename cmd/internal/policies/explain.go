package policies

import (
	"fmt"
	"strings"

	"weir/cmd/internal/console"
	gatev1 "weir/gen/gate/v1"
	"weir/internal/visible"
)

// ShowExplanation shows why a check comes out as it does: the verdict, the grants, every
// rule that matches and whether it had a say, and who would be asked.
func ShowExplanation(t *console.Terminal, e *gatev1.ExplainCheckResponse) {
	verdict := strings.TrimPrefix(e.GetVerdict().String(), "VERDICT_")
	why := e.GetReason()
	if e.GetRule() != "" {
		why += " by " + e.GetRule()
	}
	t.Printf("%s  %s\n", verdictColour(t, e.GetVerdict(), verdict), visible.Text(why))
	if e.GetPolicyRevision() > 0 {
		t.Printf("%s\n", t.Dim(fmt.Sprintf("decided by revision %d", e.GetPolicyRevision())))
	}
	grants := "none: without one the answer is no"
	if len(e.GetGrantIds()) > 0 {
		grants = visible.Text(strings.Join(e.GetGrantIds(), ", "))
	}
	t.Printf("\ngrants  %s\n", grants)
	if len(e.GetMatches()) == 0 {
		t.Printf("rules   none matches; without a rule a read is allowed and all else asks\n")
	} else {
		t.Printf("rules that match\n")
	}
	for _, m := range e.GetMatches() {
		showMatch(t, m)
	}
	if e.GetVerdict() == gatev1.Verdict_VERDICT_ASK {
		t.Printf("asked\n")
		for _, line := range TermLines(e.GetTerms()) {
			t.Printf("  %s\n", visible.Text(line))
		}
	}
}

func showMatch(t *console.Terminal, m *gatev1.RuleMatch) {
	says := strings.TrimPrefix(m.GetVerdict().String(), "VERDICT_")
	whose := strings.ToLower(strings.TrimPrefix(m.GetLayer().String(), "LAYER_"))
	if m.GetTarget() != "" {
		whose += " " + m.GetTarget()
	}
	counted := t.Bold("counted")
	if !m.GetCounted() {
		counted = t.Dim("had no say: " + visible.Text(m.GetWhyNot()))
	}
	t.Printf("  %s  %s (%s)  %s\n", verdictColour(t, m.GetVerdict(), fmt.Sprintf("%-5s", says)), visible.Text(ruleName(m.GetPolicyId(), m.GetRuleId())),
		visible.Text(whose), counted)
	switch m.GetPredicate() {
	case gatev1.Predicate_PREDICATE_TRUE:
		t.Printf("         its predicate holds\n")
	case gatev1.Predicate_PREDICATE_FALSE:
		t.Printf("         its predicate does not hold\n")
	case gatev1.Predicate_PREDICATE_ERROR:
		t.Printf("         its predicate failed: %s\n", visible.Text(m.GetPredicateError()))
	}
}

func verdictColour(t *console.Terminal, verdict gatev1.Verdict, text string) string {
	switch verdict {
	case gatev1.Verdict_VERDICT_ALLOW:
		return t.Green(text)
	case gatev1.Verdict_VERDICT_ASK:
		return t.Yellow(text)
	default:
		return t.Red(text)
	}
}

// TermLines are the terms of asking in words, a line each.
func TermLines(terms *gatev1.Terms) []string {
	var lines []string
	if len(terms.GetApprovers()) == 0 {
		lines = append(lines, "1 holder of approval.decide")
	}
	for _, a := range terms.GetApprovers() {
		lines = append(lines, ApproverText(a))
	}
	ttl := "10m" // as the gate has it, where nothing says otherwise
	if terms.GetTtl() != nil {
		ttl = console.Remaining(terms.GetTtl().AsDuration())
	}
	switch terms.GetOnTimeout() {
	case gatev1.OnTimeout_ON_TIMEOUT_DENY:
		lines = append(lines, "within "+ttl+", or it expires")
	case gatev1.OnTimeout_ON_TIMEOUT_WAIT:
		lines = append(lines, "however long it takes; once approved, to be used within "+ttl)
	case gatev1.OnTimeout_ON_TIMEOUT_ALLOW:
		lines = append(lines, "within "+ttl, "IF NOBODY ANSWERS, IT COUNTS AS APPROVED")
	default:
		lines = append(lines, "within "+ttl+", or, where no person stands behind the caller, however long it takes")
	}
	if terms.GetNoteRequired() {
		lines = append(lines, "a note is required")
	}
	return lines
}

// ApproverText is a requirement in words.
func ApproverText(a *gatev1.Approver) string {
	holders := "holders"
	if a.GetCount() <= 1 {
		holders = "holder"
	}
	text := fmt.Sprintf("%d %s of %s", max(a.GetCount(), 1), holders, a.GetScope())
	if len(a.GetPeople()) > 0 {
		text += " among " + strings.Join(a.GetPeople(), ", ")
	}
	return text
}

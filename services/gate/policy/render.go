package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"google.golang.org/protobuf/types/known/durationpb"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
)

// YAML writes a file in the form that ParseFile reads, the same bytes for the same
// content: what differs in it differs in meaning. What only the gate sets (revisions,
// times, who stored it) is left out, and so are comments, which nothing keeps.
//
// What is no text to a reader, such as control and bidirectional characters, is escaped.
func (f *File) YAML() []byte {
	var w yamlWriter
	list(&w, 0, "policies", f.Policies, (*yamlWriter).policy)
	list(&w, 0, "grants", f.Grants, (*yamlWriter).grant)
	list(&w, 0, "cases", f.Cases, (*yamlWriter).testCase)
	if w.b.Len() == 0 {
		return []byte("{}\n")
	}
	return []byte(w.b.String())
}

// yamlWriter writes lines of `key: value`. The first line of a list's item begins with a
// dash in place of its last two spaces.
type yamlWriter struct {
	b    strings.Builder
	dash bool
}

func (w *yamlWriter) line(depth int, key, value string) {
	indent := strings.Repeat("  ", depth)
	if w.dash {
		indent, w.dash = indent[2:]+"- ", false
	}
	if value != "" {
		value = " " + value
	}
	w.b.WriteString(indent + key + ":" + value + "\n")
}

// list writes the items of one key, two levels in.
func list[T any](w *yamlWriter, depth int, key string, items []T, write func(*yamlWriter, int, T)) {
	if len(items) == 0 {
		return
	}
	w.line(depth, key, "")
	for _, item := range items {
		w.dash = true
		write(w, depth+2, item)
	}
}

func (w *yamlWriter) policy(depth int, p *gatev1.Policy) {
	w.text(depth, "id", p.GetPolicyId())
	switch p.GetLayer() {
	case gatev1.Layer_LAYER_AGENT:
		w.text(depth, "agent", p.GetTarget())
	case gatev1.Layer_LAYER_SESSION:
		w.text(depth, "session", p.GetTarget())
	default:
		w.text(depth, "layer", enumName(p.GetLayer().String(), "LAYER_"))
	}
	w.text(depth, "description", p.GetDescription())
	w.flag(depth, "confined", p.GetConfined())
	w.texts(depth, "delegates", p.GetDelegatedOperations())
	var budgets []string
	for _, b := range []struct {
		name   string
		window *gatev1.Window
	}{
		{"per_operation", p.GetBudgets().GetPerOperation()},
		{"per_caller", p.GetBudgets().GetPerCaller()},
		{"per_tenant", p.GetBudgets().GetPerTenant()},
	} {
		if b.window != nil {
			budgets = append(budgets, b.name+": "+window(b.window))
		}
	}
	if len(budgets) > 0 {
		w.line(depth, "budgets", "{"+strings.Join(budgets, ", ")+"}")
	}
	list(w, depth, "rules", p.GetRules(), (*yamlWriter).rule)
}

func (w *yamlWriter) rule(depth int, r *gatev1.Rule) {
	w.text(depth, "id", r.GetRuleId())
	w.texts(depth, enumName(r.GetVerdict().String(), "VERDICT_"), r.GetOperations())
	var effects []string
	for _, e := range r.GetEffects() {
		effects = append(effects, effectName(e))
	}
	w.texts(depth, "effects", effects)
	w.text(depth, "when", r.GetWhen())
	w.text(depth, "why", r.GetDescription())
	w.flag(depth, "allow_writes", r.GetAllowWrites())
	if r.GetBudget() != nil {
		w.line(depth, "budget", window(r.GetBudget()))
	}
	terms := r.GetTerms()
	list(w, depth, "approvers", terms.GetApprovers(), (*yamlWriter).approver)
	if terms.GetTtl() != nil {
		w.line(depth, "ttl", period(terms.GetTtl()))
	}
	if terms.GetOnTimeout() != gatev1.OnTimeout_ON_TIMEOUT_UNSPECIFIED {
		w.line(depth, "on_timeout", enumName(terms.GetOnTimeout().String(), "ON_TIMEOUT_"))
	}
	if terms.GetNoteRequired() {
		w.line(depth, "note", "required")
	}
}

func (w *yamlWriter) approver(depth int, a *gatev1.Approver) {
	w.text(depth, "scope", a.GetScope())
	if a.GetCount() != 0 {
		w.line(depth, "count", fmt.Sprint(a.GetCount()))
	}
	w.texts(depth, "people", a.GetPeople())
}

func (w *yamlWriter) grant(depth int, g *gatev1.Grant) {
	w.text(depth, "id", g.GetGrantId())
	w.text(depth, "subject", g.GetSubject())
	w.texts(depth, "operations", g.GetOperations())
}

func (w *yamlWriter) testCase(depth int, c *gatev1.Case) {
	check, caller := c.GetCheck(), c.GetCheck().GetCaller()
	w.text(depth, "name", c.GetName())
	if caller.GetSession() == "" && !caller.GetConfined() && len(caller.GetOnBehalfOf()) == 0 {
		w.text(depth, "caller", caller.GetSubject())
	} else {
		w.line(depth, "caller", "")
		w.text(depth+1, "subject", caller.GetSubject())
		w.text(depth+1, "session", caller.GetSession())
		w.flag(depth+1, "confined", caller.GetConfined())
		w.texts(depth+1, "on_behalf_of", caller.GetOnBehalfOf())
	}
	w.text(depth, "operation", check.GetOperation())
	if check.GetEffect() != registryv1.Effect_EFFECT_UNSPECIFIED {
		w.text(depth, "effect", effectName(check.GetEffect()))
	}
	if check.InputJson != nil {
		w.line(depth, "input", yamlFromJSON(check.GetInputJson()))
	}
	w.text(depth, "conversation", check.GetConversationId())
	w.text(depth, "target", check.GetTargetConversationId())
	if check.GetNow() != nil {
		w.line(depth, "now", check.GetNow().AsTime().Format("2006-01-02T15:04:05.999999999Z07:00"))
	}
	verdict := enumName(c.GetVerdict().String(), "VERDICT_")
	if c.GetRule() == "" && c.GetReason() == "" {
		w.text(depth, "expect", verdict)
		return
	}
	w.line(depth, "expect", "")
	w.text(depth+1, "verdict", verdict)
	w.text(depth+1, "rule", c.GetRule())
	w.text(depth+1, "reason", c.GetReason())
}

func (w *yamlWriter) text(depth int, key, value string) {
	switch {
	case value == "":
	case paragraphs(value):
		w.line(depth, key, "|-")
		for line := range strings.SplitSeq(value, "\n") {
			w.b.WriteString(strings.TrimRight(strings.Repeat("  ", depth+1)+line, " ") + "\n")
		}
	default:
		w.line(depth, key, yamlText(value))
	}
}

func (w *yamlWriter) flag(depth int, key string, value bool) {
	if value {
		w.line(depth, key, "true")
	}
}

// widest is how long a list may be on one line. Longer ones get a line for each item,
// which a diff shows better too.
const widest = 72

func (w *yamlWriter) texts(depth int, key string, values []string) {
	if len(values) == 0 {
		return
	}
	quoted := make([]string, len(values))
	length := 0
	for i, value := range values {
		quoted[i] = yamlText(value)
		length += len(quoted[i]) + len(", ")
	}
	if length <= widest {
		w.line(depth, key, "["+strings.Join(quoted, ", ")+"]")
		return
	}
	w.line(depth, key, "")
	for _, value := range quoted {
		w.b.WriteString(strings.Repeat("  ", depth+1) + "- " + value + "\n")
	}
}

var (
	// bare is text that means itself in YAML, in every place and to every reader. It
	// begins with a letter, so it is no number, and is longer than `y`, `no`, `on`,
	// `off`, `yes`, `true`, `null` and `false`, unless it has a character that those
	// lack.
	bare = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_.*/-]|:[A-Za-z0-9])*$`)
	// sentence is text for a line of its own, where commas and brackets mean nothing.
	sentence = regexp.MustCompile(`^[A-Za-z]` + inSentence + `*( ` + inSentence + `+)+$`)
	// reserved are words that some reader of YAML takes for something else.
	reserved = regexp.MustCompile(`(?i)^(y|n|yes|no|on|off|true|false|null)$`)
)

const inSentence = `([\p{L}0-9_.*/()\[\]{}<>=!&|+,;"'?$%@~^-]|:[\p{L}0-9"'])`

// paragraphs says whether text may stand as lines of its own: all of it can be seen, and
// no line begins or ends with a space.
func paragraphs(text string) bool {
	lines := strings.Split(text, "\n")
	if len(lines) == 1 || lines[0] == "" || lines[len(lines)-1] == "" {
		return false
	}
	return !slices.ContainsFunc(lines, func(line string) bool {
		return line != strings.Trim(line, " ") || strings.ContainsFunc(line, unseen)
	})
}

// unseen is what a reader would not see, or see elsewhere than it is.
func unseen(r rune) bool {
	return r != ' ' && (!unicode.IsGraphic(r) || unicode.In(r, unicode.Zs, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point))
}

// yamlText is a text on one line, in quotes where YAML could take it for something else.
func yamlText(text string) string {
	if bare.MatchString(text) && !reserved.MatchString(text) || sentence.MatchString(text) && !strings.ContainsFunc(text, unseen) {
		return text
	}
	return quoted(text)
}

// quoted is text in double quotes, which JSON reads too unless it has a character beyond
// the first plane that is no text: YAML does not join halves of a surrogate pair.
func quoted(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case unseen(r):
			if r > 0xFFFF {
				fmt.Fprintf(&b, `\U%08x`, r)
			} else {
				fmt.Fprintf(&b, `\u%04x`, r)
			}
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func enumName(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

func effectName(e registryv1.Effect) string { return enumName(e.String(), "EFFECT_") }

func window(w *gatev1.Window) string {
	return fmt.Sprintf("%d/%s", w.GetLimit(), period(w.GetPeriod()))
}

func period(d *durationpb.Duration) string { return formatPeriod(d.AsDuration()) }

// Package approvals is what `weir approvals` does: it shows a person what waits for an
// answer, and sends the answer.
//
// All that is shown was written by agents or comes over the network. Nothing of it reaches
// the terminal but through console.Visible, and none of it is ever run or opened.
package approvals

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"weir/cmd/internal/console"
	"weir/cmd/internal/policies"
	gatev1 "weir/gen/gate/v1"
	"weir/internal/visible"
)

// least is how many lines of an input are shown, however small the screen is.
const least = 8

// Show shows all that a person needs to decide, on one screen. It gives how many lines of
// the input it left out or cut; with full it leaves out none.
func Show(t *console.Terminal, a *gatev1.Approval, now time.Time, full bool) (hidden int) {
	p := page{t: t}
	head := t.Bold(safe(a.GetApprovalId())) + "  " + stateText(t, a.GetState())
	if left := expiry(t, a, now); left != "" {
		head += "  " + left
	}
	p.row("approval", head)
	for _, f := range a.GetFlags() {
		p.row("", t.Alarm(" ! "+flagText(f)+" "))
	}
	p.row("wants", t.Bold(safe(a.GetOperation()))+"  "+effectText(t, a))
	p.row("who", safe(a.GetRequester())+chain(a.GetOnBehalfOf()))
	for _, where := range [][2]string{{"session", a.GetSession()}, {"in", a.GetConversationId()}} {
		if where[1] != "" {
			p.row(where[0], safe(where[1]))
		}
	}
	p.rows("asked by", reasons(a))
	p.rows("terms", policies.TermLines(a.GetTerms()))
	var votes []string
	for _, v := range a.GetVotes() {
		votes = append(votes, voteText(v, now))
	}
	p.rows("votes", votes)
	if a.GetState() == gatev1.ApprovalState_APPROVAL_STATE_PENDING {
		var missing []string
		for _, m := range a.GetMissing() {
			missing = append(missing, policies.ApproverText(m))
		}
		p.rows("missing", missing)
	}
	if a.GetByTimeout() {
		p.row("decided", t.Alarm(" by nobody: its terms approved it when time was up "))
	}
	if a.GetSupersededBy() != "" {
		p.row("replaced", "by "+safe(a.GetSupersededBy()))
	}
	if a.GetTrustId() != "" {
		p.row("trust", safe(a.GetTrustId()))
	}
	if a.GetAmendedBy() != "" {
		p.row("amended", "by "+safe(a.GetAmendedBy())+", digest as asked "+safe(a.GetAskedInputDigest()))
		hidden = p.block(diff(t, pretty(a.AskedInputJson), pretty(a.InputJson)), p.room(full)/2)
	}
	hidden += p.input(a, full)
	if hidden > 0 {
		p.row("", t.Yellow("not all of the input is shown; all of it: weir approvals show "+safe(a.GetApprovalId())+" --full"))
	}
	p.row("digest", safe(a.GetInputDigest()))
	return hidden
}

func diff(t *console.Terminal, before, after string) []string {
	var b strings.Builder
	(&console.Terminal{Out: &b, Colour: t.Colour}).Diff(before, after)
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

// page counts the lines that it prints.
type page struct {
	t       *console.Terminal
	printed int
}

func (p *page) row(name, text string) {
	p.t.Printf("%s %s\n", p.t.Dim(fmt.Sprintf("%-8s", name)), text)
	p.printed++
}

// rows are texts of others, of which the first has the name.
func (p *page) rows(name string, texts []string) {
	for _, text := range texts {
		p.row(name, safe(text))
		name = ""
	}
}

// unbounded is room for everything.
const unbounded = math.MaxInt

// room is how many lines are left on the screen, beside what says what is left out, the
// digest and a question.
func (p *page) room(full bool) int {
	if p.t.Height == 0 || full {
		return unbounded
	}
	return max(least, p.t.Height-p.printed-5)
}

func (p *page) input(a *gatev1.Approval, full bool) (hidden int) {
	if a.InputJson == nil {
		p.row("input", "none")
		return 0
	}
	lines := strings.Split(pretty(a.InputJson), "\n")
	many := fmt.Sprintf("%d lines", len(lines))
	if len(lines) == 1 {
		many = "1 line"
	}
	room := p.room(full)
	p.row("input", many)
	for i, line := range lines {
		lines[i] = "  " + line
		if room == unbounded {
			continue
		}
		if cut := narrow(lines[i], p.t.Width-2); cut != lines[i] && i < room {
			lines[i] = cut
			hidden++
		}
	}
	return hidden + p.block(lines, room)
}

// block prints as many lines as there is room for, and gives how many it left out.
func (p *page) block(lines []string, room int) (hidden int) {
	for _, line := range lines[:min(room, len(lines))] {
		p.t.Printf("%s\n", line)
		p.printed++
	}
	hidden = max(0, len(lines)-room)
	if hidden > 0 {
		p.t.Printf("  %s\n", p.t.Yellow(fmt.Sprintf("… %d more lines are left out", hidden)))
		p.printed++
	}
	return hidden
}

// narrow cuts a line that would wrap, and says what it cut.
func narrow(line string, width int) string {
	const mark = 24 // what saying so takes
	if width <= 2*mark || utf8.RuneCountInString(line) <= width {
		return line
	}
	runes := []rune(line)
	return fmt.Sprintf("%s… (%d more characters)", string(runes[:width-mark]), len(runes)-width+mark)
}

// pretty indents JSON and makes it visible. Strings and numbers stay as they are written:
// an escape that the gate made is not undone.
func pretty(text *string) string {
	if text == nil {
		return ""
	}
	// Escaped first: what does not belong into a JSON string would make it no JSON.
	visible := visible.Lines(*text)
	var b bytes.Buffer
	if err := json.Indent(&b, []byte(visible), "", "  "); err != nil {
		return visible
	}
	return b.String()
}

func safe(text string) string { return visible.Text(text) }

func stateText(t *console.Terminal, s gatev1.ApprovalState) string {
	text := strings.TrimPrefix(s.String(), "APPROVAL_STATE_")
	switch s {
	case gatev1.ApprovalState_APPROVAL_STATE_PENDING:
		return t.Yellow(text)
	case gatev1.ApprovalState_APPROVAL_STATE_APPROVED, gatev1.ApprovalState_APPROVAL_STATE_REDEEMED:
		return t.Green(text)
	default:
		return t.Red(text)
	}
}

// expiry is the time that remains, of what can still expire.
func expiry(t *console.Terminal, a *gatev1.Approval, now time.Time) string {
	pending := a.GetState() == gatev1.ApprovalState_APPROVAL_STATE_PENDING
	switch {
	case !pending && a.GetState() != gatev1.ApprovalState_APPROVAL_STATE_APPROVED:
		return ""
	case a.GetExpireTime() == nil && pending:
		return "waits until somebody answers"
	case a.GetExpireTime() == nil:
		return ""
	}
	left := a.GetExpireTime().AsTime().Sub(now)
	switch {
	case left <= 0:
		return t.Red("its time is up")
	case left < time.Minute:
		return t.Red("expires in " + console.Remaining(left))
	default:
		return "expires in " + console.Remaining(left)
	}
}

func effectText(t *console.Terminal, a *gatev1.Approval) string {
	text := strings.TrimPrefix(a.GetEffect().String(), "EFFECT_")
	switch text {
	case "READ":
		return text
	case "WRITE":
		return t.Yellow(text)
	default:
		return t.Red(text)
	}
}

func chain(onBehalfOf []string) string {
	if len(onBehalfOf) == 0 {
		return ""
	}
	return ", on behalf of " + safe(strings.Join(onBehalfOf, ", for "))
}

// reasons are the rules that asked, and what they say. The gate gives descriptions in an
// order of their own, since not every rule has one.
func reasons(a *gatev1.Approval) []string {
	if len(a.GetRules()) == 0 {
		return []string{"no rule: what is not a read asks, where no rule says otherwise"}
	}
	reasons := []string{strings.Join(a.GetRules(), ", ")}
	for _, why := range a.GetWhy() {
		if why != "" {
			reasons = append(reasons, "“"+why+"”")
		}
	}
	return reasons
}

func voteText(v *gatev1.Vote, now time.Time) string {
	text := fmt.Sprintf("%s %s", v.GetDecider(), strings.TrimPrefix(v.GetDecision().String(), "DECISION_"))
	if v.GetCreateTime() != nil {
		text += ", " + console.Remaining(max(0, now.Sub(v.GetCreateTime().AsTime()))) + " ago"
	}
	if v.GetRemember() != nil {
		text += ", to be remembered for this " + rememberText(v.GetRemember())
	}
	if v.GetNote() != "" {
		text += ": " + v.GetNote()
	}
	return text
}

func rememberText(r *gatev1.Remember) string {
	return strings.ToLower(strings.TrimPrefix(r.GetScope().String(), "REMEMBER_SCOPE_")) + " for " + console.Remaining(r.GetTtl().AsDuration())
}

// flagTexts say what a flag means. A flag that is not here shows by its name.
var flagTexts = map[gatev1.FlagKind]string{
	gatev1.FlagKind_FLAG_KIND_WIDENS_ACCESS:     "WIDENS ACCESS: creates or widens a grant or a policy",
	gatev1.FlagKind_FLAG_KIND_WEAKENS_GATE:      "WEAKENS A GATE: weakens or removes it",
	gatev1.FlagKind_FLAG_KIND_ALLOWS_ON_TIMEOUT: "ALLOWS ON TIMEOUT: when nobody answers, it counts as approved",
	gatev1.FlagKind_FLAG_KIND_BROAD_AGENT:       "BROAD AGENT: creates an agent without a gate, or with broad operations",
	gatev1.FlagKind_FLAG_KIND_CREDENTIAL:        "CREDENTIAL: carries something that looks like one",
	gatev1.FlagKind_FLAG_KIND_TARGETS_GATE:      "TARGETS A GATE: acts on a gate, an approval or the audit",
	gatev1.FlagKind_FLAG_KIND_SCRIPT_WRITES:     "SCRIPT: composes writes",
	gatev1.FlagKind_FLAG_KIND_AMENDED:           "AMENDED by an approver: not what was asked for",
	gatev1.FlagKind_FLAG_KIND_FIRST_USE:         "FIRST USE of this operation by this caller",
}

func flagText(f *gatev1.Flag) string {
	text, known := flagTexts[f.GetKind()]
	if !known {
		text = strings.TrimPrefix(f.GetKind().String(), "FLAG_KIND_")
	}
	if f.GetDetail() != "" {
		text += " (" + safe(f.GetDetail()) + ")"
	}
	return text
}

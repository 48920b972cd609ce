// Package inboxes is what `weir inbox` does: it shows a person what waits for agents, and
// helps where it is stuck.
//
// What messages say was written by agents. Nothing of it reaches the terminal but through
// package visible.
package inboxes

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"weir/cmd/internal/console"
	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/visible"
)

func safe(text string) string { return visible.Text(text) }

// name is that of an enum's value without its prefix.
func name(value fmt.Stringer, prefix string) string {
	return strings.TrimPrefix(value.String(), prefix)
}

func stateText(in *inboxv1.Inbox) string { return name(in.GetState(), "INBOX_STATE_") }

func statePaint(t *console.Terminal, s inboxv1.InboxState) func(string) string {
	if s == inboxv1.InboxState_INBOX_STATE_OPEN {
		return t.Green
	}
	return t.Yellow
}

// heads of the table of inboxes.
var heads = []string{"INBOX", "STATE", "DEPTH", "PENDING", "DELAYED", "CLAIMED", "DEAD", "OLDEST", "CHANGED", ""}

// inboxRow is one inbox in a line.
func inboxRow(t *console.Terminal, in *inboxv1.Inbox, now time.Time) console.Row {
	cell := func(text string) console.Cell { return console.Cell{Text: text} }
	count := func(n int32) console.Cell { return cell(fmt.Sprint(n)) }
	row := console.Row{Key: safe(in.GetGoal())}
	dead := count(in.GetDead())
	if in.GetDead() > 0 {
		dead.Paint = t.Red
	}
	depth := cell(fmt.Sprintf("%d of %d", in.GetDepth(), in.GetLimit()))
	if in.GetDepth() >= in.GetLimit() {
		depth.Paint = t.Red
	}
	facts := []console.Cell{
		{Text: safe(in.GetGoal()), Paint: t.Bold},
		{Text: stateText(in), Paint: statePaint(t, in.GetState())},
		depth,
		count(in.GetPending()), count(in.GetDelayed()), count(in.GetClaimed()),
		dead,
	}
	for _, fact := range facts {
		row.Facts += fact.Text + "\n"
	}
	row.Facts += in.GetStateNote()
	oldest := ""
	if at := in.GetOldestPendingTime(); at != nil {
		oldest = console.Remaining(max(0, now.Sub(at.AsTime())))
	}
	row.Cells = append(facts, cell(oldest), cell(console.Age(in.GetUpdateTime(), now)), cell(safe(in.GetStateNote())))
	return row
}

// status shows one inbox, a fact a line.
func status(t *console.Terminal, in *inboxv1.Inbox, now time.Time) {
	state := statePaint(t, in.GetState())(stateText(in))
	if in.GetStateNote() != "" {
		state += ": " + safe(in.GetStateNote())
	}
	line(t, "inbox", t.Bold(safe(in.GetGoal()))+"  "+state)
	line(t, "depth", fmt.Sprintf("%d of %d", in.GetDepth(), in.GetLimit()))
	pending := fmt.Sprint(in.GetPending())
	if at := in.GetOldestPendingTime(); at != nil {
		pending += ", the oldest " + console.Age(at, now)
	}
	line(t, "pending", pending)
	line(t, "delayed", fmt.Sprint(in.GetDelayed()))
	line(t, "claimed", fmt.Sprint(in.GetClaimed()))
	dead := fmt.Sprint(in.GetDead())
	if in.GetDead() > 0 {
		dead = t.Red(dead) + "  see them: weir inbox dead " + safe(in.GetGoal())
	}
	line(t, "dead", dead)
	line(t, "changed", console.Age(in.GetUpdateTime(), now))
}

func line(t *console.Terminal, name, text string) {
	t.Printf("%s %s\n", t.Dim(fmt.Sprintf("%-8s", name)), text)
}

// maxBody is how much of a body a line shows.
const maxBody = 60

// messageRow is one message in a line.
func messageRow(t *console.Terminal, m *inboxv1.Message, now time.Time) console.Row {
	state := name(m.GetState(), "MESSAGE_STATE_")
	paint := map[inboxv1.MessageState]func(string) string{
		inboxv1.MessageState_MESSAGE_STATE_PENDING: t.Yellow,
		inboxv1.MessageState_MESSAGE_STATE_CLAIMED: t.Green,
		inboxv1.MessageState_MESSAGE_STATE_DEAD:    t.Red,
	}[m.GetState()]
	facts, ages := marks(m, now)
	return console.Row{
		Key:   safe(m.GetMessageId()),
		Facts: strings.Join(append(facts, state, m.GetBody()), "\n"),
		Cells: []console.Cell{
			{Text: safe(m.GetMessageId()), Paint: t.Bold},
			{Text: state, Paint: paint},
			{Text: console.Age(m.GetEnqueueTime(), now)},
			{Text: safe(m.GetSender())},
			{Text: said(m)},
			{Text: strings.Join(append(facts, ages...), ", ")},
		},
	}
}

// marks are what is out of the ordinary with a message: what stays as it is until
// something happens, and what changes with time.
func marks(m *inboxv1.Message, now time.Time) (facts, ages []string) {
	if m.GetPriority() != 0 {
		facts = append(facts, fmt.Sprintf("priority %d", m.GetPriority()))
	}
	switch m.GetBusyPolicy() {
	case inboxv1.BusyPolicy_BUSY_POLICY_UNSPECIFIED, inboxv1.BusyPolicy_BUSY_POLICY_ENQUEUE:
	default:
		facts = append(facts, name(m.GetBusyPolicy(), "BUSY_POLICY_"))
	}
	if n := m.GetDeliveries(); n > 0 {
		facts = append(facts, "delivered "+times(n))
	}
	if m.GetReclaimed() {
		facts = append(facts, "reclaimed")
	}
	if m.GetClaimant() != "" {
		facts = append(facts, "claimed by "+safe(m.GetClaimant()))
	}
	if len(m.GetOnBehalfOf()) > 0 {
		facts = append(facts, "on behalf of "+safe(strings.Join(m.GetOnBehalfOf(), ", for ")))
	}
	if m.GetOperation() != "" {
		facts = append(facts, "by "+safe(m.GetOperation()))
	}
	if at := m.GetNotBefore(); at != nil && at.AsTime().After(now) {
		ages = append(ages, "not for "+console.Remaining(at.AsTime().Sub(now)))
	}
	if at := m.GetLeaseExpireTime(); at != nil {
		ages = append(ages, "lease ends in "+console.Remaining(max(0, at.AsTime().Sub(now))))
	}
	if at := m.GetExpireTime(); at != nil {
		ages = append(ages, "expires in "+console.Remaining(max(0, at.AsTime().Sub(now))))
	}
	return facts, ages
}

// said is how a message begins, or why it says nothing.
func said(m *inboxv1.Message) string {
	if r := m.GetRefusal(); r != nil {
		return "REFUSED: " + name(r.GetReason(), "REFUSAL_REASON_")
	}
	return "“" + begin(m.GetBody()) + "”"
}

// begin is the visible beginning of a text. It is cut before it is made visible, so that
// a long text costs nothing, and after, since escapes are longer than what they stand for.
func begin(text string) string {
	cut := false
	shorten := func(text string) string {
		if utf8.RuneCountInString(text) <= maxBody {
			return text
		}
		cut = true
		return string([]rune(text)[:maxBody])
	}
	text = shorten(safe(shorten(text)))
	if cut {
		text += "…"
	}
	return text
}

func times(n int32) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func messages(n int) string {
	if n == 1 {
		return "1 message"
	}
	return fmt.Sprintf("%d messages", n)
}

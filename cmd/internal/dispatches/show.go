// Package dispatches is what `weir dispatch` does: it gives work away, shows how it goes,
// and judges what came of it.
//
// Items, reports and notes were written by others. Nothing of them reaches the terminal
// but through package visible.
package dispatches

import (
	"fmt"
	"strings"
	"time"

	"weir/cmd/internal/console"
	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/visible"
)

// States are the names of --state.
var States = func() map[string]inboxv1.DispatchState {
	states := map[string]inboxv1.DispatchState{}
	for number, name := range inboxv1.DispatchState_name {
		if number != 0 {
			states[strings.ToLower(strings.TrimPrefix(name, statePrefix))] = inboxv1.DispatchState(number)
		}
	}
	return states
}()

const statePrefix = "DISPATCH_STATE_"

func safe(text string) string { return visible.Text(text) }

func stateText(s inboxv1.DispatchState) string { return strings.TrimPrefix(s.String(), statePrefix) }

// statePaint: what waits for a person is to be seen.
func statePaint(t *console.Terminal, s inboxv1.DispatchState) func(string) string {
	switch s {
	case inboxv1.DispatchState_DISPATCH_STATE_BLOCKED, inboxv1.DispatchState_DISPATCH_STATE_QUESTION,
		inboxv1.DispatchState_DISPATCH_STATE_DONE:
		return t.Yellow
	case inboxv1.DispatchState_DISPATCH_STATE_REJECTED, inboxv1.DispatchState_DISPATCH_STATE_ABANDONED:
		return t.Red
	case inboxv1.DispatchState_DISPATCH_STATE_ACCEPTED:
		return t.Green
	}
	return func(text string) string { return text }
}

// row is one dispatch in a line.
func row(t *console.Terminal, d *inboxv1.Dispatch, now time.Time) console.Row {
	return console.Row{
		Cells: []console.Cell{
			{Text: safe(d.GetGoal())},
			{Text: safe(d.GetItem()), Paint: t.Bold},
			{Text: stateText(d.GetState()), Paint: statePaint(t, d.GetState())},
			{Text: safe(d.GetOwner()) + " → " + orNobody(d.GetWorker())},
			{Text: console.Age(d.GetUpdateTime(), now)},
			{Text: notable(d)},
		},
	}
}

func head(t *console.Terminal) console.Row {
	return t.Heads("GOAL", "ITEM", "STATE", "OWNER → WORKER", "CHANGED", "")
}

// orNobody is a worker, or that none is known to weir.
func orNobody(worker string) string {
	if worker == "" {
		return "?"
	}
	return safe(worker)
}

// notable is what somebody may have to do something about.
func notable(d *inboxv1.Dispatch) string {
	var parts []string
	if d.GetAttempts() > 1 {
		parts = append(parts, fmt.Sprintf("%d attempts", d.GetAttempts()))
	}
	if d.GetUnbegun() {
		parts = append(parts, "sent without a begin")
	}
	// Later it is only what it has waited for.
	waits := d.GetState() == inboxv1.DispatchState_DISPATCH_STATE_BEGUN || d.GetState() == inboxv1.DispatchState_DISPATCH_STATE_BLOCKED
	if n := len(d.GetWaitsFor()); n > 0 && waits {
		parts = append(parts, fmt.Sprintf("waits for %d", n))
	}
	if d.GetFailure() != "" {
		parts = append(parts, "sending failed: "+safe(d.GetFailure()))
	}
	return strings.Join(parts, ", ")
}

// Show shows all that is known of a dispatch, a fact a line.
func Show(t *console.Terminal, d *inboxv1.Dispatch, now time.Time) {
	line := func(name, text string) {
		if text != "" {
			t.Printf("%s %s\n", t.Dim(fmt.Sprintf("%-8s", name)), text)
		}
	}
	lines := func(name string, texts []string) {
		for _, text := range texts {
			line(name, safe(text))
			name = ""
		}
	}
	line("item", t.Bold(safe(d.GetItem()))+"  "+statePaint(t, d.GetState())(stateText(d.GetState())))
	line("goal", safe(d.GetGoal()))
	line("id", safe(d.GetDispatchId()))
	line("owner", safe(d.GetOwner()))
	line("worker", safe(d.GetWorker()))
	line("in", safe(d.GetConversationId()))
	attempts := fmt.Sprint(d.GetAttempts())
	if d.GetUnbegun() {
		attempts += ", sent without a begin"
	}
	line("attempts", attempts)
	lines("waits", d.GetWaitsFor())
	line("began", console.Age(d.GetCreateTime(), now))
	line("changed", console.Age(d.GetUpdateTime(), now))
	if r := d.GetReport(); r != nil {
		text := reportText(r)
		if at := r.GetReportTime(); at != nil {
			text += ", " + console.Age(at, now)
		}
		line("report", text)
		for _, said := range strings.Split(visible.Lines(r.GetText()), "\n") {
			line("", said)
		}
		for _, e := range r.GetEvidence() {
			text := safe(e.GetUri())
			if e.GetTitle() != "" {
				text += "  " + safe(e.GetTitle())
			}
			line("", text)
		}
	}
	lines("verdict", notEmpty(d.GetVerdictNote()))
	if d.GetFailure() != "" {
		line("failure", t.Red(safe(d.GetFailure()))+"  weir tries on")
	}
}

func notEmpty(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

func reportText(r *inboxv1.DispatchReport) string {
	return strings.TrimPrefix(r.GetKind().String(), "REPORT_KIND_") + " by " + safe(r.GetReporter())
}

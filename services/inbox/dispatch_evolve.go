package inbox

import (
	"slices"
	"time"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/hot"
)

// evolveDispatch follows one event.
func evolveDispatch(d dispatch, e aggregate.Recorded[*inboxv1.Event]) dispatch {
	if d.State == "" {
		d.Owner, d.Created = e.Event.GetActor(), e.Time
	}
	d.Updated = e.Time
	switch happened := e.Event.GetEvent().(type) {
	case *inboxv1.Event_DispatchBegun:
		return d.begin(happened.DispatchBegun, e)
	case *inboxv1.Event_DispatchSent:
		m := happened.DispatchSent
		d.ID, d.Goal, d.Item, d.ConversationID = m.GetDispatchId(), m.GetGoal(), m.GetItem(), m.GetConversationId()
		d.Unbegun = d.Unbegun || d.State == ""
		d.State, d.Settled = sent, true
		d.Failure, d.Resuming, d.Mention = failure{}, false, nil
	case *inboxv1.Event_DispatchReported:
		return d.heard(happened.DispatchReported, e)
	case *inboxv1.Event_DispatchJudged:
		d.State, d.Note = rejected, happened.DispatchJudged.GetNote()
		if happened.DispatchJudged.GetAccepted() {
			d.State = accepted
		}
	case *inboxv1.Event_DispatchAbandoned:
		d.State, d.Note = abandoned, happened.DispatchAbandoned.GetNote()
		d.Awaited, d.Mention, d.Resuming, d.Failure = nil, nil, false, failure{}
	case *inboxv1.Event_DispatchWoken:
		return d.woken(happened.DispatchWoken.GetFinishedItem(), e.Time)
	case *inboxv1.Event_DispatchFailed:
		if d.Failure.Since.IsZero() {
			d.Failure.Since = e.Time
		}
		d.Failure.Text, d.Failure.Last = happened.DispatchFailed.GetFailure(), e.Time
	case *inboxv1.Event_DispatchImported:
		i := happened.DispatchImported.GetItem()
		d.ID, d.Goal, d.Item, d.Attempts = i.GetDispatchId(), happened.DispatchImported.GetGoal(), i.GetItem(), i.GetAttempts()
		d.State = stateOf(i.GetState())
	}
	return d
}

func (d dispatch) begin(b *inboxv1.DispatchBegun, e aggregate.Recorded[*inboxv1.Event]) dispatch {
	d.ID, d.Goal, d.Item, d.Attempts = b.GetDispatchId(), b.GetGoal(), b.GetItem(), b.GetAttempt()
	if d.State == "" {
		d.State = begun
	}
	plan := b.GetPlan()
	if plan == nil {
		return d
	}
	// A new attempt is not sent yet, also one of what was sent before.
	d.State, d.ConversationID, d.Worker = begun, plan.GetConversationId(), plan.GetWorker()
	d.Errand = errand{errandID: errandID{Attempt: b.GetAttempt()}, Plan: e.Sequence, Since: e.Time}
	d.Awaited, d.Mention, d.Failure = plan.GetWaitsFor(), nil, failure{}
	d.Report, d.Note = report{}, ""
	d.Asked = remembered(d.Asked, request{plan.GetRequestId(), plan.GetFingerprint()})
	return d
}

func (d dispatch) heard(r *inboxv1.DispatchReported, e aggregate.Recorded[*inboxv1.Event]) dispatch {
	d.Told = remembered(d.Told, request{r.GetRequestId(), r.GetFingerprint()})
	d.Report = report{Kind: r.GetKind(), Text: r.GetText(), Reporter: e.Event.GetActor(), At: e.Time}
	for _, v := range r.GetEvidence() {
		d.Report.Evidence = append(d.Report.Evidence, evidence{v.GetUri(), v.GetTitle()})
	}
	d.State = reportedStates[r.GetKind()]
	d.Resuming, d.Failure, d.Mention = false, failure{}, nil
	d.Awaited = r.GetWaitsFor()
	if len(d.Awaited) > 0 {
		d.Errand.Since = e.Time
	}
	if d.Worker == "" {
		// Who reports first on work that was sent by hand is its worker.
		d.Worker, _ = agentName(e.Event.GetActor())
	}
	return d
}

var reportedStates = map[inboxv1.ReportKind]dispatchState{
	inboxv1.ReportKind_REPORT_KIND_PROGRESS: inProgress,
	inboxv1.ReportKind_REPORT_KIND_BLOCKED:  blocked,
	inboxv1.ReportKind_REPORT_KIND_QUESTION: inQuestion,
	inboxv1.ReportKind_REPORT_KIND_DONE:     workDone,
}

// woken takes an item off those that are awaited. With the last one the errand
// begins.
func (d dispatch) woken(item string, at time.Time) dispatch {
	d.Awaited = slices.DeleteFunc(slices.Clone(d.Awaited), func(i string) bool { return i == item })
	d.Mention = append(slices.Clone(d.Mention), item)
	if len(d.Awaited) > 0 {
		return d
	}
	d.Failure = failure{}
	d.Errand.Since = at
	if d.State == blocked {
		d.Resuming = true
		d.Errand.Round++
	}
	return d
}

func remembered(requests []request, r request) []request {
	requests = append(slices.Clone(requests), r)
	return requests[max(0, len(requests)-keepRequests):]
}

const (
	// driveAfter is how long an errand is left to whoever gave it before the clock
	// drives it.
	driveAfter = 2 * time.Second
	// minPause and maxPause are between two tries of what was refused.
	minPause = time.Second
	maxPause = 5 * time.Minute
	// recheckAfter is how often what waits looks for itself whether it still must,
	// should nobody have told it.
	recheckAfter = 30 * time.Second
)

// due is when weir must look at it.
func (d dispatch) due() time.Time {
	if !d.busy() && !d.waits() {
		return time.Time{}
	}
	due := d.Errand.Since.Add(driveAfter)
	if again := d.Failure.Last.Add(minPause); again.After(due) {
		return again
	}
	return due
}

// pause is how long to let it be after a look. It grows with the time that it has
// been refused for, so it needs no event for each try.
func (d dispatch) pause(now time.Time) time.Duration {
	switch {
	case d.waits():
		return recheckAfter
	case !d.busy() || d.Failure.Text == "":
		return 0
	}
	return min(max(now.Sub(d.Failure.Since)/2, minPause), maxPause)
}

// Lists of a tenant's dispatches, all newest activity first.
func stateList(s dispatchState) string                  { return "state:" + string(s) }
func goalList(goal string) string                       { return "goal:" + goal }
func goalStateList(goal string, s dispatchState) string { return "goal:" + goal + ":" + string(s) }
func workerList(goal string) string                     { return "worker:" + goal }

// agentList holds what an agent owns or works on, waitingList what waits for an item.
func agentList(name string) string         { return "agent:" + name }
func waitingList(goal, item string) string { return "waits:" + dispatchID(goal, item) }

func (d dispatch) lists(version uint64) []hot.Entry {
	names := []string{listAll, stateList(d.State), goalList(d.Goal), goalStateList(d.Goal, d.State)}
	owner, owned := agentName(d.Owner)
	if owned {
		names = append(names, agentList(owner))
	}
	if d.Worker != "" {
		names = append(names, workerList(d.Worker))
		if !owned || owner != d.Worker {
			names = append(names, agentList(d.Worker))
		}
	}
	if d.waits() {
		for _, item := range d.Awaited {
			names = append(names, waitingList(d.Goal, item))
		}
	}
	entries := make([]hot.Entry, len(names))
	for i, name := range names {
		entries[i] = hot.Entry{Set: name, Score: version}
	}
	return entries
}

// bytes estimates what it costs in memory.
func (d dispatch) bytes() int {
	n := dispatchBytes + len(d.Goal) + len(d.Item) + len(d.ConversationID) + len(d.Owner) + len(d.Worker) +
		len(d.Note) + len(d.Failure.Text) + len(d.Report.Text) + 100*(len(d.Asked)+len(d.Told))
	for _, e := range d.Report.Evidence {
		n += len(e.URI) + len(e.Title)
	}
	for _, items := range [][]string{d.Awaited, d.Mention} {
		for _, item := range items {
			n += len(item)
		}
	}
	return n
}

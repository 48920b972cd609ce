package inbox

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
)

var (
	alice = identity.Caller{Tenant: "acme", Subject: "agent:alice", Scopes: []string{"dispatch.report", "dispatch.write"}}
	ann   = identity.Caller{Tenant: "acme", Subject: "human:ann"}
)

// work is a dispatch that commands are run on, without any store.
type record struct {
	t     rapid.TB
	state dispatch
	n     uint64
	now   time.Time
}

func newRecord(t rapid.TB) *record { return &record{t: t, now: start} }

func (r *record) follow(e *inboxv1.Event) {
	r.n++
	r.state = evolveDispatch(r.state, aggregate.Recorded[*inboxv1.Event]{Event: e, Time: r.now, Sequence: r.n})
}

// must is for what is not refused.
func (r *record) must(e *inboxv1.Event, err error) {
	r.t.Helper()
	if err != nil || e == nil {
		r.t.Fatalf("got %v, %v; want an event", e, err)
	}
	r.follow(e)
}

func aBegin() begin { return begin{Goal: "build", Item: "1", NewID: "new", Actor: alice.Subject} }

func aGiving(request string, waits ...string) giving {
	return giving{
		begin: aBegin(), Owner: alice, Request: request, NewConversation: "talk", Worker: "bob",
		Seed: "do it", WaitsFor: waits,
	}
}

func aReport(request string, kind inboxv1.ReportKind, waits ...string) telling {
	c := telling{Goal: "build", Item: "1", Request: request, Kind: kind, Text: "words", WaitsFor: waits, Reporter: bob}
	if kind == inboxv1.ReportKind_REPORT_KIND_DONE {
		c.Evidence = []*inboxv1.Evidence{{Uri: "https://example.com/1"}}
	}
	return c
}

func aJudging(what dispatchCommand) judging {
	return judging{Goal: "build", Item: "1", What: what, Note: "note", Judge: alice}
}

func (r *record) give(request string, waits ...string) {
	r.t.Helper()
	r.must(decideDispatch(r.state, aGiving(request, waits...), r.now))
}

func (r *record) send() {
	r.t.Helper()
	r.must(decideSent(r.state, sending{r.state.Errand.errandID}, r.now))
}

func (r *record) report(request string, kind inboxv1.ReportKind, waits ...string) {
	r.t.Helper()
	r.must(decideReport(r.state, aReport(request, kind, waits...), r.now))
}

func (r *record) judge(what dispatchCommand) {
	r.t.Helper()
	r.must(decideJudge(r.state, aJudging(what), r.now))
}

func (r *record) wake(item string) {
	r.t.Helper()
	r.must(decideWake(r.state, item, r.now))
}

// reach brings a new dispatch to where it is to stand.
var reach = [progresses]func(*record){
	isUnheard:    func(*record) {},
	isBegun:      func(r *record) { r.must(decideBegin(r.state, aBegin(), r.now)) },
	isDeferred:   func(r *record) { r.give("a", "2") },
	isSending:    func(r *record) { r.give("a") },
	isSent:       func(r *record) { r.give("a"); r.send() },
	isInProgress: func(r *record) { r.give("a"); r.send(); r.report("p", inboxv1.ReportKind_REPORT_KIND_PROGRESS) },
	isBlocked:    func(r *record) { r.give("a"); r.send(); r.report("b", inboxv1.ReportKind_REPORT_KIND_BLOCKED) },
	isWaiting:    func(r *record) { r.give("a"); r.send(); r.report("b", inboxv1.ReportKind_REPORT_KIND_BLOCKED, "2") },
	isResuming: func(r *record) {
		r.give("a")
		r.send()
		r.report("b", inboxv1.ReportKind_REPORT_KIND_BLOCKED, "2")
		r.wake("2")
	},
	isInQuestion: func(r *record) { r.give("a"); r.send(); r.report("q", inboxv1.ReportKind_REPORT_KIND_QUESTION) },
	isDone:       reachDone,
	isAccepted:   func(r *record) { reachDone(r); r.judge(toAccept) },
	isRejected:   func(r *record) { reachDone(r); r.judge(toReject) },
	isAbandoned:  func(r *record) { r.give("a"); r.send(); r.judge(toAbandon) },
}

func reachDone(r *record) {
	r.give("a")
	r.send()
	r.report("d", inboxv1.ReportKind_REPORT_KIND_DONE)
}

var progressNames = [progresses]string{
	"unheard", "begun", "deferred", "sending", "sent", "in progress", "blocked", "waiting", "resuming",
	"in question", "done", "accepted", "rejected", "abandoned",
}

// ask runs each command on a dispatch.
var ask = [dispatchCommands]struct {
	name string
	run  func(dispatch) (*inboxv1.Event, error)
}{
	toBegin: {"begin", func(d dispatch) (*inboxv1.Event, error) { return decideBegin(d, aBegin(), start) }},
	toMarkHere: {"mark sent here", func(d dispatch) (*inboxv1.Event, error) {
		return decideMark(d, markSent{Goal: "build", Item: "1", NewID: "new", ConversationID: cmp.Or(d.ConversationID, "here"), Actor: alice.Subject}, start)
	}},
	toMarkElsewhere: {"mark sent elsewhere", func(d dispatch) (*inboxv1.Event, error) {
		return decideMark(d, markSent{Goal: "build", Item: "1", NewID: "new", ConversationID: "elsewhere", Actor: alice.Subject}, start)
	}},
	toDispatch: {"dispatch", func(d dispatch) (*inboxv1.Event, error) { return decideDispatch(d, aGiving("new"), start) }},
	toReport: {"report", func(d dispatch) (*inboxv1.Event, error) {
		c := aReport("new", inboxv1.ReportKind_REPORT_KIND_PROGRESS)
		c.Joined = true
		return decideReport(d, c, start)
	}},
	toAccept:  {"accept", func(d dispatch) (*inboxv1.Event, error) { return decideJudge(d, aJudging(toAccept), start) }},
	toReject:  {"reject", func(d dispatch) (*inboxv1.Event, error) { return decideJudge(d, aJudging(toReject), start) }},
	toAbandon: {"abandon", func(d dispatch) (*inboxv1.Event, error) { return decideJudge(d, aJudging(toAbandon), start) }},
	toSend: {"weir sends", func(d dispatch) (*inboxv1.Event, error) {
		return decideSent(d, sending{d.Errand.errandID}, start)
	}},
	toFail: {"weir fails", func(d dispatch) (*inboxv1.Event, error) {
		return decideFail(d, failing{Errand: d.Errand.errandID, Text: "why"}, start)
	}},
	toWake: {"weir wakes", func(d dispatch) (*inboxv1.Event, error) { return decideWake(d, "2", start) }},
}

var rulings = map[fault.Reason]ruling{
	fault.DispatchNotFound: noSuch, fault.StateConflict: conflicting, fault.DispatchMismatch: otherwise,
}

func TestEveryCommandInEveryStateOfADispatch(t *testing.T) {
	datadriven.RunTest(t, "testdata/transitions/dispatch", func(t *testing.T, _ *datadriven.TestData) string {
		var b strings.Builder
		for p := range progress(progresses) {
			r := newRecord(t)
			reach[p](r)
			if r.state.progress() != p {
				t.Fatalf("%s is %s", progressNames[p], progressNames[r.state.progress()])
			}
			for c := range dispatchCommand(dispatchCommands) {
				happened, err := ask[c].run(r.state)
				came, as := toldOfDispatch(happened), occurs
				switch {
				case err != nil:
					came, as = string(fault.ReasonOf(err)), rulings[fault.ReasonOf(err)]
				case happened == nil:
					came, as = "-", unchanged
				}
				if as != dispatchTransitions[p][c] {
					t.Errorf("%s, %s: came to %s, the table says %v", progressNames[p], ask[c].name, came, dispatchTransitions[p][c])
				}
				to := ""
				if happened != nil {
					after := evolveDispatch(r.state, aggregate.Recorded[*inboxv1.Event]{Event: happened, Time: start, Sequence: 99})
					to = " → " + progressNames[after.progress()]
				}
				fmt.Fprintf(&b, "%-12s %-20s %s%s\n", progressNames[p], ask[c].name, came, to)
			}
		}
		return b.String()
	})
}

// toldOfDispatch is an event in one line.
func toldOfDispatch(e *inboxv1.Event) string {
	switch happened := e.GetEvent().(type) {
	case *inboxv1.Event_DispatchBegun:
		b := happened.DispatchBegun
		line := fmt.Sprintf("DispatchBegun %s attempt %d", b.GetDispatchId(), b.GetAttempt())
		if p := b.GetPlan(); p != nil {
			line += " in " + p.GetConversationId()
		}
		return line
	case *inboxv1.Event_DispatchSent:
		return fmt.Sprintf("DispatchSent %s to %q", happened.DispatchSent.GetDispatchId(), happened.DispatchSent.GetConversationId())
	case *inboxv1.Event_DispatchReported:
		return "DispatchReported " + happened.DispatchReported.GetKind().String()
	case *inboxv1.Event_DispatchJudged:
		return fmt.Sprintf("DispatchJudged accepted=%v", happened.DispatchJudged.GetAccepted())
	case *inboxv1.Event_DispatchAbandoned:
		return "DispatchAbandoned"
	case *inboxv1.Event_DispatchWoken:
		return "DispatchWoken by " + happened.DispatchWoken.GetFinishedItem()
	case *inboxv1.Event_DispatchFailed:
		return "DispatchFailed " + happened.DispatchFailed.GetFailure()
	}
	return "nothing"
}

func refusedWith(t *testing.T, what string, happened *inboxv1.Event, err error, reason fault.Reason) {
	t.Helper()
	if happened != nil || !fault.Is(err, reason) {
		t.Errorf("%s: got %v, %v; want %s", what, happened, err, reason)
	}
}

func TestARequestIsKnownInEveryState(t *testing.T) {
	for p := isDeferred; p < progress(progresses); p++ {
		r := newRecord(t)
		reach[p](r)
		same := aGiving("a")
		if p == isDeferred {
			same = aGiving("a", "2")
		}
		if happened, err := decideDispatch(r.state, same, start); happened != nil || err != nil {
			t.Errorf("%s: the same request again: %v, %v", progressNames[p], happened, err)
		}
		same.Seed = "something else"
		happened, err := decideDispatch(r.state, same, start)
		refusedWith(t, progressNames[p], happened, err, fault.IdempotencyMismatch)
		for _, told := range r.state.Told {
			other := aReport(told.ID, inboxv1.ReportKind_REPORT_KIND_PROGRESS)
			other.Text = "other words"
			happened, err := decideReport(r.state, other, start)
			refusedWith(t, progressNames[p], happened, err, fault.IdempotencyMismatch)
		}
	}
}

func TestAfterARejectionTheConversationAndTheWorkerStay(t *testing.T) {
	r := newRecord(t)
	reach[isRejected](r)
	again := aGiving("b")
	again.NewConversation = "another"
	elsewhere := again
	elsewhere.Worker = "eve"
	happened, err := decideDispatch(r.state, elsewhere, start)
	refusedWith(t, "another worker", happened, err, fault.DispatchMismatch)
	r.must(decideDispatch(r.state, again, start))
	if d := r.state; d.ConversationID != "talk" || d.Attempts != 2 || d.progress() != isSending || d.Errand.Attempt != 2 || d.Report.Reporter != "" {
		t.Fatalf("the new attempt is %+v", d)
	}
	if happened, err := decideDispatch(r.state, aGiving("a"), start); happened != nil || err != nil {
		t.Fatalf("the request of the first attempt: %v, %v", happened, err)
	}
}

// A step that was held up until after its attempt changes nothing.
func TestALateStepOfAnOldErrandChangesNothing(t *testing.T) {
	r := newRecord(t)
	r.give("a")
	old := r.state.Errand.errandID
	r.send()
	r.report("d", inboxv1.ReportKind_REPORT_KIND_DONE)
	r.judge(toReject)
	r.give("b")
	for what, run := range map[string]func() (*inboxv1.Event, error){
		"sent":   func() (*inboxv1.Event, error) { return decideSent(r.state, sending{old}, start) },
		"failed": func() (*inboxv1.Event, error) { return decideFail(r.state, failing{old, "why"}, start) },
	} {
		if happened, err := run(); happened != nil || err != nil {
			t.Errorf("%s: %v, %v", what, happened, err)
		}
	}
}

func TestOnlyTheOwnerJudgesAndNeverItsOwnWork(t *testing.T) {
	judge := func(d dispatch, what dispatchCommand, c identity.Caller, operator bool) (*inboxv1.Event, error) {
		j := aJudging(what)
		j.Judge, j.Operator = c, operator
		return decideJudge(d, j, start)
	}
	r := newRecord(t)
	reachDone(r)
	for _, what := range []dispatchCommand{toAccept, toReject, toAbandon} {
		happened, err := judge(r.state, what, bob, false)
		refusedWith(t, ask[what].name+" by the worker", happened, err, fault.NotOwner)
	}
	for _, what := range []dispatchCommand{toAccept, toReject} {
		happened, err := judge(r.state, what, ann, true)
		refusedWith(t, ask[what].name+" by an operator", happened, err, fault.NotOwner)
	}
	if happened, err := judge(r.state, toAbandon, ann, true); happened == nil || err != nil {
		t.Errorf("abandon by an operator: %v, %v", happened, err)
	}
	itself := r.state
	itself.Owner = bob.Subject
	happened, err := judge(itself, toAccept, bob, false)
	refusedWith(t, "accept by an owner who is the worker", happened, err, fault.SelfApproval)
	for _, speaks := range []string{bob.Subject} {
		forOther := alice
		forOther.OnBehalfOf = []string{speaks}
		happened, err = judge(r.state, toAccept, forOther, false)
		refusedWith(t, "accept on behalf of the worker", happened, err, fault.SelfApproval)
	}
	reported := r.state
	reported.Owner, reported.Report.Reporter = worker.Subject, worker.Subject
	happened, err = judge(reported, toAccept, worker, false)
	refusedWith(t, "accept by who reported", happened, err, fault.SelfApproval)
}

func TestWhoReports(t *testing.T) {
	given, byHand := newRecord(t), newRecord(t)
	reach[isSent](given)
	byHand.must(decideMark(byHand.state, markSent{Goal: "build", Item: "1", NewID: "new", ConversationID: "x", Actor: alice.Subject}, start))
	for what, c := range map[string]struct {
		r      *record
		who    identity.Caller
		joined bool
		may    bool
	}{
		"the worker":                      {given, bob, false, true},
		"another agent":                   {given, eve, true, false},
		"the owner, an agent":             {given, alice, true, false},
		"a service":                       {given, worker, false, true},
		"an agent of the conversation":    {byHand, bob, true, true},
		"an agent that is not in it":      {byHand, bob, false, false},
		"the owner of work by hand":       {byHand, alice, true, false},
		"a service, on work sent by hand": {byHand, worker, false, true},
	} {
		report := aReport("r", inboxv1.ReportKind_REPORT_KIND_PROGRESS)
		report.Reporter, report.Joined = c.who, c.joined
		happened, err := decideReport(c.r.state, report, start)
		if may := happened != nil && err == nil; may != c.may || !c.may && !fault.Is(err, fault.NotWorker) {
			t.Errorf("%s: %v, %v", what, happened, err)
		}
	}
	report := aReport("r", inboxv1.ReportKind_REPORT_KIND_PROGRESS)
	report.Joined = true
	byHand.must(decideReport(byHand.state, report, start))
	if byHand.state.Worker != "bob" {
		t.Errorf("the worker is %q then", byHand.state.Worker)
	}
}

func TestAGoalHasALimitOfOpenItems(t *testing.T) {
	full := aBegin()
	full.Open = maxOpen
	happened, err := decideBegin(dispatch{}, full, start)
	refusedWith(t, "a new item", happened, err, fault.LimitReached)
	giving := aGiving("a")
	giving.begin = full
	happened, err = decideDispatch(dispatch{}, giving, start)
	refusedWith(t, "a new item", happened, err, fault.LimitReached)
	r := newRecord(t)
	reach[isBegun](r)
	r.must(decideBegin(r.state, full, start)) // one that counts already
	r.must(decideDispatch(r.state, giving, start))
}

func TestAnAgentDoesNotMarkWhatOthersOwn(t *testing.T) {
	r := newRecord(t)
	reach[isBegun](r)
	mark := markSent{Goal: "build", Item: "1", ConversationID: "x", Actor: eve.Subject}
	happened, err := decideMark(r.state, mark, start)
	refusedWith(t, "by another agent", happened, err, fault.NotOwner)
	mark.Actor = worker.Subject
	r.must(decideMark(r.state, mark, start))
}

func TestAWarningNamesTheConversationThatAPlanKnows(t *testing.T) {
	r := newRecord(t)
	reach[isSending](r)
	r.must(decideBegin(r.state, aBegin(), start))
	if w := r.state.warning(); !r.state.replay() || !strings.Contains(w, "talk") {
		t.Fatalf("the warning is %q", w)
	}
	if r.state.Errand.Attempt != 1 || r.state.Attempts != 2 {
		t.Fatalf("a begin made another errand: %+v", r.state)
	}
}

// While weir has something to do it is in the deadlines set, and in no other state.
func TestWhatWeirMustDoHasADeadline(t *testing.T) {
	for p := range progress(progresses) {
		r := newRecord(t)
		reach[p](r)
		want := slices.Contains([]progress{isDeferred, isSending, isWaiting, isResuming}, p)
		if due := r.state.due(); due.IsZero() == want {
			t.Errorf("%s is due at %v", progressNames[p], due)
		}
	}
	r := newRecord(t)
	reach[isSending](r)
	r.must(decideFail(r.state, failing{r.state.Errand.errandID, "why"}, r.now))
	if happened, _ := decideFail(r.state, failing{r.state.Errand.errandID, "why"}, start); happened != nil {
		t.Error("the same failure is recorded twice")
	}
	last := time.Duration(0)
	for _, after := range []time.Duration{0, 10 * time.Second, time.Minute, time.Hour} {
		pause := r.state.pause(start.Add(after))
		if pause < last || pause < minPause || pause > maxPause {
			t.Errorf("%v after the first refusal the pause is %v", after, pause)
		}
		last = pause
	}
	if last != maxPause {
		t.Errorf("the longest pause is %v", last)
	}
}

// Whatever commands come in whatever order: what always holds, holds.
func TestDispatchesKeepWhatAlwaysHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRecord(t)
		requests := rapid.SampledFrom([]string{"a", "b", "c"})
		commands := []func() (*inboxv1.Event, error){
			func() (*inboxv1.Event, error) {
				return decideReport(r.state, aReport(requests.Draw(t, "report"), inboxv1.ReportKind_REPORT_KIND_BLOCKED, "2", "3"), r.now)
			},
			func() (*inboxv1.Event, error) {
				return decideReport(r.state, aReport(requests.Draw(t, "report"), inboxv1.ReportKind_REPORT_KIND_DONE), r.now)
			},
			func() (*inboxv1.Event, error) {
				return decideDispatch(r.state, aGiving(requests.Draw(t, "request"), "2", "3"), r.now)
			},
			func() (*inboxv1.Event, error) { return decideWake(r.state, "3", r.now) },
		}
		for _, c := range ask {
			commands = append(commands, func() (*inboxv1.Event, error) { return c.run(r.state) })
		}
		for range rapid.IntRange(1, 40).Draw(t, "commands") {
			before := r.state
			r.now = r.now.Add(time.Second)
			happened, err := rapid.SampledFrom(commands).Draw(t, "command")()
			if err != nil && happened != nil {
				t.Fatalf("an event and a refusal: %v, %v", happened, err)
			}
			if happened == nil {
				continue
			}
			r.follow(happened)
			d := r.state
			switch {
			case before.ID != "" && (d.ID != before.ID || d.Owner != before.Owner):
				t.Fatalf("the identity changed: %+v to %+v", before, d)
			case before.Settled && (!d.Settled || d.ConversationID != before.ConversationID):
				t.Fatalf("the conversation changed: %+v to %+v", before, d)
			case d.Attempts < before.Attempts:
				t.Fatalf("attempts went back: %+v to %+v", before, d)
			case (d.busy() || d.waits()) == d.due().IsZero():
				t.Fatalf("due at %v: %+v", d.due(), d)
			case before.finished() && d.State != before.State:
				t.Fatalf("it ended and went on: %+v to %+v", before, d)
			}
			document, err := aggregate.RootCodec[dispatch, *inboxv1.Event]{}.Encode(d, aggregate.RootField)
			if err != nil {
				t.Fatal(err)
			}
			read, err := aggregate.DecodeRoot[dispatch](map[string]string{aggregate.RootField: string(document)})
			if err != nil || fmt.Sprintf("%+v", read) != fmt.Sprintf("%+v", d) {
				t.Fatalf("written as %s, read back as %+v, %v; was %+v", document, read, err, d)
			}
		}
	})
}

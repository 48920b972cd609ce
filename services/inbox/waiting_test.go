package inbox

import (
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/backend"
	"weir/internal/fault"
	"weir/internal/meshtest"
)

// becomes waits for the state of an item.
func (c client) becomes(item string, state inboxv1.DispatchState) *inboxv1.Dispatch {
	c.t.Helper()
	var d *inboxv1.Dispatch
	meshtest.Eventually(c.t, item+" is "+state.String(), func() bool {
		d = c.item(item)
		return d.GetState() == state
	})
	return d
}

func (c client) begin(item string) {
	c.t.Helper()
	if _, err := c.Begin(c.t.Context(), &inboxv1.BeginRequest{Goal: "build", Item: item}); err != nil {
		c.t.Fatalf("begin %s: %v", item, err)
	}
}

func (c client) abandon(item string) {
	c.t.Helper()
	if _, err := c.Abandon(c.t.Context(), &inboxv1.AbandonRequest{Goal: "build", Item: item}); err != nil {
		c.t.Fatalf("abandon %s: %v", item, err)
	}
}

// changesOf names the events of an item.
func (r *rig) changesOf(item string) []string {
	r.t.Helper()
	var names []string
	for _, e := range r.events("weir.inbox.acme.dispatch.build%3A" + item)() {
		m := e.ProtoReflect()
		set := m.WhichOneof(m.Descriptor().Oneofs().ByName("event"))
		name := string(set.Message().Name())
		if woken := e.GetDispatchWoken(); woken != nil {
			name += " by " + woken.GetFinishedItem()
		}
		names = append(names, name)
	}
	return names
}

func TestADeferredItemIsSentWhenTheLastOneItWaitsForIsFinished(t *testing.T) {
	r := newWorkRig(t)
	b, w := r.as(boss), r.as(bobWorks)
	b.begin("1")
	b.dispatch(order("2", "a"))
	d := b.dispatch(order("3", "a", "1", "2"))
	if d.GetState() != inboxv1.DispatchState_DISPATCH_STATE_BEGUN || !slices.Equal(d.GetWaitsFor(), []string{"1", "2"}) || d.GetFailure() != "" {
		t.Fatalf("deferred: %v", d)
	}
	if _, messages := r.talks.said("acme", d.GetConversationId()); messages != nil {
		t.Fatalf("it was said already: %v", messages)
	}
	b.abandon("1")
	w.report("2", "done", inboxv1.ReportKind_REPORT_KIND_DONE)
	b.reject("2") // is not finished
	meshtest.Eventually(t, "the first is heard of", func() bool { return slices.Equal(b.item("3").GetWaitsFor(), []string{"2"}) })
	b.dispatch(order("2", "b"))
	w.report("2", "done2", inboxv1.ReportKind_REPORT_KIND_DONE)
	b.accept("2")
	b.becomes("3", inboxv1.DispatchState_DISPATCH_STATE_SENT)
	if _, messages := r.talks.said("acme", d.GetConversationId()); len(messages) != 1 || messages[0].text != "do 3" {
		t.Fatalf("said was %v", messages)
	}
	if got := r.changesOf("3"); !slices.Equal(got, []string{"DispatchBegun", "DispatchWoken by 1", "DispatchWoken by 2", "DispatchSent"}) {
		t.Fatalf("events %v", got)
	}
	// What waits for finished items does not wait.
	if d := b.dispatch(order("4", "a", "1", "2")); d.GetState() != inboxv1.DispatchState_DISPATCH_STATE_SENT {
		t.Fatalf("of finished ones: %v", d)
	}
}

func TestABlockedItemGoesOnWhenWhatItWaitsForIsFinished(t *testing.T) {
	r := newWorkRig(t)
	b, w := r.as(boss), r.as(bobWorks)
	b.begin("1")
	sent := b.dispatch(order("2", "a"))
	for _, request := range []string{"r1", "r2"} { // it can be blocked more than once
		item := "1"
		if request == "r2" {
			item = "3"
			b.begin(item)
		}
		if d := w.report("2", request, inboxv1.ReportKind_REPORT_KIND_BLOCKED, item); d.GetState() != inboxv1.DispatchState_DISPATCH_STATE_BLOCKED || len(d.GetWaitsFor()) != 1 {
			t.Fatalf("blocked: %v", d)
		}
		b.abandon(item)
		b.becomes("2", inboxv1.DispatchState_DISPATCH_STATE_SENT)
		inbox := b.peek("bob")
		var body work
		if err := json.Unmarshal([]byte(inbox[len(inbox)-1].GetBody()), &body); err != nil {
			t.Fatal(err)
		}
		if body.ConversationID != sent.GetConversationId() || !slices.Equal(body.Finished, []string{item}) || body.MessageID != "" {
			t.Fatalf("bob is told %+v", body)
		}
	}
	if inbox := b.peek("bob"); len(inbox) != 3 {
		t.Fatalf("bob has %v", inbox)
	}
	// A report ends the wait, too.
	b.begin("4")
	w.report("2", "r3", inboxv1.ReportKind_REPORT_KIND_BLOCKED, "4")
	w.report("2", "r4", inboxv1.ReportKind_REPORT_KIND_PROGRESS)
	b.abandon("4")
	b.begin("5")
	w.report("2", "r5", inboxv1.ReportKind_REPORT_KIND_BLOCKED, "5")
	b.abandon("5")
	b.becomes("2", inboxv1.DispatchState_DISPATCH_STATE_SENT)
	if inbox := b.peek("bob"); len(inbox) != 4 {
		t.Fatalf("bob has %v", inbox)
	}
}

func TestNothingWaitsForItselfOrForNothing(t *testing.T) {
	r := newWorkRig(t)
	b, w := r.as(boss), r.as(bobWorks)
	_, err := b.Dispatch(t.Context(), order("1", "a", "none"))
	wantReason(t, err, fault.DispatchNotFound)
	if v := fault.From(err).Violations(); v[0].Field != "waits_for[0]" {
		t.Fatalf("it names %v", v)
	}
	_, err = b.Dispatch(t.Context(), order("1", "a", "1"))
	wantReason(t, err, fault.StateConflict)
	for _, item := range []string{"1", "2", "3"} {
		b.begin(item)
	}
	b.dispatch(order("2", "a", "1"))
	b.dispatch(order("3", "a", "2"))
	_, err = b.Dispatch(t.Context(), order("1", "a", "3"))
	wantReason(t, err, fault.StateConflict)
	if d := b.item("1"); len(d.GetWaitsFor()) != 0 || d.GetAttempts() != 1 {
		t.Fatalf("a refusal left %v", d)
	}
	b.dispatch(order("1", "a"))
	_, err = w.Report(t.Context(), &inboxv1.ReportRequest{
		Goal: "build", Item: "1", RequestId: "r", Kind: inboxv1.ReportKind_REPORT_KIND_BLOCKED, Text: "x", WaitsFor: []string{"3"},
	})
	wantReason(t, err, fault.StateConflict)
	// A retry is no new wait.
	if d := b.dispatch(order("3", "a", "2")); !slices.Equal(d.GetWaitsFor(), []string{"2"}) {
		t.Fatalf("a retry: %v", d)
	}
}

// Two that were told at the same time to wait for each other: the check of neither
// could see the other.
func TestACircleThatClosedUnseenIsShown(t *testing.T) {
	r := newWorkRig(t)
	b := r.as(boss)
	b.begin("1")
	b.begin("2")
	b.dispatch(order("1", "a", "2"))
	stores, err := backend.Open(t.Context(), "inbox", backend.Config{NATS: r.nats.URL(), Redis: r.redis.URL(), Replicas: 1}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer stores.Close()
	loop := newDispatchLoop(stores)
	key := dispatchKey(boss.Tenant, "build", "2")
	command := giving{
		begin: begin{Goal: "build", Item: "2", Actor: boss.Subject}, Owner: boss, Request: "a", NewConversation: "x",
		Worker: "bob", Seed: "do 2", WaitsFor: []string{"1"},
	}
	if _, _, err := do(t.Context(), loop, key, decideDispatch, command); err != nil {
		t.Fatal(err)
	}
	meshtest.Eventually(t, "it says so", func() bool { return strings.Contains(b.item("2").GetFailure(), "wait for itself") })
	b.abandon("2")
	b.becomes("1", inboxv1.DispatchState_DISPATCH_STATE_SENT)
}

// The replica that hears that an item is finished stops at each step of what follows.
func TestAWakeThatIsCutOffIsFinishedByAnotherReplica(t *testing.T) {
	for _, step := range steps[1:] { // the conversation is made before
		for _, state := range []inboxv1.DispatchState{inboxv1.DispatchState_DISPATCH_STATE_BEGUN, inboxv1.DispatchState_DISPATCH_STATE_BLOCKED} {
			if state == inboxv1.DispatchState_DISPATCH_STATE_BLOCKED && step.name == "seed" {
				continue // is said already
			}
			t.Run(state.String()+" before "+step.name, func(t *testing.T) {
				r := newWorkRig(t)
				b := r.as(boss)
				b.begin("1")
				if state == inboxv1.DispatchState_DISPATCH_STATE_BEGUN {
					b.dispatch(order("2", "a", "1"))
				} else {
					b.dispatch(order("2", "a"))
					r.as(bobWorks).report("2", "r", inboxv1.ReportKind_REPORT_KIND_BLOCKED, "1")
				}
				if err := r.inbox.Stop(); err != nil {
					t.Fatal(err)
				}
				dying := r.mortal(step.name)
				// It may die before it answers.
				_, _ = r.at(dying, boss).Abandon(t.Context(), &inboxv1.AbandonRequest{Goal: "build", Item: "1"})
				r.inbox = r.replica(nil)
				b = r.as(boss)
				b.becomes("1", inboxv1.DispatchState_DISPATCH_STATE_ABANDONED)
				d := b.becomes("2", inboxv1.DispatchState_DISPATCH_STATE_SENT)
				_, messages := r.talks.said("acme", d.GetConversationId())
				told := 1
				if state == inboxv1.DispatchState_DISPATCH_STATE_BLOCKED {
					told = 2
				}
				if inbox := b.peek("bob"); len(messages) != 1 || len(inbox) != told {
					t.Fatalf("said %v, told %v", messages, inbox)
				}
			})
		}
	}
}

// An abandoned item is not sent any more by who was at it.
func TestWhatIsAbandonedWhileItIsSentIsNotToldToAnybody(t *testing.T) {
	r := newWorkRig(t)
	if err := r.inbox.Stop(); err != nil {
		t.Fatal(err)
	}
	var reached atomic.Bool
	going := make(chan struct{})
	slow := r.replica(func(step string) {
		if step == "tell" {
			reached.Store(true)
			<-going
		}
	})
	r.inbox = slow
	b := r.as(boss)
	answered := make(chan *inboxv1.Dispatch, 1)
	go func() {
		out, _ := b.Dispatch(t.Context(), order("1", "a"))
		answered <- out.GetDispatch()
	}()
	meshtest.Eventually(t, "it is about to tell the worker", reached.Load)
	b.abandon("1")
	close(going)
	if d := <-answered; d.GetState() != inboxv1.DispatchState_DISPATCH_STATE_ABANDONED {
		t.Fatalf("the answer is %v", d)
	}
	if _, err := b.GetInbox(t.Context(), &inboxv1.GetInboxRequest{Goal: "bob"}); !fault.Is(err, fault.InboxNotFound) {
		t.Fatalf("bob was told: %v", err)
	}
}

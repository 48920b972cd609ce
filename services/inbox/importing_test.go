package inbox

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/backend"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

// aFile is a state file with something of everything.
const aFile = `{"version": 1, "goal": "build",
 "inbox": [
  {"id": "late", "text": "came last", "enqueued_at": "2026-01-02T02:00:00Z", "state": "pending"},
  {"id": "held", "text": "was claimed", "enqueued_at": "2026-01-02T01:00:00Z", "state": "claimed"},
  {"id": "over", "text": "is done", "enqueued_at": "2026-01-01T00:00:00Z", "state": "done"},
  {"id": "last", "text": "stands last", "enqueued_at": "2026-01-01T00:00:00Z", "state": "pending"}],
 "dispatch": {
  "issue 1": {"dispatch_id": "d1", "state": "begun", "attempts": 2},
  "issue 2": {"dispatch_id": "d2", "state": "sent", "attempts": 1},
  "issue 3": {"dispatch_id": "d3", "state": "accepted", "attempts": 1}}}`

// omar imports, and sees what came of it.
var omar = identity.Caller{Tenant: "acme", Subject: "human:omar", Scopes: []string{
	"inbox.operate", "inbox.enqueue", "inbox.claim", "dispatch.read", "dispatch.write",
}}

func importing(t *testing.T, text string) importGoal {
	t.Helper()
	file, err := readStateFile(text, defaultBody, start)
	if err != nil {
		t.Fatal(err)
	}
	return importGoal{File: file, Digest: digestOf(text), Actor: "human:omar", Rules: ruled(3)}
}

func TestAnImportIsDecidedOnce(t *testing.T) {
	p := newScript(t)
	c := importing(t, aFile)
	p.must(start)(decideImport(p.state, c, start))
	p.check()
	if got := p.state.Counts; got != (counts{Pending: 3}) || p.state.Finished != 1 || !p.state.Import.open() {
		t.Errorf("it holds %+v and %d that are done; its import is %+v", got, p.state.Finished, p.state.Import)
	}
	if want := start.Add(importGrace); !p.state.due().Equal(want) {
		t.Errorf("somebody else goes on at %v, want %v", p.state.due(), want)
	}
	if event, err := p.run(start)(decideImport(p.state, c, start)); event != nil || err != nil {
		t.Errorf("the same file again: %v, %v", event, err)
	}
	other := importing(t, aFile+" ")
	if _, err := p.run(start)(decideImport(p.state, other, start)); !fault.Is(err, fault.AlreadyExists) {
		t.Errorf("another file: %v", err)
	}
	for _, letter := range []uint64{p.sequence + 7, p.sequence} {
		event, err := p.run(start)(decideFinishImport(p.state, finishImport{Goal: "build", Letter: letter}, start))
		if err != nil || (event != nil) != (letter == 1) {
			t.Errorf("finishing import %d: %v, %v", letter, event, err)
		}
		p.check()
	}
	if p.state.Import.open() || !p.state.due().IsZero() {
		t.Errorf("finished it is %+v, due %v", p.state.Import, p.state.due())
	}
	if event, err := p.run(start)(decideImport(p.state, c, start)); event != nil || err != nil {
		t.Errorf("the same file once more: %v, %v", event, err)
	}
}

func TestAnImportIsNotForInboxesThatAreThere(t *testing.T) {
	for name, prepare := range map[string]func(inbox) (*inboxv1.Event, error){
		"written to": func(s inbox) (*inboxv1.Event, error) {
			return decideEnqueue(s, put(newMessage{ID: "a", Body: "x"}), start)
		},
		"paused": func(s inbox) (*inboxv1.Event, error) {
			return decideMode(s, setMode{Goal: "build", Mode: paused, Actor: "human:omar"}, start)
		},
	} {
		p := newScript(t)
		p.must(start)(prepare(p.state))
		if _, err := p.run(start)(decideImport(p.state, importing(t, aFile), start)); !fault.Is(err, fault.AlreadyExists) {
			t.Errorf("one that is %s: %v", name, err)
		}
	}
	c := importing(t, aFile)
	c.Rules = ruled(2)
	_, err := decideImport(inbox{}, c, start)
	if e := fault.From(err); e.Reason() != fault.TooLarge || e.Metadata("limit") != "2" || e.Metadata("size") != "3" {
		t.Errorf("more than fit: %v", err)
	}
}

func TestImportedItems(t *testing.T) {
	item := &inboxv1.ImportedItem{Item: "i", DispatchId: "d1", State: inboxv1.DispatchState_DISPATCH_STATE_SENT, Attempts: 3}
	c := importItem{Goal: "build", Item: item, Actor: "human:omar"}
	event, err := decideImportItem(dispatch{}, c, start)
	if err != nil {
		t.Fatal(err)
	}
	d := evolveDispatch(dispatch{}, aggregate.Recorded[*inboxv1.Event]{Event: event, Time: start, Sequence: 1})
	if d.ID != "d1" || d.State != sent || d.Attempts != 3 || d.Owner != "human:omar" || d.Item != "i" || d.Goal != "build" {
		t.Errorf("it is %+v", d)
	}
	if event, err := decideImportItem(d, c, start); event != nil || err != nil {
		t.Errorf("again: %v, %v", event, err)
	}
	d.ID = "another"
	if _, err := decideImportItem(d, c, start); !fault.Is(err, fault.AlreadyExists) || fault.From(err).Violations()[0].Field != `dispatch["i"]` {
		t.Errorf("one of somebody else: %v", err)
	}
	// No file says where work was sent to. Who knows may say so, once.
	event, err = decideMark(d, markSent{Goal: "build", Item: "i", ConversationID: "talk", Actor: "human:omar"}, start)
	if err != nil {
		t.Fatal(err)
	}
	d = evolveDispatch(d, aggregate.Recorded[*inboxv1.Event]{Event: event, Time: start, Sequence: 2})
	if _, err := decideMark(d, markSent{Goal: "build", Item: "i", ConversationID: "other", Actor: "human:omar"}, start); d.ConversationID != "talk" || !fault.Is(err, fault.DispatchMismatch) {
		t.Errorf("sent twice: %+v, %v", d, err)
	}
}

func (c client) importFile(goal, text string) (*inboxv1.ImportGoalResponse, error) {
	return c.ImportGoal(c.t.Context(), &inboxv1.ImportGoalRequest{Goal: goal, StateJson: text})
}

// What a file holds is served like all the rest: in its order, as old as it is, with what
// it says; and what was done is known.
func TestAFileIsTakenOver(t *testing.T) {
	r := newRig(t)
	o := r.as(omar)
	first, err := o.importFile("build", aFile)
	if err != nil || first.GetMessages() != 4 || first.GetItems() != 3 {
		t.Fatalf("%v, %v", first, err)
	}
	if in := o.inbox("build"); in.GetPending() != 3 || in.GetOldestPendingTime().AsTime().Format(time.RFC3339) != "2026-01-01T00:00:00Z" {
		t.Errorf("the inbox is %v", in)
	}
	claimed := o.claim("build", "c1", 10, time.Minute)
	shown := ""
	for _, m := range claimed.GetMessages() {
		shown += fmt.Sprintf("%s %s %q %s\n", m.GetMessageId(), m.GetEnqueueTime().AsTime().Format(time.RFC3339), m.GetBody(), m.GetSender())
	}
	want := `late 2026-01-02T02:00:00Z "came last" human:omar
held 2026-01-02T01:00:00Z "was claimed" human:omar
last 2026-01-01T00:00:00Z "stands last" human:omar
`
	if shown != want {
		t.Errorf("claimed were\n%swant\n%s", shown, want)
	}
	o.mustDone("build", claimed.GetClaimToken(), "late")
	for id, want := range map[string]inboxv1.MessageState{"over": inboxv1.MessageState_MESSAGE_STATE_DONE, "late": inboxv1.MessageState_MESSAGE_STATE_DONE, "held": inboxv1.MessageState_MESSAGE_STATE_CLAIMED} {
		body := map[string]string{"over": "is done", "late": "came last", "held": "was claimed"}[id]
		got, err := o.Enqueue(t.Context(), &inboxv1.EnqueueRequest{Goal: "build", MessageId: id, Body: body})
		if err != nil || got.GetState() != want {
			t.Errorf("enqueued again %s is %v, %v", id, got, err)
		}
	}
	for item, want := range map[string]string{"issue 1": "d1 BEGUN 2", "issue 2": "d2 SENT 1", "issue 3": "d3 ACCEPTED 1"} {
		d := o.item(item)
		if got := fmt.Sprintf("%s %s %d", d.GetDispatchId(), d.GetState().String()[len("DISPATCH_STATE_"):], d.GetAttempts()); got != want || d.GetOwner() != "human:omar" {
			t.Errorf("%s is %v", item, d)
		}
	}

	// The same file again, after all of that.
	again, err := o.importFile("build", aFile)
	if err != nil || again.GetMessages() != 4 || again.GetItems() != 3 {
		t.Errorf("again: %v, %v", again, err)
	}
	if in := o.inbox("build"); in.GetDepth() != 2 {
		t.Errorf("the inbox is %v", in)
	}
}

func TestRefusedImportsChangeNothing(t *testing.T) {
	r := newRig(t)
	o, w := r.as(omar), r.as(worker)
	if _, err := w.Begin(t.Context(), &inboxv1.BeginRequest{Goal: "build", Item: "issue 2"}); err != nil {
		t.Fatal(err)
	}
	before := r.lastSequence()
	for _, c := range []struct {
		goal, text string
		reason     fault.Reason
		field      string
	}{
		{"build", aFile, fault.AlreadyExists, `dispatch["issue 2"]`},
		{"other", aFile, fault.FieldInvalid, "goal"},
		{"build", aFile[:len(aFile)-1], fault.JSONInvalid, "state_json"},
		{"build", `{"version":1,"goal":"build","inbox":[{"id":"a","text":"","enqueued_at":1,"state":"done"}],"dispatch":{}}`, fault.FieldInvalid, "inbox[0].text"},
	} {
		_, err := o.importFile(c.goal, c.text)
		if v := fault.From(err).Violations(); !fault.Is(err, c.reason) || len(v) != 1 || v[0].Field != c.field {
			t.Errorf("%s: %v, %v, want %s of %s", c.goal, err, v, c.reason, c.field)
		}
	}
	if _, err := r.as(bob).importFile("bob", aFile); !fault.Is(err, fault.ScopeMissing) {
		t.Errorf("an agent: %v", err)
	}
	if after := r.lastSequence(); after != before {
		t.Errorf("%d events were written", after-before)
	}
	if _, err := o.GetInbox(t.Context(), &inboxv1.GetInboxRequest{Goal: "build"}); !fault.Is(err, fault.InboxNotFound) {
		t.Errorf("there is an inbox: %v", err)
	}
}

// stores opens what a replica stands on, for who does its first steps and then dies.
func (r *rig) stores() *backend.Backend {
	r.t.Helper()
	b, err := backend.Open(r.t.Context(), "inbox", backend.Config{NATS: r.nats.URL(), Redis: r.redis.URL(), Replicas: 1}, slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(b.Close)
	return b
}

// lastSequence is that of the newest event of the service.
func (r *rig) lastSequence() uint64 {
	r.t.Helper()
	last, err := r.stores().Journal.LastSequence(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return last
}

// A replica died between the import and its items, one of which somebody else began in
// that very moment. Another replica goes on, and says what it left as it was.
func TestAnImportIsFinishedByWhoeverIsLeft(t *testing.T) {
	r := newRig(t)
	b := r.stores()
	dead := newInboxLoop(b)
	dead.Now = func() time.Time { return time.Now().Add(-time.Hour) } // its grace is over
	key := inboxKey("acme", "build")
	after, _, err := do(t.Context(), dead, key, decideImport, importing(t, aFile))
	if err != nil || !after.State.Import.open() {
		t.Fatal(after.State.Import, err)
	}
	w := r.as(worker)
	begun, err := w.Begin(t.Context(), &inboxv1.BeginRequest{Goal: "build", Item: "issue 2"})
	if err != nil {
		t.Fatal(err)
	}
	meshtest.Eventually(t, "the import is finished", func() bool {
		read, err := dead.Newest(context.WithoutCancel(t.Context()), key)
		return err == nil && !read.State.Import.open()
	})
	o := r.as(omar)
	if d := o.item("issue 1"); d.GetDispatchId() != "d1" {
		t.Errorf("issue 1 is %v", d)
	}
	if d := o.item("issue 2"); d.GetDispatchId() != begun.GetDispatch().GetDispatchId() {
		t.Errorf("issue 2 is %v", d)
	}
	var told []string
	err = dead.History(t.Context(), key, func(_ aggregate.Snapshot[inbox], e aggregate.Recorded[*inboxv1.Event]) error {
		told = append(told, e.Event.GetGoalImportFinished().GetTakenItems()...)
		return nil
	})
	if err != nil || fmt.Sprint(told) != "[issue 2]" {
		t.Errorf("taken were %v, %v", told, err)
	}
}

// The same file by many at once, at two replicas, is one import.
func TestConcurrentImportsAreOne(t *testing.T) {
	r := newRig(t)
	other := r.start()
	var all sync.WaitGroup
	for i := range 8 {
		c := r.at([]*meshtest.Service{r.inbox, other}[i%2], omar)
		all.Go(func() {
			if _, err := c.importFile("build", aFile); err != nil {
				t.Errorf("import %d: %v", i, err)
			}
		})
	}
	all.Wait()
	events := map[string]int{}
	_, err := r.stores().Journal.Replay(t.Context(), inboxKey("acme", "build"), 0, func(e journal.Event) error {
		events[e.Type]++
		return nil
	})
	if err != nil || fmt.Sprint(events) != "map[weir.inbox.v1.GoalImportFinished:1 weir.inbox.v1.GoalImported:1]" {
		t.Errorf("written were %v, %v", events, err)
	}
}

package conversation

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

// asks tells that somebody's operation in a conversation needs a person with a scope.
func (g *gate) asks(approval, requester, conversation string, scopes ...string) journal.Event {
	g.t.Helper()
	terms := &gatev1.Terms{}
	for _, s := range scopes {
		terms.Approvers = append(terms.Approvers, &gatev1.Approver{Scope: s, Count: 1})
	}
	return g.tell(approval, &gatev1.Event{Actor: requester, Event: &gatev1.Event_ApprovalRequested{ApprovalRequested: &gatev1.ApprovalRequested{
		ApprovalId: approval, Operation: "files/delete", Requester: requester, ConversationId: conversation, Terms: terms,
	}}})
}

func decidedEvent(outcome gatev1.ApprovalState) *gatev1.Event {
	return &gatev1.Event{Actor: carol, Event: &gatev1.Event_ApprovalDecided{ApprovalDecided: &gatev1.ApprovalDecided{Outcome: outcome, Note: "a note"}}}
}

func byDeadline(event *gatev1.Event) *gatev1.Event {
	event.Actor = gateSubject
	return event
}

func expiredEvent() *gatev1.Event {
	return byDeadline(&gatev1.Event{Event: &gatev1.Event_ApprovalExpired{ApprovalExpired: &gatev1.ApprovalExpired{}}})
}

const (
	approvedState = gatev1.ApprovalState_APPROVAL_STATE_APPROVED
	deniedState   = gatev1.ApprovalState_APPROVAL_STATE_DENIED
	pendingState  = gatev1.ApprovalState_APPROVAL_STATE_PENDING
)

// approver is a person who can decide, and no more.
func (m *mesh) approver(scopes ...string) context.Context {
	return m.holding("acme", carol, append([]string{scopeDecide}, scopes...)...)
}

func (m *mesh) state(r replica, id string) conversationv1.ConversationState {
	return m.get(r, id).GetState()
}

const (
	active = conversationv1.ConversationState_CONVERSATION_STATE_ACTIVE
	paused = conversationv1.ConversationState_CONVERSATION_STATE_PAUSED
)

func TestAnApprovalPausesAConversationUntilItEnds(t *testing.T) {
	m := newMesh(t)
	r := m.start() // before the gate's stream exists
	g := newGate(m)
	for id, c := range map[string]struct {
		end       *gatev1.Event
		state     string
		decidedBy string
		note      string
	}{
		"approved":   {decidedEvent(approvedState), "APPROVED", carol, "a note"},
		"denied":     {decidedEvent(deniedState), "DENIED", carol, "a note"},
		"expired":    {expiredEvent(), "EXPIRED", "", ""},
		"cancelled":  {&gatev1.Event{Actor: bob, Event: &gatev1.Event_ApprovalCancelled{ApprovalCancelled: &gatev1.ApprovalCancelled{}}}, "CANCELLED", "", ""},
		"superseded": {byDeadline(&gatev1.Event{Event: &gatev1.Event_ApprovalSuperseded{ApprovalSuperseded: &gatev1.ApprovalSuperseded{}}}), "SUPERSEDED", "", ""},
		"timed-out":  {byDeadline(&gatev1.Event{Event: &gatev1.Event_ApprovalTimedOut{ApprovalTimedOut: &gatev1.ApprovalTimedOut{}}}), "APPROVED", "", ""},
	} {
		m.create(r, id)
		g.asks(id, bob, id, "approval.decide.files", "approval.decide.admin", "approval.decide.files")
		g.listened()
		c2 := m.get(r, id)
		wantEqual(t, "what it waits for", c2.GetPauses()[0], &conversationv1.Pause{
			ApprovalId: id, Operation: "files/delete", Requester: bob, CreateTime: c2.GetPauses()[0].GetCreateTime(),
		})
		if c2.GetState() != paused || len(c2.GetPauses()) != 1 || c2.GetHead() != 1 {
			t.Fatalf("%s: while pending it is %v", id, c2)
		}
		g.tell(id, decidedEvent(pendingState)) // one of several people
		g.listened()
		if m.state(r, id) != paused {
			t.Fatalf("%s: one of several decided, and it goes on", id)
		}
		g.tell(id, c.end)
		g.tell(id, expiredEvent()) // given, and then not used
		g.listened()
		if c := m.get(r, id); c.GetState() != active || len(c.GetPauses()) != 0 || c.GetHead() != 2 {
			t.Fatalf("%s: in the end it is %v", id, c)
		}
		all := m.all(r, id, 10, conversationv1.Order_ORDER_UNSPECIFIED)
		wantEqual(t, "the question", all[0], &conversationv1.Message{
			ConversationId: id, MessageId: askID(id), Position: 1, Author: gateSubject, CreateTime: all[0].GetCreateTime(),
			Parts: []*conversationv1.Part{{Part: &conversationv1.Part_Approval{Approval: &conversationv1.ApprovalNote{
				ApprovalId: id, Operation: "files/delete", State: pending, Requester: bob,
				ApproverScopes: []string{"approval.decide.admin", "approval.decide.files"},
			}}}},
		})
		author := gateSubject
		if c.decidedBy != "" {
			author = c.decidedBy
		}
		wantEqual(t, "the answer", all[1], &conversationv1.Message{
			ConversationId: id, MessageId: answerID(id), Position: 2, Author: author, ReplyTo: askID(id), CreateTime: all[1].GetCreateTime(),
			Parts: []*conversationv1.Part{{Part: &conversationv1.Part_Approval{Approval: &conversationv1.ApprovalNote{
				ApprovalId: id, Operation: "files/delete", State: c.state, Requester: bob, DecidedBy: c.decidedBy, Note: c.note,
			}}}},
		})
	}
}

// What is refused leaves nothing behind: the same id can say something else after.
func TestPausedAndClosedConsumeNothing(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	g := newGate(m)
	m.create(r, "c")
	said := m.say(r, "c", "m1", "hello")
	draft := func(id, words string, offset int64) error {
		_, err := r.messages.AppendDelta(m.as(ann), &conversationv1.AppendDeltaRequest{ConversationId: "c", MessageId: id, Text: words, Offset: offset})
		return err
	}
	if err := draft("d1", "wri", 0); err != nil {
		t.Fatal(err)
	}
	both := func(first, second string) error {
		_, err := r.messages.AppendMessages(m.as(ann), &conversationv1.AppendMessagesRequest{ConversationId: "c", Messages: []*conversationv1.NewMessage{
			{MessageId: first, Parts: text("one")}, {MessageId: second, Parts: text("two")},
		}})
		return err
	}
	refused := func(want fault.Reason, key, value string) {
		t.Helper()
		for name, err := range map[string]error{
			"a message":              func() error { _, err := m.trySay(r, "c", "m2", "refused"); return err }(),
			"messages":               both("m3", "m4"),
			"a delta":                draft("d1", "ting", 3),
			"the first delta of one": draft("d2", "x", 0),
			"one with another's head": func() error {
				_, err := r.messages.AppendMessage(m.as(ann), &conversationv1.AppendMessageRequest{ConversationId: "c", MessageId: "m5", Parts: text("x"), ExpectedHead: proto.Int64(99)})
				return err
			}(),
		} {
			if !fault.Is(err, want) || fault.From(err).Metadata(key) != value {
				t.Fatalf("%s: %v, want %s with %s %s", name, err, want, key, value)
			}
		}
		wantEqual(t, "a retry of what is there", m.say(r, "c", "m1", "hello"), said)
	}
	g.asks("p1", bob, "c")
	g.listened() // those of different approvals have no order of their own
	g.asks("p2", bob, "c")
	g.listened()
	refused(fault.ConversationPaused, "approval_id", "p1")
	m.redis.Flush()
	meshtest.Eventually(t, "Redis shows it again", func() bool { return m.get(r, "c").GetHead() == 3 })
	_, err := m.trySay(r, "c", "m2", "refused")
	wantReason(t, err, fault.ConversationPaused)
	g.tell("p1", decidedEvent(deniedState))
	g.listened()
	_, err = m.trySay(r, "c", "m2", "refused")
	if !fault.Is(err, fault.ConversationPaused) || fault.From(err).Metadata("approval_id") != "p2" {
		t.Fatalf("with one of two decided: %v", err)
	}
	g.tell("p2", decidedEvent(approvedState))
	g.listened()
	if head := m.get(r, "c").GetHead(); head != 5 {
		t.Fatalf("the head is %d, want one message and two questions with their answers", head)
	}
	m.say(r, "c", "m2", "something else")
	if err := both("m4", "m3"); err != nil {
		t.Fatal(err)
	}
	// Drafts are in Redis alone, so the one that was begun went with the flush.
	if err := draft("d1", "wri", 0); err != nil {
		t.Fatal(err)
	}

	for _, end := range []func(){
		func() {
			m.must(r.conversations.CloseConversation(m.as(ann), &conversationv1.CloseConversationRequest{ConversationId: "c"}))
		},
		func() {
			m.must(r.conversations.ArchiveConversation(m.as(ann), &conversationv1.ArchiveConversationRequest{ConversationId: "c"}))
		},
	} {
		end()
		head := m.get(r, "c").GetHead()
		_, err := m.trySay(r, "c", "m6", "refused")
		wantReason(t, err, fault.ConversationClosed)
		wantReason(t, both("m7", "m8"), fault.ConversationClosed)
		wantReason(t, draft("d1", "ting", 3), fault.ConversationClosed)
		wantEqual(t, "a retry of what is there", m.say(r, "c", "m1", "hello"), said)
		if got := m.get(r, "c").GetHead(); got != head {
			t.Fatalf("the head went from %d to %d", head, got)
		}
	}
	m.must(r.conversations.ReopenConversation(m.as(ann), &conversationv1.ReopenConversationRequest{ConversationId: "c"}))
	m.say(r, "c", "m6", "something else")
	if err := draft("d1", "ting", 3); err != nil {
		t.Fatalf("the draft goes on where it was: %v", err)
	}
}

// Events in every order, twice, by two replicas, come to a question before its answer,
// each once.
func TestApprovalsThatAreHeardInAnyOrderShowOnce(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	g := newGate(m)
	orders := [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	for i := range orders {
		m.create(r, fmt.Sprint("c", i))
	}
	r.stop() // it would hear them in order
	a, b := approvals{hear(m).teller}, approvals{hear(m).teller}
	for i, order := range orders {
		id := fmt.Sprint("c", i)
		events := []journal.Event{
			g.asks("p"+id, bob, id), g.tell("p"+id, decidedEvent(deniedState)), g.tell("p"+id, expiredEvent()),
		}
		for n, at := range append(slices.Clone(order), order...) {
			replica := []approvals{a, b}[n%2]
			if err := replica.handle(t.Context(), events[at]); err != nil {
				t.Fatal(err)
			}
		}
	}
	r = m.start()
	g.listened()
	for i, order := range orders {
		id := fmt.Sprint("c", i)
		c, all := m.get(r, id), m.all(r, id, 10, conversationv1.Order_ORDER_UNSPECIFIED)
		if c.GetState() != active || len(all) != 2 || all[0].GetMessageId() != askID("p"+id) || all[1].GetMessageId() != answerID("p"+id) {
			t.Fatalf("in the order %v: %v, %v", order, all, c)
		}
	}
}

func TestAConsumerThatLostItsPlaceTellsNoApprovalTwice(t *testing.T) {
	m := newMesh(t)
	g := newGate(m)
	r := m.start()
	m.start() // a second replica shares the work
	m.create(r, "c")
	for _, id := range []string{"p1", "p2"} {
		g.asks(id, bob, "c")
		g.tell(id, decidedEvent(deniedState))
	}
	g.asks("p3", bob, "c")
	g.listened()
	want := m.ids(r, "c")
	if len(want) != 5 {
		t.Fatalf("%v appeared, want 3 questions and 2 answers", want)
	}
	if err := g.js.DeleteConsumer(t.Context(), journal.StreamName(gateService), approvalsConsumer); err != nil {
		t.Fatal(err)
	}
	m.redis.Flush()
	g.listened()
	if got := m.ids(r, "c"); !slices.Equal(got, want) || m.state(r, "c") != paused {
		t.Fatalf("after the second time there is %v, want %v", got, want)
	}
	g.tell("p3", decidedEvent(deniedState))
	g.listened()
	if m.state(r, "c") != active {
		t.Fatal("it is still paused")
	}
}

func TestApprovalsThatDoNotShow(t *testing.T) {
	m := newMesh(t)
	g := newGate(m)
	r := m.start()
	for _, id := range []string{"strangers", "closed", "deleted", "many"} {
		m.create(r, id)
	}
	m.must(r.conversations.CloseConversation(m.as(ann), &conversationv1.CloseConversationRequest{ConversationId: "closed"}))
	m.must(r.retention.DeleteConversation(m.eraser(), &conversationv1.DeleteConversationRequest{ConversationId: "deleted"}))
	for id, requester := range map[string]string{"strangers": eve, "closed": bob, "deleted": bob, "unknown": bob, "": bob} {
		approval := "p-" + id
		g.asks(approval, requester, id)
		g.tell(approval, decidedEvent(deniedState))
	}
	for i := range maxPauses + 1 {
		g.asks(fmt.Sprint("many-", i), bob, "many")
		g.listened()
	}
	g.tell(fmt.Sprint("many-", maxPauses), decidedEvent(deniedState))
	g.listened()
	for id, want := range map[string]int{"strangers": 0, "closed": 0, "many": maxPauses} {
		if got := m.ids(r, id); len(got) != want {
			t.Errorf("%s holds %d messages, want %d: %v", id, len(got), want, got)
		}
	}
	m.must(r.conversations.ReopenConversation(m.as(ann), &conversationv1.ReopenConversationRequest{ConversationId: "closed"}))
	if m.state(r, "closed") != active || m.state(r, "strangers") != active {
		t.Error("it waits for what it does not show")
	}
	_, err := r.conversations.GetConversation(m.as(ann), &conversationv1.GetConversationRequest{ConversationId: "deleted"})
	wantReason(t, err, fault.ConversationNotFound)
}

func TestAPauseOutlastsTheEndOfItsConversation(t *testing.T) {
	m := newMesh(t)
	g := newGate(m)
	r := m.start()
	m.create(r, "c")
	g.asks("p1", bob, "c")
	g.asks("p2", bob, "c")
	g.listened()
	m.must(r.conversations.CloseConversation(m.as(ann), &conversationv1.CloseConversationRequest{ConversationId: "c"}))
	g.tell("p1", decidedEvent(deniedState))
	g.listened()
	if c := m.get(r, "c"); c.GetState() != conversationv1.ConversationState_CONVERSATION_STATE_CLOSED || len(c.GetPauses()) != 1 || c.GetHead() != 3 {
		t.Fatalf("closed, with one of two decided: %v", c)
	}
	m.must(r.conversations.ReopenConversation(m.as(ann), &conversationv1.ReopenConversationRequest{ConversationId: "c"}))
	if m.state(r, "c") != paused {
		t.Fatal("reopened, it does not wait for the other one")
	}
	g.tell("p2", decidedEvent(approvedState))
	g.listened()
	m.say(r, "c", "m1", "on we go")
}

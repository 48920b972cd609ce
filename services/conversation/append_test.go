package conversation

import (
	"testing"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
)

func TestWhatAnAppendIsRefusedFor(t *testing.T) {
	head := func(n int64) func(*appendage) { return func(a *appendage) { a.ExpectedHead = &n } }
	by := func(subject string) func(*appendage) {
		return func(a *appendage) { a.Member, a.Messages[0].Author = subject, subject }
	}
	with := func(change func(*message)) func(*appendage) {
		return func(a *appendage) { change(&a.Messages[0]); a.Messages[0] = a.Messages[0].signed() }
	}
	parts := func(p ...*conversationv1.Part) func(*appendage) { return with(func(m *message) { m.Parts = p }) }
	twice := func(change ...func(*message)) func(*appendage) {
		return func(a *appendage) {
			second := a.Messages[0]
			second.ID = "m3"
			for _, c := range change {
				c(&second)
			}
			a.Messages = append(a.Messages, second.signed())
		}
	}
	for name, c := range map[string]struct {
		command func(*appendage)
		want    fault.Reason
	}{
		"by a stranger":                {by(eve), fault.ConversationNotFound},
		"by a service that is no part": {by(registrySubject), fault.ConversationNotFound},
		"to a stranger":                {with(func(m *message) { m.To = []string{bob, eve} }), fault.FieldInvalid},
		"to a group that is no part":   {with(func(m *message) { m.To = []string{"group:g"} }), fault.FieldInvalid},
		"in reply to nothing":          {with(func(m *message) { m.ReplyTo = "m9" }), fault.MessageNotFound},
		"in reply to itself":           {with(func(m *message) { m.ReplyTo = m.ID }), fault.MessageNotFound},
		"in reply to what comes after": {func(a *appendage) {
			with(func(m *message) { m.ReplyTo = "m3" })(a)
			twice(func(m *message) { m.ReplyTo = "" })(a)
		}, fault.MessageNotFound},
		"in reply to what is before":   {twice(func(m *message) { m.ReplyTo = "m2" }), ""},
		"the same id twice":            {twice(func(m *message) { m.ID = "m2" }), fault.FieldInvalid},
		"one of two is there":          {twice(func(m *message) { m.ID = "m1" }), fault.IdempotencyMismatch},
		"with an old head":             {head(0), fault.HeadMoved},
		"with a head to come":          {head(2), fault.HeadMoved},
		"under a taken id":             {with(func(m *message) { m.ID, m.Parts = "m1", text("other") }), fault.IdempotencyMismatch},
		"under a taken id, by another": {func(a *appendage) { by(bob)(a); with(func(m *message) { m.ID = "m1" })(a) }, fault.IdempotencyMismatch},
		"to the owner, from the head":  {func(a *appendage) { with(func(m *message) { m.To, m.ReplyTo = []string{ann}, "m1" })(a); head(1)(a) }, ""},
		"by the other participant":     {by(bob), ""},
		"a result of no call":          {parts(toolResult("t9")), fault.CallNotFound},
		"a call and its result":        {parts(toolCall("t9"), toolResult("t9")), ""},
		"a result before its call":     {parts(toolResult("t9"), toolCall("t9")), fault.CallNotFound},
		"one result twice":             {parts(toolResult("t1"), toolResult("t1")), fault.CallNotFound},
		"the result of the open call":  {parts(toolResult("t1")), ""},
		"a call that is open already":  {parts(toolCall("t1")), fault.FieldInvalid},
		"one call twice":               {parts(toolCall("t2"), toolCall("t2")), fault.FieldInvalid},
		"a summary of what is to come": {with(func(m *message) { m.Summarizes = &conversationv1.Range{First: 1, Last: 2} }), fault.FieldInvalid},
		"a summary over an open call":  {with(func(m *message) { m.Summarizes = &conversationv1.Range{First: 1, Last: 1} }), fault.FieldInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			s := started(t)
			s.must(s.run(saying(t, ann, "m1", func(m *conversationv1.NewMessage) { m.Parts = append(text("hello"), toolCall("t1")) })))
			cmd := saying(t, ann, "m2")
			c.command(&cmd)
			_, err := s.run(cmd)
			wantReason(t, err, c.want)
		})
	}
}

func TestAMessageToNoConversationIsRefusedAsToAForeignOne(t *testing.T) {
	_, absent := decideAppend(conversation{}, saying(t, eve, "m1"), started(t).now)
	_, foreign := started(t).run(saying(t, eve, "m1"))
	if absent == nil || absent != foreign {
		t.Fatalf("absent: %v, foreign: %v", absent, foreign)
	}
}

// The head is about what comes next; a retry asks for what was. So it is with a
// conversation that has closed, or waits.
func TestARetryIsNotRefusedForWhatCameAfter(t *testing.T) {
	s := started(t)
	zero := int64(0)
	cmd := saying(t, ann, "m1")
	cmd.ExpectedHead = &zero
	s.must(s.run(cmd))
	done := func(when string) {
		t.Helper()
		if event, err := s.run(cmd); event != nil || err != nil {
			t.Fatalf("%s: decided %v, %v; want that it is done", when, event, err)
		}
	}
	done("at once")
	s.must(s.run(telling(bob, askNote(&conversationv1.ApprovalNote{ApprovalId: "a", State: pending}))))
	done("while it waits")
	s.must(decideStep(s.state, step{ID: "c", Actor: ann, To: closed}))
	done("once it is closed")
	s.must(s.redact(redaction{Actor: ann, MessageID: "m1"}))
	done("once it is redacted")
	_, err := s.run(saying(t, ann, "m1", func(m *conversationv1.NewMessage) { m.Parts = text("other") }))
	wantReason(t, err, fault.IdempotencyMismatch)
}

func TestPausedAndClosedTakeNoWordsButWeirs(t *testing.T) {
	s := started(t)
	s.must(s.run(telling(bob, callNote(bob, &conversationv1.Call{InvocationId: "i1", Operation: "a/b"}))))
	s.must(s.run(telling(bob, askNote(&conversationv1.ApprovalNote{ApprovalId: "a1", Operation: "a/b", State: pending}))))
	s.must(s.run(telling(bob, askNote(&conversationv1.ApprovalNote{ApprovalId: "a2", Operation: "a/c", State: pending}))))
	if got := s.state.shownState(); got != conversationv1.ConversationState_CONVERSATION_STATE_PAUSED {
		t.Fatalf("it is %v", got)
	}
	_, err := s.run(saying(t, ann, "m1"))
	wantReason(t, err, fault.ConversationPaused)
	if got := fault.From(err).Metadata("approval_id"); got != "a1" {
		t.Fatalf("it waits for %q", got)
	}
	s.must(s.run(telling("", answerNote(&conversationv1.ApprovalNote{ApprovalId: "a1", State: "APPROVED"}))))
	_, err = s.run(saying(t, ann, "m1"))
	wantReason(t, err, fault.ConversationPaused)
	s.must(s.run(telling("", answerNote(&conversationv1.ApprovalNote{ApprovalId: "a2", State: "EXPIRED"}))))
	// Heard again, the question doesn't stop it again.
	if event, err := s.run(telling(bob, askNote(&conversationv1.ApprovalNote{ApprovalId: "a1", State: pending}))); event != nil || err != nil {
		t.Fatalf("decided %v, %v", event, err)
	}
	s.must(s.run(saying(t, ann, "m1")))

	closing := s.must(decideStep(s.state, step{ID: "c", Actor: bob, To: closed})).GetConversationClosed()
	if len(closing.GetResults()) != 1 || closing.GetResults()[0].GetMessageId() != resultID("i1") || closing.GetResults()[0].GetReplyTo() != callID("i1") {
		t.Fatalf("closing ends %v", closing.GetResults())
	}
	_, err = s.run(saying(t, ann, "m2"))
	wantReason(t, err, fault.ConversationClosed)
	// The true result comes too late: the call has one.
	if event, err := s.run(telling("", resultNote(&conversationv1.Result{InvocationId: "i1", State: succeeded}))); event != nil || err != nil {
		t.Fatalf("decided %v, %v", event, err)
	}
	s.must(decideStep(s.state, step{ID: "c", Actor: ann, To: open}))
	s.must(s.run(saying(t, ann, "m2")))
}

func TestAFullConversationTakesRetriesAndEndsOnly(t *testing.T) {
	s := started(t)
	s.must(s.run(saying(t, ann, "m1")))
	s.must(s.run(telling(bob, callNote(bob, &conversationv1.Call{InvocationId: "i1"}))))
	s.state.Head = maxMessages

	_, err := s.run(saying(t, ann, "m2"))
	wantReason(t, err, fault.ConversationFull)
	_, err = s.run(telling(bob, callNote(bob, &conversationv1.Call{InvocationId: "i2"})))
	wantReason(t, err, fault.ConversationFull)

	if event, err := s.run(saying(t, ann, "m1")); event != nil || err != nil {
		t.Fatalf("a retry: decided %v, %v", event, err)
	}
	event, err := s.run(telling("", resultNote(&conversationv1.Result{InvocationId: "i1"})))
	if err != nil || event.GetMessagesAppended().GetFirstPosition() != maxMessages+1 {
		t.Fatalf("a result: decided %v, %v", event, err)
	}
}

func TestTheRootTakesNoMoreThanItsCaps(t *testing.T) {
	s := started(t)
	full := func(change func(*root), cmd appendage) {
		t.Helper()
		before := s.state
		change(&s.state.root)
		_, err := s.run(cmd)
		wantReason(t, err, fault.LimitReached)
		s.state = before
	}
	s.must(s.run(saying(t, ann, "m1")))
	full(func(r *root) { r.Calls = make([]openCall, maxOpenCalls) },
		saying(t, ann, "m2", func(m *conversationv1.NewMessage) { m.Parts = append(m.Parts, toolCall("t")) }))
	full(func(r *root) { r.Pinned = make([]int64, maxPinned) },
		saying(t, ann, "m2", func(m *conversationv1.NewMessage) { m.Pinned = true }))
	full(func(r *root) { r.Summaries = make([]summary, maxSummaries) },
		saying(t, ann, "m2", func(m *conversationv1.NewMessage) { m.Summarizes = &conversationv1.Range{First: 1, Last: 1} }))
	full(func(r *root) { r.Pauses = make([]pause, maxPauses) },
		telling(bob, askNote(&conversationv1.ApprovalNote{ApprovalId: "a", State: pending})))
	full(func(r *root) {
		r.Groups, r.Turns = []group{{ID: "g", Members: []string{"agent:g1"}}}, make([]turn, maxTurns)
	}, saying(t, ann, "m2", func(m *conversationv1.NewMessage) { m.To = []string{"group:g"} }))
}

func TestAResultStandsBehindItsCall(t *testing.T) {
	s := started(t)
	ended := resultNote(&conversationv1.Result{InvocationId: "i1", State: "SUCCEEDED"})
	_, err := s.run(telling("", ended))
	wantReason(t, err, fault.MessageNotFound)

	s.must(s.run(telling(bob, callNote(bob, &conversationv1.Call{InvocationId: "i1", Operation: "a/b"}))))
	appended := s.must(s.run(telling("", ended))).GetMessagesAppended()
	if m := appended.GetMessages()[0]; m.GetAuthor() != registrySubject || m.GetReplyTo() != callID("i1") || appended.GetFirstPosition() != 2 {
		t.Fatalf("the result is %v", appended)
	}
}

// Weir may come to word a result another way; the one that is there stays.
func TestACallOrResultIsThereOnceWhateverItSays(t *testing.T) {
	s := started(t)
	s.must(s.run(telling(bob, callNote(bob, &conversationv1.Call{InvocationId: "i1", Operation: "a/b"}))))
	s.must(s.run(telling("", resultNote(&conversationv1.Result{InvocationId: "i1", Message: "no"}))))
	for _, again := range []appendage{
		telling(ann, callNote(ann, &conversationv1.Call{InvocationId: "i1", Operation: "a/c"})),
		telling("", resultNote(&conversationv1.Result{InvocationId: "i1", Message: "refused"})),
	} {
		if event, err := s.run(again); event != nil || err != nil {
			t.Fatalf("decided %v, %v; want that it is done", event, err)
		}
	}
}

func TestACallByAStrangerDoesNotAppear(t *testing.T) {
	_, err := started(t).run(telling("agent:eve", callNote("agent:eve", &conversationv1.Call{InvocationId: "i1"})))
	wantReason(t, err, fault.ConversationNotFound)
}

// A fork asks what its past holds before it takes an id or a reply.
func TestAForkKnowsTheIDsOfItsPast(t *testing.T) {
	s := newScript(t)
	cmd := creating("plans", ann)
	cmd.Ancestors = []ancestor{{"root", 3}, {"mid", 5}}
	s.must(decideCreate(s.state, cmd))
	if s.state.Head != 5 || s.state.base() != 5 {
		t.Fatalf("it begins at %d behind %d", s.state.Head, s.state.base())
	}
	reply := saying(t, ann, "m1", func(m *conversationv1.NewMessage) { m.ReplyTo = "old" })
	if _, err := decideAppend(s.state, reply, s.now); err != (lookup{}) {
		t.Fatalf("decided without asking: %v", err)
	}
	reply.inherited = map[string]bool{}
	_, err := s.run(reply)
	wantReason(t, err, fault.MessageNotFound)
	reply.inherited = map[string]bool{"old": true, "m1": true}
	_, err = s.run(reply)
	wantReason(t, err, fault.IdempotencyMismatch)
	reply.inherited = map[string]bool{"old": true}
	if event := s.must(s.run(reply)); event.GetMessagesAppended().GetFirstPosition() != 6 {
		t.Fatalf("it said %v", event)
	}
}

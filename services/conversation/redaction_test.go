package conversation

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/journal"
)

// batch is what ann says at once, under the ids 1 to n.
func batch(t testing.TB, n int) appendage {
	t.Helper()
	cmd := saying(t, ann, "1")
	for i := 2; i <= n; i++ {
		cmd.Messages = append(cmd.Messages, saying(t, ann, fmt.Sprint(i)).Messages...)
	}
	return cmd
}

func TestWhoMayRedactWhat(t *testing.T) {
	s := started(t)
	s.must(s.run(saying(t, ann, "m1")))
	s.must(s.run(saying(t, bob, "m2")))
	s.must(s.run(telling(bob, askNote(&conversationv1.ApprovalNote{ApprovalId: "a", State: pending}))))
	for name, c := range map[string]struct {
		cmd  redaction
		want fault.Reason
	}{
		"another's":                 {redaction{Actor: bob, MessageID: "m1"}, fault.NotAuthor},
		"the owner another's":       {redaction{Actor: ann, MessageID: "m2"}, fault.NotAuthor},
		"a stranger":                {redaction{Actor: eve, MessageID: "m1"}, fault.ConversationNotFound},
		"nothing":                   {redaction{Actor: ann, MessageID: "m9"}, fault.MessageNotFound},
		"an approval that is asked": {redaction{Actor: eve, Eraser: true, MessageID: askID("a")}, fault.StateConflict},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.redact(c.cmd)
			wantReason(t, err, c.want)
		})
	}
	s.must(s.redact(redaction{Actor: bob, MessageID: "m2"}))
	s.must(s.redact(redaction{Actor: eve, Eraser: true, MessageID: "m1"}))
	if event, err := s.redact(redaction{Actor: ann, MessageID: "m1"}); event != nil || err != nil {
		t.Errorf("redacting twice gives %v, %v", event, err)
	}
}

// What a result of weir's own says about closing holds nothing that was said.
func TestTheRecordOfAClosingStays(t *testing.T) {
	s := started(t)
	s.must(s.run(saying(t, ann, "m1", func(m *conversationv1.NewMessage) { m.Parts = []*conversationv1.Part{toolCall("t")} })))
	call := s.state.Calls[0]
	s.must(decideStep(s.state, step{ID: "c", Actor: ann, To: closed}))
	_, err := s.redact(redaction{Actor: ann, Eraser: true, MessageID: closingID(call)})
	wantReason(t, err, fault.StateConflict)
}

func TestTheSiblingsOfARedactedMessageStayAsTheyWere(t *testing.T) {
	s := started(t)
	cmd := batch(t, 3)
	s.must(s.run(cmd))
	first := s.version
	for i, id := range []string{"2", "1"} {
		event := s.must(s.redact(redaction{Actor: ann, MessageID: id})).GetMessagesRedacted()
		if len(event.GetErased()) != i+1 || event.GetRedacted() != 1 || event.GetErased()[0].GetSequence() != first {
			t.Fatalf("redaction %d erases %v, %d messages", i+1, event.GetErased(), event.GetRedacted())
		}
	}
	at, _ := s.state.place(3)
	m, _ := s.holder(at.Sequence).at(3)
	if m.GetParts()[0].GetText() != "hello" || m.GetErasure() != 0 || !bytes.Equal(m.GetFingerprint(), cmd.Messages[2].fingerprint[:]) {
		t.Errorf("the third message is %v", m)
	}
	for position, id := range map[int64]string{1: "1", 2: "2"} {
		at, _ := s.state.place(position)
		m, _ := s.holder(at.Sequence).at(position)
		if m.GetMessageId() != id || len(m.GetParts()) > 0 || m.GetErasure() != conversationv1.Erasure_ERASURE_REDACTED {
			t.Errorf("message %d is %v", position, m)
		}
	}
	// The retry of what is redacted by now is known as one, and other content is not.
	if event, err := s.run(cmd); event != nil || err != nil {
		t.Errorf("the retry gives %v, %v", event, err)
	}
	_, err := s.run(saying(t, ann, "2", func(m *conversationv1.NewMessage) { m.Parts = text("other") }))
	wantReason(t, err, fault.IdempotencyMismatch)
	if len(s.journal) != 2 {
		t.Errorf("%d events are left, want the creation and the last redaction", len(s.journal))
	}
}

// An erasure that takes what is held by events out of order names them in order.
func TestWhatSeveralRedactionsHeldIsErasedTogether(t *testing.T) {
	s := started(t)
	s.must(s.run(batch(t, 3)))
	s.must(s.run(saying(t, bob, "b")))
	s.must(s.run(saying(t, ann, "last")))
	s.must(s.redact(redaction{Actor: ann, MessageID: "2"}))
	// Positions 1 and 3 are held by a later event than position 5.
	cmd := redaction{ID: "c", Actor: ann, Eraser: true, Author: ann, Request: "r"}
	for _, position := range []int64{1, 5} {
		at, _ := s.state.place(position)
		cmd.held = append(cmd.held, s.holder(at.Sequence))
	}
	event := s.must(decideRedactAuthor(s.state, cmd)).GetMessagesRedacted()
	if len(event.GetErased()) != 3 || event.GetRedacted() != 3 {
		t.Errorf("it erases %v and %d messages, want three of each", event.GetErased(), event.GetRedacted())
	}
	if got := s.state.tookFor("r"); got != (counts{Messages: 3, Events: 2, Documents: 1, Entries: 3}) {
		t.Errorf("the request took %+v", got)
	}
	// What is decided on events that are held by others by now finds nothing.
	if event, err := decideRedactAuthor(s.state, cmd); event != nil || err != nil {
		t.Errorf("decided again it gives %v, %v", event, err)
	}
}

// An answer that is redacted has been given all the same.
func TestRedactingAnAnswerDoesNotAskAgain(t *testing.T) {
	s := started(t)
	s.must(s.run(telling(bob, askNote(&conversationv1.ApprovalNote{ApprovalId: "a", State: pending}))))
	s.must(s.run(telling("", answerNote(&conversationv1.ApprovalNote{ApprovalId: "a", State: "DENIED", Note: "no"}))))
	s.must(s.run(telling(bob, askNote(&conversationv1.ApprovalNote{ApprovalId: "b", State: pending, ApproverScopes: []string{"x"}}))))
	s.must(s.redact(redaction{Actor: ann, Eraser: true, MessageID: answerID("a")}))
	for _, c := range []conversation{s.state, s.replay()} {
		if len(c.Pauses) != 1 || c.Pauses[0].Approval != "b" || !slices.Equal(c.Pauses[0].Scopes, []string{"x"}) {
			t.Errorf("the conversation waits for %v, want the other approval alone", c.Pauses)
		}
	}
}

func TestWhatComesOfACallThatWasRedacted(t *testing.T) {
	s := started(t)
	s.must(s.run(saying(t, ann, "m1", func(m *conversationv1.NewMessage) { m.Parts = []*conversationv1.Part{toolCall("t")} })))
	s.must(s.run(telling(ann, callNote(ann, &conversationv1.Call{InvocationId: "i", Operation: "a/b"}))))
	s.must(s.redact(redaction{Actor: ann, MessageID: "m1"}))
	s.must(s.redact(redaction{Actor: ann, MessageID: callID("i")}))
	if len(s.state.Calls) > 0 {
		t.Fatalf("open calls are %v", s.state.Calls)
	}
	_, err := s.run(saying(t, ann, "m2", func(m *conversationv1.NewMessage) { m.Parts = []*conversationv1.Part{toolResult("t")} }))
	wantReason(t, err, fault.CallNotFound)
	// What the registry tells is shown: it replies to a message that keeps its place.
	s.must(s.run(telling("", resultNote(&conversationv1.Result{InvocationId: "i", State: succeeded}))))
}

// Redacting one by one what one event held must never come to an end before it is
// done.
func TestAFullBatchCanBeRedactedOneByOne(t *testing.T) {
	s := started(t)
	s.must(s.run(batch(t, 100)))
	for i := 1; i <= 100; i++ {
		event := s.must(s.redact(redaction{Actor: ann, MessageID: fmt.Sprint(i)}))
		if gone, _ := erases(event); len(gone) != i {
			t.Fatalf("redaction %d names %d events", i, len(gone))
		}
		// The next redaction never names more than was reckoned with.
		at, _ := s.state.place(1)
		if names := s.holder(at.Sequence).names("nobody"); names != 101 {
			t.Fatalf("after %d of 100 there may be %d events to name, want 101", i, names)
		}
	}
	if s.state.Events != 2 || len(s.state.Erasing.Events) != 100 {
		t.Errorf("%d events are left, and %d are to be erased", s.state.Events, len(s.state.Erasing.Events))
	}
}

func TestWhatIsFinishedIsOnlyWhatWasErased(t *testing.T) {
	s := started(t)
	s.must(s.run(saying(t, ann, "m1")))
	s.must(s.run(saying(t, ann, "m2")))
	s.must(s.redact(redaction{Actor: ann, MessageID: "m1"}))
	seen := s.state.Erasing
	s.must(decideErased(s.state, "c", seen, counts{Messages: 1}), nil)
	s.must(s.redact(redaction{Actor: ann, MessageID: "m2"}))
	// Somebody was slow to find that what is finished is finished.
	if event := decideErased(s.state, "c", seen, counts{Messages: 1}); event != nil {
		t.Errorf("it records %v, though the second message may be there", event)
	}
}

func TestATombstoneHoldsNoContent(t *testing.T) {
	s := newScript(t)
	cmd := creating("quux-title", ann, bob)
	cmd.Labels = []string{"quux-label"}
	s.must(decideCreate(s.state, cmd))
	s.must(s.run(saying(t, ann, "quux-id")))
	event := s.must(decideDelete(s.state, deletion{ID: "c", Actor: "human:era"}))
	for field, content := range document(t, s.state) {
		if strings.Contains(content, "quux") || strings.Contains(content, bob) {
			t.Errorf("field %s is %q", field, content)
		}
	}
	if text := event.String(); strings.Contains(text, "quux") || strings.Contains(text, bob) {
		t.Errorf("the event is %q", text)
	}
	if deleted := event.GetConversationDeleted(); deleted.GetEvents() != 2 || deleted.GetMessages() != 1 {
		t.Errorf("it counts %v", deleted)
	}
	// Nobody gets the id again, and deleting twice is fine.
	_, err := decideCreate(s.state, cmd)
	wantReason(t, err, fault.IdempotencyMismatch)
	if event, err := decideDelete(s.state, deletion{ID: "c", Actor: ann}); event != nil || err != nil {
		t.Errorf("deleting twice gives %v, %v", event, err)
	}
	if rows := lists(s.state, 9); len(rows) != 1 || rows[0].Set != tombstoneList {
		t.Errorf("it stands in %v", rows)
	}
}

func TestNamesStayBelowWhatAnEventCanName(t *testing.T) {
	said := func(author string, erasure conversationv1.Erasure) *conversationv1.Replaced {
		return &conversationv1.Replaced{Message: &conversationv1.AppendedMessage{Author: author, Erasure: erasure}}
	}
	h := holder{
		Erased: make([]*conversationv1.ErasedEvent, 3),
		Messages: slices.Concat(
			slices.Repeat([]*conversationv1.Replaced{said(ann, 0)}, 4),
			slices.Repeat([]*conversationv1.Replaced{said(bob, 0)}, 5),
			slices.Repeat([]*conversationv1.Replaced{said(bob, conversationv1.Erasure_ERASURE_REDACTED)}, 6)),
	}
	if got := h.names(ann); got != 3+1+5 {
		t.Errorf("it names %d, want what it erased, itself and five of bob's", got)
	}
	if journal.MaxErases < 1+importBatch {
		t.Error("one batch may be too large to be redacted message by message")
	}
}

// recordedAt is an event as the journal would hold it.
func recordedAt(event *conversationv1.Event) aggregate.Recorded[*conversationv1.Event] {
	return aggregate.Recorded[*conversationv1.Event]{Event: event, Sequence: 1}
}

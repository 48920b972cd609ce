package conversation

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
)

// export gives the lines of a conversation.
func (m *mesh) export(r replica, id string) []string {
	m.t.Helper()
	stream, err := r.retention.ExportConversation(m.admin(), &conversationv1.ExportConversationRequest{ConversationId: id})
	if err != nil {
		m.t.Fatal(err)
	}
	var lines []string
	for {
		got, err := stream.Recv()
		if err != nil {
			if !strings.Contains(err.Error(), "EOF") {
				m.t.Fatalf("export %s: %v", id, err)
			}
			return lines
		}
		lines = append(lines, got.GetLine())
	}
}

// tryImport sends lines as an administrator of a tenant.
func (m *mesh) tryImport(r replica, ctx context.Context, lines ...string) (*conversationv1.ImportConversationResponse, error) {
	m.t.Helper()
	stream, err := r.retention.ImportConversation(ctx)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, line := range lines {
		if err := stream.Send(&conversationv1.ImportConversationRequest{Line: line}); err != nil {
			break // what is wrong comes with the answer
		}
	}
	return stream.CloseAndRecv()
}

// rich makes a conversation with something of everything, and forks of it.
func (m *mesh) rich(r replica) {
	m.t.Helper()
	m.create(r, "c")
	must := func(err error) {
		m.t.Helper()
		if err != nil {
			m.t.Fatal(err)
		}
	}
	_, err := r.messages.AppendMessages(m.as(ann), &conversationv1.AppendMessagesRequest{ConversationId: "c", Messages: []*conversationv1.NewMessage{
		{MessageId: "sys", Parts: text("be kind"), Pinned: true},
		{MessageId: "m1", Parts: append(text("hello"), data(`{"a": 1}`)...), To: []string{bob}, ReplyTo: "sys"},
		{MessageId: "call", Parts: []*conversationv1.Part{toolCall("t1")}},
		{MessageId: "result", Parts: []*conversationv1.Part{toolResult("t1")}, ReplyTo: "call"},
		{MessageId: "open", Parts: []*conversationv1.Part{toolCall("t2")}},
	}})
	must(err)
	for i := range 150 {
		m.say(r, "c", fmt.Sprint("n", i), "words")
	}
	_, err = r.messages.AppendMessage(m.as(ann), &conversationv1.AppendMessageRequest{
		ConversationId: "c", MessageId: "sum", Parts: text("so far"), Summarizes: &conversationv1.Range{First: 2, Last: 4},
	})
	must(err)
	_, err = r.messages.RedactMessage(m.as(ann), &conversationv1.RedactMessageRequest{ConversationId: "c", MessageId: "n7"})
	must(err)
	_, err = r.conversations.UpdateConversation(m.as(ann), &conversationv1.UpdateConversationRequest{
		ConversationId: "c", Labels: []string{"kept"}, UpdateMask: mask("labels"),
	})
	must(err)
	_, err = r.conversations.ForkConversation(m.as(bob), &conversationv1.ForkConversationRequest{
		ParentConversationId: "c", Position: 50, ConversationId: "f", Participants: []string{ann},
	})
	must(err)
	m.say(r, "f", "f1", "in the fork")
	_, err = r.conversations.ForkConversation(m.as(bob), &conversationv1.ForkConversationRequest{
		ParentConversationId: "f", Position: 51, ConversationId: "g", Participants: []string{ann},
	})
	must(err)
	m.say(r, "g", "g1", "in the fork of the fork")
	_, err = r.conversations.CloseConversation(m.as(bob), &conversationv1.CloseConversationRequest{ConversationId: "g"})
	must(err)
}

func TestAnExportImportedIntoAnEmptyMeshIsTheSame(t *testing.T) {
	from, to := newMesh(t), newMesh(t)
	r, other := from.start(), to.start()
	from.rich(r)
	for _, id := range []string{"c", "f", "g"} {
		lines := from.export(r, id)
		got, err := to.tryImport(other, to.admin(), lines...)
		if err != nil || got.GetImported() != int64(len(lines)-1) {
			t.Fatalf("import %s: %v, %v; it has %d messages", id, got, err, len(lines)-1)
		}
		before, after := from.get(r, id), to.get(other, id)
		after.UpdateTime = before.GetUpdateTime()
		wantEqual(t, id, after, before)
		want := from.all(r, id, 100, conversationv1.Order_ORDER_OLDEST_FIRST)
		have := to.all(other, id, 100, conversationv1.Order_ORDER_OLDEST_FIRST)
		if len(have) != len(want) {
			t.Fatalf("%s has %d messages, want %d", id, len(have), len(want))
		}
		for i := range want {
			wantEqual(t, fmt.Sprintf("message %d of %s", i+1, id), have[i], want[i])
		}
		// The window is what the marks make of it.
		budget := &conversationv1.GetContextRequest{ConversationId: id, Budget: &conversationv1.GetContextRequest_MaxBytes{MaxBytes: 2000}}
		one, err1 := r.messages.GetContext(from.as(ann), budget)
		two, err2 := other.messages.GetContext(to.as(ann), budget)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		wantEqual(t, "the context of "+id, two, one)
	}
	// Again, it is all there; and what it exports is what was imported.
	for _, id := range []string{"c", "f", "g"} {
		lines := from.export(r, id)
		got, err := to.tryImport(other, to.admin(), lines...)
		if err != nil || got.GetImported() != 0 {
			t.Fatalf("import %s again: %v, %v", id, got, err)
		}
		if again := to.export(other, id); len(again) != len(lines) {
			t.Fatalf("%s exports %d lines, want %d", id, len(again), len(lines))
		}
	}
}

func TestAnImportThatBrokeOffGoesOnAndAnotherOneIsRefused(t *testing.T) {
	from, to := newMesh(t), newMesh(t)
	r, other := from.start(), to.start()
	from.rich(r)
	lines := from.export(r, "c")
	if got, err := to.tryImport(other, to.admin(), lines[:40]...); err != nil || got.GetImported() != 39 {
		t.Fatalf("half: %v, %v", got, err)
	}
	if got, err := to.tryImport(other, to.admin(), lines...); err != nil || got.GetImported() != int64(len(lines)-40) {
		t.Fatalf("the rest: %v, %v", got, err)
	}
	changed := append([]string{lines[0]}, strings.Replace(lines[1], "be kind", "be rude", 1))
	_, err := to.tryImport(other, to.admin(), changed...)
	wantReason(t, err, fault.IdempotencyMismatch)
	if got := fault.From(err).Metadata("line"); got != "2" {
		t.Fatalf("it is refused for line %q: %v", got, err)
	}
	// A fork needs its parent to be there, as far as it shares it.
	fork := from.export(r, "f")
	_, err = to.tryImport(other, to.holding("umbrella", "human:ada", scopeAdmin), fork...)
	wantReason(t, err, fault.ConversationNotFound)
	_, err = to.tryImport(other, to.holding("umbrella", "human:ada", scopeAdmin), lines[:10]...)
	if err != nil {
		t.Fatal(err)
	}
	_, err = to.tryImport(other, to.holding("umbrella", "human:ada", scopeAdmin), fork...)
	wantReason(t, err, fault.CursorUnavailable)
}

func TestWhatAnImportRefuses(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	const head = `{"conversation":{"conversation_id":"i","owner":"human:ann"}}`
	long := strings.Repeat("x", maxImported)
	for name, c := range map[string]struct {
		lines []string
		want  fault.Reason
		line  string
	}{
		"nothing":                  {nil, fault.FieldInvalid, ""},
		"no JSON":                  {[]string{"{"}, fault.FieldInvalid, "1"},
		"a message first":          {[]string{`{"message":{"message_id":"m"}}`}, fault.FieldInvalid, "1"},
		"a second conversation":    {[]string{head, head}, fault.FieldInvalid, "2"},
		"no owner":                 {[]string{`{"conversation":{"conversation_id":"i"}}`}, fault.FieldInvalid, "1"},
		"an id of another kind":    {[]string{`{"conversation":{"conversation_id":"../i","owner":"human:ann"}}`}, fault.FieldInvalid, "1"},
		"no author":                {[]string{head, `{"message":{"message_id":"m","parts":[{"text":"x"}]}}`}, fault.FieldInvalid, "2"},
		"no parts":                 {[]string{head, `{"message":{"message_id":"m","author":"human:ann"}}`}, fault.FieldInvalid, "2"},
		"a wrong position":         {[]string{head, `{"message":{"message_id":"m","position":2,"author":"human:ann","parts":[{"text":"x"}]}}`}, fault.FieldInvalid, "2"},
		"a reply to nothing":       {[]string{head, `{"message":{"message_id":"m","author":"human:ann","reply_to":"n","parts":[{"text":"x"}]}}`}, fault.MessageNotFound, "2"},
		"erased, and with content": {[]string{head, `{"message":{"message_id":"m","author":"human:ann","erasure":"ERASURE_REDACTED","parts":[{"text":"x"}]}}`}, fault.FieldInvalid, "2"},
		"JSON that is not strict":  {[]string{head, `{"message":{"message_id":"m","author":"human:ann","parts":[{"data":{"media_type":"a/b","json":"{"}}]}}`}, fault.JSONInvalid, "2"},
		"one that is too large":    {[]string{head, `{"message":{"message_id":"m","author":"human:ann","parts":[{"text":"` + long + `"}]}}`}, fault.TooLarge, "2"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := m.tryImport(r, m.admin(), c.lines...)
			wantReason(t, err, c.want)
			if got := fault.From(err).Metadata("line"); got != c.line {
				t.Fatalf("it is refused for line %q, want %q: %v", got, c.line, err)
			}
		})
	}
	_, err := m.tryImport(r, m.as(ann), head)
	wantReason(t, err, fault.ScopeMissing)
}

// What was said elsewhere waits for nobody here.
func TestAnImportPausesNothing(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	got, err := m.tryImport(r, m.admin(),
		`{"conversation":{"conversation_id":"i","owner":"human:ann","participants":["group:g"]}}`,
		`{"message":{"message_id":"weir.ask.x","author":"service:gate","parts":[{"approval":{"approval_id":"a","state":"PENDING"}}]}}`,
		`{"message":{"message_id":"m","author":"human:ann","to":["group:g"],"addressed":["agent:bob"],"parts":[{"text":"x"}]}}`)
	if err != nil {
		t.Fatal(err)
	}
	c := got.GetConversation()
	if c.GetState() != conversationv1.ConversationState_CONVERSATION_STATE_ACTIVE || len(c.GetTurns()) != 0 {
		t.Fatalf("it is %v", c)
	}
	listed := m.all(r, "i", 10, conversationv1.Order_ORDER_OLDEST_FIRST)
	if len(listed) != 2 || listed[1].GetAddressed()[0] != bob || !proto.Equal(listed[0].GetParts()[0].GetApproval(), &conversationv1.ApprovalNote{ApprovalId: "a", State: pending}) {
		t.Fatalf("it holds %v", listed)
	}
}

package conversation

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/meshtest"
)

func TestSmoke(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	m.say(r, "c", "m1", "hello secretword")
	stream, err := r.messages.TailMessages(m.as(ann), &conversationv1.TailMessagesRequest{ConversationId: "c", After: proto.Int64(0)})
	if err != nil {
		t.Fatal(err)
	}
	got, err := stream.Recv()
	if err != nil || got.GetMessage().GetMessageId() != "m1" {
		t.Fatal(got, err)
	}
	m.say(r, "c", "m2", "more")
	got, err = stream.Recv()
	if err != nil || got.GetMessage().GetMessageId() != "m2" {
		t.Fatal(got, err)
	}
	d, err := r.messages.AppendDelta(m.as(bob), &conversationv1.AppendDeltaRequest{ConversationId: "c", MessageId: "d1", Text: "wri"})
	if err != nil || d.GetLength() != 3 {
		t.Fatal(d, err)
	}
	got, err = stream.Recv()
	if err != nil || got.GetDelta().GetText() != "wri" {
		t.Fatal(got, err)
	}
	late, err := r.messages.TailMessages(m.as(ann), &conversationv1.TailMessagesRequest{ConversationId: "c"})
	if err != nil {
		t.Fatal(err)
	}
	got, err = late.Recv()
	if err != nil || got.GetDelta().GetText() != "wri" {
		t.Fatal(got, err)
	}
	meshtest.Eventually(t, "found", func() bool {
		found, err := r.messages.SearchMessages(m.as(bob), &conversationv1.SearchMessagesRequest{Query: "SECRETWORD"})
		return err == nil && len(found.GetMessages()) == 1
	})
	f, err := r.conversations.ForkConversation(m.as(bob), &conversationv1.ForkConversationRequest{ParentConversationId: "c", Position: 1, ConversationId: "f"})
	if err != nil || f.GetConversation().GetHead() != 1 {
		t.Fatal(f, err)
	}
	resp, err := r.messages.AppendMessage(m.as(bob), &conversationv1.AppendMessageRequest{ConversationId: "f", MessageId: "f2", ReplyTo: "m1", Parts: text("in the fork")})
	if err != nil || resp.GetMessage().GetPosition() != 2 {
		t.Fatal(resp, err)
	}
	page, err := r.messages.ListMessages(m.as(bob), &conversationv1.ListMessagesRequest{ConversationId: "f"})
	if err != nil || len(page.GetMessages()) != 2 || page.GetMessages()[0].GetOriginConversationId() != "c" {
		t.Fatal(page, err)
	}
	w, err := r.messages.GetContext(m.as(bob), &conversationv1.GetContextRequest{ConversationId: "f", Budget: &conversationv1.GetContextRequest_MaxBytes{MaxBytes: 1000}})
	if err != nil || len(w.GetMessages()) != 2 {
		t.Fatal(w, err)
	}
	_, err = r.messages.RedactMessage(m.as(bob), &conversationv1.RedactMessageRequest{ConversationId: "c", MessageId: "m1"})
	wantReason(t, err, fault.NotAuthor)
	began := time.Now()
	left, err := r.messages.RedactMessage(m.as(ann), &conversationv1.RedactMessageRequest{ConversationId: "c", MessageId: "m1"})
	if err != nil || left.GetMessage().GetErasure() != conversationv1.Erasure_ERASURE_REDACTED {
		t.Fatal(left, err)
	}
	t.Log("redacted in", time.Since(began))
	found, err := r.messages.SearchMessages(m.as(bob), &conversationv1.SearchMessagesRequest{Query: "secretword"})
	if err != nil || len(found.GetMessages()) != 0 {
		t.Fatal(found, err)
	}
	page, err = r.messages.ListMessages(m.as(bob), &conversationv1.ListMessagesRequest{ConversationId: "f"})
	if err != nil || len(page.GetMessages()) != 2 || page.GetMessages()[0].GetErasure() == 0 {
		t.Fatal(page, err)
	}
	began = time.Now()
	gone, err := r.retention.DeleteConversation(m.eraser(), &conversationv1.DeleteConversationRequest{ConversationId: "c"})
	if err != nil || !gone.GetFinished() {
		t.Fatal(gone, err)
	}
	t.Log("deleted in", time.Since(began), gone)
	page, err = r.messages.ListMessages(m.as(bob), &conversationv1.ListMessagesRequest{ConversationId: "f"})
	if err != nil || len(page.GetMessages()) != 2 || page.GetMessages()[0].GetErasure() != conversationv1.Erasure_ERASURE_CONVERSATION_DELETED {
		t.Fatal(page, err)
	}
	_, err = stream.Recv()
	t.Log(err)
	m.redis.Flush()
	_, err = r.conversations.GetConversation(m.as(ann), &conversationv1.GetConversationRequest{ConversationId: "c"})
	wantReason(t, err, fault.ConversationNotFound)
	page, err = r.messages.ListMessages(m.as(bob), &conversationv1.ListMessagesRequest{ConversationId: "f"})
	if err != nil || len(page.GetMessages()) != 2 {
		t.Fatal(page, err)
	}
	began = time.Now()
	m.create(r, "x")
	_, err = r.messages.AppendMessages(m.as(ann), &conversationv1.AppendMessagesRequest{ConversationId: "x", Messages: []*conversationv1.NewMessage{{MessageId: "a", Parts: text("1")}, {MessageId: "b", Parts: text("2"), ReplyTo: "a"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(time.Since(began))
}

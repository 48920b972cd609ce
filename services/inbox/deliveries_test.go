package inbox

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/backend"
	"weir/internal/fault"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

// said appends events to the conversation service's stream, as it does.
type said struct {
	t *testing.T
	j *journal.Journal
}

func (r *rig) conversations() said {
	r.t.Helper()
	j, err := journal.Open(r.t.Context(), r.nats.Connect(), "conversation", 1, slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	return said{r.t, j}
}

// append says something, as the conversation's first event. The messages have the
// positions from first on.
func (s said) append(conversation string, first int64, messages ...*conversationv1.AppendedMessage) {
	s.t.Helper()
	s.event(conversation, &conversationv1.Event{Actor: messages[0].GetAuthor(), Event: &conversationv1.Event_MessagesAppended{
		MessagesAppended: &conversationv1.MessagesAppended{ConversationId: conversation, FirstPosition: first, Messages: messages},
	}})
}

// event appends the first event of a conversation.
func (s said) event(conversation string, event *conversationv1.Event) {
	s.t.Helper()
	data, err := proto.Marshal(event)
	if err != nil {
		s.t.Fatal(err)
	}
	kind := event.ProtoReflect().WhichOneof(event.ProtoReflect().Descriptor().Oneofs().Get(0)).Message().FullName()
	_, err = s.j.Append(s.t.Context(), journal.Event{
		ID: "e-" + conversation, Type: string(kind), Data: data, Time: time.Now().UTC().Truncate(time.Microsecond),
		Key: journal.Key{Tenant: "acme", Kind: "conversation", ID: conversation},
	}, 0)
	if err != nil {
		s.t.Fatal(err)
	}
}

func text(s string) []*conversationv1.Part {
	return []*conversationv1.Part{{Part: &conversationv1.Part_Text{Text: s}}}
}

// A member that leaves a group hands a message on by another kind of event.
func TestWhatAMemberThatLeftAGroupHandsOnIsInTheNextOnesInbox(t *testing.T) {
	r := newRig(t)
	r.conversations().event("plans", &conversationv1.Event{Actor: "service:conversation", Event: &conversationv1.Event_GroupMembersChanged{
		GroupMembersChanged: &conversationv1.GroupMembersChanged{
			ConversationId: "plans", FirstPosition: 4, Messages: []*conversationv1.AppendedMessage{
				{MessageId: "weir.turn.a", Author: "service:conversation"},
				{MessageId: "weir.turn.b", Author: "service:conversation", Addressed: []string{"agent:bob"}},
			},
		},
	}})
	b := r.as(bob)
	var found *inboxv1.ClaimResponse
	meshtest.Eventually(t, "bob has it", func() bool {
		found = b.claim("bob", "1", 10, time.Minute)
		return len(found.GetMessages()) > 0
	})
	want := `{"conversation_id":"plans","message_id":"weir.turn.b","position":5,"author":"service:conversation"}`
	if len(found.GetMessages()) != 1 || found.GetMessages()[0].GetBody() != want {
		t.Fatalf("bob got %v", found)
	}
}

func TestWhatIsSaidToAnAgentIsInItsInboxExactlyOnce(t *testing.T) {
	r := newRig(t)
	s := r.conversations()
	s.append("plans", 7,
		&conversationv1.AppendedMessage{MessageId: "m0", Author: "agent:ann", Parts: text("to a group of nobody"), To: []string{"group:g"}},
		&conversationv1.AppendedMessage{
			MessageId: "m1", Author: "agent:ann", Parts: text("a secret of theirs"),
			To:        []string{"group:all", "human:carl"},
			Addressed: []string{"agent:bob", "human:carl", "agent:ann", "agent:eve", "agent:bob"},
		})
	b := r.as(bob)
	var found *inboxv1.ClaimResponse
	meshtest.Eventually(t, "bob has it", func() bool {
		found = b.claim("bob", "1", 10, time.Minute)
		return len(found.GetMessages()) > 0
	})
	m := found.GetMessages()[0]
	// Where it is, and nothing of what it says: that may be erased there.
	want := `{"conversation_id":"plans","message_id":"m1","position":8,"author":"agent:ann"}`
	if len(found.GetMessages()) != 1 || m.GetBody() != want || m.GetSender() != "agent:ann" || m.GetCorrelationId() != "plans" {
		t.Fatalf("bob got %v", found)
	}
	w := r.as(worker)
	meshtest.Eventually(t, "eve has it", func() bool {
		out, err := w.Peek(t.Context(), &inboxv1.PeekRequest{Goal: "eve"})
		return err == nil && len(out.GetMessages()) == 1
	})
	b.mustDone("bob", found.GetClaimToken(), m.GetMessageId())

	// The whole stream is heard again, after Redis lost everything.
	r.redis.Flush()
	again := r.hearAgain()
	s.append("other", 1, &conversationv1.AppendedMessage{MessageId: "m1", Author: "agent:ann", Parts: text("marker"), Addressed: []string{"agent:bob"}})
	meshtest.Eventually(t, "the stream was heard again", again)
	if got := w.peek("bob"); len(got) != 1 || got[0].GetCorrelationId() != "other" {
		t.Fatalf("bob has %v", got)
	}
	if got := w.peek("eve"); len(got) != 1 {
		t.Fatalf("eve has %v", got)
	}
	for _, goal := range []string{"ann", "carl"} {
		_, err := w.GetInbox(t.Context(), &inboxv1.GetInboxRequest{Goal: goal})
		wantReason(t, err, fault.InboxNotFound)
	}
}

// hearAgain handles the conversations' stream from its first event on, beside
// the service and with a memory of its own, and says whether it has come to the
// end.
func (r *rig) hearAgain() func() bool {
	r.t.Helper()
	b, err := backend.Open(r.t.Context(), "inbox", backend.Config{NATS: r.nats.URL(), Redis: r.redis.URL(), Replicas: 1}, slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	consumer, err := b.Consumer("conversation", "again", "weir.conversation.*.conversation.*")
	if err != nil {
		r.t.Fatal(err)
	}
	d := &deliveries{consumer: consumer, inboxes: newInboxLoop(b), rules: ruled(60)}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = d.run(ctx) }()
	r.t.Cleanup(func() { stop(); <-ended; b.Close() })
	return func() bool {
		done, err := consumer.CaughtUp(ctx, 2)
		return err == nil && done
	}
}

func TestADeliveryWaitsForAFullInboxAndDoesNotKeepOthers(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	for i := range 60 {
		w.enqueue("bob", fmt.Sprint("m", i))
	}
	r.conversations().append("plans", 1, &conversationv1.AppendedMessage{
		MessageId: "m1", Author: "human:ann", Parts: text("hello"), Addressed: []string{"agent:bob", "agent:eve"},
	})
	meshtest.Eventually(t, "eve has it", func() bool {
		_, err := w.GetInbox(t.Context(), &inboxv1.GetInboxRequest{Goal: "eve"})
		return err == nil
	})
	if in := w.inbox("bob"); in.GetDepth() != 60 {
		t.Fatalf("bob's full inbox is %v", in)
	}
	w.mustDone("bob", w.claim("bob", "1", 1, time.Minute).GetClaimToken(), "m0")
	meshtest.Eventually(t, "bob has it", func() bool { return w.inbox("bob").GetDepth() == 60 })
	if in := w.inbox("eve"); in.GetDepth() != 1 {
		t.Fatalf("eve's inbox is %v", in)
	}
}

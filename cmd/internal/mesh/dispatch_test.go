package mesh

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"weir/cmd/internal/home"
	conversationv1 "weir/gen/conversation/v1"
	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/backend"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/meshtest"
	"weir/internal/serve"
	"weir/services/conversation"
	"weir/services/inbox"
)

// alice gives work away, with what a service that acts for her may; bob does it.
var (
	alice = identity.Caller{Tenant: "demo", Subject: "agent:alice", Scopes: []string{
		"conversation.read", "conversation.write", "dispatch.send", "dispatch.write",
	}}
	bob = identity.Caller{Tenant: "demo", Subject: "agent:bob", Scopes: []string{"conversation.read", "dispatch.report", "inbox.claim"}}
)

// pair is the conversation service and two replicas of the inbox, each as it is
// shipped and with the credential that it is shipped with.
type pair struct {
	t            *testing.T
	issuer       *meshtest.Issuer
	conversation *meshtest.Service
	inboxes      [2]*meshtest.Service
	disabled     string // file
}

func newPair(t *testing.T) *pair {
	t.Parallel()
	p := &pair{t: t, issuer: meshtest.NewIssuer(t), disabled: filepath.Join(t.TempDir(), "standing.json")}
	p.disable()
	nats, redis := meshtest.StartNATS(t), meshtest.StartRedis(t)
	stores := backend.Config{NATS: nats.URL(), Redis: redis.URL(), Replicas: 1}
	p.conversation = p.issuer.Serve(func(ctx context.Context, c serve.Config) error {
		c.Standing = p.disabled
		return conversation.Run(ctx, conversation.Config{Serve: c, Stores: stores, Index: t.TempDir()})
	}, home.Services["service-conversation"])
	for i := range p.inboxes {
		p.inboxes[i] = p.issuer.Serve(func(ctx context.Context, c serve.Config) error {
			return inbox.Run(ctx, inbox.Config{Serve: c, Stores: stores, Gate: "dns:///127.0.0.1:1", Conversation: p.conversation.Addr})
		}, home.Services["service-inbox"])
	}
	return p
}

// disable lets the conversation service refuse these agents, and nobody else.
func (p *pair) disable(subjects ...string) {
	p.t.Helper()
	list := []map[string]string{}
	for _, s := range subjects {
		list = append(list, map[string]string{"tenant": "demo", "subject": s})
	}
	text, err := json.Marshal(map[string]any{"disabled": list})
	if err == nil {
		err = os.WriteFile(p.disabled, text, 0o600)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) dispatches(replica int, c identity.Caller) inboxv1.DispatchServiceClient {
	return inboxv1.NewDispatchServiceClient(p.issuer.Dial(p.inboxes[replica].Addr, c))
}

func (p *pair) waiting(goal string) []*inboxv1.Message {
	p.t.Helper()
	out, err := inboxv1.NewInboxServiceClient(p.issuer.Dial(p.inboxes[0].Addr, bob)).
		Peek(p.t.Context(), &inboxv1.PeekRequest{Goal: goal, PageSize: 100})
	if err != nil && !fault.Is(err, fault.InboxNotFound) {
		p.t.Fatal(err)
	}
	return out.GetMessages()
}

func work(request string) *inboxv1.DispatchRequest {
	return &inboxv1.DispatchRequest{Goal: "build", Item: "issue 7", RequestId: request, Worker: "bob", Seed: "please fix it"}
}

// The worker finds one message, which leads to one seed in one conversation; and what
// is said to it there arrives once, while the seed does not arrive by that way too.
func TestWorkThatManyDispatchIsOneConversationOneSeedAndOneMessage(t *testing.T) {
	p := newPair(t)
	var wg sync.WaitGroup
	for n := range 20 {
		c := p.dispatches(n%2, alice)
		wg.Go(func() {
			_, err := c.Dispatch(t.Context(), work("r"))
			for fault.Is(err, fault.Contention) {
				_, err = c.Dispatch(t.Context(), work("r"))
			}
			if err != nil {
				t.Errorf("dispatch: %v", err)
			}
		})
	}
	wg.Wait()
	got, err := p.dispatches(0, alice).GetDispatch(t.Context(), &inboxv1.GetDispatchRequest{Goal: "build", Item: "issue 7"})
	d := got.GetDispatch()
	if err != nil || d.GetState() != inboxv1.DispatchState_DISPATCH_STATE_SENT {
		t.Fatalf("the item is %v, %v", d, err)
	}

	conn := p.issuer.Dial(p.conversation.Addr, alice)
	all, err := conversationv1.NewConversationServiceClient(conn).ListConversations(t.Context(), &conversationv1.ListConversationsRequest{})
	if err != nil || len(all.GetConversations()) != 1 || all.GetConversations()[0].GetConversationId() != d.GetConversationId() {
		t.Fatalf("conversations: %v, %v", all, err)
	}
	messages := conversationv1.NewMessageServiceClient(conn)
	said, err := messages.ListMessages(t.Context(), &conversationv1.ListMessagesRequest{ConversationId: d.GetConversationId()})
	if err != nil || len(said.GetMessages()) != 1 || said.GetMessages()[0].GetAuthor() != "agent:alice" || len(said.GetMessages()[0].GetAddressed()) != 0 {
		t.Fatalf("said was %v, %v", said, err)
	}

	inbox := p.waiting("bob")
	if len(inbox) != 1 {
		t.Fatalf("bob's inbox has %v", inbox)
	}
	var reference struct {
		ConversationID string `json:"conversation_id"`
		MessageID      string `json:"message_id"`
	}
	if err := json.Unmarshal([]byte(inbox[0].GetBody()), &reference); err != nil {
		t.Fatal(err)
	}
	seed, err := conversationv1.NewMessageServiceClient(p.issuer.Dial(p.conversation.Addr, bob)).GetMessage(t.Context(),
		&conversationv1.GetMessageRequest{ConversationId: reference.ConversationID, MessageId: reference.MessageID})
	if err != nil || seed.GetMessage().GetParts()[0].GetText() != "please fix it" {
		t.Fatalf("bob reads %v, %v", seed, err)
	}

	for range 3 { // the same message, retried
		if _, err := messages.AppendMessage(t.Context(), &conversationv1.AppendMessageRequest{
			ConversationId: d.GetConversationId(), MessageId: "hurry", To: []string{"agent:bob"},
			Parts: []*conversationv1.Part{{Part: &conversationv1.Part_Text{Text: "please hurry"}}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	meshtest.Eventually(t, "bob has what is said to him", func() bool { return len(p.waiting("bob")) > 1 })
	// The events of a conversation come in order, so the seed's was heard before.
	if inbox := p.waiting("bob"); len(inbox) != 2 || !strings.Contains(inbox[1].GetBody(), `"message_id":"hurry"`) {
		t.Fatalf("bob's inbox has %v", inbox)
	}
}

// The conversation service looks at the owner's standing as it is now.
func TestWorkOfADisabledOwnerIsSentWhenItIsEnabledAgain(t *testing.T) {
	p := newPair(t)
	p.disable("agent:alice")
	c := p.dispatches(0, alice)
	meshtest.Eventually(t, "alice is disabled", func() bool {
		_, err := conversationv1.NewConversationServiceClient(p.issuer.Dial(p.conversation.Addr, alice)).
			ListConversations(t.Context(), &conversationv1.ListConversationsRequest{})
		return fault.Is(err, fault.CallerDisabled)
	})
	out, err := c.Dispatch(t.Context(), work("r"))
	if err != nil || !strings.Contains(out.GetDispatch().GetFailure(), "CALLER_DISABLED") || len(p.waiting("bob")) != 0 {
		t.Fatalf("of a disabled owner: %v, %v", out, err)
	}
	p.disable()
	meshtest.Eventually(t, "it is sent", func() bool {
		got, err := c.GetDispatch(t.Context(), &inboxv1.GetDispatchRequest{Goal: "build", Item: "issue 7"})
		return err == nil && got.GetDispatch().GetState() == inboxv1.DispatchState_DISPATCH_STATE_SENT
	})
	if inbox := p.waiting("bob"); len(inbox) != 1 {
		t.Fatalf("bob's inbox has %v", inbox)
	}
}

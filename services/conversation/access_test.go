package conversation

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/meshtest"
)

// asking is a call about something that may not be the caller's, by its id.
type asking func(ctx context.Context, id string) error

// aboutOne are the methods that name a conversation or a group.
func aboutOne(r replica) map[string]asking {
	mask := &fieldmaskpb.FieldMask{Paths: []string{"title", "participants"}}
	return map[string]asking{
		conversationv1.ConversationService_GetConversation_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.conversations.GetConversation(ctx, &conversationv1.GetConversationRequest{ConversationId: id})
			return err
		},
		conversationv1.ConversationService_UpdateConversation_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.conversations.UpdateConversation(ctx, &conversationv1.UpdateConversationRequest{
				ConversationId: id, UpdateMask: mask, Title: "mine", Participants: []string{"group:g"},
			})
			return err
		},
		conversationv1.ConversationService_CloseConversation_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.conversations.CloseConversation(ctx, &conversationv1.CloseConversationRequest{ConversationId: id})
			return err
		},
		conversationv1.ConversationService_ReopenConversation_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.conversations.ReopenConversation(ctx, &conversationv1.ReopenConversationRequest{ConversationId: id})
			return err
		},
		conversationv1.ConversationService_ArchiveConversation_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.conversations.ArchiveConversation(ctx, &conversationv1.ArchiveConversationRequest{ConversationId: id})
			return err
		},
		conversationv1.ConversationService_ForkConversation_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.conversations.ForkConversation(ctx, &conversationv1.ForkConversationRequest{ParentConversationId: id, Position: 1, ConversationId: "fork"})
			return err
		},
		conversationv1.MessageService_AppendMessage_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.messages.AppendMessage(ctx, &conversationv1.AppendMessageRequest{
				ConversationId: id, MessageId: "m9", Parts: text("x"), To: []string{"agent:amy"}, ReplyTo: "m8", ExpectedHead: proto.Int64(7),
				Summarizes: &conversationv1.Range{First: 1, Last: 1},
			})
			return err
		},
		conversationv1.MessageService_AppendMessages_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.messages.AppendMessages(ctx, &conversationv1.AppendMessagesRequest{ConversationId: id, Messages: []*conversationv1.NewMessage{
				{MessageId: "m1", Parts: text("hello")}, {MessageId: "m9", Parts: text("x")},
			}})
			return err
		},
		conversationv1.MessageService_AppendDelta_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.messages.AppendDelta(ctx, &conversationv1.AppendDeltaRequest{ConversationId: id, MessageId: "m1", Text: "x", Offset: 5})
			return err
		},
		conversationv1.MessageService_ListMessages_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.messages.ListMessages(ctx, &conversationv1.ListMessagesRequest{ConversationId: id})
			return err
		},
		conversationv1.MessageService_GetMessage_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.messages.GetMessage(ctx, &conversationv1.GetMessageRequest{ConversationId: id, MessageId: "m1"})
			return err
		},
		conversationv1.MessageService_TailMessages_FullMethodName: func(ctx context.Context, id string) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stream, err := r.messages.TailMessages(ctx, &conversationv1.TailMessagesRequest{ConversationId: id, After: proto.Int64(0)})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		conversationv1.MessageService_GetContext_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.messages.GetContext(ctx, &conversationv1.GetContextRequest{ConversationId: id, Budget: &conversationv1.GetContextRequest_MaxBytes{MaxBytes: 10000}})
			return err
		},
		conversationv1.MessageService_SearchMessages_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.messages.SearchMessages(ctx, &conversationv1.SearchMessagesRequest{ConversationId: id, Query: "hello"})
			return err
		},
		conversationv1.MessageService_RedactMessage_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.messages.RedactMessage(ctx, &conversationv1.RedactMessageRequest{ConversationId: id, MessageId: "m1"})
			return err
		},
		conversationv1.MessageService_DeclineTurn_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.messages.DeclineTurn(ctx, &conversationv1.DeclineTurnRequest{ConversationId: id, MessageId: "m1"})
			return err
		},
		conversationv1.GroupService_GetGroup_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.groups.GetGroup(ctx, &conversationv1.GetGroupRequest{GroupId: id})
			return err
		},
		conversationv1.GroupService_DeleteGroup_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.groups.DeleteGroup(ctx, &conversationv1.DeleteGroupRequest{GroupId: id})
			return err
		},
		conversationv1.RetentionService_DeleteConversation_FullMethodName: func(ctx context.Context, id string) error {
			_, err := r.retention.DeleteConversation(ctx, &conversationv1.DeleteConversationRequest{ConversationId: id})
			return err
		},
		conversationv1.RetentionService_ExportConversation_FullMethodName: func(ctx context.Context, id string) error {
			stream, err := r.retention.ExportConversation(ctx, &conversationv1.ExportConversationRequest{ConversationId: id})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
	}
}

// aboutNone are the methods that look at nothing by an id that may be somebody
// else's: they list what is the caller's, or say something anew.
var aboutNone = []string{
	conversationv1.ConversationService_CreateConversation_FullMethodName,
	conversationv1.ConversationService_ListConversations_FullMethodName,
	conversationv1.GroupService_PutGroup_FullMethodName,
	conversationv1.GroupService_ListGroups_FullMethodName,
	conversationv1.RetentionService_DeleteParticipantData_FullMethodName,
	conversationv1.RetentionService_GetParticipantErasure_FullMethodName,
	conversationv1.RetentionService_ImportConversation_FullMethodName,
	conversationv1.RetentionService_PutRetention_FullMethodName,
	conversationv1.RetentionService_GetRetention_FullMethodName,
}

// forApprovers are those that are open to who can decide an approval.
var forApprovers = []string{
	conversationv1.ConversationService_GetConversation_FullMethodName,
	conversationv1.MessageService_ListMessages_FullMethodName,
	conversationv1.MessageService_GetMessage_FullMethodName,
	conversationv1.MessageService_TailMessages_FullMethodName,
	conversationv1.MessageService_GetContext_FullMethodName,
}

func TestTheTableOfAccessNamesEveryMethod(t *testing.T) {
	server := grpc.NewServer()
	(&service{history: &history{}, groups: &groups{}}).register(server)
	named := slices.Concat(aboutNone, slices.Collect(maps.Keys(aboutOne(replica{}))))
	for service, info := range server.GetServiceInfo() {
		for _, method := range info.Methods {
			if name := "/" + service + "/" + method.Name; !slices.Contains(named, name) {
				t.Errorf("%s: is it about a conversation or a group, and who may call it?", name)
			}
		}
	}
}

// secluded is a conversation and a group, both named c, of which some are not to
// learn. It waits for an approval by holders of approval.decide.files, and its search
// index is there.
func secluded(m *mesh, r replica) *gate {
	m.t.Helper()
	m.group(r, "c", allAtOnce, "xy")
	m.with(r, "c", "group:c", bob)
	m.say(r, "c", "m1", "hello")
	g := newGate(m)
	g.asks("p", bob, "c", "approval.decide.files")
	g.listened()
	m.group(r, "c", allAtOnce, "y")
	meshtest.Eventually(m.t, "x is out", func() bool { return !m.mayRead(r, "agent:x", "c") })
	meshtest.Eventually(m.t, "it can be searched", func() bool {
		return aboutOne(r)[conversationv1.MessageService_SearchMessages_FullMethodName](m.as(ann), "c") == nil
	})
	return g
}

// wantUnknown wants that a caller is told of c what it is told of what is not there.
func wantUnknown(t *testing.T, method, who string, ctx context.Context, call asking) {
	t.Helper()
	absent, got := call(ctx, "nothing"), call(ctx, "c")
	if refusal(got) != refusal(absent) {
		t.Errorf("%s by %s: %s, want as for an absent one: %s", method, who, refusal(got), refusal(absent))
	}
	switch fault.ReasonOf(got) {
	case fault.ConversationNotFound, fault.GroupNotFound, fault.ScopeMissing:
	default:
		t.Errorf("%s by %s: %v", method, who, got)
	}
}

func TestWhoHasNoAccessCannotTellThatThereIsAnything(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	secluded(m, r)
	const write = "conversation.write"
	for who, ctx := range map[string]context.Context{
		"a stranger":                            m.as(eve),
		"a stranger with every right elsewhere": m.holding("umbrella", eve, scopeRead, write, scopeAdmin, scopeErase, scopeDecide, "approval.decide.files"),
		"the owner's name in another tenant":    m.asIn("umbrella", ann),
		"one who left the group":                m.as("agent:x"),
		"an approver of other things":           m.holding("acme", carol, scopeRead, write, scopeDecide, "approval.decide.money"),
		"one who could, but decides nothing":    m.holding("acme", carol, scopeRead, write, "approval.decide.files"),
		"an agent that decides":                 m.holding("acme", "agent:carol", scopeRead, write, scopeDecide, "approval.decide.files"),
		"a service that decides":                m.holding("acme", "service:carol", scopeRead, write, scopeDecide, "approval.decide.files"),
		"somebody with no right":                m.holding("acme", eve, "approval.read"),
	} {
		for method, call := range aboutOne(r) {
			wantUnknown(t, method, who, ctx, call)
		}
	}
	if head := m.get(r, "c").GetHead(); head != 2 {
		t.Fatalf("the head is %d", head)
	}
}

func TestAnApproverReadsWhileItIsAskedAndOnlyThen(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	g := secluded(m, r)
	const write = "conversation.write"
	approvers := map[string]context.Context{
		"an approver":                  m.approver("approval.decide.files"),
		"one with members' scopes too": m.approver("approval.decide.files", scopeRead, write),
	}
	tails := map[string]grpc.ServerStreamingClient[conversationv1.TailMessagesResponse]{}
	for who, ctx := range approvers {
		for method, call := range aboutOne(r) {
			if !slices.Contains(forApprovers, method) {
				wantUnknown(t, method, who, ctx, call)
			} else if err := call(ctx, "c"); err != nil {
				t.Errorf("%s by %s: %v", method, who, err)
			}
		}
		tail, err := r.messages.TailMessages(ctx, &conversationv1.TailMessagesRequest{ConversationId: "c", After: proto.Int64(0)})
		if err != nil {
			t.Fatal(err)
		}
		tails[who] = tail
		for _, want := range []string{"m1", askID("p")} {
			if got, err := tail.Recv(); err != nil || got.GetMessage().GetMessageId() != want {
				t.Fatalf("%s tails %v, %v; want %s", who, got, err, want)
			}
		}
	}
	// What one reads it does not find in its lists, nor by searching everywhere.
	both := approvers["one with members' scopes too"]
	if listed, err := r.conversations.ListConversations(both, &conversationv1.ListConversationsRequest{}); err != nil || len(listed.GetConversations()) != 0 {
		t.Errorf("an approver lists %v, %v", listed, err)
	}
	if found, err := r.messages.SearchMessages(both, &conversationv1.SearchMessagesRequest{Query: "hello"}); err != nil || len(found.GetMessages()) != 0 {
		t.Errorf("an approver finds %v, %v", found, err)
	}

	g.tell("p", decidedEvent(approvedState))
	g.listened()
	m.say(r, "c", "m2", "not for approvers")
	for who, ctx := range approvers {
		for method, call := range aboutOne(r) {
			wantUnknown(t, method, who+" who decided", ctx, call)
		}
		if got, err := tails[who].Recv(); !fault.Is(err, fault.ConversationNotFound) {
			t.Errorf("%s who decided goes on tailing: %v, %v", who, got, err)
		}
	}
}

// Taking part is one thing, and the right to read another.
func TestAMemberNeedsTheScopeOfEachMethod(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	secluded(m, r)
	calls := aboutOne(r)
	for who, scopes := range map[string][]string{
		"a member that decides": {scopeDecide},
		"a member that writes":  {"conversation.write"},
		"a member that erases":  {scopeErase},
	} {
		for _, method := range forApprovers {
			wantUnknown(t, method, who, m.holding("acme", ann, scopes...), calls[method])
		}
	}
	for method, call := range calls {
		if strings.Contains(method, "Retention") || slices.Contains(forApprovers, method) || strings.HasSuffix(method, "/SearchMessages") || strings.HasSuffix(method, "/GetGroup") {
			continue
		}
		if err := call(m.holding("acme", ann, scopeRead, scopeDecide), "c"); !fault.Is(err, fault.ScopeMissing) {
			t.Errorf("%s with the right to read: %v", method, err)
		}
	}
	// Who erases sees that it is gone, and nothing before.
	get := calls[conversationv1.ConversationService_GetConversation_FullMethodName]
	wantUnknown(t, "GetConversation", "who erases", m.eraser(), get)
	m.must(r.retention.DeleteConversation(m.eraser(), &conversationv1.DeleteConversationRequest{ConversationId: "c"}))
	if err := get(m.eraser(), "c"); err != nil {
		t.Errorf("who erases does not see that it is gone: %v", err)
	}
	for method, call := range calls {
		if strings.Contains(method, "GroupService") || strings.Contains(method, "Retention") {
			continue
		}
		wantUnknown(t, method, "its owner, when it is deleted", m.as(ann), call)
	}
}

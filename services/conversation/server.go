package conversation

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/identity"
	"weir/internal/journal"
)

type conversationServer struct {
	conversationv1.UnimplementedConversationServiceServer
	history *history
}

func (s *conversationServer) CreateConversation(ctx context.Context, req *conversationv1.CreateConversationRequest) (*conversationv1.CreateConversationResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	cmd := newCreation(req.GetConversationId(), req.GetTitle(), caller.Subject, req.GetParticipants())
	created, err := s.history.loop.Do(ctx, keyOf(caller, cmd.ID), func(c conversation, _ time.Time) (*conversationv1.Event, error) {
		return decideCreate(c, cmd)
	})
	if err != nil {
		return nil, err
	}
	return &conversationv1.CreateConversationResponse{Conversation: toConversation(cmd.ID, created.State)}, nil
}

func (s *conversationServer) GetConversation(ctx context.Context, req *conversationv1.GetConversationRequest) (*conversationv1.GetConversationResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	c, err := s.history.read(ctx, keyOf(caller, req.GetConversationId()), caller.Subject)
	if err != nil {
		return nil, err
	}
	return &conversationv1.GetConversationResponse{Conversation: toConversation(req.GetConversationId(), c)}, nil
}

func (s *conversationServer) ListConversations(ctx context.Context, req *conversationv1.ListConversationsRequest) (*conversationv1.ListConversationsResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	items, next, err := s.history.loop.List(ctx, aggregate.PageRequest{
		Tenant: caller.Tenant,
		List:   memberList(caller.Subject),
		Size:   int(req.GetPageSize()),
		Token:  req.GetPageToken(),
		Fields: []string{aggregate.RootField},
	})
	if err != nil {
		return nil, err
	}
	resp := &conversationv1.ListConversationsResponse{NextPageToken: next}
	for _, item := range items {
		// The document decides, where it is newer than the list.
		if item.State.isMember(caller.Subject) {
			resp.Conversations = append(resp.Conversations, toConversation(item.ID, item.State))
		}
	}
	return resp, nil
}

type messageServer struct {
	conversationv1.UnimplementedMessageServiceServer
	history *history
}

func (s *messageServer) AppendMessage(ctx context.Context, req *conversationv1.AppendMessageRequest) (*conversationv1.AppendMessageResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	m, err := say(message{
		Conversation: req.GetConversationId(),
		ID:           req.GetMessageId(),
		Author:       caller.Subject,
		Parts:        req.GetParts(),
		To:           req.GetTo(),
		ReplyTo:      req.GetReplyTo(),
		ExpectedHead: req.ExpectedHead,
	})
	if err != nil {
		return nil, err
	}
	appended, err := s.history.append(ctx, keyOf(caller, m.Conversation), m)
	if err != nil {
		return nil, err
	}
	return &conversationv1.AppendMessageResponse{Message: appended}, nil
}

func (s *messageServer) ListMessages(ctx context.Context, req *conversationv1.ListMessagesRequest) (*conversationv1.ListMessagesResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	messages, next, err := s.history.page(ctx, keyOf(caller, req.GetConversationId()), caller.Subject, listing{
		newestFirst: req.GetOrder() == conversationv1.Order_ORDER_NEWEST_FIRST,
		from:        req.GetFrom(),
		size:        int64(req.GetPageSize()),
	})
	if err != nil {
		return nil, err
	}
	resp := &conversationv1.ListMessagesResponse{Messages: messages}
	if next != 0 {
		resp.Next = &next
	}
	return resp, nil
}

func (s *messageServer) GetMessage(ctx context.Context, req *conversationv1.GetMessageRequest) (*conversationv1.GetMessageResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	m, err := s.history.message(ctx, keyOf(caller, req.GetConversationId()), caller.Subject, req.GetMessageId())
	if err != nil {
		return nil, err
	}
	return &conversationv1.GetMessageResponse{Message: m}, nil
}

// keyOf names a conversation in the caller's tenant, so that other tenants' are
// out of reach whatever id is asked for.
func keyOf(caller identity.Caller, id string) journal.Key {
	return journal.Key{Tenant: caller.Tenant, Kind: kindName, ID: id}
}

func toConversation(id string, c conversation) *conversationv1.Conversation {
	return &conversationv1.Conversation{
		ConversationId: id,
		Title:          c.Title,
		Owner:          c.Owner,
		Participants:   c.Participants,
		State:          conversationv1.ConversationState_CONVERSATION_STATE_ACTIVE,
		Head:           c.Head,
		CreateTime:     timestamppb.New(c.Created),
		UpdateTime:     timestamppb.New(c.Updated),
	}
}

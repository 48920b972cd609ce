package conversation

import (
	"context"
	"slices"
	"strconv"
	"time"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

type conversationServer struct {
	conversationv1.UnimplementedConversationServiceServer
	history *history
	groups  *groups
}

// keyOf names a conversation in the caller's tenant, so that other tenants' are
// out of reach whatever id is asked for.
func keyOf(caller identity.Caller, id string) journal.Key {
	return journal.Key{Tenant: caller.Tenant, Kind: kindName, ID: id}
}

func (s *conversationServer) CreateConversation(ctx context.Context, req *conversationv1.CreateConversationRequest) (*conversationv1.CreateConversationResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	cmd := creation{
		ID: req.GetConversationId(), Title: req.GetTitle(), Owner: caller.Subject,
		Participants: req.GetParticipants(), Labels: req.GetLabels(),
	}
	if cmd.ID == "" {
		if req.GetRequestId() == "" {
			return nil, fault.New(fault.FieldInvalid, "a conversation needs an id").
				Field("conversation_id", "must be set where request_id is not")
		}
		// Retries by the same caller name the same conversation.
		cmd.ID = "c-" + derivedID("request", caller.Subject+" "+req.GetRequestId())[len("weir.request."):]
	}
	c, err := s.create(ctx, caller, cmd)
	if err != nil {
		return nil, err
	}
	return &conversationv1.CreateConversationResponse{Conversation: toConversation(cmd.ID, c)}, nil
}

func (s *conversationServer) ForkConversation(ctx context.Context, req *conversationv1.ForkConversationRequest) (*conversationv1.ForkConversationResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	parent, err := s.history.loop.Newest(ctx, keyOf(caller, req.GetParentConversationId()))
	if err != nil {
		return nil, err
	}
	// A fork is for good, so who may read for a while only makes none.
	if err := parent.State.memberOr(caller.HasScope(scopeAdmin), caller.Subject); err != nil {
		return nil, err
	}
	cmd := creation{
		ID: req.GetConversationId(), Title: req.GetTitle(), Owner: caller.Subject,
		Participants: req.GetParticipants(), Labels: req.GetLabels(),
	}
	if cmd.Ancestors, err = parent.State.forkedAt(req.GetParentConversationId(), req.GetPosition()); err != nil {
		return nil, err
	}
	if cmd.Marks, err = s.history.marksAt(ctx, keyOf(caller, req.GetParentConversationId()), parent.State, req.GetPosition()); err != nil {
		return nil, err
	}
	c, err := s.create(ctx, caller, cmd)
	if err != nil {
		return nil, err
	}
	return &conversationv1.ForkConversationResponse{Conversation: toConversation(cmd.ID, c)}, nil
}

func (s *conversationServer) create(ctx context.Context, caller identity.Caller, cmd creation) (conversation, error) {
	cmd = cmd.normal()
	var err error
	if cmd.Groups, err = s.groups.among(ctx, caller, cmd.Participants, nil); err != nil {
		return conversation{}, err
	}
	key := keyOf(caller, cmd.ID)
	created, err := s.history.loop.Do(ctx, key, func(c conversation, _ time.Time) (*conversationv1.Event, error) {
		return decideCreate(c, cmd)
	})
	if err != nil {
		return conversation{}, err
	}
	return s.groups.settle(ctx, key, created.State)
}

func (s *conversationServer) GetConversation(ctx context.Context, req *conversationv1.GetConversationRequest) (*conversationv1.GetConversationResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	id := req.GetConversationId()
	found, err := s.history.loop.Read(ctx, keyOf(caller, id), aggregate.RootField)
	if err != nil {
		return nil, err
	}
	tombstone := found.State.State == deleted && caller.HasScope(scopeErase)
	if !tombstone && !found.State.readableBy(caller) {
		return nil, errConversationNotFound
	}
	return &conversationv1.GetConversationResponse{Conversation: toConversation(id, found.State)}, nil
}

func (s *conversationServer) ListConversations(ctx context.Context, req *conversationv1.ListConversationsRequest) (*conversationv1.ListConversationsResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	// Each of these lists holds all that is wanted; the shortest is read.
	lists := []string{memberList(caller.Subject)}
	for _, subject := range []string{req.GetOwner(), req.GetParticipant()} {
		if subject != "" && !slices.Contains(lists, memberList(subject)) {
			lists = append(lists, memberList(subject))
		}
	}
	if label := req.GetLabel(); label != "" {
		switch states := req.GetStates(); {
		case !slices.Contains(states, conversationv1.ConversationState_CONVERSATION_STATE_ARCHIVED):
			lists = append(lists, retentionList(false, label))
		case len(states) == 1:
			lists = append(lists, retentionList(true, label))
		}
	}
	items, next, err := s.history.loop.List(ctx, aggregate.PageRequest[conversation]{
		Tenant: caller.Tenant,
		Lists:  lists,
		Size:   int(req.GetPageSize()),
		Token:  req.GetPageToken(),
		Fields: []string{aggregate.RootField},
		// The document decides, where it is newer than the list.
		Keep: func(c conversation) bool { return c.exists() && c.isMember(caller.Subject) && wanted(c, req) },
	})
	if err != nil {
		return nil, err
	}
	resp := &conversationv1.ListConversationsResponse{NextPageToken: next}
	for _, item := range items {
		resp.Conversations = append(resp.Conversations, toConversation(item.ID, item.State))
	}
	return resp, nil
}

// wanted says whether a conversation passes the filters of a listing.
func wanted(c conversation, req *conversationv1.ListConversationsRequest) bool {
	state := c.shownState()
	states := req.GetStates()
	switch {
	case len(states) == 0 && state == conversationv1.ConversationState_CONVERSATION_STATE_ARCHIVED,
		len(states) > 0 && !slices.Contains(states, state),
		req.GetOwner() != "" && req.GetOwner() != c.Owner,
		req.GetParticipant() != "" && !c.takesPart(req.GetParticipant()),
		req.GetLabel() != "" && !slices.Contains(c.Labels, req.GetLabel()),
		req.ActiveAfter != nil && c.Updated.Before(req.GetActiveAfter().AsTime()),
		req.ActiveBefore != nil && !c.Updated.Before(req.GetActiveBefore().AsTime()):
		return false
	}
	return true
}

// takesPart says whether a subject or a group takes part, beside the owner.
func (c conversation) takesPart(participant string) bool {
	if isGroup(participant) {
		return slices.Contains(c.Participants, participant)
	}
	return participant != c.Owner && c.isMember(participant)
}

// updatable are the paths of an update mask.
var updatable = []string{"title", "labels", "participants"}

func (s *conversationServer) UpdateConversation(ctx context.Context, req *conversationv1.UpdateConversationRequest) (*conversationv1.UpdateConversationResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	key := keyOf(caller, req.GetConversationId())
	cmd := update{ID: key.ID, Actor: caller.Subject, Admin: caller.HasScope(scopeAdmin)}
	for i, path := range req.GetUpdateMask().GetPaths() {
		if !slices.Contains(updatable, path) {
			return nil, fault.New(fault.FieldInvalid, "the update mask names what cannot be set").
				Field("update_mask.paths["+strconv.Itoa(i)+"]", "must be one of title, labels, participants")
		}
	}
	paths := req.GetUpdateMask().GetPaths()
	if slices.Contains(paths, "title") {
		cmd.Title = &req.Title
	}
	if slices.Contains(paths, "labels") {
		cmd.Labels = &req.Labels
	}
	if slices.Contains(paths, "participants") {
		before, err := s.history.loop.Newest(ctx, key)
		if err != nil {
			return nil, err
		}
		if err := before.State.memberOr(cmd.Admin, cmd.Actor); err != nil {
			return nil, err
		}
		cmd.Participants = &req.Participants
		if cmd.Groups, err = s.groups.among(ctx, caller, req.GetParticipants(), before.State.Groups); err != nil {
			return nil, err
		}
	}
	updated, err := s.history.loop.Do(ctx, key, func(c conversation, _ time.Time) (*conversationv1.Event, error) {
		return decideUpdate(c, cmd)
	})
	if err != nil {
		return nil, err
	}
	c, err := s.groups.settle(ctx, key, updated.State)
	if err != nil {
		return nil, err
	}
	return &conversationv1.UpdateConversationResponse{Conversation: toConversation(key.ID, c)}, nil
}

func (s *conversationServer) CloseConversation(ctx context.Context, req *conversationv1.CloseConversationRequest) (*conversationv1.CloseConversationResponse, error) {
	c, err := s.step(ctx, req.GetConversationId(), closed)
	return &conversationv1.CloseConversationResponse{Conversation: c}, err
}

func (s *conversationServer) ReopenConversation(ctx context.Context, req *conversationv1.ReopenConversationRequest) (*conversationv1.ReopenConversationResponse, error) {
	c, err := s.step(ctx, req.GetConversationId(), open)
	return &conversationv1.ReopenConversationResponse{Conversation: c}, err
}

func (s *conversationServer) ArchiveConversation(ctx context.Context, req *conversationv1.ArchiveConversationRequest) (*conversationv1.ArchiveConversationResponse, error) {
	c, err := s.step(ctx, req.GetConversationId(), archived)
	return &conversationv1.ArchiveConversationResponse{Conversation: c}, err
}

func (s *conversationServer) step(ctx context.Context, id string, to state) (*conversationv1.Conversation, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	after, err := s.history.loop.Do(ctx, keyOf(caller, id), func(c conversation, _ time.Time) (*conversationv1.Event, error) {
		return decideStep(c, step{ID: id, Actor: caller.Subject, Admin: caller.HasScope(scopeAdmin), To: to})
	})
	if err != nil {
		return nil, err
	}
	return toConversation(id, after.State), nil
}

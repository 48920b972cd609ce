package conversation

import (
	"context"
	"time"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/identity"
)

type groupServer struct {
	conversationv1.UnimplementedGroupServiceServer
	groups *groups
}

func (s *groupServer) PutGroup(ctx context.Context, req *conversationv1.PutGroupRequest) (*conversationv1.PutGroupResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkGroup(req.GetGroup()); err != nil {
		return nil, err
	}
	wanted := groupFromProto(req.GetGroup())
	after, err := s.groups.loop.Do(ctx, groupKey(caller.Tenant, wanted.ID), func(g group, _ time.Time) (*conversationv1.Event, error) {
		return decidePutGroup(g, wanted, caller.Subject)
	})
	if err != nil {
		return nil, err
	}
	return &conversationv1.PutGroupResponse{Group: after.State.toProto()}, nil
}

func (s *groupServer) GetGroup(ctx context.Context, req *conversationv1.GetGroupRequest) (*conversationv1.GetGroupResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	g, err := s.groups.visible(ctx, caller, req.GetGroupId())
	if err != nil {
		return nil, err
	}
	return &conversationv1.GetGroupResponse{Group: g.toProto()}, nil
}

func (s *groupServer) ListGroups(ctx context.Context, req *conversationv1.ListGroupsRequest) (*conversationv1.ListGroupsResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	items, next, err := s.groups.loop.List(ctx, aggregate.PageRequest[group]{
		Tenant: caller.Tenant,
		Lists:  []string{memberList(caller.Subject)},
		Size:   int(req.GetPageSize()),
		Token:  req.GetPageToken(),
		// The document decides, where it is newer than the list.
		Keep: func(g group) bool { return g.visibleTo(caller.Subject) },
	})
	if err != nil {
		return nil, err
	}
	resp := &conversationv1.ListGroupsResponse{NextPageToken: next}
	for _, item := range items {
		resp.Groups = append(resp.Groups, item.State.toProto())
	}
	return resp, nil
}

func (s *groupServer) DeleteGroup(ctx context.Context, req *conversationv1.DeleteGroupRequest) (*conversationv1.DeleteGroupResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	_, err = s.groups.loop.Do(ctx, groupKey(caller.Tenant, req.GetGroupId()), func(g group, _ time.Time) (*conversationv1.Event, error) {
		return decideDeleteGroup(g, req.GetGroupId(), caller.Subject, caller.HasScope(scopeAdmin))
	})
	if err != nil {
		return nil, err
	}
	return &conversationv1.DeleteGroupResponse{}, nil
}

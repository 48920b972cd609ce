package gate

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/identity"
)

// policyServer is for administrators.
type policyServer struct {
	gatev1.UnimplementedPolicyServiceServer
	loop *aggregate.Loop[Grant, *gatev1.Event]
	view *grantView
}

func (s *policyServer) PutGrant(ctx context.Context, in *gatev1.PutGrantRequest) (*gatev1.PutGrantResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	grant := in.GetGrant()
	after, err := s.loop.Do(ctx, grantKind().Key(caller.Tenant, grant.GetGrantId()), func(g Grant, _ time.Time) (*gatev1.Event, error) {
		return decidePutGrant(g, caller.Subject, grant.GetGrantId(), grant.GetSubject(), grant.GetOperations())
	})
	if err != nil {
		return nil, err
	}
	s.view.await(ctx, after.Version)
	return &gatev1.PutGrantResponse{Grant: grantToProto(grant.GetGrantId(), after.State)}, nil
}

func (s *policyServer) GetGrant(ctx context.Context, in *gatev1.GetGrantRequest) (*gatev1.GetGrantResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	found, err := s.loop.Read(ctx, grantKind().Key(caller.Tenant, in.GetGrantId()))
	if err != nil {
		return nil, err
	}
	if !found.State.exists() {
		return nil, grantNotFound(in.GetGrantId())
	}
	return &gatev1.GetGrantResponse{Grant: grantToProto(in.GetGrantId(), found.State)}, nil
}

func (s *policyServer) ListGrants(ctx context.Context, in *gatev1.ListGrantsRequest) (*gatev1.ListGrantsResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	items, next, err := s.loop.List(ctx, aggregate.PageRequest{
		Tenant: caller.Tenant, List: listGrants, Size: int(in.GetPageSize()), Token: in.GetPageToken(),
	})
	if err != nil {
		return nil, err
	}
	out := &gatev1.ListGrantsResponse{NextPageToken: next}
	for _, item := range items {
		if item.State.exists() {
			out.Grants = append(out.Grants, grantToProto(item.ID, item.State))
		}
	}
	return out, nil
}

func (s *policyServer) DeleteGrant(ctx context.Context, in *gatev1.DeleteGrantRequest) (*gatev1.DeleteGrantResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	after, err := s.loop.Do(ctx, grantKind().Key(caller.Tenant, in.GetGrantId()), func(g Grant, _ time.Time) (*gatev1.Event, error) {
		return decideDeleteGrant(g, caller.Subject, in.GetGrantId())
	})
	if err != nil {
		return nil, err
	}
	s.view.await(ctx, after.Version)
	return &gatev1.DeleteGrantResponse{}, nil
}

func grantToProto(id string, g Grant) *gatev1.Grant {
	return &gatev1.Grant{
		GrantId: id, Subject: g.Subject, Operations: g.Operations, UpdateTime: timestamppb.New(g.Updated),
	}
}

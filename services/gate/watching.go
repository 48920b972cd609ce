package gate

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/backend"
	"weir/internal/identity"
	"weir/internal/journal"
)

func (s *approvalServer) WatchApprovals(in *gatev1.WatchApprovalsRequest, stream grpc.ServerStreamingServer[gatev1.WatchApprovalsResponse]) error {
	ctx := stream.Context()
	caller, err := identity.Must(ctx)
	if err != nil {
		return err
	}
	return s.backend.Watch(ctx, caller.Tenant, approvalKindName, in.GetResumeToken(),
		func(token string) error { return stream.Send(&gatev1.WatchApprovalsResponse{ResumeToken: token}) },
		func(token string, e journal.Event) error {
			change, err := s.change(ctx, caller, token, e)
			if change == nil || err != nil {
				return err
			}
			return stream.Send(change)
		})
}

// change turns an event into what a caller is told of it; nil where it is not
// the caller's to see.
func (s *approvalServer) change(ctx context.Context, caller identity.Caller, token string, e journal.Event) (*gatev1.WatchApprovalsResponse, error) {
	found, err := s.approvals.Read(ctx, e.Key)
	if err != nil {
		return nil, err
	}
	if !maySee(caller, found.State.Requester) {
		return nil, nil
	}
	out := &gatev1.WatchApprovalsResponse{
		ResumeToken: token,
		Change:      backend.ChangeOf(e),
		ChangeTime:  timestamppb.New(e.Time),
		Approval:    approvalInList(found.State),
	}
	if recorded, err := aggregate.Decode[*gatev1.Event](e); err == nil {
		out.Actor = recorded.Event.GetActor()
	}
	return out, nil
}

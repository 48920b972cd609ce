package inbox

import (
	"context"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

// dispatchServer is the record of dispatched work, for whoever gives work away.
type dispatchServer struct {
	inboxv1.UnimplementedDispatchServiceServer
	dispatches *dispatchLoop
}

func dispatchKey(caller identity.Caller, goal, item string) journal.Key {
	return journal.Key{Tenant: caller.Tenant, Kind: dispatchKindName, ID: dispatchID(goal, item)}
}

func (s *dispatchServer) Begin(ctx context.Context, in *inboxv1.BeginRequest) (*inboxv1.BeginResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	after, _, err := do(ctx, s.dispatches, dispatchKey(caller, in.GetGoal(), in.GetItem()), decideBegin, begin{
		Goal: in.GetGoal(), Item: in.GetItem(), NewID: ulid.Make().String(), Actor: caller.Subject,
	})
	if err != nil {
		return nil, err
	}
	return &inboxv1.BeginResponse{
		Dispatch: dispatchToProto(after.State),
		Replay:   after.State.replay(),
		Warning:  after.State.warning(),
	}, nil
}

func (s *dispatchServer) MarkSent(ctx context.Context, in *inboxv1.MarkSentRequest) (*inboxv1.MarkSentResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	after, _, err := do(ctx, s.dispatches, dispatchKey(caller, in.GetGoal(), in.GetItem()), decideSent, markSent{
		Goal: in.GetGoal(), Item: in.GetItem(), NewID: ulid.Make().String(),
		ConversationID: in.GetConversationId(), Actor: caller.Subject,
	})
	if err != nil {
		return nil, err
	}
	return &inboxv1.MarkSentResponse{Dispatch: dispatchToProto(after.State)}, nil
}

func (s *dispatchServer) GetDispatch(ctx context.Context, in *inboxv1.GetDispatchRequest) (*inboxv1.GetDispatchResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	found, err := s.dispatches.Read(ctx, dispatchKey(caller, in.GetGoal(), in.GetItem()))
	if err != nil {
		return nil, err
	}
	if !found.Exists() {
		return nil, fault.New(fault.DispatchNotFound, "nothing was dispatched for item %q of goal %s", in.GetItem(), in.GetGoal())
	}
	return &inboxv1.GetDispatchResponse{Dispatch: dispatchToProto(found.State)}, nil
}

var dispatchStates = map[dispatchState]inboxv1.DispatchState{
	begun: inboxv1.DispatchState_DISPATCH_STATE_BEGUN,
	sent:  inboxv1.DispatchState_DISPATCH_STATE_SENT,
}

func dispatchToProto(d dispatch) *inboxv1.Dispatch {
	return &inboxv1.Dispatch{
		DispatchId:     d.ID,
		Goal:           d.Goal,
		Item:           d.Item,
		State:          dispatchStates[d.State],
		Attempts:       d.Attempts,
		ConversationId: d.ConversationID,
		Unbegun:        d.Unbegun,
		Owner:          d.Owner,
		CreateTime:     timestamppb.New(d.Created),
		UpdateTime:     timestamppb.New(d.Updated),
	}
}

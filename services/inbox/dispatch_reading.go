package inbox

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/backend"
	"weir/internal/identity"
	"weir/internal/journal"
)

// maySee says who is shown an item. To an agent, those that it neither owns nor works
// on look like ones that do not exist.
func maySee(caller identity.Caller, d dispatch) bool {
	own, agent := ownGoal(caller)
	return !agent || d.Owner == caller.Subject || d.Worker == own
}

// shownTo is an item as Begin shows it. Whoever begins what somebody else has begun
// must learn that and where it goes on, but not what was reported.
func shownTo(caller identity.Caller, d dispatch) *inboxv1.Dispatch {
	if !maySee(caller, d) {
		d = dispatch{
			ID: d.ID, Goal: d.Goal, Item: d.Item, State: d.State, Attempts: d.Attempts, ConversationID: d.ConversationID,
			Unbegun: d.Unbegun, Owner: d.Owner, Created: d.Created, Updated: d.Updated,
		}
	}
	return dispatchToProto(d)
}

func (s *dispatchServer) GetDispatch(ctx context.Context, in *inboxv1.GetDispatchRequest) (*inboxv1.GetDispatchResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	found, err := s.dispatches.Read(ctx, dispatchKey(caller.Tenant, in.GetGoal(), in.GetItem()))
	if err != nil {
		return nil, err
	}
	if !found.Exists() || !maySee(caller, found.State) {
		return nil, dispatchNotFound(in.GetGoal(), in.GetItem())
	}
	return &inboxv1.GetDispatchResponse{Dispatch: dispatchToProto(found.State)}, nil
}

func (s *dispatchServer) ListDispatches(ctx context.Context, in *inboxv1.ListDispatchesRequest) (*inboxv1.ListDispatchesResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	states := make([]dispatchState, len(in.GetStates()))
	for i, state := range in.GetStates() {
		states[i] = stateOf(state)
	}
	items, next, err := s.dispatches.List(ctx, aggregate.PageRequest[dispatch]{
		Tenant: caller.Tenant,
		Lists:  listsOf(caller, in.GetGoal(), in.GetWorker(), states),
		Size:   int(in.GetPageSize()),
		Token:  in.GetPageToken(),
		// The document decides, where it is newer than the list.
		Keep: func(d dispatch) bool {
			return d.State != "" && maySee(caller, d) &&
				(in.GetGoal() == "" || d.Goal == in.GetGoal()) &&
				(in.GetWorker() == "" || d.Worker == in.GetWorker()) &&
				(len(states) == 0 || slices.Contains(states, d.State))
		},
	})
	if err != nil {
		return nil, err
	}
	out := &inboxv1.ListDispatchesResponse{NextPageToken: next}
	for _, item := range items {
		out.Dispatches = append(out.Dispatches, dispatchToProto(item.State))
	}
	return out, nil
}

// listsOf gives lists of which each holds all that is wanted.
func listsOf(caller identity.Caller, goal, worker string, states []dispatchState) []string {
	var lists []string
	if own, agent := ownGoal(caller); agent {
		lists = append(lists, agentList(own))
	}
	switch {
	case goal != "" && len(states) == 1:
		lists = append(lists, goalStateList(goal, states[0]))
	case goal != "":
		lists = append(lists, goalList(goal))
	case len(states) == 1:
		lists = append(lists, stateList(states[0]))
	}
	if worker != "" {
		lists = append(lists, workerList(worker))
	}
	if len(lists) == 0 {
		return []string{listAll}
	}
	return lists
}

// goalCounts is how many items of a goal are in which state.
type goalCounts map[dispatchState]int

func (c goalCounts) open() int {
	n := 0
	for state, count := range c {
		if state != accepted && state != abandoned {
			n += count
		}
	}
	return n
}

// counts asks the lists. They show what a caller was answered before it asks, and may
// be behind what others are about to be answered.
func (s *dispatchServer) counts(ctx context.Context, tenant, goal string) (goalCounts, error) {
	lists := make([]string, len(dispatchStates))
	for i, state := range dispatchStates {
		lists[i] = goalStateList(goal, state.ours)
	}
	sizes, err := s.dispatches.Count(ctx, tenant, lists...)
	if err != nil {
		return nil, err
	}
	counts := goalCounts{}
	for i, state := range dispatchStates {
		counts[state.ours] = sizes[i]
	}
	return counts, nil
}

func (s *dispatchServer) GetGoal(ctx context.Context, in *inboxv1.GetGoalRequest) (*inboxv1.GetGoalResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	counts, err := s.counts(ctx, caller.Tenant, in.GetGoal())
	if err != nil {
		return nil, err
	}
	goal := &inboxv1.Goal{Goal: in.GetGoal(), Open: int32(counts.open()), Limit: maxOpen}
	for _, state := range dispatchStates {
		if n := counts[state.ours]; n > 0 {
			goal.Counts = append(goal.Counts, &inboxv1.DispatchCount{State: state.theirs, Count: int32(n)})
		}
	}
	return &inboxv1.GetGoalResponse{Goal: goal}, nil
}

// WatchDispatches reads the journal itself, so that what it gives does not depend on
// this replica having been there.
func (s *dispatchServer) WatchDispatches(in *inboxv1.WatchDispatchesRequest, stream grpc.ServerStreamingServer[inboxv1.WatchDispatchesResponse]) error {
	ctx := stream.Context()
	caller, err := identity.Must(ctx)
	if err != nil {
		return err
	}
	return s.backend.Watch(ctx, caller.Tenant, dispatchKindName, in.GetResumeToken(),
		func(token string) error { return stream.Send(&inboxv1.WatchDispatchesResponse{ResumeToken: token}) },
		func(token string, e journal.Event) error {
			after, event, err := s.dispatches.At(ctx, e)
			if err != nil {
				return err
			}
			if !maySee(caller, after.State) || in.GetGoal() != "" && in.GetGoal() != after.State.Goal {
				return nil
			}
			return stream.Send(&inboxv1.WatchDispatchesResponse{
				ResumeToken: token,
				Change:      backend.ChangeOf(e),
				Actor:       event.GetActor(),
				ChangeTime:  timestamppb.New(e.Time),
				Dispatch:    dispatchToProto(after.State),
			})
		})
}

// dispatchStates is how states look from outside.
var dispatchStates = []struct {
	ours   dispatchState
	theirs inboxv1.DispatchState
}{
	{begun, inboxv1.DispatchState_DISPATCH_STATE_BEGUN},
	{sent, inboxv1.DispatchState_DISPATCH_STATE_SENT},
	{inProgress, inboxv1.DispatchState_DISPATCH_STATE_PROGRESS},
	{blocked, inboxv1.DispatchState_DISPATCH_STATE_BLOCKED},
	{inQuestion, inboxv1.DispatchState_DISPATCH_STATE_QUESTION},
	{workDone, inboxv1.DispatchState_DISPATCH_STATE_DONE},
	{accepted, inboxv1.DispatchState_DISPATCH_STATE_ACCEPTED},
	{rejected, inboxv1.DispatchState_DISPATCH_STATE_REJECTED},
	{abandoned, inboxv1.DispatchState_DISPATCH_STATE_ABANDONED},
}

func stateOf(theirs inboxv1.DispatchState) dispatchState {
	for _, state := range dispatchStates {
		if state.theirs == theirs {
			return state.ours
		}
	}
	return ""
}

func dispatchToProto(d dispatch) *inboxv1.Dispatch {
	out := &inboxv1.Dispatch{
		DispatchId:     d.ID,
		Goal:           d.Goal,
		Item:           d.Item,
		Attempts:       d.Attempts,
		ConversationId: d.ConversationID,
		Unbegun:        d.Unbegun,
		Owner:          d.Owner,
		CreateTime:     timestamppb.New(d.Created),
		UpdateTime:     timestamppb.New(d.Updated),
		Worker:         d.Worker,
		WaitsFor:       d.Awaited,
		VerdictNote:    d.Note,
		Failure:        d.Failure.Text,
	}
	for _, state := range dispatchStates {
		if state.ours == d.State {
			out.State = state.theirs
		}
	}
	if d.Report.Reporter != "" {
		out.Report = &inboxv1.DispatchReport{
			Kind: d.Report.Kind, Text: d.Report.Text, Reporter: d.Report.Reporter, ReportTime: timestamppb.New(d.Report.At),
		}
		for _, e := range d.Report.Evidence {
			out.Report.Evidence = append(out.Report.Evidence, &inboxv1.Evidence{Uri: e.URI, Title: e.Title})
		}
	}
	return out
}

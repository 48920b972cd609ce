package inbox

import (
	"context"

	inboxv1 "weir/gen/inbox/v1"
)

func (s *inboxServer) Redrive(ctx context.Context, in *inboxv1.RedriveRequest) (*inboxv1.RedriveResponse, error) {
	caller, key, err := serving(ctx, in.GetGoal())
	if err != nil {
		return nil, err
	}
	after, at, err := makingRoom(ctx, s.inboxes, key, decideRedrive, operation{
		Goal: in.GetGoal(), IDs: in.GetMessageIds(), Actor: caller.Subject, Rules: s.rules,
	})
	if err != nil {
		return nil, err
	}
	return &inboxv1.RedriveResponse{Inbox: s.toInbox(in.GetGoal(), after.State, at)}, nil
}

func (s *inboxServer) DiscardDead(ctx context.Context, in *inboxv1.DiscardDeadRequest) (*inboxv1.DiscardDeadResponse, error) {
	caller, key, err := serving(ctx, in.GetGoal())
	if err != nil {
		return nil, err
	}
	after, at, err := do(ctx, s.inboxes, key, decideDiscard, operation{
		Goal: in.GetGoal(), IDs: in.GetMessageIds(), Actor: caller.Subject,
	})
	if err != nil {
		return nil, err
	}
	return &inboxv1.DiscardDeadResponse{Inbox: s.toInbox(in.GetGoal(), after.State, at)}, nil
}

func (s *inboxServer) PauseInbox(ctx context.Context, in *inboxv1.PauseInboxRequest) (*inboxv1.PauseInboxResponse, error) {
	shown, err := s.setMode(ctx, in.GetGoal(), paused, in.GetNote())
	if err != nil {
		return nil, err
	}
	return &inboxv1.PauseInboxResponse{Inbox: shown}, nil
}

func (s *inboxServer) ResumeInbox(ctx context.Context, in *inboxv1.ResumeInboxRequest) (*inboxv1.ResumeInboxResponse, error) {
	shown, err := s.setMode(ctx, in.GetGoal(), open, "")
	if err != nil {
		return nil, err
	}
	return &inboxv1.ResumeInboxResponse{Inbox: shown}, nil
}

func (s *inboxServer) DrainInbox(ctx context.Context, in *inboxv1.DrainInboxRequest) (*inboxv1.DrainInboxResponse, error) {
	shown, err := s.setMode(ctx, in.GetGoal(), draining, in.GetNote())
	if err != nil {
		return nil, err
	}
	return &inboxv1.DrainInboxResponse{Inbox: shown}, nil
}

// setMode does not ask whether the inbox exists: one that nobody has written to
// can be held up before somebody does, and is open.
func (s *inboxServer) setMode(ctx context.Context, goal string, to mode, note string) (*inboxv1.Inbox, error) {
	caller, key, err := serving(ctx, goal)
	if err != nil {
		return nil, err
	}
	after, at, err := do(ctx, s.inboxes, key, decideMode, setMode{Goal: goal, Mode: to, Note: note, Actor: caller.Subject})
	if err != nil {
		return nil, err
	}
	return s.toInbox(goal, after.State, at), nil
}

package gate

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

// WatchApprovals reads the journal itself, so that what it gives does not depend
// on this replica having been there. A token is a place in the stream.
func (s *approvalServer) WatchApprovals(in *gatev1.WatchApprovalsRequest, stream grpc.ServerStreamingServer[gatev1.WatchApprovalsResponse]) error {
	ctx := stream.Context()
	caller, err := identity.Must(ctx)
	if err != nil {
		return err
	}
	last, err := s.backend.Journal.LastSequence(ctx)
	if err != nil {
		return err
	}
	after := last
	if in.GetResumeToken() != "" {
		var ok bool
		if after, ok = openToken(caller.Tenant, in.GetResumeToken()); !ok || after > last {
			return fault.New(fault.CursorUnavailable, "the resume token is not one that this gate gave").
				Field("resume_token", "must be one of an earlier answer to the same tenant, unchanged")
		}
	}
	if err := stream.Send(&gatev1.WatchApprovalsResponse{ResumeToken: sealToken(caller.Tenant, after)}); err != nil {
		return err
	}
	consumer, err := s.backend.Consumer("gate", "approval-watch", "weir.gate."+journal.Escape(caller.Tenant)+"."+approvalKindName+".*")
	if err != nil {
		return err
	}
	err = consumer.Tail(ctx, after+1, func(stored journal.Stored) error {
		change, err := s.change(ctx, caller, stored)
		if err != nil && fault.From(err).Kind() == fault.KindUnreadable {
			// It must not end every watch from here on. What it was, GetApproval says.
			s.backend.Log.Error("a change cannot be told to those who watch", "subject", stored.Subject, "error", err)
			change, err = &gatev1.WatchApprovalsResponse{ResumeToken: sealToken(caller.Tenant, stored.Sequence)}, nil
		}
		if change == nil || err != nil {
			return err
		}
		return stream.Send(change)
	}, func() {})
	if ctx.Err() != nil {
		return fault.From(ctx.Err())
	}
	if told, ok := errors.AsType[*fault.Error](err); ok {
		return told
	}
	return fault.New(fault.JournalUnavailable, "the watch was interrupted: call again with the newest token").Retry(time.Second).Wrap(err)
}

// change turns an event into what a caller is told of it; nil where it is not
// the caller's to see.
func (s *approvalServer) change(ctx context.Context, caller identity.Caller, stored journal.Stored) (*gatev1.WatchApprovalsResponse, error) {
	e, err := stored.Event()
	if err != nil {
		return nil, err
	}
	found, err := s.approvals.Read(ctx, e.Key)
	if err != nil {
		return nil, err
	}
	if !maySee(caller, found.State.Requester) {
		return nil, nil
	}
	out := &gatev1.WatchApprovalsResponse{
		ResumeToken: sealToken(caller.Tenant, e.Sequence),
		Change:      e.Type[strings.LastIndex(e.Type, ".")+1:],
		ChangeTime:  timestamppb.New(e.Time),
		Approval:    approvalInList(found.State),
	}
	if recorded, err := aggregate.Decode[*gatev1.Event](e); err == nil {
		out.Actor = recorded.Event.GetActor()
	}
	return out, nil
}

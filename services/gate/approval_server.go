package gate

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/identity"
)

// scopeDecide is the approver's scope; others see only what they asked for.
const scopeDecide = "approval.decide"

// approvalServer is for the people who are asked, and for requesters.
type approvalServer struct {
	gatev1.UnimplementedApprovalServiceServer
	approvals *aggregate.Loop[Approval, *gatev1.Event]
}

func (s *approvalServer) GetApproval(ctx context.Context, in *gatev1.GetApprovalRequest) (*gatev1.GetApprovalResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	found, err := s.approvals.Read(ctx, approvalKind().Key(caller.Tenant, in.GetApprovalId()))
	if err != nil {
		return nil, err
	}
	if !found.Exists() || !maySee(caller, found.State) {
		return nil, approvalNotFound(in.GetApprovalId())
	}
	return &gatev1.GetApprovalResponse{Approval: approvalToProto(found.State)}, nil
}

func maySee(caller identity.Caller, a Approval) bool {
	return caller.HasScope(scopeDecide) || caller.Subject == a.Requester
}

func (s *approvalServer) ListApprovals(ctx context.Context, in *gatev1.ListApprovalsRequest) (*gatev1.ListApprovalsResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	requester := caller.Subject
	if caller.HasScope(scopeDecide) {
		requester = ""
	}
	state := stateFromProto(in.GetState())
	items, next, err := s.approvals.List(ctx, aggregate.PageRequest{
		Tenant: caller.Tenant,
		List:   approvalList(requester, state),
		Size:   int(in.GetPageSize()),
		Token:  in.GetPageToken(),
	})
	if err != nil {
		return nil, err
	}
	out := &gatev1.ListApprovalsResponse{NextPageToken: next}
	for _, item := range items {
		// An approval may have moved on between the list and its document.
		if state == "" || item.State.State == state {
			out.Approvals = append(out.Approvals, approvalToProto(item.State))
		}
	}
	return out, nil
}

func (s *approvalServer) DecideApproval(ctx context.Context, in *gatev1.DecideApprovalRequest) (*gatev1.DecideApprovalResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	id := in.GetApprovalId()
	after, err := s.approvals.Do(ctx, approvalKind().Key(caller.Tenant, id), func(a Approval, now time.Time) (*gatev1.Event, error) {
		return decideDecision(a, id, decision{
			RequestID:   in.GetRequestId(),
			Decider:     caller.Subject,
			Person:      caller.Kind() == identity.Human,
			Approve:     in.GetDecision() == gatev1.Decision_DECISION_APPROVE,
			InputDigest: in.GetInputDigest(),
			Note:        in.GetNote(),
		}, now)
	})
	if err != nil {
		return nil, err
	}
	return &gatev1.DecideApprovalResponse{Approval: approvalToProto(after.State)}, nil
}

func (s *approvalServer) CancelApproval(ctx context.Context, in *gatev1.CancelApprovalRequest) (*gatev1.CancelApprovalResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	id := in.GetApprovalId()
	after, err := s.approvals.Do(ctx, approvalKind().Key(caller.Tenant, id), func(a Approval, now time.Time) (*gatev1.Event, error) {
		return decideCancel(a, id, caller.Subject, now)
	})
	if err != nil {
		return nil, err
	}
	return &gatev1.CancelApprovalResponse{Approval: approvalToProto(after.State)}, nil
}

func approvalToProto(a Approval) *gatev1.Approval {
	out := &gatev1.Approval{
		ApprovalId:     a.ID,
		State:          stateToProto[a.State],
		Operation:      a.Operation,
		Effect:         effectToProto[a.Effect],
		SpecDigest:     a.SpecDigest,
		InputDigest:    a.InputDigest,
		Requester:      a.Requester,
		OnBehalfOf:     a.OnBehalfOf,
		Session:        a.Session,
		RequestId:      a.RequestID,
		ConversationId: a.Conversation,
		Rule:           a.Rule,
		CreateTime:     timestamppb.New(a.Created),
		ExpireTime:     timestamppb.New(a.Expires),
		Decider:        a.Decider,
		Note:           visible(a.Note),
	}
	if a.Input != nil {
		shown := visible(*a.Input)
		out.InputJson = &shown
	}
	if !a.Decided.IsZero() {
		out.DecideTime = timestamppb.New(a.Decided)
	}
	return out
}

var stateToProto = map[approvalState]gatev1.ApprovalState{
	statePending:   gatev1.ApprovalState_APPROVAL_STATE_PENDING,
	stateApproved:  gatev1.ApprovalState_APPROVAL_STATE_APPROVED,
	stateRedeemed:  gatev1.ApprovalState_APPROVAL_STATE_REDEEMED,
	stateDenied:    gatev1.ApprovalState_APPROVAL_STATE_DENIED,
	stateExpired:   gatev1.ApprovalState_APPROVAL_STATE_EXPIRED,
	stateCancelled: gatev1.ApprovalState_APPROVAL_STATE_CANCELLED,
}

// stateFromProto gives the empty state for unspecified, which lists take as all.
func stateFromProto(s gatev1.ApprovalState) approvalState {
	for own, proto := range stateToProto {
		if proto == s {
			return own
		}
	}
	return ""
}

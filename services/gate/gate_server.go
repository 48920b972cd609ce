package gate

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/strictjson"
)

// gateServer answers enforcement points.
type gateServer struct {
	gatev1.UnimplementedGateServiceServer
	grants    *grantView
	asker     *asker
	approvals *aggregate.Loop[Approval, *gatev1.Event]
	ttl       time.Duration
}

// caller is whom a call decides about, with what it is granted now.
func (s *gateServer) caller(ctx context.Context) (identity.Caller, grantList, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return identity.Caller{}, nil, err
	}
	grants, err := s.grants.of(caller.Tenant, caller.Subject)
	return caller, grants, err
}

func (s *gateServer) Check(ctx context.Context, in *gatev1.CheckRequest) (*gatev1.CheckResponse, error) {
	caller, grants, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	effect := effectFromProto(in.GetEffect())
	answer := decide(question{
		Agent:        caller.Kind() == identity.Agent,
		Confined:     caller.Confined,
		Operation:    in.GetOperation(),
		Effect:       effect,
		Conversation: in.GetConversationId(),
		Target:       in.GetTargetConversationId(),
	}, grants)
	if answer.Verdict != ask {
		return &gatev1.CheckResponse{Verdict: verdictToProto[answer.Verdict], Reason: answer.Reason}, nil
	}

	// What reaches a person must be well-formed, whoever rendered it.
	if in.InputJson != nil {
		if _, err := strictjson.Canonical(in.GetInputJson()); err != nil {
			refusal := fault.From(err)
			return nil, refusal.Field("input_json", refusal.Message())
		}
	}
	approval, err := s.asker.ask(ctx, caller, request{
		RequestID:    in.GetRequestId(),
		Requester:    caller.Subject,
		Session:      caller.Session,
		OnBehalfOf:   caller.OnBehalfOf,
		Operation:    in.GetOperation(),
		Effect:       effect,
		SpecDigest:   in.GetSpecDigest(),
		Input:        in.InputJson,
		InputDigest:  in.GetInputDigest(),
		Conversation: in.GetConversationId(),
		Rule:         answer.Reason,
		TTL:          s.ttl,
	})
	switch {
	case errors.Is(err, errAskLimit):
		return &gatev1.CheckResponse{Verdict: gatev1.Verdict_VERDICT_DENY, Reason: reasonAskLimit}, nil
	case err != nil:
		return nil, err
	}
	return &gatev1.CheckResponse{
		Verdict:    gatev1.Verdict_VERDICT_ASK,
		Reason:     answer.Reason,
		ApprovalId: approval.ID,
		ExpireTime: timestamppb.New(approval.Expires),
	}, nil
}

func (s *gateServer) MatchGrants(ctx context.Context, in *gatev1.MatchGrantsRequest) (*gatev1.MatchGrantsResponse, error) {
	_, grants, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	out := &gatev1.MatchGrantsResponse{}
	for _, operation := range in.GetOperations() {
		if grants.match(operation) {
			out.Granted = append(out.Granted, operation)
		}
	}
	return out, nil
}

func (s *gateServer) Redeem(ctx context.Context, in *gatev1.RedeemRequest) (*gatev1.RedeemResponse, error) {
	caller, grants, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	id := in.GetApprovalId()
	after, err := s.approvals.Do(ctx, approvalKind().Key(caller.Tenant, id), func(a Approval, now time.Time) (*gatev1.Event, error) {
		return decideRedemption(a, id, redemption{
			RequestID:   in.GetRequestId(),
			Requester:   caller.Subject,
			Operation:   in.GetOperation(),
			SpecDigest:  in.GetSpecDigest(),
			InputDigest: in.GetInputDigest(),
			Granted:     grants.match(in.GetOperation()),
		}, now)
	})
	if err != nil {
		return nil, err
	}
	return &gatev1.RedeemResponse{RedeemTime: timestamppb.New(after.State.Redeemed)}, nil
}

// bind gives a command to its decision.
func bind[S, C any](cmd C, decide func(S, C, time.Time) (*gatev1.Event, error)) aggregate.Decide[S, *gatev1.Event] {
	return func(state S, now time.Time) (*gatev1.Event, error) { return decide(state, cmd, now) }
}

var verdictToProto = map[verdict]gatev1.Verdict{
	deny:  gatev1.Verdict_VERDICT_DENY,
	ask:   gatev1.Verdict_VERDICT_ASK,
	allow: gatev1.Verdict_VERDICT_ALLOW,
}

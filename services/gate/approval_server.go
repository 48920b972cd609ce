package gate

import (
	"context"
	"strings"
	"time"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/backend"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/schema"
	"weir/internal/strictjson"
	"weir/services/gate/policy"
)

// approvalServer is for the people who are asked, and for requesters.
type approvalServer struct {
	gatev1.UnimplementedApprovalServiceServer
	approvals *aggregate.Loop[Approval, *gatev1.Event]
	trusts    *aggregate.Loop[Trust, *gatev1.Event]
	view      *bookView
	asker     *asker
	backend   *backend.Backend
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
	if !found.Exists() || !maySee(caller, found.State.Requester) {
		return nil, approvalNotFound(in.GetApprovalId())
	}
	return &gatev1.GetApprovalResponse{Approval: approvalToProto(found.State)}, nil
}

// maySee lets approvers see everything of their tenant, and others what is theirs.
func maySee(caller identity.Caller, owner string) bool {
	return caller.HasScope(policy.ScopeDecide) || caller.Subject == owner
}

// ownOnly names whose entries a caller is listed: empty for all.
func ownOnly(caller identity.Caller) string {
	if caller.HasScope(policy.ScopeDecide) {
		return ""
	}
	return caller.Subject
}

func (s *approvalServer) ListApprovals(ctx context.Context, in *gatev1.ListApprovalsRequest) (*gatev1.ListApprovalsResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	state := stateFromProto(in.GetState())
	items, next, err := s.approvals.List(ctx, aggregate.PageRequest[Approval]{
		Tenant: caller.Tenant,
		Lists:  []string{approvalList(ownOnly(caller), state)},
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
			out.Approvals = append(out.Approvals, approvalInList(item.State))
		}
	}
	return out, nil
}

func (s *approvalServer) DecideApproval(ctx context.Context, in *gatev1.DecideApprovalRequest) (*gatev1.DecideApprovalResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	approval, err := s.decide(ctx, caller, in)
	if err != nil {
		return nil, err
	}
	return &gatev1.DecideApprovalResponse{Approval: approvalToProto(approval)}, nil
}

func (s *approvalServer) DecideApprovals(ctx context.Context, in *gatev1.DecideApprovalsRequest) (*gatev1.DecideApprovalsResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	out := &gatev1.DecideApprovalsResponse{}
	for _, decision := range in.GetDecisions() {
		approval, err := s.decide(ctx, caller, decision)
		if err != nil {
			out.Results = append(out.Results, &gatev1.DecideResult{Result: &gatev1.DecideResult_Failure{Failure: failureOf(err)}})
			continue
		}
		out.Results = append(out.Results, &gatev1.DecideResult{Result: &gatev1.DecideResult_Approval{Approval: approvalToProto(approval)}})
	}
	return out, nil
}

func (s *approvalServer) decide(ctx context.Context, caller identity.Caller, in *gatev1.DecideApprovalRequest) (Approval, error) {
	cmd := decision{
		RequestID:   in.GetRequestId(),
		Decider:     caller.Subject,
		Chain:       caller.OnBehalfOf,
		Confined:    caller.Confined,
		Scopes:      caller.Scopes,
		Approve:     in.GetDecision() == gatev1.Decision_DECISION_APPROVE,
		InputDigest: in.GetInputDigest(),
		Note:        in.GetNote(),
		Remember:    rememberFrom(in.GetRemember()),
	}
	id := in.GetApprovalId()
	var book *policy.Book
	if in.AmendedInputJson != nil {
		canonical, err := strictjson.CanonicalField("amended_input_json", in.GetAmendedInputJson())
		if err != nil {
			return Approval{}, err
		}
		cmd.Amendment = &amendment{Input: string(canonical), Digest: strictjson.Digest(canonical)}
		if book, err = s.view.of(caller.Tenant); err != nil {
			return Approval{}, err
		}
	}
	var decided *gatev1.Event // what the last try came to, which is what was done
	after, err := s.approvals.Do(ctx, approvalKind().Key(caller.Tenant, id), func(a Approval, now time.Time) (_ *gatev1.Event, err error) {
		decided, err = decideDecision(a, id, cmd, now)
		if err == nil && decided != nil && cmd.Amendment != nil {
			err = s.mayAmend(book, a, *cmd.Amendment, now)
		}
		if err != nil {
			return nil, err
		}
		return decided, nil
	})
	if err != nil {
		return Approval{}, err
	}
	if decided.GetApprovalDecided().GetTrust() != nil {
		// The decider finds the trust in force. Where this fails, the gate records
		// it when it hears of the decision.
		if err := give(ctx, s.trusts, caller.Tenant, decided, after.Version); err != nil {
			s.backend.Log.Warn("trust not recorded yet", "approval", id, "error", err)
		}
	}
	return after.State, nil
}

// mayAmend treats an amendment as a new request: it must fit the operation's
// schema, and the policies must ask for nothing that this approval does not give.
func (s *approvalServer) mayAmend(book *policy.Book, a Approval, change amendment, now time.Time) error {
	if strings.Contains(change.Input, masked) {
		return fault.New(fault.AmendmentRefused, "an amendment may not hold the mask of a credential: it would run with the mask").
			Field("amended_input_json", "still holds "+masked)
	}
	if a.Schema == "" {
		return fault.New(fault.AmendmentRefused, "this input can't be amended: whoever asked did not say what inputs the operation takes")
	}
	compiled, err := schema.Compile([]byte(a.Schema))
	if err != nil {
		return fault.New(fault.AmendmentRefused, "this input can't be amended: the operation's schema cannot be read").Wrap(err)
	}
	if _, err := compiled.Validate("amended_input_json", []byte(change.Input)); err != nil {
		return err
	}
	seen := inspectInput(&change.Input)
	if len(seen.credentials) > 0 {
		return fault.New(fault.AmendmentRefused, "an amendment may carry nothing that looks like a credential").
			Field("amended_input_json"+seen.credentials[0], "looks like a credential")
	}
	amended := a
	amended.Input = &change.Input
	answer := s.asker.again(book, amended, now)
	switch answer.Verdict {
	case gatev1.Verdict_VERDICT_DENY:
		return fault.New(fault.AmendmentRefused, "the amended request is denied: %s %s", answer.Reason, answer.Rule).
			Field("amended_input_json", "must be an input that the policies do not deny")
	case gatev1.Verdict_VERDICT_ASK:
		if answer.Terms.Key() != a.Terms.Key() {
			return fault.New(fault.AmendmentRefused, "the amended request would need another approval than this one: %s", answer.Rule).
				Field("amended_input_json", "must be an input that needs no other approvers")
		}
	}
	return nil
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

func (s *approvalServer) ListTrusts(ctx context.Context, in *gatev1.ListTrustsRequest) (*gatev1.ListTrustsResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	items, next, err := s.trusts.List(ctx, aggregate.PageRequest[Trust]{
		Tenant: caller.Tenant, Lists: []string{trustList(ownOnly(caller))}, Size: int(in.GetPageSize()), Token: in.GetPageToken(),
	})
	if err != nil {
		return nil, err
	}
	out := &gatev1.ListTrustsResponse{NextPageToken: next}
	now := s.trusts.Now()
	for _, item := range items {
		if item.State.State == trustHeld && now.Before(item.State.Expires) {
			out.Trusts = append(out.Trusts, trustToProto(item.State))
		}
	}
	return out, nil
}

func (s *approvalServer) RevokeTrust(ctx context.Context, in *gatev1.RevokeTrustRequest) (*gatev1.RevokeTrustResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	id := in.GetTrustId()
	after, err := s.trusts.Do(ctx, trustKind().Key(caller.Tenant, id), func(t Trust, _ time.Time) (*gatev1.Event, error) {
		return decideRevoke(t, id, caller.Subject, in.GetNote())
	})
	if err != nil {
		return nil, err
	}
	return &gatev1.RevokeTrustResponse{Trust: trustToProto(after.State)}, nil
}

package gate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/internal/strictjson"
	"weir/services/gate/policy"
)

// gateServer answers enforcement points.
type gateServer struct {
	gatev1.UnimplementedGateServiceServer
	view      *bookView
	asker     *asker
	approvals *aggregate.Loop[Approval, *gatev1.Event]
	checks    *aggregate.Loop[Check, *gatev1.Event]
	trusts    *aggregate.Loop[Trust, *gatev1.Event]
	catalogue *aggregate.Loop[Catalogue, *gatev1.Event]
	hot       *hot.Store
}

const (
	reasonAskLimit = "ASK_LIMIT"
	reasonTrusted  = "TRUSTED"
)

func (s *gateServer) Check(ctx context.Context, in *gatev1.CheckRequest) (*gatev1.CheckResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	return s.check(ctx, caller, in)
}

func (s *gateServer) CheckBatch(ctx context.Context, in *gatev1.CheckBatchRequest) (*gatev1.CheckBatchResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	out := &gatev1.CheckBatchResponse{}
	for _, check := range in.GetChecks() {
		answer, err := s.check(ctx, caller, check)
		if err != nil {
			out.Results = append(out.Results, &gatev1.CheckResult{Result: &gatev1.CheckResult_Failure{Failure: failureOf(err)}})
			continue
		}
		out.Results = append(out.Results, &gatev1.CheckResult{Result: &gatev1.CheckResult_Answer{Answer: answer}})
	}
	return out, nil
}

// failureOf writes the error of one part of a batch.
func failureOf(err error) *gatev1.Failure {
	f := fault.From(err)
	out := &gatev1.Failure{Reason: string(f.Reason()), Message: f.Detail()}
	if after := f.RetryAfter(); after > 0 {
		out.RetryAfter = durationpb.New(after)
	}
	return out
}

// question is what a check asks of the policies, but for its input.
func question(caller identity.Caller, in *gatev1.CheckRequest, now time.Time) policy.Question {
	return policy.Question{
		Subject:      caller.Subject,
		Session:      caller.Session,
		Confined:     caller.Confined,
		OnBehalfOf:   caller.OnBehalfOf,
		Operation:    in.GetOperation(),
		Effect:       policy.EffectFrom(in.GetEffect()),
		Conversation: in.GetConversationId(),
		Target:       in.GetTargetConversationId(),
		Now:          now,
	}
}

func (s *gateServer) check(ctx context.Context, caller identity.Caller, in *gatev1.CheckRequest) (*gatev1.CheckResponse, error) {
	q := question(caller, in, s.checks.Now())
	if in.InputJson != nil {
		// What rules look at and what reaches a person must have one meaning,
		// whoever rendered it.
		canonical, err := strictjson.CanonicalField("input_json", in.GetInputJson())
		if err != nil {
			return nil, err
		}
		q.Input = policy.CanonicalInput(canonical)
	}
	book, err := s.view.of(caller.Tenant)
	if err != nil {
		return nil, err
	}
	answer := book.Decide(&q)
	switch {
	case answer.Verdict == gatev1.Verdict_VERDICT_DENY:
		return s.deny(ctx, caller, in, answer)
	case answer.Verdict == gatev1.Verdict_VERDICT_ASK:
		return s.ask(ctx, caller, in, answer, book)
	case q.Effect == policy.Read:
		return verdict(answer), nil
	default:
		return s.allow(ctx, caller, in, answer, book, "")
	}
}

func verdict(a policy.Answer) *gatev1.CheckResponse {
	return &gatev1.CheckResponse{Verdict: a.Verdict, Reason: a.Reason, Rule: a.Rule, PolicyRevision: a.Revision}
}

// deny records a denial and answers it.
func (s *gateServer) deny(ctx context.Context, caller identity.Caller, in *gatev1.CheckRequest, a policy.Answer) (*gatev1.CheckResponse, error) {
	err := s.record(ctx, caller, outcome{Request: checkedRequest(caller, in), Reason: a.Reason, Rule: a.Rule, Revision: a.Revision})
	if err != nil {
		return nil, err
	}
	a.Verdict = gatev1.Verdict_VERDICT_DENY
	return verdict(a), nil
}

// allow lets a write run without asking, if the budgets have room for it.
func (s *gateServer) allow(
	ctx context.Context, caller identity.Caller, in *gatev1.CheckRequest, a policy.Answer, book *policy.Book, trust string,
) (*gatev1.CheckResponse, error) {
	request := checkedRequest(caller, in)
	windows := windowsOf(caller.Subject, in.GetOperation(), a.Budget, book.Budgets())
	wait, err := s.hot.Spend(ctx, caller.Tenant, checkKindName, checkID(request), s.checks.Now(), windows)
	if err != nil {
		return nil, err
	}
	if wait > 0 {
		limited := outcome{Request: request, Reason: string(fault.RateLimited), Rule: a.Rule, Revision: a.Revision}
		if err := s.record(ctx, caller, limited); err != nil {
			return nil, err
		}
		return nil, fault.New(fault.RateLimited, "a budget of writes that run without asking is used up: %s by %s, %s of %s, or %s of the tenant",
			told(windows[0]), in.GetOperation(), told(windows[1]), caller.Subject, told(windows[2])).Retry(wait)
	}
	allowed := outcome{Request: request, Allowed: true, Reason: a.Reason, Rule: a.Rule, TrustID: trust, Revision: a.Revision}
	if err := s.record(ctx, caller, allowed); err != nil {
		return nil, err
	}
	a.Verdict = gatev1.Verdict_VERDICT_ALLOW
	out := verdict(a)
	out.TrustId = trust
	return out, nil
}

func told(w hot.Window) string { return fmt.Sprintf("%d in %s", w.Limit, w.Period) }

// record appends what a check said, once for each request.
func (s *gateServer) record(ctx context.Context, caller identity.Caller, o outcome) error {
	_, err := s.checks.Do(ctx, checkKind().Key(caller.Tenant, checkID(o.Request)), func(c Check, _ time.Time) (*gatev1.Event, error) {
		return decideOutcome(c, o)
	})
	return err
}

func checkedRequest(caller identity.Caller, in *gatev1.CheckRequest) *gatev1.CheckedRequest {
	return &gatev1.CheckedRequest{
		RequestId: in.GetRequestId(), Subject: caller.Subject, Session: caller.Session, OnBehalfOf: caller.OnBehalfOf,
		Confined: caller.Confined, Operation: in.GetOperation(), Effect: in.GetEffect(),
		SpecDigest: in.GetSpecDigest(), InputDigest: in.GetInputDigest(), ConversationId: in.GetConversationId(),
		TargetConversationId: in.GetTargetConversationId(),
	}
}

// ask finds a trust that covers the request, or else brings it before people.
func (s *gateServer) ask(
	ctx context.Context, caller identity.Caller, in *gatev1.CheckRequest, a policy.Answer, book *policy.Book,
) (*gatev1.CheckResponse, error) {
	terms := s.asker.settle(a.Terms, caller.Subject, caller.OnBehalfOf)
	trust, err := s.trust(ctx, caller, in, terms)
	if err != nil {
		return nil, err
	}
	if trust != "" {
		a.Reason, a.Rule = reasonTrusted, ""
		if policy.EffectFrom(in.GetEffect()) == policy.Read {
			a.Verdict = gatev1.Verdict_VERDICT_ALLOW
			out := verdict(a)
			out.TrustId = trust
			return out, nil // reads are neither counted nor recorded
		}
		return s.allow(ctx, caller, in, a, book, trust)
	}
	approval, err := s.asker.ask(ctx, caller, request{
		RequestID:    in.GetRequestId(),
		Requester:    caller.Subject,
		Session:      caller.Session,
		OnBehalfOf:   caller.OnBehalfOf,
		Confined:     caller.Confined,
		Operation:    in.GetOperation(),
		Effect:       policy.EffectFrom(in.GetEffect()),
		SpecDigest:   in.GetSpecDigest(),
		Input:        in.InputJson,
		InputDigest:  in.GetInputDigest(),
		Schema:       in.GetInputSchema(),
		Conversation: in.GetConversationId(),
		Target:       in.GetTargetConversationId(),
		Asked:        a.Asked,
		Terms:        terms,
		Revision:     a.Revision,
	})
	switch {
	case errors.Is(err, errAskLimit):
		a.Reason, a.Rule = reasonAskLimit, ""
		return s.deny(ctx, caller, in, a)
	case err != nil:
		return nil, err
	}
	out := verdict(a)
	out.ApprovalId, out.ExpireTime = approval.ID, deadline(approval.Expires)
	return out, nil
}

// trust gives the id of a trust that covers exactly this now, empty where none
// does. It is read as it is now, so that a revoked one never works again.
func (s *gateServer) trust(ctx context.Context, caller identity.Caller, in *gatev1.CheckRequest, terms policy.Terms) (string, error) {
	if caller.Session == "" || policy.EffectFrom(in.GetEffect()) == policy.Admin {
		return "", nil
	}
	c := coverage{
		Subject: caller.Subject, Session: caller.Session, Chain: chainOf(caller.OnBehalfOf), Operation: in.GetOperation(),
		SpecDigest: in.GetSpecDigest(), InputDigest: in.GetInputDigest(),
	}
	anyInput := c
	anyInput.InputDigest = ""
	for _, c := range []coverage{c, anyInput} {
		key := trustKind().Key(caller.Tenant, c.id())
		found, err := s.trusts.Read(ctx, key)
		if err == nil && found.State.holds(terms, s.trusts.Now()) {
			// Redis may not have heard of a revocation yet: the journal has.
			found, err = s.trusts.Newest(ctx, key)
		}
		if err != nil {
			return "", err
		}
		if found.State.Coverage == c && found.State.holds(terms, s.trusts.Now()) {
			return found.State.ID, nil
		}
	}
	return "", nil
}

func (s *gateServer) MatchGrants(ctx context.Context, in *gatev1.MatchGrantsRequest) (*gatev1.MatchGrantsResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	book, err := s.view.of(caller.Tenant)
	if err != nil {
		return nil, err
	}
	out := &gatev1.MatchGrantsResponse{}
	for _, operation := range in.GetOperations() {
		if book.Granted(caller.Subject, operation) {
			out.Granted = append(out.Granted, operation)
		}
	}
	return out, nil
}

func (s *gateServer) CheckStanding(ctx context.Context, in *gatev1.CheckStandingRequest) (*gatev1.CheckStandingResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	book, err := s.view.of(caller.Tenant)
	if err != nil {
		return nil, err
	}
	return &gatev1.CheckStandingResponse{
		Confined: book.Confines(&policy.Question{
			Subject: caller.Subject, Session: caller.Session, Confined: caller.Confined, OnBehalfOf: caller.OnBehalfOf,
		}),
		Granted:        in.GetOperation() == "" || book.Granted(caller.Subject, in.GetOperation()),
		PolicyRevision: book.Revision,
	}, nil
}

func (s *gateServer) Redeem(ctx context.Context, in *gatev1.RedeemRequest) (*gatev1.RedeemResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	book, err := s.view.of(caller.Tenant)
	if err != nil {
		return nil, err
	}
	id := in.GetApprovalId()
	key := approvalKind().Key(caller.Tenant, id)
	input := inspectInput(in.InputJson)
	var demanded policy.Terms
	use := func(a Approval, now time.Time) (*gatev1.Event, error) {
		if a.Asked == nil && a.Input != nil && input.shown != nil && *input.shown == *a.Input {
			a.Input = in.InputJson // without the mask
		}
		a.Confined = a.Confined || caller.Confined
		answer := s.asker.again(book, a, now)
		demanded = answer.Terms
		return decideRedemption(a, id, redemption{
			RequestID:   in.GetRequestId(),
			Requester:   caller.Subject,
			Session:     caller.Session,
			OnBehalfOf:  caller.OnBehalfOf,
			Operation:   in.GetOperation(),
			SpecDigest:  in.GetSpecDigest(),
			InputDigest: in.GetInputDigest(),
			Now:         answer,
		}, now)
	}
	after, err := s.approvals.Do(ctx, key, use)
	if errors.Is(err, errOtherTerms) {
		ended, err := s.asker.supersede(ctx, key, demanded, "")
		if err != nil {
			return nil, err
		}
		if ended.State == stateSuperseded {
			return nil, fault.New(fault.ApprovalSuperseded, "approval %s was given on terms that do not hold any more: ask again", id)
		}
		// It moved on between the two.
		if after, err = s.approvals.Do(ctx, key, use); errors.Is(err, errOtherTerms) {
			return nil, fault.New(fault.Contention, "approval %s changes while it is used", id).Retry(50 * time.Millisecond)
		} else if err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	out := &gatev1.RedeemResponse{RedeemTime: timestamppb.New(after.State.Redeemed)}
	if after.State.Asked != nil {
		out.AmendedInputJson, out.AmendedInputDigest = after.State.Input, after.State.InputDigest
	}
	return out, nil
}

func (s *gateServer) AnnounceOperations(ctx context.Context, in *gatev1.AnnounceOperationsRequest) (*gatev1.AnnounceOperationsResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	if caller.Tenant != identity.AnyTenant {
		return nil, fault.New(fault.ScopeMissing, "%s belongs to a tenant, and what operations exist is for all of them", caller.Subject)
	}
	key := journal.Key{Tenant: identity.AnyTenant, Kind: catalogueKindName, ID: catalogueID}
	after, err := s.catalogue.Do(ctx, key, func(c Catalogue, _ time.Time) (*gatev1.Event, error) {
		return decideAnnounce(c, caller.Subject, in)
	})
	if err != nil {
		return nil, err
	}
	s.view.await(ctx, after.Version)
	return &gatev1.AnnounceOperationsResponse{}, nil
}

// bind gives a command to its decision.
func bind[S, C any](cmd C, decide func(S, C, time.Time) (*gatev1.Event, error)) aggregate.Decide[S, *gatev1.Event] {
	return func(state S, now time.Time) (*gatev1.Event, error) { return decide(state, cmd, now) }
}

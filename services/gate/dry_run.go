package gate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/strictjson"
	"weir/services/gate/policy"
)

func (s *policyServer) ExplainCheck(ctx context.Context, in *gatev1.ExplainCheckRequest) (*gatev1.ExplainCheckResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	run, err := dryRun("check", in.GetCheck(), time.Now())
	if err != nil {
		return nil, err
	}
	book, err := s.view.of(caller.Tenant)
	if err != nil {
		return nil, err
	}
	if at := in.GetRevision(); at != 0 && at != book.Revision {
		if at > book.Revision {
			return nil, fault.New(fault.FieldInvalid, "revision %d is not there yet: the newest is %d", at, book.Revision).
				Field("revision", "must be at most the newest revision")
		}
		if book, err = s.bookAt(ctx, caller.Tenant, at); err != nil {
			return nil, err
		}
	}
	return book.Explain(run), nil
}

// dryRun prepares a check that changes nothing: its input is read as strictly as
// a real one's.
func dryRun(field string, in *gatev1.DryRun, now time.Time) (*gatev1.DryRun, error) {
	run := proto.CloneOf(in)
	if run.GetNow() == nil {
		run.Now = timestamppb.New(now)
	}
	if run.InputJson != nil {
		if _, err := strictjson.CanonicalField(field+".input_json", run.GetInputJson()); err != nil {
			return nil, err
		}
	}
	return run, nil
}

// bookAt compiles what was in force when an event was the newest one.
func (s *policyServer) bookAt(ctx context.Context, tenant string, revision uint64) (*policy.Book, error) {
	var policies []*gatev1.Policy
	var grants []*gatev1.Grant
	err := eachAt(ctx, s.policies, tenant, policyKindName, revision, func(_ string, p Policy) error {
		if !p.exists() {
			return nil
		}
		stored, err := p.message()
		policies = append(policies, stored)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = eachAt(ctx, s.grants, tenant, grantKindName, revision, func(id string, g Grant) error {
		if g.exists() {
			grants = append(grants, &gatev1.Grant{GrantId: id, Subject: g.Subject, Operations: g.Operations})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return policy.NewBook(revision, policies, grants)
}

// eachAt gives the state that each aggregate of a kind had at a revision.
func eachAt[S any](
	ctx context.Context, loop *aggregate.Loop[S, *gatev1.Event], tenant, kind string, revision uint64, each func(id string, state S) error,
) error {
	page := aggregate.PageRequest[S]{Tenant: tenant, Lists: []string{listEver}, Size: 1000}
	for {
		items, next, err := loop.List(ctx, page)
		if err != nil {
			return err
		}
		for _, item := range items {
			var then S
			key := aggregate.Kind[S, *gatev1.Event]{Name: kind}.Key(tenant, item.ID)
			err := loop.History(ctx, key, func(past aggregate.Snapshot[S], _ aggregate.Recorded[*gatev1.Event]) error {
				if past.Version <= revision {
					then = past.State
				}
				return nil
			})
			if err == nil {
				err = each(item.ID, then)
			}
			if err != nil {
				return err
			}
		}
		if page.Token = next; next == "" {
			return nil
		}
	}
}

func (s *policyServer) TestPolicy(ctx context.Context, in *gatev1.TestPolicyRequest) (*gatev1.TestPolicyResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	book, err := s.candidate(caller.Tenant, in)
	if err != nil {
		return nil, err
	}
	cases := make([]*gatev1.Case, len(in.GetCases()))
	now := time.Now()
	for i, c := range in.GetCases() {
		cases[i] = proto.CloneOf(c)
		if cases[i].Check, err = dryRun(fmt.Sprintf("cases[%d].check", i), c.GetCheck(), now); err != nil {
			return nil, err
		}
	}
	out := &gatev1.TestPolicyResponse{Results: policy.RunCases(book, cases)}
	for _, r := range out.GetResults() {
		if r.GetPassed() {
			out.Passed++
		} else {
			out.Failed++
		}
	}
	return out, nil
}

// candidate compiles the given policies and grants over the stored ones.
func (s *policyServer) candidate(tenant string, in *gatev1.TestPolicyRequest) (*policy.Book, error) {
	policies, grants := in.GetPolicies(), in.GetGrants()
	size := 0
	for i, p := range policies {
		if size += proto.Size(p); size > maxPolicyBytes {
			return nil, fault.New(fault.TooLarge, "the policies have more than %d bytes", maxPolicyBytes).Field("policies", "must be at most 512 KiB together")
		}
		if err := policy.Check(p, fmt.Sprintf("policies[%d]", i)); err != nil {
			return nil, err
		}
	}
	for i, g := range grants {
		if err := policy.CheckGrant(g, fmt.Sprintf("grants[%d]", i)); err != nil {
			return nil, err
		}
	}
	if !in.GetAlone() {
		if _, err := s.view.of(tenant); err != nil {
			return nil, err
		}
		stored := s.view.tenant(tenant)
		for id, p := range stored.policies {
			if !slices.ContainsFunc(in.GetPolicies(), func(q *gatev1.Policy) bool { return q.GetPolicyId() == id }) {
				policies = append(policies, p)
			}
		}
		for id, g := range stored.grants {
			if !slices.ContainsFunc(in.GetGrants(), func(h *gatev1.Grant) bool { return h.GetGrantId() == id }) {
				grants = append(grants, g)
			}
		}
	}
	return policy.NewBook(0, policies, grants)
}

package gate

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/services/gate/policy"
)

// policyServer is for administrators.
type policyServer struct {
	gatev1.UnimplementedPolicyServiceServer
	grants   *aggregate.Loop[Grant, *gatev1.Event]
	policies *aggregate.Loop[Policy, *gatev1.Event]
	view     *bookView
}

// What may be in force for one tenant.
const (
	maxPolicies = 1000
	maxGrants   = 10_000
)

func (s *policyServer) environment(tenant string) policy.Environment {
	env := policy.Environment{Known: s.view.operations(), NeverTrue: policy.NeverTrue}
	if book, err := s.view.of(tenant); err == nil {
		env.Delegated = book.Delegated()
	}
	return env
}

func authorOf(c identity.Caller) author {
	return author{subject: c.Subject, chain: c.OnBehalfOf, session: c.Session, confined: c.Confined}
}

func (s *policyServer) PutGrant(ctx context.Context, in *gatev1.PutGrantRequest) (*gatev1.PutGrantResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	grant := in.GetGrant()
	if stored := s.view.tenant(caller.Tenant).grants; len(stored) >= maxGrants && stored[grant.GetGrantId()] == nil {
		return nil, fault.New(fault.LimitReached, "a tenant has at most %d grants", maxGrants)
	}
	after, err := s.grants.Do(ctx, grantKind().Key(caller.Tenant, grant.GetGrantId()), func(g Grant, _ time.Time) (*gatev1.Event, error) {
		return decidePutGrant(g, authorOf(caller), grant, in.ExpectedRevision)
	})
	if err != nil {
		return nil, err
	}
	s.view.await(ctx, after.Version)
	return &gatev1.PutGrantResponse{
		Grant:               grantToProto(grant.GetGrantId(), after.State),
		UnmatchedOperations: policy.Unmatched(grant.GetOperations(), s.view.operations()),
	}, nil
}

func (s *policyServer) GetGrant(ctx context.Context, in *gatev1.GetGrantRequest) (*gatev1.GetGrantResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	found, err := s.grants.Read(ctx, grantKind().Key(caller.Tenant, in.GetGrantId()))
	if err != nil {
		return nil, err
	}
	if !found.State.exists() {
		return nil, grantNotFound(in.GetGrantId())
	}
	return &gatev1.GetGrantResponse{Grant: grantToProto(in.GetGrantId(), found.State)}, nil
}

func (s *policyServer) ListGrants(ctx context.Context, in *gatev1.ListGrantsRequest) (*gatev1.ListGrantsResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	items, next, err := s.grants.List(ctx, aggregate.PageRequest[Grant]{
		Tenant: caller.Tenant, Lists: []string{listStored}, Size: int(in.GetPageSize()), Token: in.GetPageToken(),
	})
	if err != nil {
		return nil, err
	}
	out := &gatev1.ListGrantsResponse{NextPageToken: next}
	for _, item := range items {
		if item.State.exists() {
			out.Grants = append(out.Grants, grantToProto(item.ID, item.State))
		}
	}
	return out, nil
}

func (s *policyServer) DeleteGrant(ctx context.Context, in *gatev1.DeleteGrantRequest) (*gatev1.DeleteGrantResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	after, err := s.grants.Do(ctx, grantKind().Key(caller.Tenant, in.GetGrantId()), func(g Grant, _ time.Time) (*gatev1.Event, error) {
		return decideDeleteGrant(g, authorOf(caller), in.GetGrantId(), in.ExpectedRevision)
	})
	if err != nil {
		return nil, err
	}
	s.view.await(ctx, after.Version)
	return &gatev1.DeleteGrantResponse{}, nil
}

func (s *policyServer) PutPolicy(ctx context.Context, in *gatev1.PutPolicyRequest) (*gatev1.PutPolicyResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	put := stripped(in.GetPolicy())
	findings, err := storable(put, s.environment(caller.Tenant))
	if err != nil {
		return nil, err
	}
	key := policyKind().Key(caller.Tenant, put.GetPolicyId())
	if stored := s.view.tenant(caller.Tenant).policies; len(stored) >= maxPolicies && stored[put.GetPolicyId()] == nil {
		return nil, fault.New(fault.LimitReached, "a tenant has at most %d policies", maxPolicies)
	}
	after, err := s.policies.Do(ctx, key, func(p Policy, _ time.Time) (*gatev1.Event, error) {
		return decidePutPolicy(p, authorOf(caller), put, in.ExpectedRevision)
	})
	if err != nil {
		return nil, err
	}
	s.view.await(ctx, after.Version)
	out, err := after.State.proto()
	if err != nil {
		return nil, err
	}
	return &gatev1.PutPolicyResponse{Policy: out, Findings: findings}, nil
}

func (s *policyServer) GetPolicy(ctx context.Context, in *gatev1.GetPolicyRequest) (*gatev1.GetPolicyResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	key := policyKind().Key(caller.Tenant, in.GetPolicyId())
	found, err := s.policies.Read(ctx, key)
	if err != nil {
		return nil, err
	}
	state := found.State
	if in.GetRevision() != 0 && in.GetRevision() != state.Revision {
		state = Policy{}
		err := s.policies.History(ctx, key, func(past aggregate.Snapshot[Policy], _ aggregate.Recorded[*gatev1.Event]) error {
			if past.Version == in.GetRevision() {
				state = past.State
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if !state.exists() {
		return nil, policyNotFound(in.GetPolicyId())
	}
	out, err := state.proto()
	if err != nil {
		return nil, err
	}
	return &gatev1.GetPolicyResponse{Policy: out}, nil
}

func (s *policyServer) ListPolicies(ctx context.Context, in *gatev1.ListPoliciesRequest) (*gatev1.ListPoliciesResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	size := int(in.GetPageSize())
	if size == 0 {
		size = 20
	}
	items, next, err := s.policies.List(ctx, aggregate.PageRequest[Policy]{
		Tenant: caller.Tenant, Lists: []string{listStored}, Size: size, Token: in.GetPageToken(),
	})
	if err != nil {
		return nil, err
	}
	out := &gatev1.ListPoliciesResponse{NextPageToken: next}
	for _, item := range items {
		if !item.State.exists() {
			continue
		}
		shown, err := item.State.proto()
		if err != nil {
			return nil, err
		}
		out.Policies = append(out.Policies, shown)
	}
	return out, nil
}

func (s *policyServer) ListPolicyRevisions(ctx context.Context, in *gatev1.ListPolicyRevisionsRequest) (*gatev1.ListPolicyRevisionsResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	// The token of a page is the last revision that it gave.
	before, ok := journal.OpenToken(in.GetPolicyId(), in.GetPageToken())
	if !ok && in.GetPageToken() != "" {
		return nil, fault.BadPageToken()
	}
	revisions, err := s.revisions(ctx, caller.Tenant, in.GetPolicyId())
	if err != nil {
		return nil, err
	}
	slices.Reverse(revisions)
	size := int(in.GetPageSize())
	if size == 0 {
		size = 100
	}
	out := &gatev1.ListPolicyRevisionsResponse{}
	for _, r := range revisions {
		if before != 0 && r.Revision >= before {
			continue
		}
		if len(out.Revisions) == size {
			out.NextPageToken = journal.SealToken(in.GetPolicyId(), out.GetRevisions()[size-1].GetRevision())
			break
		}
		stored, err := r.message()
		if err != nil {
			return nil, err
		}
		out.Revisions = append(out.Revisions, &gatev1.PolicyRevision{
			Revision: r.Revision, UpdateTime: timestamppb.New(r.Updated), Updater: r.Updater,
			Deleted: r.Deleted, Rules: int32(len(stored.GetRules())),
		})
	}
	return out, nil
}

// revisions gives all that was ever stored under an id, oldest first.
func (s *policyServer) revisions(ctx context.Context, tenant, id string) ([]Policy, error) {
	var all []Policy
	err := s.policies.History(ctx, policyKind().Key(tenant, id), func(past aggregate.Snapshot[Policy], _ aggregate.Recorded[*gatev1.Event]) error {
		all = append(all, past.State)
		return nil
	})
	if err == nil && len(all) == 0 {
		err = policyNotFound(id)
	}
	return all, err
}

func (s *policyServer) DeletePolicy(ctx context.Context, in *gatev1.DeletePolicyRequest) (*gatev1.DeletePolicyResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	after, err := s.policies.Do(ctx, policyKind().Key(caller.Tenant, in.GetPolicyId()), func(p Policy, _ time.Time) (*gatev1.Event, error) {
		return decideDeletePolicy(p, authorOf(caller), in.GetPolicyId(), in.ExpectedRevision)
	})
	if err != nil {
		return nil, err
	}
	s.view.await(ctx, after.Version)
	return &gatev1.DeletePolicyResponse{}, nil
}

// maxFindings bounds how much one verification tells.
const maxFindings = 1000

func (s *policyServer) VerifyPolicy(ctx context.Context, in *gatev1.VerifyPolicyRequest) (*gatev1.VerifyPolicyResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	env := s.environment(caller.Tenant)
	out := &gatev1.VerifyPolicyResponse{}
	add := func(p *gatev1.Policy, revision uint64) error {
		if err := policy.Check(p, "policy"); err != nil {
			return err
		}
		out.Verified++
		for _, f := range policy.Verify(p, env) {
			if f.Revision = revision; len(out.Findings) < maxFindings {
				out.Findings = append(out.Findings, f)
			}
		}
		return nil
	}
	if given := in.GetPolicy(); given != nil {
		if size := proto.Size(given); size > maxPolicyBytes {
			return nil, fault.New(fault.TooLarge, "the policy has %d bytes: at most %d", size, maxPolicyBytes).Field("policy", "must be at most 512 KiB")
		}
		return out, add(given, 0)
	}
	revisions, err := s.revisions(ctx, caller.Tenant, in.GetPolicyId())
	if err != nil {
		return nil, err
	}
	for _, r := range revisions {
		if r.Deleted || in.GetRevision() != 0 && r.Revision != in.GetRevision() {
			continue
		}
		stored, err := r.message()
		if err == nil {
			err = add(stored, r.Revision)
		}
		if err != nil {
			return nil, err
		}
	}
	if out.GetVerified() == 0 {
		return nil, policyNotFound(in.GetPolicyId())
	}
	slices.SortStableFunc(out.GetFindings(), func(a, b *gatev1.Finding) int { return int(a.GetSeverity()) - int(b.GetSeverity()) })
	return out, nil
}

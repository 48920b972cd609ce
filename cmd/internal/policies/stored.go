package policies

import (
	"context"
	"errors"

	"weir/cmd/internal/console"
	gatev1 "weir/gen/gate/v1"
	"weir/internal/visible"
	"weir/services/gate/policy"
)

// Stored are the tenant's policies and grants that are in force.
type Stored struct {
	Policies map[string]*gatev1.Policy
	Grants   map[string]*gatev1.Grant
}

// maxStored bounds what one command reads, should a gate never end its pages.
const maxStored = 100_000

var errTooMany = errors.New("the gate gave more than 100000 policies or grants")

// Fetch reads all of them.
func Fetch(ctx context.Context, client gatev1.PolicyServiceClient) (*Stored, error) {
	s := &Stored{Policies: make(map[string]*gatev1.Policy), Grants: make(map[string]*gatev1.Grant)}
	policies, err := storedPolicies(ctx, client)
	if err != nil {
		return nil, err
	}
	for _, p := range policies {
		s.Policies[p.GetPolicyId()] = p
	}
	grants := &gatev1.ListGrantsRequest{PageSize: 1000}
	for {
		page, err := client.ListGrants(ctx, grants)
		if err != nil {
			return nil, err
		}
		for _, g := range page.GetGrants() {
			s.Grants[g.GetGrantId()] = g
		}
		grants.PageToken = page.GetNextPageToken()
		switch {
		case grants.GetPageToken() == "":
			return s, nil
		case len(s.Grants) > maxStored:
			return nil, errTooMany
		}
	}
}

func storedPolicies(ctx context.Context, client gatev1.PolicyServiceClient) ([]*gatev1.Policy, error) {
	var all []*gatev1.Policy
	request := &gatev1.ListPoliciesRequest{PageSize: 100}
	for {
		page, err := client.ListPolicies(ctx, request)
		if err != nil {
			return nil, err
		}
		all = append(all, page.GetPolicies()...)
		request.PageToken = page.GetNextPageToken()
		switch {
		case request.GetPageToken() == "":
			return all, nil
		case len(all) > maxStored:
			return nil, errTooMany
		}
	}
}

// Export shows what is stored as a file that `weir policy apply` would find nothing to
// change by.
func Export(ctx context.Context, t *console.Terminal, client gatev1.PolicyServiceClient) error {
	s, err := Fetch(ctx, client)
	if err != nil {
		return err
	}
	f := policy.File{Policies: sorted(s.Policies), Grants: sorted(s.Grants)}
	t.Printf("%s", visible.Lines(string(f.YAML())))
	return nil
}

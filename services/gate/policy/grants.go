package policy

import (
	"fmt"
	"slices"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
)

// Grants are the compiled patterns of one subject's grants.
type Grants struct{ ids trie[[]string] }

func compileGrants(grants []*gatev1.Grant) (*Grants, error) {
	g := &Grants{}
	for _, grant := range grants {
		for _, text := range grant.GetOperations() {
			p, err := compilePattern(text)
			if err != nil {
				return nil, fault.New(fault.PolicyUnreadable, "grant %s: %v", grant.GetGrantId(), err)
			}
			at := g.ids.at(p)
			*at = append(*at, grant.GetGrantId())
		}
	}
	return g, nil
}

// Match says whether any grant matches. A nil Grants has none.
func (g *Grants) Match(operation string) bool {
	if g == nil || !isName(operation) {
		return false
	}
	var h hits[[]string]
	g.ids.find(operation, &h)
	return h.n > 0
}

// matching gives the ids of the grants that match, in order.
func (g *Grants) matching(operation string) []string {
	if g == nil || !isName(operation) {
		return nil
	}
	var h hits[[]string]
	g.ids.find(operation, &h)
	var ids []string
	for i := range h.n {
		ids = append(ids, *h.at(i)...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// CheckGrant says which patterns of a grant could match no operation, with fields
// below `at`.
func CheckGrant(g *gatev1.Grant, at string) error {
	refusal, bad := fault.New(fault.FieldInvalid, "grant %s cannot be stored", g.GetGrantId()), false
	for i, text := range g.GetOperations() {
		if _, err := compilePattern(text); err != nil {
			refusal, bad = refusal.Field(fmt.Sprintf("%s.operations[%d]", at, i), err.Error()), true
		}
	}
	if bad {
		return refusal
	}
	return nil
}

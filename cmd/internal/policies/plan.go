package policies

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"weir/cmd/internal/console"
	gatev1 "weir/gen/gate/v1"
	"weir/internal/visible"
	"weir/services/gate/policy"
)

// Plan is what has to change for the stored policies and grants to be those of files.
type Plan struct {
	changes   []change
	unchanged int
	// Left are stored ones that are in no file, and stay.
	Left int
}

// change is what becomes of one policy or one grant. What it was is nil for a new one,
// what it becomes is nil for one that goes.
type change struct {
	id               string
	before, after    *gatev1.Policy
	grantWas, grants *gatev1.Grant
}

func (c change) policy() bool { return c.before != nil || c.after != nil }

func (c change) creates() bool { return c.before == nil && c.grantWas == nil }

func (c change) deletes() bool { return c.after == nil && c.grants == nil }

// NewPlan compares. Two that read the same as YAML are the same: revisions, times and
// who stored them don't count.
func NewPlan(stored *Stored, files *Files, prune bool) (*Plan, error) {
	p := &Plan{}
	wanted := make(map[string]bool)
	for _, after := range files.Policies {
		id := after.GetPolicyId()
		wanted["policy "+id] = true
		before := stored.Policies[id]
		if before != nil && (before.GetLayer() != after.GetLayer() || before.GetTarget() != after.GetTarget()) {
			// For a moment it would hold for nobody, or for both.
			return nil, fmt.Errorf("%s: policy %s is stored for somebody else; give this one another id, and let --prune delete that one",
				files.Place(id, ""), id)
		}
		if before != nil && policyText(before) == policyText(after) {
			p.unchanged++
			continue
		}
		p.changes = append(p.changes, change{id: id, before: before, after: after})
	}
	for _, after := range files.Grants {
		id := after.GetGrantId()
		wanted["grant "+id] = true
		before := stored.Grants[id]
		if before != nil && grantText(before) == grantText(after) {
			p.unchanged++
			continue
		}
		p.changes = append(p.changes, change{id: id, grantWas: before, grants: after})
	}
	for _, before := range sorted(stored.Policies) {
		if id := before.GetPolicyId(); !wanted["policy "+id] {
			p.leave(change{id: id, before: before}, prune)
		}
	}
	for _, before := range sorted(stored.Grants) {
		if id := before.GetGrantId(); !wanted["grant "+id] {
			p.leave(change{id: id, grantWas: before}, prune)
		}
	}
	return p, nil
}

func (p *Plan) leave(c change, prune bool) {
	if prune {
		p.changes = append(p.changes, c)
	} else {
		p.Left++
	}
}

// Empty says that nothing has to change.
func (p *Plan) Empty() bool { return len(p.changes) == 0 }

// Summary counts what is to be done.
func (p *Plan) Summary() string {
	var create, change, del int
	for _, c := range p.changes {
		switch {
		case c.creates():
			create++
		case c.deletes():
			del++
		default:
			change++
		}
	}
	return fmt.Sprintf("%d to create, %d to change, %d to delete, %d unchanged", create, change, del, p.unchanged)
}

// Show shows each change as a diff of its YAML, and the summary.
func (p *Plan) Show(t *console.Terminal) {
	for _, c := range p.changes {
		kind, before, after := "grant", grantText(c.grantWas), grantText(c.grants)
		if c.policy() {
			kind, before, after = "policy", policyText(c.before), policyText(c.after)
		}
		does := t.Yellow("change")
		switch {
		case c.creates():
			does = t.Green("create")
		case c.deletes():
			does = t.Red("delete")
		}
		t.Printf("%s %s %s\n", does, kind, t.Bold(visible.Text(c.id)))
		t.Diff(before, after)
		t.Printf("\n")
	}
	t.Printf("%s\n", p.Summary())
	if p.Left > 0 {
		t.Printf("%s\n", t.Dim(count(p.Left, "stored one is in no file, and stays", "stored ones are in no file, and stay")+"; --prune deletes"))
	}
}

func policyText(p *gatev1.Policy) string {
	if p == nil {
		return ""
	}
	f := policy.File{Policies: []*gatev1.Policy{p}}
	return string(f.YAML())
}

func grantText(g *gatev1.Grant) string {
	if g == nil {
		return ""
	}
	f := policy.File{Grants: []*gatev1.Grant{g}}
	return string(f.YAML())
}

func sorted[V any](m map[string]V) []V {
	var all []V
	for _, id := range slices.SortedFunc(maps.Keys(m), cmp.Compare[string]) {
		all = append(all, m[id])
	}
	return all
}

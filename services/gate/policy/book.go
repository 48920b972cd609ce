package policy

import (
	"maps"
	"regexp"

	gatev1 "weir/gen/gate/v1"
)

var (
	agentSubject = regexp.MustCompile(`^agent:[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	sessionID    = regexp.MustCompile(`^[!-~]{1,128}$`)
)

// Book is all that one tenant's checks are decided by. It never changes: a change
// of a policy or a grant makes another Book, so that a check sees one state whole.
type Book struct {
	// Revision is the sequence of the newest event that the Book rests on.
	Revision uint64
	tenant   *layer
	agents   map[string]*layer
	sessions map[string]*layer
	grants   map[string]*Grants
}

// NewBook compiles policies and grants.
func NewBook(revision uint64, policies []*gatev1.Policy, grants []*gatev1.Grant) (*Book, error) {
	b := &Book{
		Revision: revision, agents: make(map[string]*layer), sessions: make(map[string]*layer), grants: make(map[string]*Grants),
	}
	type target struct {
		layer  gatev1.Layer
		target string
	}
	targets := map[target][]*gatev1.Policy{{gatev1.Layer_LAYER_TENANT, ""}: nil}
	for _, p := range policies {
		at := target{p.GetLayer(), p.GetTarget()}
		targets[at] = append(targets[at], p)
	}
	for at, list := range targets {
		if err := b.setLayer(at.layer, at.target, list); err != nil {
			return nil, err
		}
	}
	subjects := make(map[string][]*gatev1.Grant)
	for _, g := range grants {
		subjects[g.GetSubject()] = append(subjects[g.GetSubject()], g)
	}
	for subject, list := range subjects {
		if err := b.setGrants(subject, list); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (b *Book) setLayer(at gatev1.Layer, target string, policies []*gatev1.Policy) error {
	compiled, err := compileLayer(policies)
	if err != nil {
		return err
	}
	switch {
	case at == gatev1.Layer_LAYER_TENANT:
		b.tenant = compiled
	case at == gatev1.Layer_LAYER_AGENT:
		set(b.agents, target, compiled, len(policies) > 0)
	default:
		set(b.sessions, target, compiled, len(policies) > 0)
	}
	return nil
}

func (b *Book) setGrants(subject string, grants []*gatev1.Grant) error {
	compiled, err := compileGrants(grants)
	if err != nil {
		return err
	}
	set(b.grants, subject, compiled, len(grants) > 0)
	return nil
}

func set[V any](m map[string]V, key string, value V, there bool) {
	if there {
		m[key] = value
	} else {
		delete(m, key)
	}
}

// WithPolicies is the Book in which these are all policies of a target.
func (b *Book) WithPolicies(revision uint64, at gatev1.Layer, target string, policies []*gatev1.Policy) (*Book, error) {
	next := *b
	next.Revision, next.agents, next.sessions = revision, maps.Clone(b.agents), maps.Clone(b.sessions)
	if err := next.setLayer(at, target, policies); err != nil {
		return nil, err
	}
	return &next, nil
}

// WithGrants is the Book in which these are all grants of a subject.
func (b *Book) WithGrants(revision uint64, subject string, grants []*gatev1.Grant) (*Book, error) {
	next := *b
	next.Revision, next.grants = revision, maps.Clone(b.grants)
	if err := next.setGrants(subject, grants); err != nil {
		return nil, err
	}
	return &next, nil
}

// Granted says whether a subject holds a grant for an operation.
func (b *Book) Granted(subject, operation string) bool { return b.grants[subject].Match(operation) }

// Delegated are the operations that policies below the tenant may ALLOW.
func (b *Book) Delegated() map[string]bool { return b.tenant.delegated }

// Budgets of the tenant.
func (b *Book) Budgets() Budgets { return b.tenant.budgets }

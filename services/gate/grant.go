package gate

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/identity"
	"weir/services/gate/policy"
)

// Grant is an entry on the allow-list.
//
//	absent → GRANTED ⇄ DELETED
type Grant struct {
	Subject    string
	Operations []string
	Deleted    bool
	Updated    time.Time
	Revision   uint64
}

// exists says whether the grant counts.
func (g Grant) exists() bool { return g.Subject != "" && !g.Deleted }

// decidePutGrant stores a grant. Nobody grants themselves, or those for whom
// they act, anything.
func decidePutGrant(g Grant, actor author, grant *gatev1.Grant, expected *uint64) (*gatev1.Event, error) {
	if err := actor.mayChange(grant.GetSubject(), g.Subject); err != nil {
		return nil, err
	}
	if err := policy.CheckGrant(grant, "grant"); err != nil {
		return nil, err
	}
	if g.exists() && g.Subject == grant.GetSubject() && slices.Equal(g.Operations, grant.GetOperations()) {
		return nil, nil
	}
	if err := asExpected("grant", grant.GetGrantId(), expected, g.Revision, g.exists()); err != nil {
		return nil, err
	}
	return &gatev1.Event{Actor: actor.subject, Event: &gatev1.Event_GrantPut{GrantPut: &gatev1.GrantPut{
		GrantId: grant.GetGrantId(), Subject: grant.GetSubject(), Operations: grant.GetOperations(),
	}}}, nil
}

func decideDeleteGrant(g Grant, actor author, id string, expected *uint64) (*gatev1.Event, error) {
	switch {
	case g.Subject == "":
		return nil, grantNotFound(id)
	case g.Deleted:
		return nil, nil
	}
	if err := actor.mayChange(g.Subject); err != nil {
		return nil, err
	}
	if err := asExpected("grant", id, expected, g.Revision, true); err != nil {
		return nil, err
	}
	return &gatev1.Event{Actor: actor.subject, Event: &gatev1.Event_GrantDeleted{GrantDeleted: &gatev1.GrantDeleted{
		GrantId: id,
	}}}, nil
}

// author is who changes grants and policies, with those on whose behalf.
type author struct {
	subject  string
	chain    []string
	session  string
	confined bool
}

// mayChange refuses agents, and those who act for one, whoever was reached from an
// outside channel, and what is aimed at the author's own rights. No scope lifts
// that. Targets are subjects and sessions.
func (a author) mayChange(targets ...string) error {
	if a.confined {
		return fault.New(fault.Confined, "%s was reached from an outside channel, from where grants and policies are not changed", a.subject)
	}
	for _, who := range append([]string{a.subject}, a.chain...) {
		if identity.Agent.Is(who) {
			return fault.New(fault.AgentAdmin, "grants and policies are not changed by agents, and %s is one", who)
		}
	}
	for _, s := range targets {
		if s != "" && (s == a.subject || s == a.session || slices.Contains(a.chain, s)) {
			return fault.New(fault.SelfTarget, "%s may not change the grants and policies of %s: somebody else must", a.subject, s)
		}
	}
	return nil
}

// asExpected compares with the revision that the author looked at, 0 for none.
func asExpected(what, id string, expected *uint64, revision uint64, exists bool) error {
	if !exists {
		revision = 0
	}
	if expected == nil || *expected == revision {
		return nil
	}
	return fault.New(fault.StateConflict, "%s %s is at revision %d and not %d: it changed since it was looked at", what, id, revision, *expected).
		Field("expected_revision", "must be the newest revision, or unset")
}

func evolveGrant(g Grant, e aggregate.Recorded[*gatev1.Event]) Grant {
	switch event := e.Event.GetEvent().(type) {
	case *gatev1.Event_GrantPut:
		g = Grant{Subject: event.GrantPut.GetSubject(), Operations: event.GrantPut.GetOperations()}
	case *gatev1.Event_GrantDeleted:
		g.Deleted = true
	}
	g.Updated, g.Revision = e.Time, e.Sequence
	return g
}

const (
	grantKindName = "grant"
	// listStored holds what exists, and listEver also what was deleted.
	listStored = "stored"
	listEver   = "ever"
)

func grantKind() aggregate.Kind[Grant, *gatev1.Event] {
	return aggregate.Kind[Grant, *gatev1.Event]{
		Name:   grantKindName,
		Evolve: evolveGrant,
		Codec: aggregate.RootCodec[Grant, *gatev1.Event]{Bytes: func(g Grant) int {
			return len(g.Subject) + 64*(1+len(g.Operations))
		}},
		Lists: func(g Grant, version uint64) []hot.Entry { return storedLists(g.exists(), version) },
	}
}

func storedLists(exists bool, version uint64) []hot.Entry {
	lists := []hot.Entry{{Set: listEver, Score: version}}
	if exists {
		lists = append(lists, hot.Entry{Set: listStored, Score: version})
	}
	return lists
}

func grantNotFound(id string) error {
	return fault.New(fault.GrantNotFound, "there is no grant %s", id)
}

func grantToProto(id string, g Grant) *gatev1.Grant {
	return &gatev1.Grant{
		GrantId: id, Subject: g.Subject, Operations: g.Operations, UpdateTime: timestamppb.New(g.Updated), Revision: g.Revision,
	}
}

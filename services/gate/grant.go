package gate

import (
	"fmt"
	"slices"
	"time"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/hot"
)

// Grant is an entry on the allow-list.
//
//	absent → GRANTED ⇄ DELETED
type Grant struct {
	Subject    string
	Operations []string
	Deleted    bool
	Updated    time.Time
}

// exists says whether the grant counts.
func (g Grant) exists() bool { return g.Subject != "" && !g.Deleted }

func decidePutGrant(g Grant, actor, id, subject string, operations []string) (*gatev1.Event, error) {
	for i, text := range operations {
		if _, err := compilePattern(text); err != nil {
			return nil, fault.New(fault.FieldInvalid, "a pattern can match no operation: %v", err).
				Field(fmt.Sprintf("grant.operations[%d]", i), err.Error())
		}
	}
	if g.exists() && g.Subject == subject && slices.Equal(g.Operations, operations) {
		return nil, nil
	}
	return &gatev1.Event{Actor: actor, Event: &gatev1.Event_GrantPut{GrantPut: &gatev1.GrantPut{
		GrantId: id, Subject: subject, Operations: operations,
	}}}, nil
}

func decideDeleteGrant(g Grant, actor, id string) (*gatev1.Event, error) {
	switch {
	case g.Subject == "":
		return nil, grantNotFound(id)
	case g.Deleted:
		return nil, nil
	}
	return &gatev1.Event{Actor: actor, Event: &gatev1.Event_GrantDeleted{GrantDeleted: &gatev1.GrantDeleted{
		GrantId: id,
	}}}, nil
}

func evolveGrant(g Grant, e aggregate.Recorded[*gatev1.Event]) Grant {
	switch event := e.Event.GetEvent().(type) {
	case *gatev1.Event_GrantPut:
		g = Grant{Subject: event.GrantPut.GetSubject(), Operations: event.GrantPut.GetOperations()}
	case *gatev1.Event_GrantDeleted:
		g.Deleted = true
	}
	g.Updated = e.Time
	return g
}

const (
	grantKindName = "grant"
	listGrants    = "granted"
)

func grantKind() aggregate.Kind[Grant, *gatev1.Event] {
	return aggregate.Kind[Grant, *gatev1.Event]{
		Name:   grantKindName,
		Evolve: evolveGrant,
		Codec: aggregate.RootCodec[Grant, *gatev1.Event]{Bytes: func(g Grant) int {
			return len(g.Subject) + 64*(1+len(g.Operations))
		}},
		Lists: func(g Grant, version uint64) []hot.Entry {
			if !g.exists() {
				return nil
			}
			return []hot.Entry{{Set: listGrants, Score: version}}
		},
	}
}

func grantNotFound(id string) error {
	return fault.New(fault.GrantNotFound, "there is no grant %s", id)
}

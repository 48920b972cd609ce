package conversation

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/hot"
)

// A group is a named set of agents with a turn rule:
//
//	absent ── GroupPut ──→ KEPT ←─┐ ── GroupDeleted ──→ absent again, but its name
//	                        └─────┘ GroupPut            stays the owner's, and its
//	                                                    revision goes on
//
// Conversations that a group takes part in hold it as they last heard of it.

const (
	groupKindName = "group"
	groupPrefix   = "group:"
	// defaultTurnTimeout is how long a member has to answer where the group does
	// not say.
	defaultTurnTimeout = 10 * time.Minute
)

func isGroup(participant string) bool { return strings.HasPrefix(participant, groupPrefix) }

type group struct {
	ID        string
	Owner     string                  `json:",omitempty"`
	Members   []string                `json:",omitempty"`
	Rule      conversationv1.TurnRule `json:",omitempty"`
	Moderator string                  `json:",omitempty"`
	Timeout   time.Duration           `json:",omitempty"`
	// Revision counts changes. Of two, the higher is the newer.
	Revision int64
	// First is the sequence of the event that began it.
	First uint64 `json:",omitempty"`
	// Last is who had the last turn of a round in a conversation.
	Last string `json:",omitempty"`
}

// name is the group as a participant.
func (g group) name() string { return groupPrefix + g.ID }

func (g group) exists() bool { return len(g.Members) > 0 }

// visibleTo says whether a subject owns the group or is in it.
func (g group) visibleTo(subject string) bool {
	return g.exists() && (g.Owner == subject || slices.Contains(g.Members, subject))
}

type groupLoop = aggregate.Loop[group, *conversationv1.Event]

func groupKind() aggregate.Kind[group, *conversationv1.Event] {
	return aggregate.Kind[group, *conversationv1.Event]{
		Name:   groupKindName,
		Evolve: evolveGroup,
		Codec: aggregate.RootCodec[group, *conversationv1.Event]{
			Bytes: func(g group) int { return 256 + 64*len(g.Members) },
		},
		Lists: groupLists,
	}
}

// groupLists puts a group into the lists of its owner and members, newest first.
func groupLists(g group, version uint64) []hot.Entry {
	if !g.exists() {
		return []hot.Entry{{Set: tombstoneList, Score: version}}
	}
	entries := []hot.Entry{{Set: memberList(g.Owner), Score: g.First}}
	for _, m := range g.Members {
		entries = append(entries, hot.Entry{Set: memberList(m), Score: g.First})
	}
	return entries
}

// checkGroup refuses a group whose parts don't fit each other.
func checkGroup(g *conversationv1.Group) error {
	moderated := g.GetTurnRule() == conversationv1.TurnRule_TURN_RULE_MODERATED
	switch {
	case len(g.GetMembers()) == 0:
		return fault.New(fault.FieldInvalid, "a group has members").Field("group.members", "must name at least one agent")
	case moderated && !slices.Contains(g.GetMembers(), g.GetModerator()):
		return fault.New(fault.FieldInvalid, "a moderated group has a moderator").Field("group.moderator", "must be one of the members")
	case !moderated && g.GetModerator() != "":
		return fault.New(fault.FieldInvalid, "only a moderated group has a moderator").
			Field("group.moderator", "must not be set with this turn rule")
	}
	return nil
}

func decidePutGroup(g group, wanted group, caller string) (*conversationv1.Event, error) {
	// A name stays its owner's for good: conversations may still know it, and who took
	// it over would bring members into them.
	if g.Revision > 0 && g.Owner != caller {
		return nil, fault.New(fault.AlreadyExists, "somebody else has, or had, a group of that name").
			Field("group.group_id", "is taken")
	}
	wanted.Owner, wanted.Revision, wanted.First = caller, g.Revision, g.First
	if g.exists() && sameGroup(g, wanted) {
		return nil, nil
	}
	wanted.Revision++
	return &conversationv1.Event{Actor: caller, Event: &conversationv1.Event_GroupPut{GroupPut: &conversationv1.GroupPut{Group: wanted.toProto()}}}, nil
}

func decideDeleteGroup(g group, id, caller string, admin bool) (*conversationv1.Event, error) {
	switch {
	case !g.exists() && g.Revision > 0 && (g.Owner == caller || admin):
		return nil, nil
	case !g.visibleTo(caller) && !(admin && g.exists()):
		return nil, errGroupNotFound
	case g.Owner != caller && !admin:
		return nil, fault.New(fault.NotOwner, "only its owner deletes a group")
	}
	return &conversationv1.Event{Actor: caller, Event: &conversationv1.Event_GroupDeleted{GroupDeleted: &conversationv1.GroupDeleted{GroupId: id}}}, nil
}

var errGroupNotFound = fault.New(fault.GroupNotFound, "there is no such group")

func evolveGroup(g group, e aggregate.Recorded[*conversationv1.Event]) group {
	switch event := e.Event.GetEvent().(type) {
	case *conversationv1.Event_GroupPut:
		first := g.First
		if !g.exists() {
			first = e.Sequence
		}
		g = groupFromProto(event.GroupPut.GetGroup())
		g.First = first
	case *conversationv1.Event_GroupDeleted:
		g = group{ID: g.ID, Owner: g.Owner, Revision: g.Revision + 1}
	}
	return g
}

// sameGroup says whether two are alike in all that a conversation goes by.
func sameGroup(a, b group) bool {
	return a.Revision == b.Revision && slices.Equal(a.Members, b.Members) && a.Rule == b.Rule &&
		a.Moderator == b.Moderator && a.Timeout == b.Timeout
}

func groupFromProto(p *conversationv1.Group) group {
	g := group{
		ID: p.GetGroupId(), Owner: p.GetOwner(), Members: p.GetMembers(), Rule: p.GetTurnRule(),
		Moderator: p.GetModerator(), Timeout: p.GetTurnTimeout().AsDuration(), Revision: p.GetRevision(),
	}
	if g.Rule == conversationv1.TurnRule_TURN_RULE_UNSPECIFIED {
		g.Rule = conversationv1.TurnRule_TURN_RULE_ALL
	}
	if g.Timeout == 0 {
		g.Timeout = defaultTurnTimeout
	}
	return g
}

func (g group) toProto() *conversationv1.Group {
	return &conversationv1.Group{
		GroupId: g.ID, Owner: g.Owner, Members: g.Members, TurnRule: g.Rule, Moderator: g.Moderator,
		TurnTimeout: durationpb.New(g.Timeout), Revision: g.Revision,
	}
}

func groupsToProto(groups []group) []*conversationv1.Group {
	var all []*conversationv1.Group
	for _, g := range groups {
		all = append(all, g.toProto())
	}
	return all
}

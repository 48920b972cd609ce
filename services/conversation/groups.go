package conversation

import (
	"context"
	"slices"
	"strconv"
	"time"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

const (
	// groupsConsumer names the place in the service's own stream from which changes
	// of groups are brought into conversations.
	groupsConsumer = "conversation-groups"
	groupsFilter   = "weir.conversation.*." + groupKindName + ".*"
	// regroupPage is how many conversations of a group are looked up at once.
	regroupPage = 100
)

// groups brings groups into the conversations that they take part in.
type groups struct {
	loop          *groupLoop
	conversations *loop
}

func groupKey(tenant, id string) journal.Key {
	return journal.Key{Tenant: tenant, Kind: groupKindName, ID: id}
}

// visible gives a group to who may see it.
func (g *groups) visible(ctx context.Context, caller identity.Caller, id string) (group, error) {
	s, err := g.loop.Newest(ctx, groupKey(caller.Tenant, id))
	if err != nil {
		return group{}, err
	}
	it := s.State
	if !it.exists() || it.Owner != caller.Subject && !slices.Contains(it.Members, caller.Subject) && !caller.HasScope(scopeAdmin) {
		return group{}, errGroupNotFound
	}
	return it, nil
}

// among gives the groups among participants, as they are. Those that the caller
// doesn't see are refused, but for some that are there already.
func (g *groups) among(ctx context.Context, caller identity.Caller, participants, already []string) ([]group, error) {
	var found []group
	for i, p := range participants {
		if !isGroup(p) {
			continue
		}
		id := p[len(groupPrefix):]
		it, err := g.visible(ctx, caller, id)
		if fault.Is(err, fault.GroupNotFound) {
			if slices.Contains(already, p) {
				s, readErr := g.loop.Newest(ctx, groupKey(caller.Tenant, id))
				if readErr != nil {
					return nil, readErr
				}
				s.State.ID = id
				found = append(found, s.State)
				continue
			}
			return nil, errGroupNotFound.Field("participants["+strconv.Itoa(i)+"]", "names no group that the caller sees")
		}
		if err != nil {
			return nil, err
		}
		found = append(found, it)
	}
	return found, nil
}

// settle brings the newest form of its groups into a conversation that has just
// been told of them: one that changed in between might have missed it.
func (g *groups) settle(ctx context.Context, key journal.Key, c conversation) (conversation, error) {
	for _, it := range c.Groups {
		newest, err := g.loop.Newest(ctx, groupKey(key.Tenant, it.ID))
		if err != nil {
			return c, err
		}
		if newest.State.Revision <= it.Revision {
			continue
		}
		if c, err = g.regroup(ctx, key, newest.State); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (g *groups) regroup(ctx context.Context, key journal.Key, newer group) (conversation, error) {
	s, err := g.conversations.Do(ctx, key, func(c conversation, _ time.Time) (*conversationv1.Event, error) {
		return decideRegroup(c, key.ID, newer), nil
	})
	return s.State, err
}

// handle hears that a group changed and brings that into all of its conversations.
// They are gone through from the least active one on: one that is active meanwhile
// moves ahead, and is met there.
func (g *groups) handle(ctx context.Context, e journal.Event) error {
	newest, err := g.loop.Newest(ctx, e.Key)
	if err != nil {
		return err
	}
	newest.State.ID = e.Key.ID
	for after := uint64(0); ; {
		items, err := g.conversations.Oldest(ctx, e.Key.Tenant, memberList(groupPrefix+e.Key.ID), after, regroupPage)
		if err != nil {
			return err
		}
		for _, item := range items {
			key := journal.Key{Tenant: e.Key.Tenant, Kind: kindName, ID: item.ID}
			if _, err := g.regroup(ctx, key, newest.State); err != nil {
				return err
			}
		}
		if len(items) < regroupPage {
			return nil
		}
		after = items[len(items)-1].Score
	}
}

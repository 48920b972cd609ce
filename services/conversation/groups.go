package conversation

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
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
	regroupPage = 32
	// regroupAtOnce is how many are changed side by side.
	regroupAtOnce = 16
	// settleWithin is how long a conversation's groups are settled after its caller
	// may have left.
	settleWithin = 10 * time.Second
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
	if !s.State.visibleTo(caller.Subject) && !(caller.HasScope(scopeAdmin) && s.State.exists()) {
		return group{}, errGroupNotFound
	}
	return s.State, nil
}

// among gives the groups among participants, as they are. Those that the caller
// doesn't see are refused, but for some that take part already.
func (g *groups) among(ctx context.Context, caller identity.Caller, participants []string, already []group) ([]group, error) {
	var found []group
	for i, p := range participants {
		if !isGroup(p) {
			continue
		}
		if len(found) == maxGroups {
			return nil, fault.New(fault.LimitReached, "at most %d groups take part in a conversation", maxGroups).
				Field("participants["+strconv.Itoa(i)+"]", "is one group too many").With("limit", strconv.Itoa(maxGroups))
		}
		if at := slices.IndexFunc(already, func(a group) bool { return a.name() == p }); at >= 0 {
			found = append(found, already[at])
			continue
		}
		it, err := g.visible(ctx, caller, p[len(groupPrefix):])
		if fault.Is(err, fault.GroupNotFound) {
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
// been told of them: one that changed in between might have missed it. It goes on
// where the caller has left.
func (g *groups) settle(ctx context.Context, key journal.Key, c conversation) (conversation, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()
	for _, it := range c.Groups {
		newest, err := g.loop.Newest(ctx, groupKey(key.Tenant, it.ID))
		if err != nil {
			return c, err
		}
		if newest.State.Revision <= it.Revision {
			continue
		}
		newest.State.ID = it.ID
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
	var failed []error
	for after := uint64(0); ; {
		items, err := g.conversations.Oldest(ctx, e.Key.Tenant, memberList(newest.State.name()), after, regroupPage, aggregate.RootField)
		if err != nil {
			return errors.Join(append(failed, err)...)
		}
		failed = append(failed, g.regroupAll(ctx, e.Key.Tenant, items, newest.State))
		if len(items) < regroupPage {
			return errors.Join(failed...)
		}
		after = items[len(items)-1].Score
	}
}

// regroupAll brings a newer form of a group into some conversations. One that fails
// holds no other up.
func (g *groups) regroupAll(ctx context.Context, tenant string, items []aggregate.Item[conversation], newer group) error {
	var all errgroup.Group
	all.SetLimit(regroupAtOnce)
	for _, item := range items {
		if at := item.State.group(newer.ID); at >= 0 && item.State.Groups[at].Revision >= newer.Revision {
			continue // it was met before
		}
		all.Go(func() error {
			_, err := g.regroup(ctx, journal.Key{Tenant: tenant, Kind: kindName, ID: item.ID}, newer)
			return err
		})
	}
	return all.Wait()
}

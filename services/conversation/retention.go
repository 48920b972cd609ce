package conversation

import (
	"context"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/journal"
)

// How long a tenant's conversations are kept is one aggregate of its own. While it
// has rules it has a deadline, and so somebody looks again and again for
// conversations that were last active too long ago.

const (
	retentionKindName = "retention"
	retentionID       = "rules"
	// retentionEvery is how often somebody looks.
	retentionEvery = 10 * time.Second
	// retentionPage is how many conversations are looked at in one go.
	retentionPage = 100
)

type retention struct {
	Rules   []retentionRule
	Updated time.Time
}

// retentionRule is about the conversations with a label, or all if it is empty. An
// age of 0 is never.
type retentionRule struct {
	Label   string        `json:",omitempty"`
	Archive time.Duration `json:",omitempty"`
	Delete  time.Duration `json:",omitempty"`
}

type retentionLoop = aggregate.Loop[retention, *conversationv1.Event]

func retentionKind() aggregate.Kind[retention, *conversationv1.Event] {
	return aggregate.Kind[retention, *conversationv1.Event]{
		Name:   retentionKindName,
		Evolve: evolveRetention,
		Codec: aggregate.RootCodec[retention, *conversationv1.Event]{
			Bytes: func(r retention) int { return 128 + 96*len(r.Rules) },
		},
		Lists: func(_ retention, version uint64) []hot.Entry { return []hot.Entry{{Set: allList, Score: version}} },
		Due: func(r retention) time.Time {
			if len(r.Rules) == 0 {
				return time.Time{}
			}
			return r.Updated
		},
	}
}

// rulesFromProto reads rules, one for each label at the most.
func rulesFromProto(list []*conversationv1.RetentionRule) ([]retentionRule, error) {
	var rules []retentionRule
	for i, p := range list {
		field := "rules[" + strconv.Itoa(i) + "]"
		if slices.ContainsFunc(rules, func(r retentionRule) bool { return r.Label == p.GetLabel() }) {
			return nil, fault.New(fault.FieldInvalid, "two rules are about the same label").
				Field(field+".label", "has a rule already")
		}
		if p.ArchiveAfter == nil && p.DeleteAfter == nil {
			return nil, fault.New(fault.FieldInvalid, "a rule says when to archive or to delete").
				Field(field, "must have archive_after or delete_after")
		}
		rules = append(rules, retentionRule{p.GetLabel(), p.GetArchiveAfter().AsDuration(), p.GetDeleteAfter().AsDuration()})
	}
	return rules, nil
}

func rulesToProto(rules []retentionRule) []*conversationv1.RetentionRule {
	var list []*conversationv1.RetentionRule
	for _, r := range rules {
		p := &conversationv1.RetentionRule{Label: r.Label}
		if r.Archive != 0 {
			p.ArchiveAfter = durationpb.New(r.Archive)
		}
		if r.Delete != 0 {
			p.DeleteAfter = durationpb.New(r.Delete)
		}
		list = append(list, p)
	}
	return list
}

func decideRetention(r retention, rules []retentionRule, actor string) *conversationv1.Event {
	if slices.Equal(r.Rules, rules) {
		return nil
	}
	return &conversationv1.Event{Actor: actor, Event: &conversationv1.Event_RetentionPut{
		RetentionPut: &conversationv1.RetentionPut{Rules: rulesToProto(rules)},
	}}
}

func evolveRetention(r retention, e aggregate.Recorded[*conversationv1.Event]) retention {
	if put := e.Event.GetRetentionPut(); put != nil {
		// What was appended is read as it is: it was checked before.
		r.Rules, _ = rulesFromProto(put.GetRules())
		r.Updated = e.Time
	}
	return r
}

// keeper archives and deletes what retention says.
type keeper struct {
	rules  *retentionLoop
	eraser *eraser
	// every is retentionEvery, but in tests.
	every time.Duration
}

// due goes through the rules of one tenant.
func (k *keeper) due(ctx context.Context, key journal.Key) (time.Duration, error) {
	s, err := k.rules.Newest(ctx, key)
	if err != nil || len(s.State.Rules) == 0 {
		return 0, err
	}
	for _, rule := range s.State.Rules {
		if rule.Archive != 0 {
			if err := k.apply(ctx, key.Tenant, retentionList(false, rule.Label), rule.Archive, k.archive); err != nil {
				return 0, err
			}
		}
		for _, archived := range []bool{false, true} {
			if rule.Delete == 0 {
				break
			}
			if err := k.apply(ctx, key.Tenant, retentionList(archived, rule.Label), rule.Delete, k.delete); err != nil {
				return 0, err
			}
		}
	}
	return k.every, nil
}

// apply does something to each conversation of a list that was last active longer
// ago than an age. The list begins with those.
func (k *keeper) apply(ctx context.Context, tenant, list string, age time.Duration, do func(context.Context, journal.Key) error) error {
	limit := k.eraser.history.loop.Now().Add(-age)
	for after := uint64(0); ; {
		items, err := k.eraser.history.loop.Oldest(ctx, tenant, list, after, retentionPage, aggregate.RootField)
		if err != nil {
			return err
		}
		for _, item := range items {
			if !item.State.Updated.Before(limit) {
				return nil
			}
			// One that waits for a person is kept until that one has decided.
			if len(item.State.Pauses) > 0 || !item.State.exists() {
				continue
			}
			if err := do(ctx, journal.Key{Tenant: tenant, Kind: kindName, ID: item.ID}); err != nil {
				return err
			}
		}
		if len(items) < retentionPage {
			return nil
		}
		after = items[len(items)-1].Score
	}
}

func (k *keeper) archive(ctx context.Context, key journal.Key) error {
	_, err := k.eraser.history.loop.Do(ctx, key, func(c conversation, _ time.Time) (*conversationv1.Event, error) {
		return decideStep(c, step{ID: key.ID, Actor: self, Admin: true, To: archived})
	})
	return err
}

func (k *keeper) delete(ctx context.Context, key journal.Key) error {
	_, err := k.eraser.delete(ctx, key, self)
	return err
}

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

// ages gives after which time without activity the strictest rules for some labels
// archive and delete a conversation, 0 for never.
func (r retention) ages(labels []string) (archive, remove time.Duration) {
	for _, rule := range r.Rules {
		if rule.Label != "" && !slices.Contains(labels, rule.Label) {
			continue
		}
		archive, remove = stricter(archive, rule.Archive), stricter(remove, rule.Delete)
	}
	return archive, remove
}

func stricter(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// decideRetire archives or deletes a conversation whose time has come. It is decided
// on the newest state: one that was active just now stays. One that waits for a
// person is kept until that one has decided.
func decideRetire(c conversation, id string, rules retention, now time.Time) (*conversationv1.Event, error) {
	if !c.exists() || len(c.Pauses) > 0 {
		return nil, nil
	}
	archive, remove := rules.ages(c.Labels)
	age := now.Sub(c.Updated)
	switch {
	case remove != 0 && age >= remove:
		return decideDelete(c, deletion{id, self})
	case archive != 0 && age >= archive:
		return decideStep(c, step{ID: id, Actor: self, Admin: true, To: archived})
	}
	return nil, nil
}

// due goes through the rules of one tenant.
func (k *keeper) due(ctx context.Context, key journal.Key) (time.Duration, error) {
	s, err := k.rules.Newest(ctx, key)
	if err != nil || len(s.State.Rules) == 0 {
		return 0, err
	}
	for _, rule := range s.State.Rules {
		// What is archived already only waits for its deletion.
		if age := stricter(rule.Archive, rule.Delete); age != 0 {
			if err := k.apply(ctx, key.Tenant, retentionList(false, rule.Label), age, s.State); err != nil {
				return 0, err
			}
		}
		if rule.Delete != 0 {
			if err := k.apply(ctx, key.Tenant, retentionList(true, rule.Label), rule.Delete, s.State); err != nil {
				return 0, err
			}
		}
	}
	return k.every, nil
}

// apply looks at each conversation of a list that was last active longer ago than an
// age. The list begins with those.
func (k *keeper) apply(ctx context.Context, tenant, list string, age time.Duration, rules retention) error {
	loop := k.eraser.history.loop
	for after := uint64(0); ; {
		items, err := loop.Oldest(ctx, tenant, list, after, retentionPage, aggregate.RootField)
		if err != nil {
			return err
		}
		for _, item := range items {
			if !item.State.exists() || len(item.State.Pauses) > 0 {
				continue
			}
			if loop.Now().Sub(item.State.Updated) < age {
				return nil
			}
			if err := k.retire(ctx, journal.Key{Tenant: tenant, Kind: kindName, ID: item.ID}, rules); err != nil {
				return err
			}
		}
		if len(items) < retentionPage {
			return nil
		}
		after = items[len(items)-1].Score
	}
}

// retire begins what the rules say. A deletion is finished by its own deadline.
func (k *keeper) retire(ctx context.Context, key journal.Key, rules retention) error {
	_, err := k.eraser.history.loop.Do(ctx, key, func(c conversation, now time.Time) (*conversationv1.Event, error) {
		return decideRetire(c, key.ID, rules, now)
	})
	return err
}

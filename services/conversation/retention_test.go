package conversation

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/meshtest"
)

func TestTheStrictestRuleCounts(t *testing.T) {
	const day = 24 * time.Hour
	rules := retention{Rules: []retentionRule{
		{Archive: 10 * day, Delete: 100 * day}, {Label: "short", Delete: 5 * day}, {Label: "fast", Archive: day}, {Label: "long", Archive: 50 * day, Delete: 500 * day},
	}}
	const archives, deletes, stays = "archive", "delete", ""
	for name, c := range map[string]struct {
		labels []string
		age    time.Duration
		state  state
		paused bool
		want   string
	}{
		"young":                           {nil, 10*day - 1, open, false, stays},
		"old":                             {nil, 10 * day, open, false, archives},
		"closed and old":                  {nil, 10 * day, closed, false, archives},
		"archived and old":                {nil, 99 * day, archived, false, stays},
		"archived and very old":           {nil, 100 * day, archived, false, deletes},
		"never archived and very old":     {nil, 100 * day, open, false, deletes},
		"by its label":                    {[]string{"fast"}, day, open, false, archives},
		"deleted before it is archived":   {[]string{"short"}, 5 * day, open, false, deletes},
		"a lax label does not help":       {[]string{"long"}, 10 * day, open, false, archives},
		"of several labels the strictest": {[]string{"fast", "short"}, 5 * day, archived, false, deletes},
		"another label":                   {[]string{"shorter"}, 5 * day, open, false, stays},
		"waiting for a person":            {nil, 1000 * day, open, true, stays},
	} {
		t.Run(name, func(t *testing.T) {
			s := started(t)
			if c.paused {
				s.must(s.run(telling(bob, askNote(&conversationv1.ApprovalNote{ApprovalId: "a", State: pending}))))
			}
			s.state.Labels, s.state.State = c.labels, c.state
			event, err := decideRetire(s.state, "c", rules, s.state.Updated.Add(c.age))
			got := stays
			switch {
			case event.GetConversationArchived() != nil:
				got = archives
			case event.GetConversationDeleted() != nil:
				got = deletes
			}
			if err != nil || got != c.want || event != nil && event.GetActor() != self {
				t.Errorf("it decides %v, %v; want %q", event, err, c.want)
			}
		})
	}
}

// Whatever retention does to it, a conversation ages from what people did.
func TestThatRetentionArchivesIsNoActivity(t *testing.T) {
	s := started(t)
	active, updated := s.state.Active, s.state.Updated
	s.must(decideStep(s.state, step{ID: "c", Actor: self, Admin: true, To: archived}))
	if s.state.Active != active || !s.state.Updated.Equal(updated) || s.state.State != archived {
		t.Errorf("it was active at %v by %d, in state %v", s.state.Updated, s.state.Active, s.state.State)
	}
	s.must(decideStep(s.state, step{ID: "c", Actor: ann, To: open}))
	s.must(decideStep(s.state, step{ID: "c", Actor: ann, To: archived}))
	if s.state.Active != s.version {
		t.Error("that a person archives is no activity")
	}
}

func TestWhatRetentionIsRefused(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	age := durationpb.New
	for name, rules := range map[string][]*conversationv1.RetentionRule{
		"deletes at once":      {{DeleteAfter: age(0)}},
		"archives at once":     {{ArchiveAfter: age(0), DeleteAfter: age(time.Hour)}},
		"before":               {{DeleteAfter: age(-time.Hour)}},
		"less than a second":   {{DeleteAfter: age(time.Second - 1)}},
		"says nothing":         {{Label: "a"}},
		"a label twice":        {{Label: "a", DeleteAfter: age(time.Hour)}, {Label: "a", ArchiveAfter: age(time.Hour)}},
		"all of them twice":    {{DeleteAfter: age(time.Hour)}, {ArchiveAfter: age(time.Hour)}},
		"a label that is none": {{Label: "a b", DeleteAfter: age(time.Hour)}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.retention.PutRetention(m.admin(), &conversationv1.PutRetentionRequest{Rules: rules})
			wantReason(t, err, fault.FieldInvalid)
		})
	}
	_, err := r.retention.PutRetention(m.as(ann), &conversationv1.PutRetentionRequest{})
	if err == nil {
		t.Error("anybody can say how long conversations are kept")
	}
	got, err := r.retention.GetRetention(m.admin(), &conversationv1.GetRetentionRequest{})
	if err != nil || len(got.GetRules()) > 0 {
		t.Errorf("the rules are %v, %v", got, err)
	}
}

func TestRetentionArchivesAndDeletesOverTwoReplicas(t *testing.T) {
	m := newMesh(t)
	often := func(cfg *Config) { cfg.RetentionEvery = 50 * time.Millisecond }
	r := m.start(often)
	m.start(often)
	for id, label := range map[string]string{"archived": "fast", "deleted": "short", "kept": "other", "both": "both"} {
		_, err := r.conversations.CreateConversation(m.as(ann), &conversationv1.CreateConversationRequest{ConversationId: id, Labels: []string{label}})
		if err != nil {
			t.Fatal(err)
		}
		m.say(r, id, "m1", "hello")
	}
	put := func(rules ...*conversationv1.RetentionRule) {
		t.Helper()
		if _, err := r.retention.PutRetention(m.admin(), &conversationv1.PutRetentionRequest{Rules: rules}); err != nil {
			t.Fatal(err)
		}
	}
	before := m.get(r, "archived")
	second, hour := durationpb.New(time.Second), durationpb.New(time.Hour)
	put(
		&conversationv1.RetentionRule{ArchiveAfter: hour, DeleteAfter: hour},
		&conversationv1.RetentionRule{Label: "fast", ArchiveAfter: second},
		&conversationv1.RetentionRule{Label: "short", DeleteAfter: second},
		&conversationv1.RetentionRule{Label: "both", ArchiveAfter: second, DeleteAfter: durationpb.New(2 * time.Second)},
	)
	meshtest.Eventually(t, "one is archived", func() bool {
		return m.get(r, "archived").GetState() == conversationv1.ConversationState_CONVERSATION_STATE_ARCHIVED
	})
	after := m.get(r, "archived")
	if !after.GetUpdateTime().AsTime().Equal(before.GetUpdateTime().AsTime()) || after.GetHead() != 1 {
		t.Errorf("it is %v, it was %v", after, before)
	}
	for _, id := range []string{"deleted", "both"} {
		meshtest.Eventually(t, id+" is deleted and gone", func() bool { return m.finished(id) == 1 })
	}
	if n := len(m.events("archived", func(e *conversationv1.Event) bool {
		return e.GetConversationArchived() != nil && e.GetActor() == self
	})); n != 1 {
		t.Errorf("it was archived %d times", n)
	}
	if kept := m.get(r, "kept"); kept.GetState() != conversationv1.ConversationState_CONVERSATION_STATE_ACTIVE {
		t.Errorf("what no short rule is about is %v", kept)
	}
	// New rules replace the old ones: what none is about any more stays.
	put(&conversationv1.RetentionRule{Label: "other", ArchiveAfter: second})
	meshtest.Eventually(t, "the other one is archived", func() bool {
		return m.get(r, "kept").GetState() == conversationv1.ConversationState_CONVERSATION_STATE_ARCHIVED
	})
	put()
	got, err := r.retention.GetRetention(m.admin(), &conversationv1.GetRetentionRequest{})
	if err != nil || len(got.GetRules()) > 0 {
		t.Errorf("the rules are %v, %v", got, err)
	}
	m.get(r, "archived")
}

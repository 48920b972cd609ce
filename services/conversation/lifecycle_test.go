package conversation

import (
	"slices"
	"testing"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
)

func TestCreatingTwiceGivesOneConversation(t *testing.T) {
	s := newScript(t)
	s.must(decideCreate(s.state, creating("plans", ann, bob, "agent:amy")))
	title := "renamed"
	s.must(decideUpdate(s.state, update{ID: "c", Actor: ann, Title: &title}))

	for name, same := range map[string]creation{
		"again":               creating("plans", ann, bob, "agent:amy"),
		"in another order":    creating("plans", ann, "agent:amy", bob),
		"with the owner too":  creating("plans", ann, "agent:amy", ann, bob),
		"with somebody twice": creating("plans", ann, "agent:amy", bob, bob),
	} {
		if event, err := decideCreate(s.state, same); event != nil || err != nil {
			t.Errorf("%s: decided %v, %v; want that it is done", name, event, err)
		}
	}
	labelled := creating("plans", ann, bob, "agent:amy")
	labelled.Labels = []string{"x"}
	forked := creating("plans", ann, bob, "agent:amy")
	forked.Ancestors = []ancestor{{"p", 1}}
	for name, other := range map[string]creation{
		"another title":      creating("renamed", ann, bob, "agent:amy"),
		"another owner":      creating("plans", eve, bob, "agent:amy"),
		"fewer participants": creating("plans", ann, bob),
		"a label":            labelled,
		"a fork":             forked,
	} {
		_, err := decideCreate(s.state, other)
		if !fault.Is(err, fault.IdempotencyMismatch) {
			t.Errorf("%s: %v, want IDEMPOTENCY_MISMATCH", name, err)
		}
	}
	s.must(decideDelete(s.state, deletion{ID: "c", Actor: ann}))
	_, err := decideCreate(s.state, creating("plans", ann, bob, "agent:amy"))
	wantReason(t, err, fault.IdempotencyMismatch)
}

func TestWhoMayUpdateWhat(t *testing.T) {
	title, labels := "new", []string{"b", "a", "b"}
	people := func(list ...string) *[]string { return &list }
	for name, c := range map[string]struct {
		update
		want fault.Reason
		none bool
	}{
		"a member's title":         {update{Actor: bob, Title: &title}, "", false},
		"a stranger's title":       {update{Actor: eve, Title: &title}, fault.ConversationNotFound, false},
		"an administrator's title": {update{Actor: eve, Admin: true, Title: &title}, "", false},
		"labels":                   {update{Actor: bob, Labels: &labels}, "", false},
		"nothing new":              {update{Actor: bob, Participants: people(bob, ann)}, "", true},
		"the owner adds":           {update{Actor: ann, Participants: people(bob, eve)}, "", false},
		"a participant adds":       {update{Actor: bob, Participants: people(bob, eve)}, fault.NotOwner, false},
		"a participant leaves":     {update{Actor: bob, Participants: people()}, "", false},
		"an administrator adds":    {update{Actor: eve, Admin: true, Participants: people(bob, eve)}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := started(t)
			event, err := decideUpdate(s.state, c.update)
			wantReason(t, err, c.want)
			if err != nil || c.none {
				if event != nil {
					t.Fatalf("decided %v", event)
				}
				return
			}
			s.must(event, err)
			if c.Labels != nil && !slices.Equal(s.state.Labels, []string{"a", "b"}) {
				t.Fatalf("labels are %v", s.state.Labels)
			}
			if again, err := decideUpdate(s.state, c.update); again != nil || err != nil && c.Actor != bob {
				t.Fatalf("again: decided %v, %v", again, err)
			}
		})
	}
}

func TestTheStatesAConversationGoesThrough(t *testing.T) {
	for _, c := range []struct {
		from, to state
		want     fault.Reason
		done     bool
	}{
		{open, open, "", true},
		{open, closed, "", false},
		{open, archived, "", false},
		{closed, open, "", false},
		{closed, closed, "", true},
		{closed, archived, "", false},
		{archived, open, "", false},
		{archived, closed, fault.StateConflict, false},
		{archived, archived, "", true},
		{deleted, open, fault.ConversationNotFound, false},
		{deleted, closed, fault.ConversationNotFound, false},
		{deleted, archived, fault.ConversationNotFound, false},
	} {
		s := started(t)
		s.state.State = c.from
		event, err := decideStep(s.state, step{ID: "c", Actor: bob, To: c.to})
		if fault.ReasonOf(err) != c.want || (event == nil) != (c.done || c.want != "") {
			t.Errorf("from %v to %v: decided %v, %v", c.from, c.to, event, err)
		}
		if event != nil {
			if s.follow(event); s.state.State != c.to {
				t.Errorf("from %v to %v it came to %v", c.from, c.to, s.state.State)
			}
		}
		if _, err := decideStep(s.state, step{ID: "c", Actor: eve, To: c.to}); !fault.Is(err, fault.ConversationNotFound) {
			t.Errorf("a stranger: %v", err)
		}
	}
}

// Closing ends the calls of all kinds, each by a message of its own.
func TestClosingLeavesNoCallWithoutAResult(t *testing.T) {
	s := started(t)
	s.must(s.run(telling(bob, callNote(bob, &conversationv1.Call{InvocationId: "same", Operation: "a/b"}))))
	s.must(s.run(saying(t, ann, "m1", func(m *conversationv1.NewMessage) { m.Parts = []*conversationv1.Part{toolCall("same"), toolCall("t2")} })))
	event := s.must(decideStep(s.state, step{ID: "c", Actor: ann, To: archived})).GetConversationArchived()
	if len(event.GetResults()) != 3 || len(s.state.Calls) != 0 || s.state.Head != 5 {
		t.Fatalf("closing said %v, the head is %d, open are %v", event.GetResults(), s.state.Head, s.state.Calls)
	}
}

func TestForksNameTheirWholeLineage(t *testing.T) {
	c := conversation{root: root{Ancestors: []ancestor{{"a", 3}, {"b", 5}}, Head: 9}}
	for position, want := range map[int64][]ancestor{
		9: {{"a", 3}, {"b", 5}, {"c", 9}},
		6: {{"a", 3}, {"b", 5}, {"c", 6}},
		5: {{"a", 3}, {"b", 5}},
		4: {{"a", 3}, {"b", 4}},
		3: {{"a", 3}},
		1: {{"a", 1}},
		0: {{"c", 0}},
	} {
		if got, err := c.forkedAt("c", position); err != nil || !slices.Equal(got, want) {
			t.Errorf("at %d: %v, %v; want %v", position, got, err, want)
		}
	}
	_, err := c.forkedAt("c", 10)
	wantReason(t, err, fault.CursorUnavailable)
	deep := conversation{root: root{Head: 100}}
	for i := range maxAncestors {
		deep.Ancestors = append(deep.Ancestors, ancestor{"a", int64(i + 1)})
	}
	_, err = deep.forkedAt("c", 100)
	wantReason(t, err, fault.LimitReached)
}

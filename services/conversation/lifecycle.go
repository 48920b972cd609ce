package conversation

import (
	"crypto/sha256"
	"slices"
	"time"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
)

// creation is the command that starts a conversation, or a fork of one.
type creation struct {
	ID           string
	Title        string
	Owner        string
	Participants []string
	Groups       []group
	Labels       []string
	// Ancestors and Marks are set for a fork: where its past is, and what of it holds
	// at the position.
	Ancestors []ancestor
	Marks     root
	// Imported and State are set for one that was said elsewhere.
	Imported time.Time
	State    state
}

// set is a list in the form in which it is compared and kept.
func set(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }

// normal brings the participants into the form in which they are compared and
// kept: they are a set, and the owner takes part anyway.
func (cmd creation) normal() creation {
	cmd.Participants = slices.DeleteFunc(set(cmd.Participants), func(p string) bool { return p == cmd.Owner })
	cmd.Labels = set(cmd.Labels)
	return cmd
}

func decideCreate(c conversation, cmd creation) (*conversationv1.Event, error) {
	event := &conversationv1.Event{Actor: cmd.Owner, Event: &conversationv1.Event_ConversationCreated{ConversationCreated: cmd.created()}}
	switch {
	case c.Owner == "":
		return event, nil
	case c.exists() && c.Creation == creationSum(event.GetConversationCreated()):
		return nil, nil
	}
	// One answer whether or not the caller may see what holds the id, and
	// nothing about it.
	return nil, fault.New(fault.IdempotencyMismatch, "the conversation id is taken by other content")
}

func (cmd creation) created() *conversationv1.ConversationCreated {
	created := &conversationv1.ConversationCreated{
		ConversationId: cmd.ID, Title: cmd.Title, Owner: cmd.Owner,
		Participants: cmd.Participants, Labels: cmd.Labels, Groups: groupsToProto(cmd.Groups),
	}
	for _, a := range cmd.Ancestors {
		created.Ancestors = append(created.Ancestors, &conversationv1.Parent{ConversationId: a.ID, Position: a.Last})
	}
	if len(cmd.Ancestors) > 0 {
		created.Marks = cmd.Marks.marks()
	}
	if !cmd.Imported.IsZero() {
		created.Imported = &conversationv1.Imported{CreateTime: timeToProto(cmd.Imported), State: statesToProto[cmd.State]}
	}
	return created
}

// creationSum tells one creation from another under the same id, whatever was
// changed since. What its groups were like then is not a part of it.
func creationSum(created *conversationv1.ConversationCreated) fingerprint {
	s := summer{sha256.New()}
	s.text(created.GetTitle())
	s.text(created.GetOwner())
	for _, list := range [][]string{created.GetParticipants(), created.GetLabels()} {
		s.number(len(list))
		for _, item := range list {
			s.text(item)
		}
	}
	for _, a := range created.GetAncestors() {
		s.text(a.GetConversationId())
		s.number(int(a.GetPosition()))
	}
	return fingerprint(s.Sum(nil))
}

// update is the command that changes what is not nil.
type update struct {
	ID           string
	Actor        string
	Admin        bool
	Title        *string
	Labels       *[]string
	Participants *[]string
	Groups       []group
}

func decideUpdate(c conversation, cmd update) (*conversationv1.Event, error) {
	if err := c.memberOr(cmd.Admin, cmd.Actor); err != nil {
		return nil, err
	}
	event := &conversationv1.ConversationUpdated{ConversationId: cmd.ID}
	changes := false
	if cmd.Title != nil && *cmd.Title != c.Title {
		event.Title, changes = cmd.Title, true
	}
	if cmd.Labels != nil {
		if labels := set(*cmd.Labels); !slices.Equal(labels, c.Labels) {
			event.Labels, changes = &conversationv1.LabelSet{Labels: labels}, true
		}
	}
	if cmd.Participants != nil {
		wanted := creation{Owner: c.Owner, Participants: *cmd.Participants}.normal().Participants
		joins := func(g group) bool { return c.group(g.ID) < 0 }
		if !slices.Equal(wanted, c.Participants) || slices.ContainsFunc(cmd.Groups, joins) {
			leaves := !slices.ContainsFunc(cmd.Groups, joins) && slices.Equal(wanted, without(c.Participants, func(p string) bool { return p == cmd.Actor }))
			if cmd.Actor != c.Owner && !cmd.Admin && !leaves {
				return nil, fault.New(fault.NotOwner, "only the owner changes who takes part").
					Field("participants", "may differ by the caller alone, who may leave")
			}
			// A group that takes part already stays as it is: what changed in it comes by
			// itself, with the records of turns that end.
			groups := slices.Clone(cmd.Groups)
			for i, g := range groups {
				if !joins(g) {
					groups[i] = c.Groups[c.group(g.ID)]
				}
			}
			event.Participants, changes = &conversationv1.ParticipantSet{Participants: wanted, Groups: groupsToProto(groups)}, true
		}
	}
	if !changes {
		return nil, nil
	}
	return &conversationv1.Event{Actor: cmd.Actor, Event: &conversationv1.Event_ConversationUpdated{ConversationUpdated: event}}, nil
}

func (r root) updated(u *conversationv1.ConversationUpdated) root {
	if u.Title != nil {
		r.Title = u.GetTitle()
	}
	if u.Labels != nil {
		r.Labels = u.GetLabels().GetLabels()
	}
	if u.Participants == nil {
		return r
	}
	r.Participants = u.GetParticipants().GetParticipants()
	before := r.Groups
	r.Groups = nil
	for _, g := range u.GetParticipants().GetGroups() {
		kept := groupFromProto(g)
		if i := slices.IndexFunc(before, func(o group) bool { return o.ID == kept.ID }); i >= 0 {
			kept.Last = before[i].Last
		}
		r.Groups = append(r.Groups, kept)
	}
	r.Turns = without(r.Turns, func(t turn) bool { return r.group(t.Group) < 0 })
	return r
}

// step is the command that closes, archives or reopens.
type step struct {
	ID    string
	Actor string
	Admin bool
	To    state
}

func decideStep(c conversation, cmd step) (*conversationv1.Event, error) {
	if err := c.memberOr(cmd.Admin, cmd.Actor); err != nil {
		return nil, err
	}
	if c.State == cmd.To {
		return nil, nil
	}
	event := &conversationv1.Event{Actor: cmd.Actor}
	switch cmd.To {
	case closed:
		if c.State == archived {
			return nil, fault.New(fault.StateConflict, "the conversation is archived, and so is closed")
		}
		event.Event = &conversationv1.Event_ConversationClosed{ConversationClosed: &conversationv1.ConversationClosed{
			ConversationId: cmd.ID, FirstPosition: c.Head + 1, Results: c.closing(),
		}}
	case archived:
		event.Event = &conversationv1.Event_ConversationArchived{ConversationArchived: &conversationv1.ConversationArchived{
			ConversationId: cmd.ID, FirstPosition: c.Head + 1, Results: c.closing(),
		}}
	default:
		event.Event = &conversationv1.Event_ConversationReopened{ConversationReopened: &conversationv1.ConversationReopened{ConversationId: cmd.ID}}
	}
	return event, nil
}

// closing are the results that end the open calls, so that no history is left in
// which a call has none.
func (r root) closing() []*conversationv1.AppendedMessage {
	var results []*conversationv1.AppendedMessage
	for _, c := range r.Calls {
		results = append(results, note(closingID(c), self, c.MessageID, &conversationv1.Part{
			Part: &conversationv1.Part_Result{Result: &conversationv1.Result{
				InvocationId: c.Invocation, CallId: c.Call, State: conversationClosed,
				Reason: conversationClosed, Message: "the conversation closed before the call ended",
			}},
		}).appended(nil))
	}
	return results
}

// memberOr lets members and administrators through.
func (c conversation) memberOr(admin bool, subject string) error {
	if !c.exists() || !admin && !c.isMember(subject) {
		return errConversationNotFound
	}
	return nil
}

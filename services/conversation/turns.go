package conversation

import (
	"slices"
	"strconv"
	"time"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
)

// What is said to a group is one message. Its turn rule says whose turn it is to
// answer:
//
//	message to the group ──→ turn of some members ──→ each of them answers,
//	                               ↑                  declines, is late or removed
//	                               └── round robin: the next member, until each
//	                                   had the turn or one answered
//
// A member that doesn't answer is recorded by a message of weir's own, which
// addresses the next one.

// turn is members of a group that are to answer a message.
type turn struct {
	// Group is the name of it, without the prefix.
	Group     string
	MessageID string
	Position  int64
	Author    string
	// Waiting are those who have not answered; Had are all whose turn it was.
	Waiting []string
	Had     []string
	Expires time.Time
}

// group gives the index of a group that takes part, -1 if it doesn't.
func (r root) group(id string) int {
	return slices.IndexFunc(r.Groups, func(g group) bool { return g.ID == id })
}

// address gives the subjects that a message goes to: participants by themselves,
// members of groups by themselves too, and groups by their turn rule.
func (r root) address(m message, position int64) ([]string, error) {
	var addressed []string
	add := func(subjects ...string) {
		for _, s := range subjects {
			if !slices.Contains(addressed, s) {
				addressed = append(addressed, s)
			}
		}
	}
	state := conversation{root: r}
	turns := len(r.Turns)
	for i, to := range m.To {
		field := m.field + "to[" + strconv.Itoa(i) + "]"
		if !isGroup(to) {
			if !state.isMember(to) {
				return nil, fault.New(fault.FieldInvalid, "the message addresses somebody who takes no part in the conversation").
					Field(field, "is not a participant of this conversation")
			}
			add(to)
			continue
		}
		at := r.group(to[len(groupPrefix):])
		if at < 0 {
			return nil, fault.New(fault.FieldInvalid, "the message addresses a group that takes no part in the conversation").
				Field(field, "is not a participant of this conversation")
		}
		if turns++; turns > maxTurns {
			return nil, fault.New(fault.LimitReached, "at most %d messages to groups wait for an answer", maxTurns).
				With("limit", strconv.Itoa(maxTurns))
		}
		add(r.Groups[at].turnOf(m.Author, nil)...)
	}
	return addressed, nil
}

// turnOf gives the members whose turn begins with a message of an author, or that
// comes after those who had it.
func (g group) turnOf(author string, had []string) []string {
	others := without(g.Members, func(m string) bool { return m == author })
	switch g.Rule {
	case conversationv1.TurnRule_TURN_RULE_ROUND_ROBIN:
		start := slices.Index(g.Members, g.Last) + 1
		for i := range g.Members {
			next := g.Members[(start+i)%len(g.Members)]
			if next != author && !slices.Contains(had, next) {
				return []string{next}
			}
		}
		return nil
	case conversationv1.TurnRule_TURN_RULE_MODERATED:
		if author != g.Moderator {
			return []string{g.Moderator}
		}
	}
	return others
}

// turnsAfter is the root after a message, as far as turns go: it may answer one,
// record that one ended, or begin one.
func (r root) turnsAfter(position int64, m *conversationv1.AppendedMessage, at time.Time) root {
	for _, p := range m.GetParts() {
		if n := p.GetTurn(); n != nil {
			r = r.turnEnded(n, m, at)
		}
	}
	if answers(m) {
		r = r.answered(m)
	}
	for _, to := range m.GetTo() {
		if isGroup(to) {
			r = r.turnBegun(to[len(groupPrefix):], position, m, at)
		}
	}
	return r
}

// answers says whether a message is somebody's words: a call alone is none.
func answers(m *conversationv1.AppendedMessage) bool {
	return slices.ContainsFunc(m.GetParts(), func(p *conversationv1.Part) bool {
		return p.GetText() != "" || p.GetData() != nil || p.GetBlob() != nil
	})
}

// answered takes the author from those who are to answer the message that this one
// replies to, or else the oldest that waits for the author.
func (r root) answered(m *conversationv1.AppendedMessage) root {
	at := slices.IndexFunc(r.Turns, func(t turn) bool {
		return slices.Contains(t.Waiting, m.GetAuthor()) && (m.GetReplyTo() == "" || m.GetReplyTo() == t.MessageID)
	})
	if at < 0 {
		return r
	}
	return r.withTurn(at, r.Turns[at].less(m.GetAuthor()))
}

// less is the turn without a member.
func (t turn) less(member string) turn {
	t.Waiting = without(t.Waiting, func(w string) bool { return w == member })
	return t
}

// withTurn puts a turn in the place of another, and takes it out where nobody is
// to answer any more.
func (r root) withTurn(at int, t turn) root {
	r.Turns = slices.Clone(r.Turns)
	if len(t.Waiting) == 0 {
		r.Turns = slices.Delete(r.Turns, at, at+1)
		return r
	}
	r.Turns[at] = t
	return r
}

// turnEnded takes a member out of a turn that ended without its answer. The next
// one's begins if the record addresses one.
func (r root) turnEnded(n *conversationv1.TurnNote, m *conversationv1.AppendedMessage, at time.Time) root {
	id := n.GetGroup()[len(groupPrefix):]
	i := slices.IndexFunc(r.Turns, func(t turn) bool { return t.Group == id && t.MessageID == n.GetMessageId() })
	if i < 0 {
		return r
	}
	t := r.Turns[i].less(n.GetMember())
	if g := r.group(id); g >= 0 && len(m.GetAddressed()) > 0 {
		t.Waiting = slices.Concat(t.Waiting, m.GetAddressed())
		t.Had = slices.Concat(t.Had, m.GetAddressed())
		t.Expires = at.Add(r.Groups[g].Timeout)
		r = r.withLast(g, m.GetAddressed()[0])
	}
	return r.withTurn(i, t)
}

func (r root) withLast(g int, member string) root {
	r.Groups = slices.Clone(r.Groups)
	r.Groups[g].Last = member
	return r
}

func (r root) turnBegun(id string, position int64, m *conversationv1.AppendedMessage, at time.Time) root {
	g := r.group(id)
	if g < 0 {
		return r
	}
	waiting := r.Groups[g].turnOf(m.GetAuthor(), nil)
	if len(waiting) == 0 {
		return r
	}
	r.Turns = append(slices.Clone(r.Turns), turn{
		Group: id, MessageID: m.GetMessageId(), Position: position, Author: m.GetAuthor(),
		Waiting: waiting, Had: waiting, Expires: at.Add(r.Groups[g].Timeout),
	})
	if r.Groups[g].Rule == conversationv1.TurnRule_TURN_RULE_ROUND_ROBIN {
		r = r.withLast(g, waiting[0])
	}
	return r
}

// turnNote records that a member's turn ended without its answer, and addresses
// the next one of a round.
func (r root) turnNote(t turn, member string, outcome conversationv1.TurnOutcome, why string) *conversationv1.AppendedMessage {
	var next []string
	if at := r.group(t.Group); at >= 0 && r.Groups[at].Rule == conversationv1.TurnRule_TURN_RULE_ROUND_ROBIN {
		next = r.Groups[at].turnOf("", append(slices.Clone(t.Had), t.Author))
	}
	return note(turnID(t.MessageID, member), self, t.MessageID, &conversationv1.Part{
		Part: &conversationv1.Part_Turn{Turn: &conversationv1.TurnNote{
			Group: groupPrefix + t.Group, Member: member, Outcome: outcome, MessageId: t.MessageID, Note: why,
		}},
	}).appended(next)
}

// decline is the command of a member that will not answer.
type decline struct {
	ID        string
	MessageID string
	Member    string
	Note      string
}

func decideDecline(c conversation, cmd decline) (*conversationv1.Event, error) {
	if !c.exists() || !c.isMember(cmd.Member) {
		return nil, errConversationNotFound
	}
	if _, done := c.ids.find(hashID(turnID(cmd.MessageID, cmd.Member))); done {
		return nil, nil
	}
	at := slices.IndexFunc(c.Turns, func(t turn) bool {
		return t.MessageID == cmd.MessageID && slices.Contains(t.Waiting, cmd.Member)
	})
	if at < 0 {
		if _, known := c.ids.find(hashID(cmd.MessageID)); !known {
			return nil, errMessageNotFound.Field("message_id", "names no message of this conversation")
		}
		return nil, fault.New(fault.NotYourTurn, "the message does not wait for the caller's answer").
			Field("message_id", "names a message that does not wait for the caller")
	}
	record := c.turnNote(c.Turns[at], cmd.Member, conversationv1.TurnOutcome_TURN_OUTCOME_DECLINED, cmd.Note)
	return c.records(cmd.ID, cmd.Member, record), nil
}

// decideLate records the members whose time to answer is over.
func decideLate(c conversation, id string, now time.Time) *conversationv1.Event {
	if !c.exists() {
		return nil
	}
	var records []*conversationv1.AppendedMessage
	for _, t := range c.Turns {
		if now.Before(t.Expires) {
			continue
		}
		for _, member := range t.Waiting {
			records = append(records, c.turnNote(t, member, conversationv1.TurnOutcome_TURN_OUTCOME_TIMED_OUT, ""))
		}
	}
	if len(records) == 0 {
		return nil
	}
	return c.records(id, self, records...)
}

func (c conversation) records(id, actor string, records ...*conversationv1.AppendedMessage) *conversationv1.Event {
	return &conversationv1.Event{Actor: actor, Event: &conversationv1.Event_MessagesAppended{
		MessagesAppended: &conversationv1.MessagesAppended{ConversationId: id, FirstPosition: c.Head + 1, Messages: records},
	}}
}

// decideRegroup brings a newer form of a group into a conversation that it takes
// part in. Members that left lose their turns.
func decideRegroup(c conversation, id string, newer group) *conversationv1.Event {
	at := -1
	if c.exists() {
		at = c.group(newer.ID)
	}
	if at < 0 || c.Groups[at].Revision >= newer.Revision {
		return nil
	}
	after := conversation{root: c.regrouped(newer)}
	var records []*conversationv1.AppendedMessage
	for _, t := range c.Turns {
		if t.Group != newer.ID {
			continue
		}
		for _, member := range t.Waiting {
			if !slices.Contains(newer.Members, member) {
				records = append(records, after.turnNote(t, member, conversationv1.TurnOutcome_TURN_OUTCOME_REMOVED, ""))
			}
		}
	}
	return &conversationv1.Event{Actor: self, Event: &conversationv1.Event_GroupMembersChanged{
		GroupMembersChanged: &conversationv1.GroupMembersChanged{
			ConversationId: id, Group: newer.toProto(), FirstPosition: c.Head + 1, Messages: records,
		},
	}}
}

// regrouped is the root with a newer form of a group. Whose turn was last stays, or
// falls to the member before it if that one left.
func (r root) regrouped(newer group) root {
	at := r.group(newer.ID)
	if at < 0 {
		return r
	}
	old := r.Groups[at]
	r.Groups = slices.Clone(r.Groups)
	r.Groups[at] = newer
	for i := slices.Index(old.Members, old.Last); i >= 0; i-- {
		if slices.Contains(newer.Members, old.Members[i]) {
			r.Groups[at].Last = old.Members[i]
			break
		}
	}
	return r
}

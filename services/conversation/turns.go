package conversation

import (
	"slices"
	"strconv"
	"strings"
	"time"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
)

// What is said to a group is one message. Its turn rule says whose turn it is to
// answer:
//
//	message to the group ──→ turn of some members ──→ each of them answers,
//	                               ↑                  declines, is late or removed
//	                               └── handed on to the next member, until each
//	                                   had the turn or one answered
//
// A member that doesn't answer is recorded by a message of its own, which addresses
// the next one. While a conversation is paused nobody could answer, and no turn
// ends; when it goes on, everybody has the whole time again.

// turn is members of a group that are to answer a message.
type turn struct {
	// Group is the name of it, without the prefix.
	Group     string
	MessageID string
	Position  int64
	Author    string
	// Waiting are those who have not answered.
	Waiting []string
	// Had are all who had the turn, where a message is handed from one to the next;
	// none where all are asked at once.
	Had     []string `json:",omitempty"`
	Expires time.Time
}

// asks says whether it is by this message that the turn's members were asked: by
// what was said to the group, or by a record that handed it on.
func (t turn) asks(message string) bool {
	return message == t.MessageID || byWeir(message) && slices.ContainsFunc(t.Had, func(m string) bool {
		return message == turnID(t.MessageID, t.Group, m)
	})
}

// byWeir says whether a message is one that weir wrote, which its id tells.
func byWeir(id string) bool { return strings.HasPrefix(id, reservedPrefix) }

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
		members, _ := r.Groups[at].turnOf(m.Author)
		add(members...)
	}
	return addressed, nil
}

// turnOf gives the members whose turn begins with a message of an author, and
// whether it is handed on from one to the next.
func (g group) turnOf(author string) (members []string, handed bool) {
	switch g.Rule {
	case conversationv1.TurnRule_TURN_RULE_ROUND_ROBIN:
		return g.next(author, nil), true
	case conversationv1.TurnRule_TURN_RULE_MODERATED:
		if author != g.Moderator {
			return g.next(author, nil), true
		}
	}
	return without(g.Members, func(m string) bool { return m == author }), false
}

// next gives the member to whom a message of an author is handed after those who had
// it, or nobody.
func (g group) next(author string, had []string) []string {
	may := func(m string) bool { return m != author && !slices.Contains(had, m) }
	switch g.Rule {
	case conversationv1.TurnRule_TURN_RULE_ROUND_ROBIN:
		start := slices.Index(g.Members, g.Last) + 1
		for i := range g.Members {
			if m := g.Members[(start+i)%len(g.Members)]; may(m) {
				return []string{m}
			}
		}
	case conversationv1.TurnRule_TURN_RULE_MODERATED:
		if may(g.Moderator) {
			return []string{g.Moderator}
		}
	}
	return nil
}

// turnsAfter is the root after a message, as far as turns go: it may answer one,
// record that one ended, or begin one. What is imported was answered elsewhere.
func (r root) turnsAfter(position int64, m *conversationv1.AppendedMessage, at time.Time) root {
	if isImported(m) {
		return r
	}
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
// replies to, or else the oldest that waits for the author. Where several groups
// were asked by that message, it answers for all of them.
func (r root) answered(m *conversationv1.AppendedMessage) root {
	at := slices.IndexFunc(r.Turns, func(t turn) bool {
		return slices.Contains(t.Waiting, m.GetAuthor()) && (m.GetReplyTo() == "" || t.asks(m.GetReplyTo()))
	})
	if at < 0 {
		return r
	}
	answered := r.Turns[at].MessageID
	return r.withTurns(func(t turn) turn {
		if t.MessageID == answered {
			t = t.less(m.GetAuthor())
		}
		return t
	})
}

// less is the turn without a member.
func (t turn) less(member string) turn {
	t.Waiting = without(t.Waiting, func(w string) bool { return w == member })
	return t
}

// withTurns changes turns, and takes out those in which nobody is to answer any more.
func (r root) withTurns(change func(turn) turn) root {
	turns := slices.Clone(r.Turns)
	for i, t := range turns {
		turns[i] = change(t)
	}
	r.Turns = slices.DeleteFunc(turns, func(t turn) bool { return len(t.Waiting) == 0 })
	return r
}

// turnEnded takes a member out of a turn that ended without its answer. The next
// one's begins if the record addresses one.
func (r root) turnEnded(n *conversationv1.TurnNote, m *conversationv1.AppendedMessage, at time.Time) root {
	id, next := strings.TrimPrefix(n.GetGroup(), groupPrefix), m.GetAddressed()
	g := r.group(id)
	r = r.withTurns(func(t turn) turn {
		if t.Group != id || t.MessageID != n.GetMessageId() {
			return t
		}
		t = t.less(n.GetMember())
		if g >= 0 && len(next) > 0 {
			t.Waiting, t.Had = slices.Concat(t.Waiting, next), slices.Concat(t.Had, next)
			t.Expires = at.Add(r.Groups[g].Timeout)
		}
		return t
	})
	if g >= 0 && len(next) > 0 {
		r = r.withLast(g, next[0])
	}
	return r
}

// turnsResumed gives everybody the whole time again: while the conversation was
// paused, nobody could answer.
func (r root) turnsResumed(at time.Time) root {
	return r.withTurns(func(t turn) turn {
		if g := r.group(t.Group); g >= 0 {
			t.Expires = at.Add(r.Groups[g].Timeout)
		}
		return t
	})
}

// withLast notes who had the last turn of a round.
func (r root) withLast(g int, member string) root {
	if r.Groups[g].Rule != conversationv1.TurnRule_TURN_RULE_ROUND_ROBIN {
		return r
	}
	r.Groups = slices.Clone(r.Groups)
	r.Groups[g].Last = member
	return r
}

func (r root) turnBegun(id string, position int64, m *conversationv1.AppendedMessage, at time.Time) root {
	g := r.group(id)
	if g < 0 {
		return r
	}
	waiting, handed := r.Groups[g].turnOf(m.GetAuthor())
	if len(waiting) == 0 {
		return r
	}
	t := turn{
		Group: id, MessageID: m.GetMessageId(), Position: position, Author: m.GetAuthor(),
		Waiting: waiting, Expires: at.Add(r.Groups[g].Timeout),
	}
	if handed {
		t.Had = waiting
		r = r.withLast(g, waiting[0])
	}
	r.Turns = append(slices.Clone(r.Turns), t)
	return r
}

// ending is a member's turn at a message to a group that ends without an answer.
type ending struct {
	turn
	Member  string
	Outcome conversationv1.TurnOutcome
	// Note says why, in the words of Author, who records it.
	Note   string
	Author string
}

// record says that a turn ended, and addresses the one to whom the message is handed
// next.
func (r root) record(e ending) *conversationv1.AppendedMessage {
	var next []string
	if g := r.group(e.Group); g >= 0 && len(e.Had) > 0 {
		next = r.Groups[g].next(e.turn.Author, e.Had)
	}
	return note(turnID(e.MessageID, e.Group, e.Member), e.Author, e.MessageID, &conversationv1.Part{
		Part: &conversationv1.Part_Turn{Turn: &conversationv1.TurnNote{
			Group: groupPrefix + e.Group, Member: e.Member, Outcome: e.Outcome, MessageId: e.MessageID, Note: e.Note,
		}},
	}).appended(next)
}

// records gives the records of turns that end together, each as if those before it
// were in: two of them never hand on to the same member of a round by accident.
func (r root) records(ends []ending) []*conversationv1.AppendedMessage {
	var records []*conversationv1.AppendedMessage
	for _, e := range ends {
		record := r.record(e)
		records = append(records, record)
		r = r.turnEnded(record.GetParts()[0].GetTurn(), record, time.Time{})
	}
	return records
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
	var ends []ending
	for _, t := range c.Turns {
		if t.MessageID == cmd.MessageID && slices.Contains(t.Waiting, cmd.Member) {
			ends = append(ends, ending{t, cmd.Member, conversationv1.TurnOutcome_TURN_OUTCOME_DECLINED, cmd.Note, cmd.Member})
		}
	}
	if len(ends) == 0 && c.turnRecord(cmd.MessageID, cmd.Member) != "" {
		return nil, nil
	}
	if err := c.takesWords(); err != nil {
		return nil, err
	}
	if len(ends) == 0 {
		if _, known := c.ids.find(hashID(cmd.MessageID)); !known {
			return nil, errMessageNotFound.Field("message_id", "names no message of this conversation")
		}
		return nil, fault.New(fault.NotYourTurn, "the message does not wait for the caller's answer").
			Field("message_id", "names a message that does not wait for the caller")
	}
	return c.recorded(cmd.ID, cmd.Member, ends), nil
}

// turnRecord is the id of the record that a member's turn at a message ended, empty
// where there is none.
func (c conversation) turnRecord(message, member string) string {
	for _, g := range c.Groups {
		id := turnID(message, g.ID, member)
		if _, known := c.ids.find(hashID(id)); known {
			return id
		}
	}
	return ""
}

// decideLate records the members whose time to answer is over.
func decideLate(c conversation, id string, now time.Time) *conversationv1.Event {
	if !c.exists() || len(c.Pauses) > 0 {
		return nil
	}
	var ends []ending
	for _, t := range c.Turns {
		if now.Before(t.Expires) {
			continue
		}
		for _, member := range t.Waiting {
			ends = append(ends, ending{t, member, conversationv1.TurnOutcome_TURN_OUTCOME_TIMED_OUT, "", self})
		}
	}
	if len(ends) == 0 {
		return nil
	}
	return c.recorded(id, self, ends)
}

func (c conversation) recorded(id, actor string, ends []ending) *conversationv1.Event {
	return &conversationv1.Event{Actor: actor, Event: &conversationv1.Event_MessagesAppended{
		MessagesAppended: &conversationv1.MessagesAppended{ConversationId: id, FirstPosition: c.Head + 1, Messages: c.root.records(ends)},
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
	var ends []ending
	for _, t := range c.Turns {
		if t.Group != newer.ID {
			continue
		}
		for _, member := range t.Waiting {
			if !slices.Contains(newer.Members, member) {
				ends = append(ends, ending{t, member, conversationv1.TurnOutcome_TURN_OUTCOME_REMOVED, "", self})
			}
		}
	}
	return &conversationv1.Event{Actor: self, Event: &conversationv1.Event_GroupMembersChanged{
		GroupMembersChanged: &conversationv1.GroupMembersChanged{
			ConversationId: id, Group: newer.toProto(), FirstPosition: c.Head + 1, Messages: c.regrouped(newer).records(ends),
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

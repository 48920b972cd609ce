package conversation

import (
	"cmp"
	"slices"

	"github.com/benbjohnson/immutable"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/services/conversation/search"
)

// Erasing takes events out of the journal. A redaction takes the events that hold
// the messages, and brings with it what must stay: the messages' places, the other
// messages of the same events, and what they marked. A deletion takes all events
// before it. Either is an intention first, in the journal; what it names is then
// erased from every store, and ErasureFinished says that nothing is left.

// maxKeptBytes bounds the messages that one redaction of several events brings
// along.
const maxKeptBytes = 1 << 20

// holder is an event as it is in the journal, with the messages that it holds.
type holder struct {
	Sequence, Previous uint64
	// Erased is what it erased itself.
	Erased   []*conversationv1.ErasedEvent
	Messages []*conversationv1.Replaced
	// Lasting says that it does more than to hold messages, and so must stay.
	Lasting bool
}

// heldBy reads what an event holds. Times of messages are set, as they were.
func heldBy(e aggregate.Recorded[*conversationv1.Event], previous uint64) holder {
	h := holder{Sequence: e.Sequence, Previous: previous}
	numbered := func(first int64, messages []*conversationv1.AppendedMessage) {
		for i, m := range messages {
			h.Messages = append(h.Messages, &conversationv1.Replaced{Position: first + int64(i), Message: m})
		}
	}
	switch event := e.Event.GetEvent().(type) {
	case *conversationv1.Event_MessagesAppended:
		numbered(event.MessagesAppended.GetFirstPosition(), event.MessagesAppended.GetMessages())
	case *conversationv1.Event_MessagesRedacted:
		h.Messages, h.Erased = event.MessagesRedacted.GetMessages(), event.MessagesRedacted.GetErased()
	case *conversationv1.Event_ConversationClosed:
		h.Lasting = true
		numbered(event.ConversationClosed.GetFirstPosition(), event.ConversationClosed.GetResults())
	case *conversationv1.Event_ConversationArchived:
		h.Lasting = true
		numbered(event.ConversationArchived.GetFirstPosition(), event.ConversationArchived.GetResults())
	case *conversationv1.Event_GroupMembersChanged:
		h.Lasting = true
		numbered(event.GroupMembersChanged.GetFirstPosition(), event.GroupMembersChanged.GetMessages())
	}
	for _, r := range h.Messages {
		if r.Message.CreateTime == nil {
			r.Message.CreateTime = timeToProto(e.Time)
		}
	}
	return h
}

// at gives a message of the event by its position.
func (h holder) at(position int64) (*conversationv1.AppendedMessage, bool) {
	for _, r := range h.Messages {
		if r.GetPosition() == position {
			return r.GetMessage(), true
		}
	}
	return nil, false
}

// redaction is the command that erases the content of messages.
type redaction struct {
	ID    string
	Actor string
	// Eraser says that the actor may redact what others said.
	Eraser bool
	// MessageID is the one message, or Author whose messages in the held events.
	MessageID string
	Author    string
	// Request is the participant erasure that it belongs to.
	Request string
	// held are the events that hold the messages, as far as they were read.
	held []holder
}

// decideRedact erases one message.
func decideRedact(c conversation, cmd redaction) (*conversationv1.Event, error) {
	if !c.exists() || !cmd.Eraser && !c.isMember(cmd.Actor) {
		return nil, errConversationNotFound
	}
	position, known := c.ids.find(hashID(cmd.MessageID))
	if !known {
		return nil, errMessageNotFound
	}
	at, _ := c.place(position)
	i := slices.IndexFunc(cmd.held, func(h holder) bool { return h.Sequence == at.Sequence })
	if i < 0 {
		return nil, lookup{position}
	}
	m, found := cmd.held[i].at(position)
	switch {
	case !found || m.GetMessageId() != cmd.MessageID:
		return nil, errMessageNotFound
	case m.GetErasure() != conversationv1.Erasure_ERASURE_UNSPECIFIED:
		return nil, nil
	case m.GetAuthor() != cmd.Actor && !cmd.Eraser:
		return nil, fault.New(fault.NotAuthor, "only its author takes a message back").
			Field("message_id", "names a message of another author")
	case cmd.held[i].Lasting:
		return nil, fault.New(fault.StateConflict, "this is a record of weir's own, which holds nothing that was said")
	case c.waitsFor(m):
		return nil, fault.New(fault.StateConflict, "the conversation waits for this approval")
	}
	return c.redact(cmd, cmd.held[i:i+1], func(r *conversationv1.Replaced) bool { return r.GetPosition() == position }), nil
}

// decideRedactAuthor erases what an author said in the held events, nil where there
// is nothing left of it.
func decideRedactAuthor(c conversation, cmd redaction) (*conversationv1.Event, error) {
	if !c.exists() {
		return nil, nil
	}
	wanted := func(r *conversationv1.Replaced) bool {
		m := r.GetMessage()
		return m.GetAuthor() == cmd.Author && m.GetErasure() == conversationv1.Erasure_ERASURE_UNSPECIFIED && !c.waitsFor(m)
	}
	var held []holder
	for _, h := range cmd.held {
		// What was redacted meanwhile is held by another event now.
		current := slices.ContainsFunc(h.Messages, func(r *conversationv1.Replaced) bool {
			at, _ := c.place(r.GetPosition())
			return at.Sequence == h.Sequence
		})
		if current && !h.Lasting && slices.ContainsFunc(h.Messages, wanted) {
			held = append(held, h)
		}
	}
	if len(held) == 0 {
		return nil, nil
	}
	return c.redact(cmd, held, wanted), nil
}

// waitsFor says whether a message is that of an approval that is pending.
func (r root) waitsFor(m *conversationv1.AppendedMessage) bool {
	return slices.ContainsFunc(r.Pauses, func(p pause) bool { return m.GetMessageId() == askID(p.Approval) })
}

func (c conversation) redact(cmd redaction, held []holder, wanted func(*conversationv1.Replaced) bool) *conversationv1.Event {
	event := &conversationv1.MessagesRedacted{ConversationId: cmd.ID, RequestId: cmd.Request}
	after := c.root
	after.Erasing.Events = slices.Clone(after.Erasing.Events)
	took := counts{Events: int64(len(held)), Documents: 1}
	for _, h := range held {
		event.Erased = append(event.Erased, h.Erased...)
		event.Erased = append(event.Erased, &conversationv1.ErasedEvent{Sequence: h.Sequence, Previous: h.Previous})
		after.Erasing.Events = append(after.Erasing.Events, h.Sequence)
		for _, r := range h.Messages {
			if at, _ := c.place(r.GetPosition()); at.Sequence != h.Sequence {
				continue
			}
			if wanted(r) {
				took.Messages++
				if search.Text(r.GetMessage().GetParts()) != "" {
					took.Entries++
				}
				after = after.unmarked(r.GetPosition())
				r = &conversationv1.Replaced{Position: r.GetPosition(), Message: emptied(r.GetMessage())}
			}
			event.Messages = append(event.Messages, r)
		}
	}
	// In the order of the journal: what held one of them may be older than what
	// held an earlier message.
	slices.SortFunc(event.Erased, func(a, b *conversationv1.ErasedEvent) int { return cmp.Compare(a.GetSequence(), b.GetSequence()) })
	event.Redacted = took.Messages
	after.Erasing.Messages += took.Messages
	after.Events += 1 - took.Events
	if cmd.Request != "" {
		after = after.requested(cmd.Request, took)
	}
	event.Marks = after.marks()
	return &conversationv1.Event{Actor: cmd.Actor, Event: &conversationv1.Event_MessagesRedacted{MessagesRedacted: event}}
}

// emptied is what stays of a message: that there was one, whose, and how to tell a
// retry of it.
func emptied(m *conversationv1.AppendedMessage) *conversationv1.AppendedMessage {
	return &conversationv1.AppendedMessage{
		MessageId: m.GetMessageId(), Author: m.GetAuthor(), ReplyTo: m.GetReplyTo(), Fingerprint: m.GetFingerprint(),
		CreateTime: m.GetCreateTime(), Erasure: conversationv1.Erasure_ERASURE_REDACTED,
	}
}

// unmarked is the root without what the message at a position marked.
func (r root) unmarked(position int64) root {
	r.Calls = without(r.Calls, func(c openCall) bool { return c.Position == position })
	r.Pinned = without(r.Pinned, func(p int64) bool { return p == position })
	r.Summaries = without(r.Summaries, func(s summary) bool { return s.Position == position })
	r.Turns = without(r.Turns, func(t turn) bool { return t.Position == position })
	return r
}

// tookFor is what a participant erasure took so far, nothing where that is long ago.
func (r root) tookFor(request string) counts {
	for _, it := range r.Requested {
		if it.Request == request {
			return it.Counts
		}
	}
	return counts{}
}

func (r root) requested(request string, took counts) root {
	took = took.plus(r.tookFor(request))
	took.Documents = 1
	r.Requested = append(without(r.Requested, func(it requestedErasure) bool { return it.Request == request }),
		requestedErasure{request, took})
	r.Requested = slices.Clone(r.Requested[max(0, len(r.Requested)-maxRequested):])
	return r
}

func (r root) marks() *conversationv1.Marks {
	m := &conversationv1.Marks{
		Pinned: r.Pinned, Active: r.Active, UpdateTime: timeToProto(r.Updated), LastTurns: make(map[string]string),
		Events:  r.Events,
		Erasing: &conversationv1.Erasing{Sequences: r.Erasing.Events, Messages: r.Erasing.Messages},
	}
	for _, p := range r.Pauses {
		m.Approvals = append(m.Approvals, &conversationv1.PendingApproval{
			ApprovalId: p.Approval, Operation: p.Operation, Requester: p.Requester,
			ApproverScopes: p.Scopes, CreateTime: timeToProto(p.Since),
		})
	}
	for _, it := range r.Requested {
		m.Requested = append(m.Requested, &conversationv1.RequestedErasure{RequestId: it.Request, Counts: it.Counts.toProto()})
	}
	for _, c := range r.Calls {
		m.Calls = append(m.Calls, &conversationv1.OpenCall{
			InvocationId: c.Invocation, CallId: c.Call, MessageId: c.MessageID, Position: c.Position,
		})
	}
	for _, s := range r.Summaries {
		m.Summaries = append(m.Summaries, &conversationv1.Summary{
			Position: s.Position, Range: &conversationv1.Range{First: s.First, Last: s.Last},
		})
	}
	for _, t := range r.Turns {
		m.Turns = append(m.Turns, &conversationv1.PendingTurn{
			GroupId: t.Group, MessageId: t.MessageID, Position: t.Position, Author: t.Author,
			Waiting: t.Waiting, Had: t.Had, ExpireTime: timeToProto(t.Expires),
		})
	}
	for _, g := range r.Groups {
		if g.Last != "" {
			m.LastTurns[g.ID] = g.Last
		}
	}
	return m
}

// marked is the root after an erasure.
func (r root) marked(m *conversationv1.Marks) root {
	r.Active, r.Updated = m.GetActive(), m.GetUpdateTime().AsTime()
	r.Events = m.GetEvents()
	r.Erasing.Events, r.Erasing.Messages = m.GetErasing().GetSequences(), m.GetErasing().GetMessages()
	r.Pauses, r.Requested = nil, nil
	for _, p := range m.GetApprovals() {
		r.Pauses = append(r.Pauses, pause{
			Approval: p.GetApprovalId(), Operation: p.GetOperation(), Requester: p.GetRequester(),
			Scopes: p.GetApproverScopes(), Since: p.GetCreateTime().AsTime(),
		})
	}
	for _, it := range m.GetRequested() {
		r.Requested = append(r.Requested, requestedErasure{it.GetRequestId(), countsFromProto(it.GetCounts())})
	}
	r.Groups = slices.Clone(r.Groups)
	for i := range r.Groups {
		r.Groups[i].Last = m.GetLastTurns()[r.Groups[i].ID]
	}
	return r.withMarks(m)
}

// withMarks is the root with what messages marked, and nothing else of that kind.
func (r root) withMarks(m *conversationv1.Marks) root {
	r.Pinned, r.Calls, r.Summaries, r.Turns = m.GetPinned(), nil, nil, nil
	for _, c := range m.GetCalls() {
		r.Calls = append(r.Calls, openCall{callKey{c.GetInvocationId(), c.GetCallId()}, c.GetMessageId(), c.GetPosition()})
	}
	for _, s := range m.GetSummaries() {
		r.Summaries = append(r.Summaries, summary{s.GetPosition(), s.GetRange().GetFirst(), s.GetRange().GetLast()})
	}
	for _, t := range m.GetTurns() {
		r.Turns = append(r.Turns, turn{
			Group: t.GetGroupId(), MessageID: t.GetMessageId(), Position: t.GetPosition(), Author: t.GetAuthor(),
			Waiting: t.GetWaiting(), Had: t.GetHad(), Expires: t.GetExpireTime().AsTime(),
		})
	}
	return r
}

// redacted is the state after a redaction: its messages are held by its own event
// from now on, and the events that held them are to be erased.
func (c conversation) redacted(event *conversationv1.MessagesRedacted, e aggregate.Recorded[*conversationv1.Event]) conversation {
	for _, r := range event.GetMessages() {
		c = c.placed(r.GetPosition(), r.GetMessage(), e.Sequence)
	}
	c.root = c.marked(event.GetMarks())
	c.Erasing.Since = e.Time
	return c
}

// deletion is the command that erases a whole conversation.
type deletion struct {
	ID    string
	Actor string
}

func decideDelete(c conversation, cmd deletion) (*conversationv1.Event, error) {
	switch {
	case c.Owner == "":
		return nil, errConversationNotFound
	case c.State == deleted:
		return nil, nil
	}
	return &conversationv1.Event{Actor: cmd.Actor, Event: &conversationv1.Event_ConversationDeleted{
		ConversationDeleted: &conversationv1.ConversationDeleted{
			ConversationId: cmd.ID, Owner: c.Owner, Messages: c.Head - c.base(), Events: c.Events,
		},
	}}, nil
}

// wiped is all that is left of a deleted conversation.
func wiped(event *conversationv1.ConversationDeleted, e aggregate.Recorded[*conversationv1.Event]) conversation {
	c := conversation{root: root{
		State: deleted, Owner: event.GetOwner(), Updated: e.Time, Active: e.Sequence, Events: 1,
		Erasing: erasing{Since: e.Time, Past: e.Sequence, PastEvents: event.GetEvents(), Messages: event.GetMessages()},
	}}
	c.runs = immutable.NewMap[int64, []place](nil)
	c.ids = newIDs(c.runs)
	return c
}

// decideErased records that what a state named is gone. Where more was named
// since, it is erased first.
func decideErased(c conversation, id string, seen erasing, erased counts) *conversationv1.Event {
	if c.Erasing.Since.IsZero() || c.Erasing.Past != seen.Past || !slices.Equal(c.Erasing.Events, seen.Events) {
		return nil
	}
	return &conversationv1.Event{Actor: self, Event: &conversationv1.Event_ErasureFinished{
		ErasureFinished: &conversationv1.ErasureFinished{ConversationId: id, Counts: erased.toProto()},
	}}
}

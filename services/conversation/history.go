package conversation

import (
	"context"
	"errors"
	"slices"
	"time"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

type loop = aggregate.Loop[conversation, *conversationv1.Event]

// history adds messages to conversations and reads them back. What was said is
// in the journal alone; the document says where.
type history struct {
	loop    *loop
	journal *journal.Journal
}

// read gives a conversation, with its root and the fields asked for, to who may
// read it. Nobody else learns that there is one.
func (h *history) read(ctx context.Context, key journal.Key, caller identity.Caller, fields ...string) (conversation, error) {
	s, err := h.loop.Read(ctx, key, append(fields, aggregate.RootField)...)
	if err != nil {
		return conversation{}, err
	}
	if !s.State.readableBy(caller) {
		return conversation{}, errConversationNotFound
	}
	return s.State, nil
}

// append adds messages, or finds that they have been added, and gives them as they
// were then.
func (h *history) append(ctx context.Context, key journal.Key, cmd appendage) ([]*conversationv1.Message, error) {
	var event *conversationv1.Event
	var at time.Time
	s, err := h.decided(ctx, key, &cmd, func(c conversation, now time.Time) (*conversationv1.Event, error) {
		var refusal error
		event, refusal = decideAppend(c, cmd, now)
		at = now
		return event, refusal
	})
	if err != nil {
		return nil, err
	}
	if event == nil {
		return h.known(ctx, key, s.State, cmd.names())
	}
	var messages []*conversationv1.Message
	for i, m := range event.GetMessagesAppended().GetMessages() {
		messages = append(messages, toMessage(key.ID, event.GetMessagesAppended().GetFirstPosition()+int64(i), m, at).Message)
	}
	return messages, nil
}

// decided runs a command that may need to know what is stored under an id. Each
// time it does, that is read and the command is decided again.
func (h *history) decided(ctx context.Context, key journal.Key, cmd *appendage, decide aggregate.Decide[conversation, *conversationv1.Event]) (aggregate.Snapshot[conversation], error) {
	cmd.found = make(map[int64]stored)
	for range 2 + len(cmd.Messages) {
		s, err := h.loop.Do(ctx, key, decide)
		wanted, ok := errors.AsType[lookup](err)
		if !ok {
			return s, err
		}
		if wanted.position == 0 {
			if cmd.inherited, err = h.inherited(ctx, key, s.State, cmd.Messages); err != nil {
				return s, err
			}
			continue
		}
		m, err := h.at(ctx, key, s.State, wanted.position)
		if err != nil {
			return s, err
		}
		cmd.found[wanted.position] = stored{m.GetMessageId(), fingerprint(m.GetFingerprint())}
	}
	return aggregate.Snapshot[conversation]{}, fault.New(fault.Contention, "the conversation changes faster than its messages can be looked up")
}

// inherited gives the ids of messages, and of those they reply to, that the shared
// past of a fork holds. It is what it was, but for what was erased in it.
func (h *history) inherited(ctx context.Context, key journal.Key, c conversation, messages []message) (map[string]bool, error) {
	ids := make(map[string]bool)
	for _, m := range messages {
		for _, id := range []string{m.ID, m.ReplyTo} {
			if id == "" {
				continue
			}
			found, err := h.inPast(ctx, key, c, id)
			if err != nil {
				return nil, err
			}
			if found != nil {
				ids[id] = true
			}
		}
	}
	return ids, nil
}

// inPast finds a message by its id in the shared past of a fork, nil where it isn't.
func (h *history) inPast(ctx context.Context, key journal.Key, c conversation, id string) (*conversationv1.Message, error) {
	before := int64(0)
	for _, a := range c.Ancestors {
		past := span{before + 1, a.Last}
		before = a.Last
		origin := journal.Key{Tenant: key.Tenant, Kind: kindName, ID: a.ID}
		s, err := h.loop.Newest(ctx, origin)
		if err != nil {
			return nil, err
		}
		position, known := s.State.ids.find(hashID(id))
		if !known || position < past.first || position > past.last {
			continue
		}
		m, err := h.at(ctx, origin, s.State, position)
		if fault.Is(err, fault.ConversationNotFound) {
			continue // deleted since
		}
		if err != nil {
			return nil, err
		}
		if m.GetMessageId() == id {
			return toMessage(key.ID, position, m, time.Time{}).from(a.ID), nil
		}
	}
	return nil, nil
}

// known gives messages that a conversation itself holds, by their ids.
func (h *history) known(ctx context.Context, key journal.Key, c conversation, names []string) ([]*conversationv1.Message, error) {
	messages := make([]*conversationv1.Message, len(names))
	for i, id := range names {
		position, ok := c.ids.find(hashID(id))
		if !ok {
			return nil, errMessageNotFound
		}
		m, err := h.at(ctx, key, c, position)
		if err != nil {
			return nil, err
		}
		if m.GetMessageId() != id {
			return nil, errMessageNotFound
		}
		messages[i] = toMessage(key.ID, position, m, time.Time{}).Message
	}
	return messages, nil
}

// rereads bounds how often a message is looked for again, because the event that
// held it was erased since the index was read: another one holds it now.
const rereads = 3

// at gives what is stored at a position of a conversation itself, with its time.
func (h *history) at(ctx context.Context, key journal.Key, c conversation, position int64) (*conversationv1.AppendedMessage, error) {
	for attempt := 0; ; attempt++ {
		if !c.exists() {
			return nil, errConversationNotFound
		}
		p, ok := c.place(position)
		if !ok {
			return nil, errHole
		}
		held, err := h.held(ctx, key, p.Sequence)
		if err == nil {
			if m, ok := held.at(position); ok {
				return m, nil
			}
			err = misplaced(position)
		}
		if attempt == rereads || !fault.Is(err, fault.EventUnreadable) {
			return nil, err
		}
		s, err := h.loop.Newest(ctx, key)
		if err != nil {
			return nil, err
		}
		c = s.State
	}
}

// held reads one event and what it holds.
func (h *history) held(ctx context.Context, key journal.Key, sequence uint64) (holder, error) {
	var found holder
	err := h.journal.Events(ctx, key, []uint64{sequence}, func(e journal.Event) error {
		recorded, err := aggregate.Decode[*conversationv1.Event](e)
		found = heldBy(recorded, e.Previous)
		return err
	})
	return found, err
}

var errHole = fault.New(fault.DocumentUnreadable, "the stored index of this conversation has a hole")

func misplaced(position int64) error {
	return fault.New(fault.EventUnreadable, "the journal does not hold message %d where the index says", position)
}

// message gives one message by its id.
func (h *history) message(ctx context.Context, key journal.Key, caller identity.Caller, id string) (*conversationv1.Message, error) {
	if _, err := h.read(ctx, key, caller); err != nil {
		return nil, err
	}
	s, err := h.loop.Newest(ctx, key)
	if err != nil {
		return nil, err
	}
	if !s.State.readableBy(caller) {
		return nil, errConversationNotFound
	}
	messages, err := h.known(ctx, key, s.State, []string{id})
	if err == nil {
		return messages[0], nil
	}
	if !fault.Is(err, fault.MessageNotFound) {
		return nil, err
	}
	m, err := h.inPast(ctx, key, s.State, id)
	if err == nil && m == nil {
		err = errMessageNotFound
	}
	return m, err
}

// page gives the messages of a listing, and the position to go on from, 0 when
// there is nothing more.
func (h *history) page(ctx context.Context, key journal.Key, caller identity.Caller, l listing) ([]*conversationv1.Message, int64, error) {
	c, err := h.read(ctx, key, caller)
	if err != nil {
		return nil, 0, err
	}
	s, err := c.span(l)
	if err != nil || s.len() == 0 {
		return nil, 0, err
	}
	messages, err := h.cut(ctx, key, c, s, l.newestFirst)
	if err != nil {
		return nil, 0, err
	}
	shown := span{s.first, s.first + int64(len(messages)) - 1}
	if l.newestFirst {
		shown = span{s.last - int64(len(messages)) + 1, s.last}
	}
	return messages, c.next(shown, l.newestFirst), nil
}

// cut gives as many messages of a span as a page takes.
func (h *history) cut(ctx context.Context, key journal.Key, c conversation, s span, newestFirst bool) ([]*conversationv1.Message, error) {
	return h.cutAt(ctx, key, c, s, newestFirst, maxPageBytes)
}

// cutAt gives as many messages of a span as so many bytes take, one at least.
func (h *history) cutAt(ctx context.Context, key journal.Key, c conversation, s span, newestFirst bool, most int) ([]*conversationv1.Message, error) {
	for attempt := 0; ; attempt++ {
		// Redis may show for a moment where messages were before an erasure.
		find := h.loop.Read
		if attempt > 0 {
			find = h.newest
		}
		spots, err := h.spots(ctx, key, c, s, find)
		if err != nil {
			return nil, err
		}
		if newestFirst {
			slices.Reverse(spots)
		}
		sizes := make([]uint32, len(spots))
		for i, at := range spots {
			sizes[i] = at.Bytes
		}
		spots = spots[:fit(sizes, most)]
		messages, err := h.messages(ctx, key, spots)
		if err == nil || attempt == rereads || !fault.Is(err, fault.EventUnreadable) {
			return messages, err
		}
	}
}

// finding reads a conversation, or those fields of it that are named.
type finding func(context.Context, journal.Key, ...string) (aggregate.Snapshot[conversation], error)

func (h *history) newest(ctx context.Context, key journal.Key, _ ...string) (aggregate.Snapshot[conversation], error) {
	return h.loop.Newest(ctx, key)
}

// cutDown gives the newest messages of a span, as many as a page takes, oldest first.
func (h *history) cutDown(ctx context.Context, key journal.Key, c conversation, s span) ([]*conversationv1.Message, error) {
	messages, err := h.cut(ctx, key, c, s, true)
	slices.Reverse(messages)
	return messages, err
}

// decline records that a member of a group will not answer.
func (h *history) decline(ctx context.Context, key journal.Key, cmd decline) (*conversationv1.Message, error) {
	var event *conversationv1.Event
	s, err := h.loop.Do(ctx, key, func(c conversation, _ time.Time) (_ *conversationv1.Event, refusal error) {
		event, refusal = decideDecline(c, cmd)
		return event, refusal
	})
	if err != nil {
		return nil, err
	}
	record := s.State.turnRecord(cmd.MessageID, cmd.Member)
	if event != nil {
		record = event.GetMessagesAppended().GetMessages()[0].GetMessageId()
	}
	messages, err := h.known(ctx, key, s.State, []string{record})
	if err != nil {
		return nil, err
	}
	return messages[0], nil
}

// spot is where one position of a conversation is found.
type spot struct {
	place
	position int64
	// origin is the conversation whose events hold it.
	origin string
	// gone says that the origin was deleted.
	gone bool
}

// spots finds the positions of a span, each in the conversation that holds it.
func (h *history) spots(ctx context.Context, key journal.Key, c conversation, s span, find finding) ([]spot, error) {
	spots := make([]spot, 0, s.len())
	before := int64(0)
	for _, holder := range append(slices.Clone(c.Ancestors), ancestor{key.ID, c.Head}) {
		part := s.within(span{before + 1, holder.Last})
		before = holder.Last
		if part.len() == 0 {
			continue
		}
		// What is read now may be newer than c. It holds the places of the span all
		// the same, and head stays what it was when the span was chosen.
		origin := journal.Key{Tenant: key.Tenant, Kind: kindName, ID: holder.ID}
		indexed, err := find(ctx, origin, append(runFields(part), aggregate.RootField)...)
		if err != nil {
			return nil, err
		}
		if indexed.State.Head < part.last && indexed.State.exists() {
			// Who tails heard of a message that Redis does not show yet.
			if indexed, err = h.loop.Newest(ctx, origin); err != nil {
				return nil, err
			}
		}
		gone := indexed.State.State == deleted
		if gone && holder.ID == key.ID {
			return nil, errConversationNotFound
		}
		for position := part.first; position <= part.last; position++ {
			p, ok := indexed.State.place(position)
			if !ok && !gone {
				return nil, errHole
			}
			spots = append(spots, spot{p, position, holder.ID, gone})
		}
	}
	return spots, nil
}

// messages reads what is at some spots, in their order.
func (h *history) messages(ctx context.Context, key journal.Key, spots []spot) ([]*conversationv1.Message, error) {
	messages := make([]*conversationv1.Message, len(spots))
	wanted := make(map[string]map[uint64][]int) // by origin and sequence, indexes of spots
	for i, at := range spots {
		if at.gone {
			messages[i] = goneMessage(key.ID, at)
			continue
		}
		if wanted[at.origin] == nil {
			wanted[at.origin] = make(map[uint64][]int)
		}
		wanted[at.origin][at.Sequence] = append(wanted[at.origin][at.Sequence], i)
	}
	for id, events := range wanted {
		origin := journal.Key{Tenant: key.Tenant, Kind: kindName, ID: id}
		err := h.journal.Events(ctx, origin, sortedKeys(events), func(e journal.Event) error {
			recorded, err := aggregate.Decode[*conversationv1.Event](e)
			if err != nil {
				return err
			}
			held := heldBy(recorded, e.Previous)
			for _, i := range events[e.Sequence] {
				m, ok := held.at(spots[i].position)
				if !ok {
					return misplaced(spots[i].position)
				}
				messages[i] = toMessage(key.ID, spots[i].position, m, e.Time).from(id)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return messages, nil
}

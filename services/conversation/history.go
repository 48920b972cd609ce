package conversation

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/journal"
)

type loop = aggregate.Loop[conversation, *conversationv1.Event]

// history adds messages to conversations and reads them back. What was said is
// in the journal alone; the document says where.
type history struct {
	loop    *loop
	journal *journal.Journal
}

// read gives a conversation, with its root and the fields asked for, to a member.
// Nobody else learns that there is one.
func (h *history) read(ctx context.Context, key journal.Key, subject string, fields ...string) (conversation, error) {
	s, err := h.loop.Read(ctx, key, append(fields, aggregate.RootField)...)
	if err != nil {
		return conversation{}, err
	}
	if !s.State.isMember(subject) {
		return conversation{}, errConversationNotFound
	}
	return s.State, nil
}

// append adds a message, or finds that it has been added, and gives it as it
// was then.
func (h *history) append(ctx context.Context, key journal.Key, m message) (*conversationv1.Message, error) {
	var event *conversationv1.Event
	var at time.Time
	s, err := h.loop.Do(ctx, key, func(c conversation, now time.Time) (*conversationv1.Event, error) {
		var refusal error
		event, refusal = decideAppend(c, m)
		at = now
		return event, refusal
	})
	if err != nil {
		return nil, err
	}
	if event != nil {
		return toMessage(event.GetMessageAppended(), at), nil
	}
	known, ok := s.State.message(m.ID)
	if !ok {
		return nil, fault.New(fault.Bug, "a message that was appended before is not in the state")
	}
	return h.at(ctx, known)
}

// message gives one message by its id.
func (h *history) message(ctx context.Context, key journal.Key, subject, id string) (*conversationv1.Message, error) {
	c, err := h.read(ctx, key, subject, messageField(id))
	if err != nil {
		return nil, err
	}
	known, ok := c.message(id)
	if !ok {
		return nil, errMessageNotFound
	}
	return h.at(ctx, known)
}

func (h *history) at(ctx context.Context, known entry) (*conversationv1.Message, error) {
	event, err := h.journal.Get(ctx, known.Sequence)
	if err != nil {
		return nil, err
	}
	return parseMessage(event, known.Position)
}

// page gives the messages of a listing, and the position to go on from, 0 when
// there is nothing more.
func (h *history) page(ctx context.Context, key journal.Key, subject string, l listing) ([]*conversationv1.Message, int64, error) {
	c, err := h.read(ctx, key, subject)
	if err != nil {
		return nil, 0, err
	}
	s, err := c.span(l)
	if err != nil || s.len() == 0 {
		return nil, 0, err
	}
	// What is read now may be newer. It holds the places of the span all the
	// same, and head stays what it was when the span was chosen.
	indexed, err := h.read(ctx, key, subject, runFields(s)...)
	if err != nil {
		return nil, 0, err
	}
	s, whole := indexed.fit(s, l.newestFirst)
	after, ok := indexed.before(s.first)
	if !whole || !ok {
		return nil, 0, fault.New(fault.DocumentUnreadable, "the stored index of this conversation has a hole")
	}
	messages, err := h.span(ctx, key, after, s)
	if err != nil {
		return nil, 0, err
	}
	if l.newestFirst {
		slices.Reverse(messages)
	}
	return messages, c.next(s, l.newestFirst), nil
}

// span reads the messages of a span, which begins behind a version. Every event
// but the first is a message, so as many events as messages are read.
func (h *history) span(ctx context.Context, key journal.Key, after uint64, s span) ([]*conversationv1.Message, error) {
	messages := make([]*conversationv1.Message, 0, s.len())
	_, err := h.journal.Page(ctx, key, after, s.len(), func(e journal.Event) error {
		m, err := parseMessage(e, s.first+int64(len(messages)))
		messages = append(messages, m)
		return err
	})
	return messages, err
}

// parseMessage reads the event of the message at a position.
func parseMessage(e journal.Event, position int64) (*conversationv1.Message, error) {
	recorded, err := aggregate.Decode[*conversationv1.Event](e)
	if err != nil {
		return nil, err
	}
	appended := recorded.Event.GetMessageAppended()
	if appended.GetPosition() != position {
		return nil, fault.New(fault.EventUnreadable, "the journal does not hold message %d where the index says", position)
	}
	return toMessage(appended, recorded.Time), nil
}

func toMessage(m *conversationv1.MessageAppended, at time.Time) *conversationv1.Message {
	return &conversationv1.Message{
		ConversationId: m.GetConversationId(),
		MessageId:      m.GetMessageId(),
		Position:       m.GetPosition(),
		Author:         m.GetAuthor(),
		Parts:          m.GetParts(),
		To:             m.GetTo(),
		ReplyTo:        m.GetReplyTo(),
		CreateTime:     timestamppb.New(at),
	}
}

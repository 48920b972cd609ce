package main

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	conversationv1 "weir/gen/conversation/v1"
)

const (
	// settleLimit is how long projectors may take to catch up with a slice, or with
	// the long conversation.
	settleLimit = 5 * time.Minute
	// notableLag is how far behind a projector is worth telling.
	notableLag = 20 * time.Millisecond
	// indexRest is how long the search index needs where it is not behind: it waits
	// for more to come before it shows anything.
	indexRest = 100 * time.Millisecond

	conversationStream = "WEIR_CONVERSATION"
	markedTalk         = "marked"
)

// settle waits until every durable consumer has handled all events, and the search
// index shows them, and says for how long that was behind.
func (m *mesh) settle() (time.Duration, error) {
	started := time.Now()
	ctx, cancel := context.WithTimeout(m.ctx, settleLimit)
	defer cancel()
	for {
		behind, err := m.behind(ctx)
		if err != nil {
			return 0, m.explain(fmt.Errorf("waiting for projectors: %w", err))
		}
		if !behind {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	lag := time.Since(started)
	if err := m.indexed(ctx); err != nil {
		return 0, m.explain(fmt.Errorf("waiting for the search index: %w", err))
	}
	return max(lag, time.Since(started)-indexRest), nil
}

func (m *mesh) behind(ctx context.Context) (bool, error) {
	streams := m.js.ListStreams(ctx)
	for stream := range streams.Info() {
		handle, err := m.js.Stream(ctx, stream.Config.Name)
		if err != nil {
			return false, err
		}
		consumers := handle.ListConsumers(ctx)
		for c := range consumers.Info() {
			if c.Config.Durable != "" && (c.NumPending > 0 || c.NumAckPending > 0) {
				return true, nil
			}
		}
		if err := consumers.Err(); err != nil {
			return false, err
		}
	}
	return false, streams.Err()
}

// marks are messages that are said and searched to know what the search index
// shows: its consumer keeps no place that could be asked for.
type marks struct {
	*talks
	count int
	// shown is the sequence of the last event that the index is known to show.
	shown uint64
}

// indexed waits until the search index shows all that was said.
func (m *mesh) indexed(ctx context.Context) error {
	if _, runs := m.services["conversation"]; !runs {
		return nil
	}
	last, err := m.lastSaid(ctx)
	if err != nil {
		return err
	}
	if m.marks == nil {
		conn, err := m.talker()
		if err != nil {
			return err
		}
		m.marks = &marks{talks: newTalks(conn, 0)}
		if err := m.marks.begin(ctx, markedTalk); err != nil {
			return err
		}
	} else if last == m.marks.shown {
		return nil
	}
	if err := m.marks.find(ctx); err != nil {
		return err
	}
	m.marks.shown, err = m.lastSaid(ctx)
	return err
}

func (m *mesh) lastSaid(ctx context.Context) (uint64, error) {
	stream, err := m.js.Stream(ctx, conversationStream)
	if err != nil {
		return 0, err
	}
	return stream.CachedInfo().State.LastSeq, nil
}

// find says one more word, and searches until it is found.
func (k *marks) find(ctx context.Context) error {
	k.count++
	word := fmt.Sprintf("mark%d", k.count)
	_, err := k.messages.AppendMessage(ctx, &conversationv1.AppendMessageRequest{
		ConversationId: markedTalk, MessageId: word,
		Parts: []*conversationv1.Part{{Part: &conversationv1.Part_Text{Text: word}}},
	})
	if err != nil {
		return err
	}
	for {
		found, err := k.messages.SearchMessages(ctx, &conversationv1.SearchMessagesRequest{ConversationId: markedTalk, Query: word})
		// Unavailable is the index being rebuilt, as it is when the service starts.
		if err != nil && status.Code(err) != codes.Unavailable {
			return err
		}
		if len(found.GetMessages()) == 1 {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

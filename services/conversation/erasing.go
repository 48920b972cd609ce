package conversation

import (
	"context"
	"errors"
	"time"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/journal"
)

// eraser takes out of every store what the journal says is to be erased. Whoever
// decided an erasure begins; any replica finishes it, from the deadlines. Each
// step can be done again.
//
// The journal comes first: what was said is there, and nobody who cannot reach
// Redis keeps it there. Who reads by what Redis showed before finds the event gone,
// and asks the journal where the message is now.
type eraser struct {
	history *history
	hot     *hot.Store
	search  *searcher
}

// errStillShown is why an erasure waits: Redis still shows what was there before it.
var errStillShown = errors.New("the hot store is not refreshed yet")

// finish erases what a conversation names, and records it. There may be nothing to
// do.
func (e *eraser) finish(ctx context.Context, key journal.Key) (conversation, error) {
	s, err := e.history.loop.Newest(ctx, key)
	if err != nil || s.State.Erasing.Since.IsZero() {
		return s.State, err
	}
	seen := s.State.Erasing
	erased := counts{Messages: seen.Messages, Events: int64(len(seen.Events)) + seen.PastEvents, Documents: 1}
	if err := e.erase(ctx, key, s, &erased); err != nil {
		return s.State, err
	}
	s, err = e.history.loop.Do(ctx, key, func(c conversation, _ time.Time) (*conversationv1.Event, error) {
		return decideErased(c, key.ID, seen, erased), nil
	})
	return s.State, err
}

func (e *eraser) erase(ctx context.Context, key journal.Key, s aggregate.Snapshot[conversation], erased *counts) error {
	if past := s.State.Erasing.Past; past != 0 {
		if _, err := e.history.journal.ErasePast(ctx, key, past); err != nil {
			return err
		}
		kept, err := e.history.journal.EraseSnapshot(ctx, key)
		if err != nil {
			return err
		}
		if kept {
			erased.Snapshots = 1
		}
	}
	if _, err := e.history.journal.EraseEvents(ctx, key, s.State.Erasing.Events); err != nil {
		return err
	}
	var err error
	if erased.Entries, err = e.search.forget(ctx, key, s.Version); err != nil {
		return err
	}
	// A document that nobody can read would stay as it is for an operator to see.
	if err := e.hot.DropUnreadable(ctx, key); err != nil {
		return err
	}
	shows, err := e.hot.Shows(ctx, key, s.Version, true)
	if err != nil {
		return err
	}
	if !shows {
		// Who finds none puts the new one.
		if _, err := e.history.loop.Read(ctx, key); err != nil {
			return err
		}
		return errStillShown
	}
	return e.hot.DropDrafts(ctx, key)
}

// due looks at a conversation whose deadline has passed: something is to be erased,
// or members of a group did not answer in time.
func (e *eraser) due(ctx context.Context, key journal.Key) (time.Duration, error) {
	c, err := e.finish(ctx, key)
	if errors.Is(err, errStillShown) {
		return erasureRetry, nil
	}
	if err != nil || !c.exists() {
		return 0, err
	}
	_, err = e.history.loop.Do(ctx, key, func(c conversation, now time.Time) (*conversationv1.Event, error) {
		return decideLate(c, key.ID, now), nil
	})
	return 0, err
}

const erasureRetry = 200 * time.Millisecond

// delete erases a whole conversation.
func (e *eraser) delete(ctx context.Context, key journal.Key, actor string) (conversation, error) {
	s, err := e.history.loop.Do(ctx, key, func(c conversation, _ time.Time) (*conversationv1.Event, error) {
		return decideDelete(c, deletion{key.ID, actor})
	})
	if err != nil {
		return conversation{}, err
	}
	return e.finishSoon(ctx, key, s.State), nil
}

// erasurePatience is how long a caller is let wait for an erasure.
const erasurePatience = 3 * time.Second

// finishSoon finishes an erasure while its caller waits. What cannot be finished now
// is finished by the deadline: that it was decided is in the journal.
func (e *eraser) finishSoon(ctx context.Context, key journal.Key, c conversation) conversation {
	ctx, cancel := context.WithTimeout(ctx, erasurePatience)
	defer cancel()
	for ctx.Err() == nil {
		done, err := e.finish(ctx, key)
		if err == nil {
			return done
		}
		if !errors.Is(err, errStillShown) || journal.Pause(ctx, erasureRetry) != nil {
			break
		}
	}
	return c
}

// redactAttempts bounds how often the event that holds a message is looked up anew,
// because another redaction took it.
const redactAttempts = 8

// redact erases the content of one message and gives what is left of it.
func (e *eraser) redact(ctx context.Context, key journal.Key, cmd redaction) (*conversationv1.Message, error) {
	for range redactAttempts {
		s, err := e.history.loop.Do(ctx, key, func(c conversation, _ time.Time) (*conversationv1.Event, error) {
			return decideRedact(c, cmd)
		})
		if wanted, ok := errors.AsType[lookup](err); ok {
			at, _ := s.State.place(wanted.position)
			held, err := e.history.held(ctx, key, at.Sequence)
			switch {
			case err == nil:
				cmd.held = append(cmd.held, held)
			case !fault.Is(err, fault.EventUnreadable):
				return nil, err
			}
			// Where it was erased meanwhile, another event holds the message.
			continue
		}
		if err != nil {
			return nil, e.elsewhere(ctx, key, s.State, cmd, err)
		}
		c := e.finishSoon(ctx, key, s.State)
		messages, err := e.history.known(ctx, key, c, []string{cmd.MessageID})
		if err != nil {
			return nil, err
		}
		return messages[0], nil
	}
	return nil, fault.New(fault.Contention, "the message is being redacted together with others")
}

// elsewhere says of a message that a fork only shares where it can be redacted.
func (e *eraser) elsewhere(ctx context.Context, key journal.Key, c conversation, cmd redaction, refusal error) error {
	if !fault.Is(refusal, fault.MessageNotFound) {
		return refusal
	}
	m, err := e.history.inPast(ctx, key, c, cmd.MessageID)
	if err != nil || m == nil {
		return refusal
	}
	return fault.New(fault.FieldInvalid, "the message belongs to the past that this fork shares").
		Field("conversation_id", "must be that of the conversation it was said in, "+m.GetOriginConversationId())
}

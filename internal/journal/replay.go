package journal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"weir/internal/fault"
)

const (
	// replayBatch is how many events one request asks for, and replayBytes how
	// much. By default a server sends 64 MB at once, which is where it drops a
	// slow client, and a client its messages.
	replayBatch = 512
	replayBytes = 4 << 20
	// readTimeout bounds one question to the stream and all of its answer.
	// Without it, one that the connection lost would be waited for until the
	// caller gives up.
	readTimeout = 3 * time.Second
)

var errNoEvent = errors.New("no such event")

// Replay reads the events of an aggregate after version `from` (0: all), in
// order, and calls fn for each. It gives the version that it reached: 0 means
// that the aggregate has no event at all, which is the only proof of absence.
//
// Every event names its predecessor, and Replay checks that the chain closes
// from `from` up to the last event of the subject. Where it does not, the
// answer is EVENT_UNREADABLE, never a shorter history.
func (j *Journal) Replay(ctx context.Context, key Key, from uint64, fn func(Event) error) (uint64, error) {
	subject := key.Subject(j.service)
	last, err := j.lastSequence(ctx, subject)
	if errors.Is(err, errNoEvent) {
		if from != 0 {
			return 0, broken(key, from, "the journal has no event of it any more")
		}
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	version, err := j.follow(ctx, key, from, last, math.MaxInt, fn)
	if err != nil {
		return 0, err
	}
	if version != last {
		return 0, broken(key, version, fmt.Sprintf("it is newer than the last event, %d", last))
	}
	return version, nil
}

// Page reads the first `limit` events of an aggregate after version `after`, in
// order and with the chain checked as Replay does, and gives the version that
// it reached. The caller knows that there are so many: where they are not, the
// answer is EVENT_UNREADABLE, never a shorter page.
func (j *Journal) Page(ctx context.Context, key Key, after uint64, limit int, fn func(Event) error) (uint64, error) {
	return j.follow(ctx, key, after, math.MaxUint64, limit, fn)
}

// follow reads the events after version, until it reached the last one or has
// read as many as the limit says.
func (j *Journal) follow(ctx context.Context, key Key, version, last uint64, limit int, fn func(Event) error) (uint64, error) {
	subject := key.Subject(j.service)
	counted := func(e Event) error {
		limit--
		return fn(e)
	}
	for version < last && limit > 0 {
		reached, err := j.replayBatch(ctx, key, subject, version, last, min(limit, replayBatch), counted)
		if err != nil {
			return 0, err
		}
		if reached > version {
			version = reached
			continue
		}
		// A follower that lags may have answered. What it lacks, the leader has.
		next, err := j.after(ctx, subject, version)
		if errors.Is(err, errNoEvent) {
			return 0, broken(key, version, "events are missing that should follow")
		}
		if err != nil {
			return 0, err
		}
		if next.Previous != version {
			return 0, misplaced(key, version, next)
		}
		if err := counted(next); err != nil {
			return 0, err
		}
		version = next.Sequence
	}
	return version, nil
}

// replayBatch reads one batch after version and gives the version it reached,
// which is the same one when the server answered nothing.
func (j *Journal) replayBatch(ctx context.Context, key Key, subject string, version, last uint64, size int, fn func(Event) error) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	messages, err := jetstreamext.GetBatch(ctx, j.js, j.stream, size,
		jetstreamext.GetBatchMaxBytes(replayBytes), jetstreamext.GetBatchSeq(version+1), jetstreamext.GetBatchSubject(subject))
	if err != nil {
		return 0, unavailable(err)
	}
	for msg, err := range messages {
		if errors.Is(err, jetstreamext.ErrNoMessages) {
			return version, nil
		}
		if err != nil {
			return 0, unavailable(err)
		}
		event, err := parseEvent(msg.Subject, msg.Header, msg.Data, msg.Sequence)
		if err != nil {
			return 0, unreadable(key, msg.Sequence, err)
		}
		if event.Previous != version {
			return 0, misplaced(key, version, event)
		}
		if err := fn(event); err != nil {
			return 0, err
		}
		if version = event.Sequence; version == last {
			return version, nil
		}
	}
	// An answer that breaks off ends as one that is complete.
	if err := ctx.Err(); err != nil {
		return 0, unavailable(err)
	}
	return version, nil
}

// Get reads one event by its sequence.
func (j *Journal) Get(ctx context.Context, sequence uint64) (Event, error) {
	event, err := j.get(ctx, sequence, "")
	if errors.Is(err, errNoEvent) {
		return Event{}, fault.New(fault.EventUnreadable, "event %d is gone from the journal", sequence).Wrap(err)
	}
	return event, err
}

// after gives the first event of a subject behind a version.
func (j *Journal) after(ctx context.Context, subject string, version uint64) (Event, error) {
	return j.get(ctx, version+1, subject)
}

// get reads an event by its sequence or, with a subject, the first of it from
// the sequence on.
func (j *Journal) get(ctx context.Context, sequence uint64, subject string) (Event, error) {
	direct, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var opts []jetstream.GetMsgOpt
	if subject != "" {
		opts = append(opts, jetstream.WithGetMsgSubject(subject))
	}
	msg, err := j.handle.GetMsg(direct, sequence, opts...)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		stored, err := j.askLeader(ctx, question{Sequence: sequence, NextFor: subject})
		if err != nil {
			return Event{}, err
		}
		return stored.event()
	}
	if err != nil {
		return Event{}, unavailable(err)
	}
	event, err := parseEvent(msg.Subject, msg.Header, msg.Data, msg.Sequence)
	if err != nil {
		return Event{}, fault.New(fault.EventUnreadable, "event %d cannot be read", msg.Sequence).Wrap(err)
	}
	return event, nil
}

func misplaced(key Key, version uint64, e Event) error {
	return broken(key, version, fmt.Sprintf("event %d names %d as the one before", e.Sequence, e.Previous))
}

func broken(key Key, version uint64, why string) error {
	return unreadable(key, version, fmt.Errorf("the chain of events does not close after %d: %s", version, why))
}

func unreadable(key Key, sequence uint64, cause error) error {
	return fault.New(fault.EventUnreadable, "the events of this %s cannot be read", key.Kind).
		With("sequence", strconv.FormatUint(sequence, 10)).Wrap(cause)
}

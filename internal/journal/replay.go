package journal

import (
	"context"
	"errors"
	"fmt"
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
// from `from` up to the last event of the subject, but for events that later
// ones name as erased. Where it does not, the answer is EVENT_UNREADABLE, never
// a shorter history. Where events can be erased that shows only at the end, so
// what fn was given counts for nothing before Replay has returned.
func (j *Journal) Replay(ctx context.Context, key Key, from uint64, fn func(Event) error) (uint64, error) {
	subject := key.Subject(j.service)
	read := &chain{version: from}
	for {
		last, err := j.lastSequence(ctx, subject)
		switch {
		case errors.Is(err, errNoEvent) && read.version == 0:
			return 0, nil
		case errors.Is(err, errNoEvent):
			return 0, broken(key, read.version, "the journal has no event of it any more")
		case err != nil:
			return 0, err
		case read.version > last:
			return 0, broken(key, read.version, fmt.Sprintf("it is newer than the last event, %d", last))
		}
		if err := j.follow(ctx, key, read, last, fn); err != nil {
			return 0, err
		}
		closed, err := read.closed()
		if err != nil {
			return 0, broken(key, read.version, err.Error())
		}
		if closed {
			return read.version, nil
		}
	}
}

// follow reads on until the chain reaches the event at `last`, or one behind it
// where that was erased meanwhile.
func (j *Journal) follow(ctx context.Context, key Key, read *chain, last uint64, fn func(Event) error) error {
	subject := key.Subject(j.service)
	next := func(e Event) (bool, error) {
		if e.Previous != read.version && !e.ErasesPast && !j.erasable {
			return false, broken(key, read.version, fmt.Sprintf("event %d names %d as the one before", e.Sequence, e.Previous))
		}
		if err := read.add(e); err != nil {
			return false, broken(key, e.Sequence, err.Error())
		}
		return read.version < last, fn(e)
	}
	for read.version < last {
		before := read.version
		if err := j.batch(ctx, key, before+1, replayBatch, next); err != nil {
			return err
		}
		if read.version > before {
			continue
		}
		// A follower that lags may have answered. What it lacks, the leader has.
		e, err := j.after(ctx, subject, before)
		if errors.Is(err, errNoEvent) {
			return broken(key, before, "events are missing that should follow")
		}
		if err == nil {
			_, err = next(e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// batch reads an aggregate's events from a sequence on, by one request, and
// calls fn for each until it wants no more. An answer may be short, or empty,
// without being the end.
func (j *Journal) batch(ctx context.Context, key Key, from uint64, size int, fn func(Event) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	messages, err := jetstreamext.GetBatch(ctx, j.js, j.stream, size,
		jetstreamext.GetBatchMaxBytes(replayBytes), jetstreamext.GetBatchSeq(from), jetstreamext.GetBatchSubject(key.Subject(j.service)))
	if err != nil {
		return unavailable(err)
	}
	for msg, err := range messages {
		if errors.Is(err, jetstreamext.ErrNoMessages) {
			return nil
		}
		if err != nil {
			return unavailable(err)
		}
		event, err := parseEvent(msg.Subject, msg.Header, msg.Data, msg.Sequence)
		if err != nil {
			return unreadable(key, msg.Sequence, err)
		}
		if more, err := fn(event); err != nil || !more {
			return err
		}
	}
	// An answer that breaks off ends as one that is complete.
	if err := ctx.Err(); err != nil {
		return unavailable(err)
	}
	return nil
}

// Events reads exactly the events of an aggregate at the sequences, which
// ascend, and calls fn for each. One that is not there is EVENT_UNREADABLE.
func (j *Journal) Events(ctx context.Context, key Key, sequences []uint64, fn func(Event) error) error {
	// An answer holds all events from the first one wanted on. Where most were
	// not wanted, so may the next be, and the next request asks for fewer and
	// jumps sooner.
	for size := len(sequences); len(sequences) > 0; {
		wanted := 0
		err := j.batch(ctx, key, sequences[0], min(size, len(sequences), replayBatch), func(e Event) (bool, error) {
			if e.Sequence < sequences[0] {
				return true, nil
			}
			if e.Sequence > sequences[0] {
				return false, nil
			}
			wanted++
			sequences = sequences[1:]
			return len(sequences) > 0, fn(e)
		})
		if err != nil {
			return err
		}
		size = 2 * wanted
		if wanted > 0 {
			continue
		}
		// A follower that lags may have answered. What it lacks, the leader has.
		e, err := j.Get(ctx, sequences[0])
		if err == nil && e.Key != key {
			err = unreadable(key, sequences[0], fmt.Errorf("event %d is another aggregate's", sequences[0]))
		}
		if err == nil {
			err = fn(e)
		}
		if err != nil {
			return err
		}
		sequences, size = sequences[1:], 1
	}
	return nil
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

func broken(key Key, version uint64, why string) error {
	return unreadable(key, version, fmt.Errorf("the chain of events does not close after %d: %s", version, why))
}

func unreadable(key Key, sequence uint64, cause error) error {
	return fault.New(fault.EventUnreadable, "the events of this %s cannot be read", key.Kind).
		With("sequence", strconv.FormatUint(sequence, 10)).Wrap(cause)
}

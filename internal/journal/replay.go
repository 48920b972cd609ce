package journal

import (
	"context"
	"encoding/json"
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
	// replayAttempts bounds how often a chain that does not close is read
	// again: a follower of a replicated stream may lag behind its leader.
	replayAttempts = 4
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
	for stalled := 0; version < last && limit > 0; {
		reached, err := j.replayBatch(ctx, key, subject, version, last, min(limit, replayBatch), counted)
		if err != nil {
			return 0, err
		}
		if reached > version {
			version, stalled = reached, 0
			continue
		}
		if stalled++; stalled == replayAttempts {
			return 0, broken(key, version, "events are missing that should follow")
		}
		if err := pause(ctx, time.Duration(stalled)*20*time.Millisecond); err != nil {
			return 0, unavailable(err)
		}
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
			return 0, broken(key, version, fmt.Sprintf("event %d names %d as the one before", event.Sequence, event.Previous))
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
	event, err := j.get(ctx, sequence)
	if errors.Is(err, errNoEvent) {
		return Event{}, fault.New(fault.EventUnreadable, "event %d is gone from the journal", sequence).Wrap(err)
	}
	return event, err
}

// after gives the first event of a subject behind a version.
func (j *Journal) after(ctx context.Context, subject string, version uint64) (Event, error) {
	return j.get(ctx, version+1, jetstream.WithGetMsgSubject(subject))
}

func (j *Journal) get(ctx context.Context, sequence uint64, opts ...jetstream.GetMsgOpt) (Event, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	msg, err := j.handle.GetMsg(ctx, sequence, opts...)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return Event{}, errNoEvent
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

// lastSequence gives the sequence of an aggregate's last event. It asks the
// stream's leader (1.6 times the cost of a direct get, which any follower may
// answer): a follower that lags would prove an absence that isn't one.
func (j *Journal) lastSequence(ctx context.Context, subject string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	request, err := json.Marshal(struct {
		LastFor string `json:"last_by_subj"`
	}{subject})
	if err != nil {
		return 0, unavailable(err)
	}
	reply, err := j.nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+j.stream, request)
	if err != nil {
		return 0, unavailable(err)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Sequence uint64 `json:"seq"`
		} `json:"message"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return 0, unavailable(err)
	}
	switch {
	case answer.Error == nil && answer.Message.Sequence > 0:
		return answer.Message.Sequence, nil
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return 0, errNoEvent
	default:
		return 0, unavailable(fmt.Errorf("last event of %s: %s", subject, reply.Data))
	}
}

func broken(key Key, version uint64, why string) error {
	return unreadable(key, version, fmt.Errorf("the chain of events does not close after %d: %s", version, why))
}

func unreadable(key Key, sequence uint64, cause error) error {
	return fault.New(fault.EventUnreadable, "the events of this %s cannot be read", key.Kind).
		With("sequence", strconv.FormatUint(sequence, 10)).Wrap(cause)
}

package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// eraseTimeout bounds the deletion of one event, which may have to read its
	// block of the stream first.
	eraseTimeout = 10 * time.Second
	// purgeTimeout bounds one purge: a million events take about a second.
	purgeTimeout = 60 * time.Second
)

// What erasing does to bytes, measured on nats-server 2.15 with file storage, and
// held by disk_test.go where it says nothing of replicas:
//
// A deleted event is gone for everybody who asks NATS at once. In the server's
// files it is gone when EraseEvents returns, on other replicas a moment later: the
// server writes the event's block (up to 8 MB) anew, with random bytes in its place,
// and removes the old file. What the file system, the disk or a backup keeps of
// removed files nobody here can tell. A server that encrypts its files skips this.
//
// A purged event is gone for everybody who asks NATS at once, and stays in the
// files: for ever in a block of which more than half is alive, and in the newest
// block. A block of which nothing is alive is removed at once. One of which less
// than half is, and that is not the newest, is written anew without what is gone
// when the server next looks after its files: every two minutes, or its
// sync_interval. A restart changes nothing. What was purged cannot be overwritten
// any more; who wants that erases the events one by one before ErasePast.
// Snapshots are purged too, and their bucket lets nothing be overwritten: they
// must not hold what has to be.
//
// With three replicas each server keeps what was appended in its raft log as well,
// until it compacts that: 2 to 4 minutes in a quiet stream. And a server that was
// down while an event was deleted, and is brought up to date by a snapshot of the
// stream instead of the log, deletes without overwriting.
//
// Costs: 1,000 deletions took 16 to 30 s in the newest block and 38 to 49 s in
// others, on two busy cores and whatever the size of an event, and appends beside
// them took 30 ms. A purge of 4,000 events took 0.02 to 0.2 s.

// EraseEvents deletes single events of an aggregate and overwrites their bytes.
// It gives how many it removed; those that are gone already are skipped, so it
// can be repeated until it succeeds.
//
// The event that names them must be in before, see Event.Erases.
func (j *Journal) EraseEvents(ctx context.Context, key Key, sequences []uint64) (removed int, err error) {
	for _, sequence := range sequences {
		there, err := j.holds(ctx, key, sequence)
		if err != nil {
			return removed, err
		}
		if !there {
			continue
		}
		if err := j.eraseEvent(ctx, key, sequence); err != nil {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

func (j *Journal) eraseEvent(ctx context.Context, key Key, sequence uint64) error {
	bounded, cancel := context.WithTimeout(ctx, eraseTimeout)
	defer cancel()
	err := j.handle.SecureDeleteMsg(bounded, sequence)
	if err == nil {
		return nil
	}
	// Somebody else may have done it, or the answer was lost.
	if there, asked := j.holds(ctx, key, sequence); asked == nil && !there {
		return nil
	}
	return unavailable(err)
}

// holds says whether the stream holds an event, which is the aggregate's.
func (j *Journal) holds(ctx context.Context, key Key, sequence uint64) (bool, error) {
	stored, err := j.askLeader(ctx, question{Sequence: sequence})
	switch {
	case errors.Is(err, errNoEvent):
		return false, nil
	case err != nil:
		return false, err
	case stored.Subject != key.Subject(j.service):
		return false, unreadable(key, sequence, fmt.Errorf("event %d is another aggregate's", sequence))
	}
	return true, nil
}

// ErasePast removes all events of an aggregate before the one at a sequence,
// which must be one that erases the past. It gives how many it removed, and can
// be repeated until it succeeds. It overwrites nothing.
func (j *Journal) ErasePast(ctx context.Context, key Key, before uint64) (removed uint64, err error) {
	stored, err := j.askLeader(ctx, question{Sequence: before})
	if errors.Is(err, errNoEvent) {
		return 0, nil // a later one erased it, and what was before it
	}
	if err != nil {
		return 0, err
	}
	e, err := stored.event()
	if err != nil {
		return 0, err
	}
	if e.Key != key || !e.ErasesPast {
		return 0, unreadable(key, before, fmt.Errorf("event %d does not erase the past of %s", before, key))
	}
	return j.purge(ctx, j.stream, jetstream.StreamPurgeRequest{Subject: key.Subject(j.service), Sequence: before})
}

// purge is the client's, which does not tell how many messages it removed.
func (j *Journal) purge(ctx context.Context, stream string, what jetstream.StreamPurgeRequest) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, purgeTimeout)
	defer cancel()
	request, err := json.Marshal(what)
	if err != nil {
		return 0, unavailable(err)
	}
	reply, err := j.nc.RequestWithContext(ctx, "$JS.API.STREAM.PURGE."+stream, request)
	if err != nil {
		return 0, unavailable(err)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Success bool                `json:"success"`
		Purged  uint64              `json:"purged"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return 0, unavailable(err)
	}
	if answer.Error != nil || !answer.Success {
		return 0, unavailable(fmt.Errorf("stream %s: %s", stream, reply.Data))
	}
	return answer.Purged, nil
}

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
// be repeated until it succeeds.
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

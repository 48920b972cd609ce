package journal

import (
	"context"
	"errors"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"weir/internal/fault"
)

// sequenceReaders is how many messages BySequence reads side by side. A batched
// get would answer with all that lies between them too.
const sequenceReaders = 16

// BySequence reads the messages at these sequences and calls fn with the place
// of each in the list, in no order and from several goroutines. A message that
// the stream does not hold any more is EVENT_UNREADABLE. After an error of any,
// others may not have been read.
func (j *Journal) BySequence(ctx context.Context, sequences []uint64, fn func(int, Stored) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	places := make(chan int)
	var readers sync.WaitGroup
	for range min(sequenceReaders, len(sequences)) {
		readers.Go(func() {
			for i := range places {
				stored, err := j.stored(ctx, sequences[i])
				if err == nil {
					err = fn(i, stored)
				}
				if err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range sequences {
		if ctx.Err() != nil {
			break
		}
		places <- i
	}
	close(places)
	readers.Wait()
	return context.Cause(ctx)
}

func (j *Journal) stored(ctx context.Context, sequence uint64) (Stored, error) {
	direct, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	msg, err := j.handle.GetMsg(direct, sequence)
	switch {
	case err == nil:
		return newStored(msg.Subject, msg.Header, msg.Data, msg.Sequence), nil
	case !errors.Is(err, jetstream.ErrMsgNotFound):
		return Stored{}, unavailable(err)
	}
	// A follower that lags may have answered. What it lacks, the leader has.
	answer, err := j.askLeader(ctx, question{Sequence: sequence})
	if errors.Is(err, errNoEvent) {
		return Stored{}, fault.New(fault.EventUnreadable, "event %d is gone from the journal", sequence).Wrap(err)
	}
	if err != nil {
		return Stored{}, err
	}
	var header nats.Header
	if len(answer.Header) > 0 {
		if header, err = nats.DecodeHeadersMsg(answer.Header); err != nil {
			return Stored{}, fault.New(fault.EventUnreadable, "event %d cannot be read", sequence).Wrap(err)
		}
	}
	return newStored(answer.Subject, header, answer.Data, answer.Sequence), nil
}

// Behind says whether the stream holds any message after a sequence. It is the
// answer for who waits for LastSequence where the last messages were purged.
func (j *Journal) Behind(ctx context.Context, sequence uint64) (bool, error) {
	_, err := j.askLeader(ctx, question{Sequence: sequence + 1, NextFor: ">"})
	if errors.Is(err, errNoEvent) {
		return false, nil
	}
	return err == nil, err
}

package inbox

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/journal"
)

// readsAtOnce bounds how much of one answer is read side by side.
const readsAtOnce = 32

// letter is a message as it was enqueued.
type letter = aggregate.Recorded[*inboxv1.Event]

// letters reads what messages say. The journal holds it, once; neither the
// state nor Redis has a copy, so neither grows with what is written to agents.
type letters struct{ journal *journal.Journal }

// read gives the letters of live messages, in their order.
func (l letters) read(ctx context.Context, key journal.Key, s inbox, ids []string) ([]letter, error) {
	read := make([]letter, len(ids))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	for i, id := range ids {
		m, _ := s.messages.Get(id)
		group.Go(func() (err error) {
			read[i], err = l.one(ctx, key, id, m.Sequence)
			return err
		})
	}
	return read, group.Wait()
}

func (l letters) one(ctx context.Context, key journal.Key, id string, sequence uint64) (letter, error) {
	event, err := l.journal.Get(ctx, sequence)
	if err != nil {
		return letter{}, err
	}
	read, err := aggregate.Decode[*inboxv1.Event](event)
	if err != nil {
		return letter{}, err
	}
	// Whoever reads by a bare number makes sure that nobody gets another's mail.
	if event.Key != key || read.Event.GetMessageEnqueued().GetMessageId() != id {
		return letter{}, fault.New(fault.EventUnreadable, "what message %s says cannot be read", id).
			Wrap(fmt.Errorf("event %d is of %s, not of %s", sequence, event.Key, key))
	}
	return read, nil
}

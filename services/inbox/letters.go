package inbox

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/journal"
)

// readsAtOnce bounds how much of one answer is read side by side.
const readsAtOnce = 32

// letter is a message as it was enqueued.
type letter struct {
	*inboxv1.EnqueuedMessage
	sender     string
	onBehalfOf []string
	operation  string
	at         time.Time
}

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
			read[i], err = l.one(ctx, key, id, m.Letter)
			return err
		})
	}
	return read, group.Wait()
}

func (l letters) one(ctx context.Context, key journal.Key, id string, at arrival) (letter, error) {
	event, err := l.journal.Get(ctx, at.Sequence)
	if err != nil {
		return letter{}, err
	}
	read, err := aggregate.Decode[*inboxv1.Event](event)
	if err != nil {
		return letter{}, err
	}
	// Whoever reads by a bare number makes sure that nobody gets another's mail.
	enqueued := read.Event.GetMessagesEnqueued()
	if i := int(at.Index); event.Key == key && i < len(enqueued.GetMessages()) && enqueued.Messages[i].GetMessageId() == id {
		return letter{enqueued.Messages[i], enqueued.GetSender(), enqueued.GetOnBehalfOf(), enqueued.GetOperation(), read.Time}, nil
	}
	return letter{}, fault.New(fault.EventUnreadable, "what message %s says cannot be read", id).
		Wrap(fmt.Errorf("event %d is of %s, and not of %s or not message %d", at.Sequence, event.Key, key, at.Index))
}

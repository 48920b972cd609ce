package inbox

import (
	"context"
	"fmt"
	"sync"
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

// read gives the letters of live messages, in their order. An event that holds
// several of them is read once.
func (l letters) read(ctx context.Context, key journal.Key, s inbox, ids []string) ([]letter, error) {
	read := make([]letter, len(ids))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	events := map[uint64]func() (envelope, error){}
	for i, id := range ids {
		m, _ := s.messages.Get(id)
		opened, known := events[m.Letter.Sequence]
		if !known {
			opened = sync.OnceValues(func() (envelope, error) { return l.open(ctx, m.Letter.Sequence) })
			events[m.Letter.Sequence] = opened
		}
		group.Go(func() error {
			from, err := opened()
			if err == nil {
				read[i], err = from.letter(key, id, m.Letter)
			}
			return err
		})
	}
	return read, group.Wait()
}

// envelope is an event that holds letters.
type envelope struct {
	aggregate.Recorded[*inboxv1.Event]
	key journal.Key
}

func (l letters) open(ctx context.Context, sequence uint64) (envelope, error) {
	event, err := l.journal.Get(ctx, sequence)
	if err != nil {
		return envelope{}, err
	}
	read, err := aggregate.Decode[*inboxv1.Event](event)
	return envelope{read, event.Key}, err
}

// letter gives one of them. Whoever reads by a bare number makes sure that nobody gets
// another's mail.
func (e envelope) letter(key journal.Key, id string, at arrival) (letter, error) {
	if l, ok := importedLetter(e.Recorded, id, at); ok && e.key == key {
		return l, nil
	}
	enqueued := e.Event.GetMessagesEnqueued()
	if i := int(at.Index); e.key == key && i < len(enqueued.GetMessages()) && enqueued.Messages[i].GetMessageId() == id {
		return letter{enqueued.Messages[i], enqueued.GetSender(), enqueued.GetOnBehalfOf(), enqueued.GetOperation(), e.Time}, nil
	}
	return letter{}, fault.New(fault.EventUnreadable, "what message %s says cannot be read", id).
		Wrap(fmt.Errorf("event %d is of %s, and not of %s or not message %d", at.Sequence, e.key, key, at.Index))
}

package main

import (
	"context"
	"fmt"

	inboxv1 "weir/gen/inbox/v1"
)

const (
	// depthInboxes is how many inboxes of each depth the callers share: so few that
	// the deep ones fill quickly, and all of them are kept in the service's memory.
	depthInboxes = 4
	shallow      = 10
	// deepRoom is how far below its limit a deep inbox is: each caller adds at most
	// one message.
	deepRoom = 100
)

// step is one of the calls that a message takes.
type step int

const (
	toEnqueue step = iota
	toClaim
	toDone
	steps
)

// depths is the inboxes of one depth.
type depths struct {
	service inboxv1.InboxServiceClient
	depth   int
	series  int // of callers, so that no id comes twice
}

func (d *depths) goal(n int) string { return fmt.Sprintf("depth-%d-%d", d.depth, n) }

// openDepths gives the inboxes of a depth, which all rows of that depth share.
func (m *mesh) openDepths(depth int) (*depths, error) {
	if d, ok := m.depths[depth]; ok {
		return d, nil
	}
	b, err := m.openInboxes()
	if err != nil {
		return nil, err
	}
	d := &depths{service: b.service, depth: depth}
	m.depths[depth] = d
	for n := range depthInboxes {
		if err := m.fillInbox(b.service, d.goal(n), depth); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// fillInbox puts so many messages into an inbox.
func (m *mesh) fillInbox(service inboxv1.InboxServiceClient, goal string, messages int) error {
	for from := 0; from < messages; from += atOnce {
		batch := &inboxv1.EnqueueBatchRequest{Goal: goal}
		for i := from; i < min(from+atOnce, messages); i++ {
			batch.Messages = append(batch.Messages, &inboxv1.NewMessage{MessageId: fmt.Sprintf("fill-%d", i), Body: text})
		}
		if _, err := service.EnqueueBatch(m.ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// openDepth times one of the three calls in inboxes of a depth. The two others are
// made before it, so that the depth stays what it is, but for one message a caller.
func openDepth(what step, depth func(*mesh) int) func(*mesh) (workload, error) {
	return func(m *mesh) (workload, error) {
		d, err := m.openDepths(depth(m))
		if err != nil {
			return nil, err
		}
		return func(callers int) ([]call, error) {
			d.series++
			calls := make([]call, callers)
			for i := range calls {
				w := &turner{depths: d, goal: d.goal(i % depthInboxes), name: fmt.Sprintf("%d-%d", d.series, i)}
				m.afterSlice(func() error { return w.until(m.ctx, toEnqueue) })
				calls[i] = func(ctx context.Context) error {
					if err := w.until(ctx, what); err != nil {
						return err
					}
					startsNow(ctx)
					return w.next(ctx)
				}
			}
			return calls, nil
		}, nil
	}
}

func shallowDepth(*mesh) int { return shallow }

// deepDepth is nearly full, but no more than the long conversation has.
func deepDepth(m *mesh) int { return min(inboxLimit, m.long) - deepRoom }

// turner is a caller that goes around: enqueue, claim, done. What it claims is the
// oldest, and not what it enqueued.
type turner struct {
	*depths
	goal  string
	name  string
	count int
	at    step // the call to make next
	claim *inboxv1.ClaimResponse
}

// until goes on until it has come to a step.
func (w *turner) until(ctx context.Context, what step) error {
	for w.at != what {
		if err := w.next(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (w *turner) next(ctx context.Context) error {
	at := w.at
	w.at = (at + 1) % steps
	var err error
	switch at {
	case toEnqueue:
		w.count++
		_, err = w.service.Enqueue(ctx, &inboxv1.EnqueueRequest{Goal: w.goal, MessageId: w.id("m"), Body: text})
	case toClaim:
		w.claim, err = w.service.Claim(ctx, &inboxv1.ClaimRequest{Goal: w.goal, RequestId: w.id("r"), Max: 1})
		if err == nil && len(w.claim.GetMessages()) != 1 {
			err = fmt.Errorf("a claim gave %d messages where %d wait", len(w.claim.GetMessages()), w.depth)
		}
	case toDone:
		_, err = w.service.Done(ctx, &inboxv1.DoneRequest{
			Goal: w.goal, MessageIds: messageIDs(w.claim), ClaimToken: w.claim.GetClaimToken(),
		})
	}
	return err
}

// id is one that no other call uses.
func (w *turner) id(kind string) string { return fmt.Sprintf("%s-%s-%d", kind, w.name, w.count) }

func messageIDs(answer *inboxv1.ClaimResponse) []string {
	ids := make([]string, len(answer.GetMessages()))
	for i, m := range answer.GetMessages() {
		ids[i] = m.GetMessageId()
	}
	return ids
}

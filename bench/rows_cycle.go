package main

import (
	"context"
	"fmt"

	inboxv1 "weir/gen/inbox/v1"
)

// cycler is a caller that takes messages all the way: it enqueues some, claims
// them and finishes them, and goes on to its next inbox.
type cycler struct {
	service inboxv1.InboxServiceClient
	mine    share
	name    string
	count   int
	each    int
}

// cycleGoal keeps the inboxes of cycles from those that other rows fill.
func cycleGoal(n int) string { return fmt.Sprintf("cycle-%04d", n) }

// openCycle takes so many messages at a time through all three calls. They are
// as many operations, so the row counts messages.
func openCycle(each int) func(*mesh) (workload, error) {
	return func(m *mesh) (workload, error) {
		b, err := m.openInboxes()
		if err != nil {
			return nil, err
		}
		series := 0
		return func(callers int) ([]call, error) {
			series++
			calls := make([]call, callers)
			for i, mine := range shares(callers, m.many) {
				w := &cycler{service: b.service, mine: mine, name: fmt.Sprintf("%d-%d-%d", each, series, i), each: each}
				calls[i] = w.next
			}
			return calls, nil
		}, nil
	}
}

func (w *cycler) next(ctx context.Context) error {
	goal := cycleGoal(w.mine.next())
	w.count++
	if err := w.enqueue(ctx, goal); err != nil {
		return err
	}
	claim, err := w.service.Claim(ctx, &inboxv1.ClaimRequest{
		Goal: goal, RequestId: fmt.Sprintf("r-%s-%d", w.name, w.count), Max: int32(w.each),
	})
	if err != nil {
		return err
	}
	ids := messageIDs(claim)
	if len(ids) != w.each {
		return fmt.Errorf("a claim gave %d messages of %d", len(ids), w.each)
	}
	_, err = w.service.Done(ctx, &inboxv1.DoneRequest{Goal: goal, MessageIds: ids, ClaimToken: claim.GetClaimToken()})
	return err
}

func (w *cycler) enqueue(ctx context.Context, goal string) error {
	if w.each == 1 {
		_, err := w.service.Enqueue(ctx, &inboxv1.EnqueueRequest{Goal: goal, MessageId: w.message(0), Body: text})
		return err
	}
	batch := &inboxv1.EnqueueBatchRequest{Goal: goal}
	for i := range w.each {
		batch.Messages = append(batch.Messages, &inboxv1.NewMessage{MessageId: w.message(i), Body: text})
	}
	_, err := w.service.EnqueueBatch(ctx, batch)
	return err
}

func (w *cycler) message(i int) string { return fmt.Sprintf("m-%s-%d-%d", w.name, w.count, i) }

package inbox

import (
	"context"
	"iter"
	"time"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/journal"
)

// passAtOnce bounds what one DeadlinesPassed names.
const passAtOnce = 500

// turned ranges over the messages whose delay or lease is over, or that have
// expired, and where each of them stands now. It is none, most often: what has
// passed is soon recorded.
func (s inbox) turned(now time.Time) iter.Seq2[string, standing] {
	return func(yield func(string, standing) bool) {
		if !s.exists() {
			return
		}
		for _, t := range []*timeline{s.delayed, s.leases} {
			for id := range upTo(t, now) {
				m, _ := s.messages.Get(id)
				// A delayed one that has expired is among the expired.
				if at := m.standing(now); at != overdue && !yield(id, at) {
					return
				}
			}
		}
		for id := range upTo(s.expiries, now) {
			if !yield(id, overdue) {
				return
			}
		}
	}
}

// decideDeadlines records what time has done: at most passAtOnce of it.
func decideDeadlines(s inbox, goal string, now time.Time) (*inboxv1.Event, error) {
	passed := &inboxv1.DeadlinesPassed{Goal: goal}
	list := map[standing]*[]string{
		due:      &passed.DueMessageIds,
		lapsed:   &passed.LapsedMessageIds,
		spent:    &passed.DeadMessageIds,
		outlived: &passed.ExpiredMessageIds,
		overdue:  &passed.ExpiredMessageIds,
	}
	n := 0
	for id, at := range s.turned(now) {
		if transitions[at][toPass] != happens {
			continue
		}
		*list[at] = append(*list[at], id)
		if n++; n == passAtOnce {
			break
		}
	}
	if n == 0 {
		return nil, nil
	}
	return &inboxv1.Event{Actor: self, Event: &inboxv1.Event_DeadlinesPassed{DeadlinesPassed: passed}}, nil
}

// due is when the inbox wants to be looked at.
func (s inbox) due() time.Time {
	if s.Due.IsZero() || s.Import.open() && s.Import.Due.Before(s.Due) {
		return s.Import.Due
	}
	return s.Due
}

// sweepDeadlines records deadlines once they have passed, until ctx ends. Nobody
// waits for it: every replica goes by time alone. What it adds is that consumers
// hear of it, that lists show it, and that what has ended makes room.
func sweepDeadlines(ctx context.Context, inboxes *inboxLoop, imports *importer) error {
	return inboxes.Sweep(ctx, func(ctx context.Context, key journal.Key) (time.Duration, error) {
		for {
			after, at, err := do(ctx, inboxes, key, decideDeadlines, key.ID)
			if err != nil {
				return 0, err
			}
			if i := after.State.Import; i.open() && !i.Due.After(at) {
				if err := imports.finish(ctx, key, i.Letter); err != nil {
					return 0, err
				}
				continue
			}
			due := after.State.due()
			if due.IsZero() {
				return 0, nil
			}
			// One event names so many deadlines; the rest are due as well.
			if left := due.Sub(at); left > 0 {
				return left, nil
			}
		}
	})
}

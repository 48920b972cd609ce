package inbox

import (
	"context"
	"time"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/journal"
)

type (
	inboxLoop    = aggregate.Loop[inbox, *inboxv1.Event]
	dispatchLoop = aggregate.Loop[dispatch, *inboxv1.Event]
)

// do runs one command on one aggregate, and gives the state after it and the
// time that it was decided at.
func do[S, C any](ctx context.Context, loop *aggregate.Loop[S, *inboxv1.Event], key journal.Key,
	decide func(S, C, time.Time) (*inboxv1.Event, error), command C,
) (after aggregate.Snapshot[S], at time.Time, err error) {
	after, err = loop.Do(ctx, key, func(s S, now time.Time) (*inboxv1.Event, error) {
		at = now
		return decide(s, command, now)
	})
	return after, at, err
}

// sweepLeases records the end of leases, until ctx ends. Nobody waits for it:
// a claim serves what has lapsed by itself. What it adds is that dead messages
// are told from lapsed ones, and that consumers hear of it.
func sweepLeases(ctx context.Context, inboxes *inboxLoop) error {
	return inboxes.Sweep(ctx, func(ctx context.Context, key journal.Key) (time.Duration, error) {
		for {
			after, at, err := do(ctx, inboxes, key, decideExpire, key.ID)
			if err != nil {
				return 0, err
			}
			due := after.State.due()
			if due.IsZero() {
				return 0, nil
			}
			// One event names so many leases; the rest are due as well.
			if left := due.Sub(at); left > 0 {
				return left, nil
			}
		}
	})
}

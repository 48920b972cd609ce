package inbox

import (
	"context"
	"time"

	"weir/internal/journal"
)

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

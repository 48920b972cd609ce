package aggregate

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"weir/internal/journal"
)

const (
	// sweepEvery bounds how late a deadline is noticed.
	sweepEvery = 100 * time.Millisecond
	// sweepHold is how long a taken deadline is kept from other replicas, and so
	// how soon one comes again whose handler failed or died.
	sweepHold = 3 * time.Second
	// sweepBatch is how many deadlines of one shard are taken at once, and
	// sweepAtOnce how many are handled side by side.
	sweepBatch  = 64
	sweepAtOnce = 32
)

// Sweep calls handle for every aggregate of the loop's kind whose deadline has
// passed, until ctx ends. Deadlines are kept in Redis and rebuilt from the
// journal, at their original time.
//
// What handle appends sets the next deadline. One that it leaves in place comes
// again: after the time that handle gives, or after some seconds where that is 0
// or handle failed. Several replicas sweep side by side; the append decides.
func (l *Loop[S, E]) Sweep(ctx context.Context, handle func(context.Context, journal.Key) (time.Duration, error)) error {
	for journal.Pause(ctx, sweepEvery) == nil {
		now := l.Now()
		held := now.Add(sweepHold)
		keys, err := l.hot.TakeDue(ctx, l.kind.Name, now, held, sweepBatch)
		if err != nil {
			continue // no Redis, no deadlines; they are there when it returns
		}
		var group errgroup.Group
		group.SetLimit(sweepAtOnce)
		for _, key := range keys {
			group.Go(func() error {
				ctx, cancel := context.WithTimeout(ctx, sweepHold)
				defer cancel()
				again, err := handle(ctx, key)
				if err != nil && ctx.Err() == nil {
					l.log.Warn("deadline not handled, it comes again", "key", key.String(), "error", err)
				}
				if err == nil && again > 0 {
					// Where this fails the deadline comes again sooner.
					_ = l.hot.Postpone(ctx, key, held, now.Add(again))
				}
				return nil
			})
		}
		_ = group.Wait()
	}
	return nil
}

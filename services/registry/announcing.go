package registry

import (
	"context"
	"time"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
	"weir/internal/journal"
)

const (
	announceWithin = 5 * time.Second
	announceRetry  = time.Second
)

// announce tells the gate which operations exist, so that it can tell a typo in
// a grant from a grant. Nothing waits for it. It tries until the gate has it
// or refuses it.
func (d *driver) announce(c *catalogue) func(context.Context) error {
	return func(ctx context.Context) error {
		for ctx.Err() == nil {
			attempt, cancel := context.WithTimeout(ctx, announceWithin)
			_, err := d.gate.AnnounceOperations(attempt, &gatev1.AnnounceOperationsRequest{Digest: c.digest, Operations: c.names})
			cancel()
			if err == nil || !transient(err) {
				if err != nil {
					d.log.Warn("the gate was not told which operations exist", "error", err)
				}
				<-ctx.Done()
				return nil
			}
			_ = journal.Pause(ctx, announceRetry)
		}
		return nil
	}
}

func transient(err error) bool {
	switch fault.From(err).Kind() {
	case fault.KindUnavailable, fault.KindDeadlineExceeded, fault.KindContention:
		return true
	default:
		return false
	}
}

package aggregate

import (
	"context"
	"hash/maphash"

	"weir/internal/fault"
	"weir/internal/journal"
)

// turnStripes is how many aggregates can be written at once in one process.
// Two that share a stripe wait for each other without need, which with some
// hundred callers is rare.
const turnStripes = 4096

// turns makes writers of one aggregate in one process wait for each other. It
// saves appends that could only lose; it is not what keeps them correct.
type turns struct {
	seed    maphash.Seed
	stripes []chan struct{}
}

func newTurns() turns {
	t := turns{seed: maphash.MakeSeed(), stripes: make([]chan struct{}, turnStripes)}
	for i := range t.stripes {
		t.stripes[i] = make(chan struct{}, 1)
	}
	return t
}

// enter waits for the turn on an aggregate and gives what ends it.
func (t turns) enter(ctx context.Context, key journal.Key) (leave func(), err error) {
	stripe := t.stripes[maphash.Comparable(t.seed, key)%turnStripes]
	select {
	case stripe <- struct{}{}:
		return func() { <-stripe }, nil
	case <-ctx.Done():
		return nil, fault.From(ctx.Err())
	}
}

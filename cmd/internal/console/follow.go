package console

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"weir/internal/fault"
)

// Between two attempts to reach a service that is away.
const (
	firstWait = 250 * time.Millisecond
	maxWait   = 15 * time.Second
)

// Follower goes on reading from a service that may be away for a while, and says so.
type Follower struct {
	T       *Terminal
	Service string

	away bool
	wait time.Duration
}

// Run reads again and again until ctx ends, which is no error, or until an error that
// would stay. A read that returns nil is followed by the next one after a short wait.
func (f *Follower) Run(ctx context.Context, read func(context.Context) error) error {
	f.wait = firstWait
	for {
		err := read(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
		case final(err):
			return err
		default:
			if !f.away {
				f.T.Printf("%s\n", f.T.Dim("the "+f.Service+" is away; trying again until it is back"))
			}
			f.away = true
		}
		// Half of it at random, so that many followers don't come back all at once.
		pause := f.wait/2 + rand.N(f.wait/2)
		f.wait = min(2*f.wait, maxWait)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// Heard is what a read calls whenever the service answers.
func (f *Follower) Heard() {
	if f.away {
		f.T.Printf("%s\n", f.T.Dim("the "+f.Service+" is back"))
	}
	f.away, f.wait = false, firstWait
}

// final says whether trying again would give the same error.
func final(err error) bool {
	switch fault.From(err).Kind() {
	case fault.KindUnavailable, fault.KindDeadlineExceeded, fault.KindContention, fault.KindCancelled:
		return false
	}
	return !errors.Is(err, io.EOF)
}

package inbox

import (
	"context"
	"time"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/backend"
	"weir/internal/journal"
)

type (
	inboxLoop    = aggregate.Loop[inbox, *inboxv1.Event]
	dispatchLoop = aggregate.Loop[dispatch, *inboxv1.Event]
)

func newInboxLoop(b *backend.Backend) *inboxLoop {
	return aggregate.New(inboxKind(), b.Journal, b.Hot, b.Log)
}

func newDispatchLoop(b *backend.Backend) *dispatchLoop {
	return aggregate.New(dispatchKind(), b.Journal, b.Hot, b.Log)
}

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

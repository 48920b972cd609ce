package inbox

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

const (
	// maxWanted is how many inboxes one watch may be waiting to be told of.
	maxWanted = 1000
	// lookPatience bounds one look at an inbox, and lookRetry is the pause after one
	// that failed.
	lookPatience = 2 * time.Second
	lookRetry    = 200 * time.Millisecond
)

// watch is one caller's WatchInboxes. It has a place on the board of its tenant,
// which gives it goals to look at one after the other.
type watch struct {
	server  *inboxServer
	stream  grpc.BidiStreamingServer[inboxv1.WatchInboxesRequest, inboxv1.WatchInboxesResponse]
	hub     *hub
	pool    *pool
	watcher *watcher
	// closed is set when the client has ended its side. Guarded by the pool.
	closed bool
	// ended takes why the watch ends, the first time.
	ended chan error
}

func (s *inboxServer) WatchInboxes(stream grpc.BidiStreamingServer[inboxv1.WatchInboxesRequest, inboxv1.WatchInboxesResponse]) error {
	ctx := stream.Context()
	caller, err := identity.Must(ctx)
	if err != nil {
		return err
	}
	w := &watch{server: s, stream: stream, ended: make(chan error, 1)}
	received := make(chan *inboxv1.WatchInboxesRequest)
	entered := make(chan struct{})
	// Receiving has a goroutine of its own: only so does the stream end when the
	// service stops or what is sent is refused. It ends with the stream.
	go w.receive(ctx, received, entered)
	var first *inboxv1.WatchInboxesRequest
	select {
	case first = <-received:
	case err := <-w.ended:
		return err
	case <-ctx.Done():
		return fault.From(ctx.Err())
	}
	goals, err := servable(caller, first.GetGoals())
	if err != nil {
		return err
	}
	if err := s.hub.enter(ctx, w, caller.Tenant, goals); err != nil {
		return err
	}
	defer s.hub.leave(w)
	close(entered)
	select {
	case err := <-w.ended:
		return err
	case <-ctx.Done():
		return fault.From(ctx.Err())
	}
}

// servable gives which goals a caller hears of, nothing for all. An agent that names
// another goal than its own is told that there is none, as everywhere.
func servable(caller identity.Caller, goals []string) ([]string, error) {
	own, ok := ownGoal(caller)
	if !ok {
		return goals, nil
	}
	for _, goal := range goals {
		if goal != own {
			return nil, notFound(goal)
		}
	}
	return []string{own}, nil
}

// receive takes what the client wants, from when the watch has its place.
func (w *watch) receive(ctx context.Context, first chan<- *inboxv1.WatchInboxesRequest, entered <-chan struct{}) {
	in, err := w.stream.Recv()
	if err == nil {
		select {
		case first <- in:
		case <-ctx.Done():
			return
		}
		select {
		case <-entered:
		case <-ctx.Done():
			return
		}
		if err = w.wants(in); err == nil {
			in, err = w.stream.Recv()
		}
	}
	for ; err == nil; in, err = w.stream.Recv() {
		if len(in.GetGoals()) > 0 {
			err = malformed("goals", "may only be in the first request")
			break
		}
		if err = w.wants(in); err != nil {
			break
		}
	}
	if !errors.Is(err, io.EOF) {
		w.end(err)
		return
	}
	if w.watcher == nil {
		w.end(nil) // it asked for nothing
		return
	}
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	w.closed = true
	w.endIfTold()
}

func (w *watch) wants(in *inboxv1.WatchInboxesRequest) (err error) {
	more := orDefault(in.GetWant(), 1)
	w.pool.do(func(b *board) {
		if w.watcher.want+more > maxWanted {
			err = malformed("want", "at most 1,000 may be outstanding")
			return
		}
		b.wants(w.watcher, more)
	})
	return err
}

// look looks at the goal that the board gave, and tells the client if it has work.
// It runs beside the others, once for each goal that is given.
func (w *watch) look() {
	w.pool.mu.Lock()
	p := w.watcher.looks
	if p == nil {
		w.pool.mu.Unlock()
		return // it has left
	}
	goal, version := p.goal, p.changed
	w.pool.mu.Unlock()

	found, seen, err := w.server.newer(w.stream.Context(), inboxKey(w.pool.tenant, goal), version)
	tell := false
	w.pool.do(func(b *board) {
		if err != nil {
			b.failed(w.watcher)
			return
		}
		tell = b.looked(w.watcher, seen, hasWork(found), time.Now())
	})
	switch {
	case err != nil && w.stream.Context().Err() == nil:
		w.hub.log.Warn("an inbox cannot be looked at, trying on", "goal", goal, "error", err)
		_ = journal.Pause(w.stream.Context(), lookRetry)
	case tell:
		w.hub.offers.Inc()
		// The board has it as told. If it does not arrive, another one hears of it.
		if err := w.stream.Send(&inboxv1.WatchInboxesResponse{Inbox: found}); err != nil {
			w.end(err)
			return // busy for good, until it has left
		}
	}
	w.pool.do(func(b *board) {
		b.free(w.watcher)
		w.endIfTold()
	})
}

func hasWork(in *inboxv1.Inbox) bool {
	return in.GetPending() > 0 && in.GetState() != inboxv1.InboxState_INBOX_STATE_PAUSED
}

// newer gives an inbox at a version or a later one, as Redis shows it if that is so
// new, and the version.
func (s *inboxServer) newer(ctx context.Context, key journal.Key, version uint64) (*inboxv1.Inbox, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	read, err := s.inboxes.Read(ctx, key, aggregate.RootField)
	if err == nil && read.Version < version {
		read, err = s.inboxes.Newest(ctx, key, aggregate.RootField)
	}
	if err != nil {
		return nil, 0, err
	}
	found, err := s.counted(ctx, key, read)
	return found, read.Version, err
}

// endIfTold ends a watch whose client wants no more than it was told. It is called
// with the pool's lock.
func (w *watch) endIfTold() {
	if w.closed && w.watcher.want == 0 && !w.watcher.busy {
		w.end(nil)
	}
}

func (w *watch) end(err error) {
	select {
	case w.ended <- err:
	default:
	}
}

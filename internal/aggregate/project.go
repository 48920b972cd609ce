package aggregate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/journal"
)

const (
	// projectorPrefix begins the names of the projectors' durable consumers; the
	// epoch ends them.
	projectorPrefix = "projector-"
	// epochCheck is how often a replica looks whether Redis is still the one it
	// projected into, and so about how long lists are wrong at the most when
	// Redis comes back with an old snapshot.
	epochCheck = 200 * time.Millisecond
)

// Projected is a loop as the projector sees it.
type Projected interface {
	name() string
	project(ctx context.Context, epoch string, e journal.Event) error
}

func (l *Loop[S, E]) name() string { return l.kind.Name }

// project makes sure that Redis shows an event of this kind. It normally does
// already, since the write path refreshed it. Where that was this process, in
// this epoch, Redis need not be asked.
func (l *Loop[S, E]) project(ctx context.Context, epoch string, e journal.Event) error {
	s, ok := l.memory.GetIfPresent(e.Key)
	if ok && s.Version >= e.Sequence && s.shown == epoch {
		return nil
	}
	shows, err := l.hot.Shows(ctx, e.Key, e.Sequence, l.kind.Due != nil)
	if err != nil || shows {
		return err
	}
	switch {
	case ok && s.Version >= e.Sequence:
		return l.put(ctx, e.Key, s)
	case s.Version == e.Previous: // both 0 for a first event
		// The usual case of a rebuild: events come in order, so the state
		// before this one is at hand and nothing is replayed twice.
		event, err := Decode[E](e)
		if err != nil {
			return err
		}
		next := l.evolve(s, event)
		l.remember(e.Key, next)
		return l.show(ctx, e.Key, e.Previous, next, event)
	}
	if s, err = l.catchUp(ctx, e.Key, Snapshot[S]{}); err != nil {
		return err
	}
	if !s.Exists() {
		return nil // erased since
	}
	return l.put(ctx, e.Key, s)
}

// Projector keeps Redis showing what the journal holds, for all kinds of one
// service. Replicas share the work.
type Projector struct {
	nc      *nats.Conn
	journal *journal.Journal
	hot     *hot.Store
	loops   map[string]Projected
	log     *slog.Logger
}

// NewProjector makes the projector of a service over all of its loops.
func NewProjector(nc *nats.Conn, j *journal.Journal, h *hot.Store, log *slog.Logger, loops ...Projected) *Projector {
	p := &Projector{nc: nc, journal: j, hot: h, loops: make(map[string]Projected), log: log}
	for _, loop := range loops {
		p.loops[loop.name()] = loop
	}
	return p
}

// Run projects until ctx ends. When Redis turns out to be new, flushed or
// restarted, it begins a new epoch from the first event.
func (p *Projector) Run(ctx context.Context) error {
	for {
		epoch, err := p.epoch(ctx)
		if err == nil {
			err = p.runEpoch(ctx, epoch)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			p.log.Warn("projector interrupted, trying on", "error", err)
		}
		if journal.Pause(ctx, epochCheck) != nil {
			return nil
		}
	}
}

// epoch gives the current epoch and begins one where there is none.
func (p *Projector) epoch(ctx context.Context) (hot.Epoch, error) {
	epoch, err := p.hot.Epoch(ctx)
	if err != nil || epoch.ID != "" {
		return epoch, err
	}
	target, err := p.journal.LastSequence(ctx)
	if err != nil {
		return hot.Epoch{}, err
	}
	if epoch, err = p.hot.BeginEpoch(ctx, target); err != nil {
		return hot.Epoch{}, err
	}
	if epoch.ID == "" {
		return hot.Epoch{}, errors.New("the epoch ended while it began")
	}
	p.log.Info("rebuilding the hot store from the journal", "epoch", epoch.ID, "up_to", epoch.Target)
	return epoch, nil
}

// runEpoch projects until the epoch is over.
func (p *Projector) runEpoch(ctx context.Context, epoch hot.Epoch) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	filter := "weir." + p.journal.Service() + ".*.*.*"
	consumer, err := journal.NewConsumer(p.nc, p.journal.Service(), projectorPrefix+epoch.ID, p.log, filter)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	p.hot.KnowEpoch(epoch.ID)
	project := func(ctx context.Context, e journal.Event) error { return p.project(ctx, epoch.ID, e) }
	go func() { done <- consumer.Run(ctx, project) }()
	defer func() { cancel(); <-done }()

	if err := consumer.RemoveOthers(ctx, projectorPrefix); err != nil {
		p.log.Warn("consumers of old epochs not removed", "error", err)
	}
	for {
		if journal.Pause(ctx, epochCheck) != nil {
			return nil
		}
		current, err := p.hot.Epoch(ctx)
		if err != nil {
			continue // Redis is away; what it shows when it returns decides
		}
		if current.ID != epoch.ID {
			p.log.Info("the hot store lost its epoch", "epoch", epoch.ID)
			return nil
		}
		if current.Complete {
			continue
		}
		caughtUp, err := consumer.CaughtUp(ctx, epoch.Target)
		if err != nil || !caughtUp {
			continue
		}
		if err := p.hot.CompleteEpoch(ctx, epoch.ID); err == nil {
			p.log.Info("the hot store is complete", "epoch", epoch.ID)
		}
	}
}

func (p *Projector) project(ctx context.Context, epoch string, e journal.Event) error {
	loop, ok := p.loops[e.Key.Kind]
	if !ok {
		return fault.New(fault.EventUnreadable, "events of kind %q are not known", e.Key.Kind).
			Wrap(fmt.Errorf("event %d", e.Sequence))
	}
	err := loop.project(ctx, epoch, e)
	if fault.Is(err, fault.EventUnreadable) {
		// It must neither keep all lists incomplete nor leave a document that
		// shows the time before it: reads of this aggregate go to the journal,
		// and say DATA_LOSS there.
		p.log.Error("an event cannot be read, its aggregate is left to the journal", "key", e.Key.String(), "sequence", e.Sequence, "error", err)
		return p.hot.Drop(ctx, e.Key, e.Sequence)
	}
	return err
}

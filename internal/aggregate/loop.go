package aggregate

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/proto"

	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/journal"
)

const (
	// contentionLimit bounds how long one command is decided again because other
	// writers win, and contentionPause is the longest wait before each time. The
	// pause is at random: without it two replicas that both have a queue of
	// writers can fall into step, and the same one always loses.
	contentionLimit = 2 * time.Second
	contentionPause = 2 * time.Millisecond
	// memoryBytes bounds the states that one loop keeps in memory.
	memoryBytes = 256 << 20
	// stateOverhead is what an entry costs beside its state.
	stateOverhead = 256
)

// Loop runs commands on the aggregates of one kind. It is safe for concurrent
// use; the journal's version check, and nothing else, decides who wins.
type Loop[S any, E proto.Message] struct {
	kind    Kind[S, E]
	journal *journal.Journal
	hot     *hot.Store
	log     *slog.Logger
	// memory holds recent states. Stale ones are harmless: an append on them
	// loses, and no refusal is given from them unverified.
	memory *otter.Cache[journal.Key, Snapshot[S]]
	turns  turns
	saving saving
	// Now is the clock. Tests set it before first use.
	Now func() time.Time
}

// Snapshot is a state and its version. Version 0 is the aggregate that has no
// event: it does not exist.
type Snapshot[S any] struct {
	State   S
	Version uint64
	// tail is how many events this process has followed since it knew the
	// aggregate to have a snapshot in the journal.
	tail int
	// shown is the epoch of the hot store in which this process wrote this
	// version there, empty where it did not.
	shown string
}

// Exists says whether the aggregate has any event.
func (s Snapshot[S]) Exists() bool { return s.Version != 0 }

// New makes the loop of one kind.
func New[S any, E proto.Message](kind Kind[S, E], j *journal.Journal, h *hot.Store, log *slog.Logger) *Loop[S, E] {
	return &Loop[S, E]{
		kind:    kind,
		journal: j,
		hot:     h,
		log:     log.With("kind", kind.Name),
		memory: otter.Must(&otter.Options[journal.Key, Snapshot[S]]{
			MaximumWeight: memoryBytes,
			Weigher: func(_ journal.Key, s Snapshot[S]) uint32 {
				return uint32(min(kind.Codec.Size(s.State)+stateOverhead, memoryBytes))
			},
		}),
		turns:  newTurns(),
		saving: newSaving(),
		Now:    time.Now,
	}
}

// Decide gives the one event that a command leads to, the zero E when it has
// been done already, or a refusal. It is pure: time comes in as now.
type Decide[S any, E proto.Message] func(state S, now time.Time) (E, error)

// Do runs one command on one aggregate and gives the state after it. When Do
// returns without an error, what decide said is in the journal.
//
// Errors: decide's own refusals, given on a state that was verified to be the
// newest; CONTENTION; JOURNAL_UNAVAILABLE, after which the event may be in: a
// retry of the same command converges by the id that it carries.
func (l *Loop[S, E]) Do(ctx context.Context, id journal.Key, decide Decide[S, E]) (Snapshot[S], error) {
	// Writers in one process wait for each other, since only one could win.
	leave, err := l.turns.enter(ctx, id)
	if err != nil {
		return Snapshot[S]{}, err
	}
	defer leave()

	current, err := l.load(ctx, id)
	if err != nil {
		return Snapshot[S]{}, err
	}
	// Verified says that the journal was asked: current was the newest state then.
	verified := false
	for started := time.Now(); time.Since(started) < contentionLimit; {
		// Whole microseconds, so that the time reads back as it was decided on.
		now := l.Now().UTC().Truncate(time.Microsecond)
		event, refusal := decide(current.State, now)
		if refusal != nil || isNone(event) {
			if !verified {
				newest, err := l.catchUp(ctx, id, current)
				if err != nil {
					return Snapshot[S]{}, err
				}
				moved := newest.Version != current.Version
				current, verified = newest, true
				if moved {
					continue
				}
			}
			return current, refusal
		}
		next, err := l.append(ctx, id, current, event, now)
		if !errors.Is(err, journal.ErrConflict) {
			return next, err
		}
		if verified { // else it was no race, only an old state
			if err := journal.Pause(ctx, rand.N(contentionPause)); err != nil {
				return Snapshot[S]{}, fault.From(err)
			}
		}
		if current, err = l.catchUp(ctx, id, current); err != nil {
			return Snapshot[S]{}, err
		}
		verified = true
	}
	return Snapshot[S]{}, fault.New(fault.Contention, "too many writers on one %s", l.kind.Name).Retry(50 * time.Millisecond)
}

// append commits an event and shows it in Redis. From the append on, the
// command has succeeded, whatever Redis does.
func (l *Loop[S, E]) append(ctx context.Context, key journal.Key, current Snapshot[S], event E, now time.Time) (Snapshot[S], error) {
	data, err := proto.Marshal(event)
	if err != nil {
		return Snapshot[S]{}, fault.New(fault.Bug, "an event cannot be encoded").Wrap(err)
	}
	name, err := eventType(event)
	if err != nil {
		return Snapshot[S]{}, fault.New(fault.Bug, "an event cannot be encoded").Wrap(err)
	}
	record := journal.Event{
		ID:          ulid.Make().String(),
		Type:        name,
		Key:         key,
		Time:        now,
		Data:        data,
		Traceparent: journal.Traceparent(ctx),
	}
	if l.kind.Erases != nil {
		record.Erases, record.ErasesPast = l.kind.Erases(event)
	}
	sequence, err := l.journal.Append(ctx, record, current.Version)
	if err != nil {
		return Snapshot[S]{}, err
	}
	recorded := Recorded[E]{Event: event, ID: record.ID, Time: now, Sequence: sequence, ErasesPast: record.ErasesPast}
	next := l.evolve(current, recorded)
	next = l.keep(ctx, key, next)
	next.shown = l.refresh(context.WithoutCancel(ctx), key, current.Version, next, recorded)
	l.remember(key, next)
	return next, nil
}

// after gives the state after an event of the journal.
func (l *Loop[S, E]) after(current Snapshot[S], e journal.Event) (Snapshot[S], error) {
	event, err := Decode[E](e)
	if err != nil {
		return Snapshot[S]{}, err
	}
	return l.evolve(current, event), nil
}

func (l *Loop[S, E]) evolve(current Snapshot[S], event Recorded[E]) Snapshot[S] {
	state := current.State
	if event.ErasesPast {
		// Who remembers the past must not come to another state than who never
		// heard of it.
		var none S
		state = none
	}
	return Snapshot[S]{State: l.kind.Evolve(state, event), Version: event.Sequence, tail: current.tail + 1}
}

// refresh shows an event in Redis, and gives the epoch that it did so in. What
// fails here, the projector repairs: it hears of every event.
func (l *Loop[S, E]) refresh(ctx context.Context, key journal.Key, from uint64, next Snapshot[S], event Recorded[E]) string {
	epoch := l.hot.KnownEpoch()
	if err := l.show(ctx, key, from, next, event); err != nil {
		l.log.Debug("hot store not refreshed, the projector will", "key", key.String(), "error", err)
		return ""
	}
	return epoch
}

// show writes to Redis what one event changed from the version before it.
func (l *Loop[S, E]) show(ctx context.Context, key journal.Key, from uint64, next Snapshot[S], event Recorded[E]) error {
	touched := l.kind.Codec.Touched(next.State, event.Event)
	if touched == nil || event.ErasesPast {
		return l.put(ctx, key, next)
	}
	change, err := l.kind.encode(next.State, touched)
	if err != nil {
		return fault.New(fault.Bug, "a %s cannot be encoded", l.kind.Name).Wrap(err)
	}
	applied, err := l.hot.Refresh(ctx, key, from, next.Version, change, l.kind.row(next.State, next.Version))
	if err == nil && applied == hot.Gap {
		err = l.put(ctx, key, next)
	}
	return err
}

// put writes the whole state to Redis.
func (l *Loop[S, E]) put(ctx context.Context, key journal.Key, s Snapshot[S]) error {
	document, err := l.kind.encode(s.State, l.kind.Codec.Names(s.State))
	if err != nil {
		return fault.New(fault.Bug, "a %s cannot be encoded", l.kind.Name).Wrap(err)
	}
	return l.hot.Put(ctx, key, s.Version, document.Set, l.kind.row(s.State, s.Version))
}

// load gives a state to decide on, from memory or Redis. Where neither has it,
// it is taken for absent without asking the journal, since most often it is new.
// All of these may be stale: Do verifies what it does not append on.
func (l *Loop[S, E]) load(ctx context.Context, key journal.Key) (Snapshot[S], error) {
	if s, ok := l.memory.GetIfPresent(key); ok {
		return s, nil
	}
	document, err := l.hot.Read(ctx, key)
	switch {
	case fault.Is(err, fault.DocumentUnreadable):
		return Snapshot[S]{}, err
	case err != nil || document.Version == 0:
		return Snapshot[S]{}, nil
	}
	s, err := l.decode(ctx, key, document)
	if err != nil {
		return Snapshot[S]{}, err
	}
	l.remember(key, s)
	return s, nil
}

// decode reads a document. One that cannot be read is left as it is.
func (l *Loop[S, E]) decode(ctx context.Context, key journal.Key, document hot.Document) (Snapshot[S], error) {
	state, err := l.kind.Codec.Decode(document.Fields)
	if err != nil {
		if err := l.hot.MarkUnreadable(ctx, key); err != nil {
			l.log.Error("unreadable document not marked", "key", key.String(), "error", err)
		}
		return Snapshot[S]{}, fault.New(fault.DocumentUnreadable, "the stored document of this %s cannot be read", key.Kind).Wrap(err)
	}
	return Snapshot[S]{State: state, Version: document.Version}, nil
}

// fromJournal gives the state as the journal has it now. It follows the journal
// from the newest state that is at hand, in memory or Redis, so that it reads no
// more of a long aggregate than of a short one.
func (l *Loop[S, E]) fromJournal(ctx context.Context, key journal.Key) (Snapshot[S], error) {
	// Where nothing is at hand, or it can't be read, the journal has all.
	at, _ := l.load(ctx, key)
	s, err := l.catchUp(ctx, key, at)
	if at.Exists() && fault.Is(err, fault.EventUnreadable) {
		// What was at hand may have been erased since.
		s, err = l.catchUp(ctx, key, Snapshot[S]{})
	}
	return s, err
}

// repair puts an aggregate into Redis where that lacks it.
func (l *Loop[S, E]) repair(ctx context.Context, key journal.Key, s Snapshot[S]) {
	shows, err := l.hot.Shows(ctx, key, s.Version, l.kind.Due != nil)
	if err == nil && !shows {
		err = l.put(ctx, key, s)
	}
	if err != nil {
		l.log.Debug("hot store not repaired, the projector will", "key", key.String(), "error", err)
	}
}

// catchUp follows the journal from a state that was true once to the newest one.
func (l *Loop[S, E]) catchUp(ctx context.Context, key journal.Key, s Snapshot[S]) (Snapshot[S], error) {
	if !s.Exists() {
		s = l.kept(ctx, key)
	}
	_, err := l.journal.Replay(ctx, key, s.Version, func(e journal.Event) error {
		var err error
		s, err = l.after(s, e)
		return err
	})
	if err != nil {
		return Snapshot[S]{}, err
	}
	if s.Exists() {
		s = l.keep(ctx, key, s)
		l.remember(key, s)
	}
	return s, nil
}

// remember keeps a state, unless a newer one is there.
func (l *Loop[S, E]) remember(key journal.Key, s Snapshot[S]) {
	l.memory.Compute(key, func(old Snapshot[S], found bool) (Snapshot[S], otter.ComputeOp) {
		if found && old.Version >= s.Version {
			return old, otter.CancelOp
		}
		return s, otter.WriteOp
	})
}

func isNone[E proto.Message](event E) bool {
	var none E
	return any(event) == any(none)
}

package aggregate

import (
	"context"
	"time"

	"weir/internal/journal"
)

// saveTimeout bounds one snapshot, which nobody waits for.
const saveTimeout = 20 * time.Second

// saving lets one snapshot of a loop be saved at a time. Where one is under
// way, the next append of the same aggregate tries again.
type saving chan struct{}

func newSaving() saving { return make(saving, 1) }

// keep saves a snapshot beside the caller once enough events have come since
// the last one, and gives the state with its count begun anew.
func (l *Loop[S, E]) keep(ctx context.Context, key journal.Key, s Snapshot[S]) Snapshot[S] {
	if l.kind.SnapshotEvery == 0 || s.tail < l.kind.SnapshotEvery {
		return s
	}
	select {
	case l.saving <- struct{}{}:
	default:
		return s
	}
	s.tail = 0
	go func() {
		defer func() { <-l.saving }()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
		defer cancel()
		document, err := l.kind.encode(s.State, l.kind.Codec.Names(s.State))
		if err == nil {
			err = l.journal.SaveSnapshot(ctx, key, journal.Snapshot{Version: s.Version, Fields: document.Set}, l.kind.Piece)
		}
		if err != nil {
			l.log.Warn("no snapshot kept, replays stay long", "key", key.String(), "error", err)
		}
	}()
	return s
}

// kept gives the state to begin a replay from: the aggregate's snapshot, or the
// zero state. A snapshot that cannot be read is passed over, because the
// journal has everything that it was made of.
func (l *Loop[S, E]) kept(ctx context.Context, key journal.Key) Snapshot[S] {
	if l.kind.SnapshotEvery == 0 {
		return Snapshot[S]{}
	}
	saved, err := l.journal.LoadSnapshot(ctx, key)
	if err != nil || saved.Version == 0 {
		if err != nil {
			l.log.Warn("snapshot not read, replaying all", "key", key.String(), "error", err)
		}
		return Snapshot[S]{}
	}
	fields := make(map[string]string, len(saved.Fields))
	for name, content := range saved.Fields {
		fields[name] = string(content)
	}
	state, err := l.kind.Codec.Decode(fields)
	if err != nil {
		l.log.Warn("snapshot not read, replaying all", "key", key.String(), "error", err)
		return Snapshot[S]{}
	}
	return Snapshot[S]{State: state, Version: saved.Version}
}

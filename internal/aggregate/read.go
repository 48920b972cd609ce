package aggregate

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"weir/internal/fault"
	"weir/internal/journal"
)

const (
	// defaultPageSize and maxPageSize hold for every list.
	defaultPageSize = 100
	maxPageSize     = 1000
	// readsAtOnce bounds how many documents of a page are read side by side;
	// they share pipelines.
	readsAtOnce = 64
)

// Read gives an aggregate's state as Redis shows it, or as the journal does
// where Redis can't, or is being rebuilt. With fields it asks for those only,
// and the rest of the state may be missing. Memory is not believed: another
// replica may have written.
//
// Version 0 in the answer is proof that the aggregate has no event.
func (l *Loop[S, E]) Read(ctx context.Context, key journal.Key, fields ...string) (Snapshot[S], error) {
	document, err := l.hot.ReadSettled(ctx, key, fields...)
	if err == nil && document.Version != 0 {
		return l.decode(ctx, key, document)
	}
	if fault.Is(err, fault.DocumentUnreadable) {
		return Snapshot[S]{}, err
	}
	s, err := l.fromJournal(ctx, key)
	if err == nil && s.Exists() {
		l.repair(ctx, key, s)
	}
	return s, err
}

// Newest gives an aggregate's state as the journal has it now, for who must not
// believe Redis, which may be behind for a moment. With fields it asks for those
// only, and the rest of the state may be missing.
func (l *Loop[S, E]) Newest(ctx context.Context, key journal.Key, fields ...string) (Snapshot[S], error) {
	if len(fields) > 0 {
		if s, ok := l.stillNewest(ctx, key, fields); ok {
			return s, nil
		}
	}
	return l.fromJournal(ctx, key)
}

// stillNewest gives some fields of a document that the journal has nothing newer
// than.
func (l *Loop[S, E]) stillNewest(ctx context.Context, key journal.Key, fields []string) (Snapshot[S], bool) {
	document, err := l.hot.Read(ctx, key, fields...)
	if err != nil || document.Version == 0 {
		return Snapshot[S]{}, false
	}
	_, err = l.journal.Replay(ctx, key, document.Version, func(journal.Event) error { return errNewer })
	if err != nil {
		return Snapshot[S]{}, false
	}
	s, err := l.decode(ctx, key, document)
	return s, err == nil
}

// errNewer ends a replay that was to find nothing.
var errNewer = errors.New("there is a newer event")

// Item is one aggregate in a list.
type Item[S any] struct {
	ID string
	Snapshot[S]
}

// PageRequest says which page of which of a tenant's lists.
type PageRequest[S any] struct {
	Tenant string
	Lists []string
	Keep func(S) bool
	// Size is capped at 1,000; 100 if 0.
	Size  int
	Token string
	// Fields to read of each document, all if empty.
	Fields []string
}

// List gives a page, newest first, and the token of the next one. While lists
// are incomplete it is INDEX_REBUILDING, never a shorter page.
func (l *Loop[S, E]) List(ctx context.Context, page PageRequest[S]) ([]Item[S], string, error) {
	size := page.Size
	if size == 0 {
		size = defaultPageSize
	}
	size = min(size, maxPageSize)
	var items []Item[S]
	var next string
	err := l.hot.Complete(ctx, func() error {
		ids, token, err := l.hot.List(ctx, page.Tenant, l.kind.Name, page.Lists[0], size, page.Token)
		if err != nil {
			return err
		}
		next = token
		items = make([]Item[S], len(ids))
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(readsAtOnce)
		for i, id := range ids {
			group.Go(func() error {
				s, err := l.Read(ctx, l.kind.Key(page.Tenant, id), page.Fields...)
				items[i] = Item[S]{ID: id, Snapshot: s}
				return err
			})
		}
		return group.Wait()
	})
	if err != nil {
		return nil, "", err
	}
	return items, next, nil
}

// History gives every state that an aggregate has had, oldest first, with the
// event that led to it. It replays the whole of it from the journal.
func (l *Loop[S, E]) History(ctx context.Context, key journal.Key, each func(Snapshot[S], Recorded[E]) error) error {
	var s Snapshot[S]
	_, err := l.journal.Replay(ctx, key, 0, func(e journal.Event) error {
		event, err := Decode[E](e)
		if err != nil {
			return err
		}
		s = l.evolve(s, event)
		return each(s, event)
	})
	return err
}

func (l *Loop[S, E]) Oldest(ctx context.Context, tenant, list string, after uint64, size int) ([]Item[S], uint64, error) { return nil, 0, nil }

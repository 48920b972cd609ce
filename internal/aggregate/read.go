package aggregate

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"weir/internal/fault"
	"weir/internal/hot"
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
	// Score is what it stands in the list by.
	Score uint64
	Snapshot[S]
}

// PageRequest says which page of which of a tenant's lists.
type PageRequest[S any] struct {
	Tenant string
	// Lists each hold all that is wanted, in the same order. The shortest is read;
	// a token stays with the list that it came from.
	Lists []string
	// Size is capped at 1,000; 100 if 0.
	Size  int
	Token string
	// Fields to read of each document, all if empty.
	Fields []string
	// Keep says what of a list is wanted, all if nil. A page is full however much
	// is left out, so most of what is left out should be by the choice of lists.
	Keep func(S) bool
}

// List gives a page, newest first, and the token of the next one. While lists
// are incomplete it is INDEX_REBUILDING, never a shorter page.
func (l *Loop[S, E]) List(ctx context.Context, page PageRequest[S]) ([]Item[S], string, error) {
	size := pageSize(page.Size)
	lists := make([]hot.List, len(page.Lists))
	for i, name := range page.Lists {
		lists[i] = l.hot.List(page.Tenant, l.kind.Name, name)
	}
	var items []Item[S]
	var next string
	err := l.hot.Complete(ctx, func() error {
		list, before, err := l.hot.Choose(ctx, page.Token, lists...)
		if err != nil {
			return err
		}
		// Where a round fills no page, the next looks at twice as much.
		for round := size; ; round = min(2*round, maxPageSize) {
			places, err := list.Newest(ctx, before, round+1)
			if err != nil {
				return err
			}
			more := len(places) > round
			places = places[:min(len(places), round)]
			looked, err := l.items(ctx, page.Tenant, places, page.Fields)
			if err != nil {
				return err
			}
			for i, item := range looked {
				before = item.Score
				if page.Keep != nil && !page.Keep(item.State) {
					continue
				}
				if items = append(items, item); len(items) == size {
					if more || i+1 < len(looked) {
						next = list.Token(before)
					}
					return nil
				}
			}
			if !more {
				return nil
			}
		}
	})
	if err != nil {
		return nil, "", err
	}
	return items, next, nil
}

// Oldest gives the first items of a list from its oldest end, of those whose
// score is greater than `after`: for who goes through a whole list while it
// changes. While lists are incomplete it is INDEX_REBUILDING.
func (l *Loop[S, E]) Oldest(ctx context.Context, tenant, list string, after uint64, size int, fields ...string) ([]Item[S], error) {
	var items []Item[S]
	err := l.hot.Complete(ctx, func() error {
		places, err := l.hot.List(tenant, l.kind.Name, list).Oldest(ctx, after, pageSize(size))
		if err != nil {
			return err
		}
		items, err = l.items(ctx, tenant, places, fields)
		return err
	})
	return items, err
}

// Count gives how many aggregates are in each of some lists of a tenant. While lists
// are incomplete it is INDEX_REBUILDING, never a smaller number.
func (l *Loop[S, E]) Count(ctx context.Context, tenant string, lists ...string) ([]int, error) {
	named := make([]hot.List, len(lists))
	for i, name := range lists {
		named[i] = l.hot.List(tenant, l.kind.Name, name)
	}
	var sizes []int
	err := l.hot.Complete(ctx, func() (err error) {
		sizes, err = l.hot.Sizes(ctx, named...)
		return err
	})
	return sizes, err
}

func pageSize(asked int) int {
	if asked == 0 {
		return defaultPageSize
	}
	return min(asked, maxPageSize)
}

// items reads the aggregates at some places side by side.
func (l *Loop[S, E]) items(ctx context.Context, tenant string, places []hot.Place, fields []string) ([]Item[S], error) {
	items := make([]Item[S], len(places))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	for i, place := range places {
		group.Go(func() error {
			s, err := l.Read(ctx, l.kind.Key(tenant, place.ID), fields...)
			items[i] = Item[S]{ID: place.ID, Score: place.Score, Snapshot: s}
			return err
		})
	}
	return items, group.Wait()
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

// At gives the state as an event left it, which may have been long ago, and the event.
func (l *Loop[S, E]) At(ctx context.Context, e journal.Event) (Snapshot[S], E, error) {
	recorded, err := Decode[E](e)
	if err != nil {
		return Snapshot[S]{}, recorded.Event, err
	}
	// Mostly it is the newest, or is not shown yet.
	current, err := l.Read(ctx, e.Key)
	if err != nil || current.Version == e.Sequence {
		return current, recorded.Event, err
	}
	var then Snapshot[S]
	err = l.History(ctx, e.Key, func(s Snapshot[S], _ Recorded[E]) error {
		if then = s; s.Version >= e.Sequence {
			return errNewer
		}
		return nil
	})
	if errors.Is(err, errNewer) {
		err = nil
	}
	return then, recorded.Event, err
}

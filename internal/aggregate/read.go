package aggregate

import (
	"context"

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
	return l.fromJournal(ctx, key)
}

// Newest gives an aggregate's state as the journal has it now, for who must not
// believe Redis, which may be behind for a moment.
func (l *Loop[S, E]) Newest(ctx context.Context, key journal.Key) (Snapshot[S], error) {
	return l.fromJournal(ctx, key)
}

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

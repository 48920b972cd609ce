package search

import (
	"cmp"
	"container/heap"
	"context"
	"slices"
	"strconv"

	"github.com/blevesearch/bleve/v2/search"
	"github.com/blevesearch/bleve/v2/search/searcher"
	bleve "github.com/blevesearch/bleve_index_api"
)

// Hit is an entry that was found.
type Hit struct {
	Conversation string
	Position     int64
	Sequence     uint64
}

// Cursor is where the page behind a hit begins.
func (h Hit) Cursor() Cursor { return Cursor{h.Sequence, h.Position} }

// Cursor is a place among hits, newest first. The zero Cursor stands before the
// newest. What is added to the index later is newer than every hit so far, so
// pages repeat and miss nothing.
type Cursor struct {
	Sequence uint64
	Position int64
}

// Search gives the newest hits behind a cursor, at most size, newest first: by
// sequence, then by position. Fewer than size are the last ones. Conversation ""
// searches all of the tenant.
//
// What it costs follows how many entries hold all words, wherever the cursor is.
func (i *Index) Search(ctx context.Context, tenant, conversation string, q Query, after Cursor, size int) ([]Hit, error) {
	if err := i.use(); err != nil {
		return nil, err
	}
	defer i.using.RUnlock()
	reader, err := i.scorch.Reader()
	if err != nil {
		return nil, i.fail(err)
	}
	defer func() { _ = reader.Close() }()
	field, word := fieldTenant, tenant
	if conversation != "" {
		field, word = fieldConversation, conversationName(tenant, conversation)
	}
	hits, err := find(ctx, reader, field, word, q, after, size)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, i.fail(err)
	}
	return hits, nil
}

// find goes once through all entries that hold every word and keeps the newest.
// Whether an entry holds the phrases is looked at last, as it costs the most.
func find(ctx context.Context, reader bleve.IndexReader, field, word string, q Query, after Cursor, size int) ([]Hit, error) {
	entries, err := holdingAll(ctx, reader, field, word, q.words())
	if err != nil {
		return nil, err
	}
	defer func() { _ = entries.Close() }()
	phrases, err := newPhrases(ctx, reader, q)
	if err != nil {
		return nil, err
	}
	defer phrases.close()
	orders, err := reader.DocValueReader([]string{fieldOrder})
	if err != nil {
		return nil, err
	}
	kept := newest{size: size}
	if after != (Cursor{}) {
		kept.before = order(after.Sequence, after.Position)
	}
	var place []byte
	see := func(_ string, value []byte) { place = value }
	going := &search.SearchContext{DocumentMatchPool: search.NewDocumentMatchPool(entries.DocumentMatchPoolSize()+1, 0)}
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		entry, err := entries.Next(going)
		if err != nil {
			return nil, err
		}
		if entry == nil {
			break
		}
		id := entry.IndexInternalID
		place = nil
		if err := orders.VisitDocValues(id, see); err != nil {
			return nil, err
		}
		if kept.wants(place) {
			holds, err := phrases.hold(id)
			if err != nil {
				return nil, err
			}
			if holds {
				kept.keep(string(place), slices.Clone(id))
			}
		}
		going.DocumentMatchPool.Put(entry)
	}
	return kept.hits(reader)
}

// holdingAll goes through the entries that have a word in one field and all of the
// others in their text.
func holdingAll(ctx context.Context, reader bleve.IndexReader, field, word string, words []string) (search.Searcher, error) {
	// Without scores, scorch joins sets of entries and reads nothing else of them.
	options := search.SearcherOptions{Score: "none"}
	first, err := searcher.NewTermSearcher(ctx, reader, word, field, 1, options)
	if err != nil {
		return nil, err
	}
	all := []search.Searcher{first}
	for _, word := range words {
		next, err := searcher.NewTermSearcher(ctx, reader, word, fieldText, 1, options)
		if err != nil {
			return nil, err
		}
		all = append(all, next)
	}
	return searcher.NewConjunctionSearcher(ctx, reader, all, options)
}

// newest keeps the newest of what it is shown, as a heap with the oldest on top.
type newest struct {
	size   int
	before string // what they must be older than; "" is nothing
	kept   []candidate
}

type candidate struct {
	order string
	id    bleve.IndexInternalID
}

// wants says whether an entry of this order would be kept.
func (n *newest) wants(order []byte) bool {
	if n.before != "" && string(order) >= n.before {
		return false
	}
	return len(n.kept) < n.size || n.size > 0 && string(order) > n.kept[0].order
}

func (n *newest) keep(order string, id bleve.IndexInternalID) {
	if len(n.kept) == n.size {
		n.kept[0] = candidate{order, id}
		heap.Fix(n, 0)
		return
	}
	heap.Push(n, candidate{order, id})
}

func (n *newest) Len() int           { return len(n.kept) }
func (n *newest) Less(a, b int) bool { return n.kept[a].order < n.kept[b].order }
func (n *newest) Swap(a, b int)      { n.kept[a], n.kept[b] = n.kept[b], n.kept[a] }
func (n *newest) Push(x any)         { n.kept = append(n.kept, x.(candidate)) }
func (n *newest) Pop() any           { panic("search: nothing is taken from a heap of hits") }

// hits gives what was kept, newest first.
func (n *newest) hits(reader bleve.IndexReader) ([]Hit, error) {
	slices.SortFunc(n.kept, func(a, b candidate) int { return cmp.Compare(b.order, a.order) })
	hits := make([]Hit, 0, len(n.kept))
	for _, c := range n.kept {
		name, err := reader.ExternalID(c.id)
		if err != nil {
			return nil, err
		}
		conversation, position, err := parseName(name)
		if err != nil {
			return nil, err
		}
		sequence, err := strconv.ParseUint(c.order[:len(c.order)/2], 16, 64)
		if err != nil {
			return nil, err
		}
		hits = append(hits, Hit{conversation, position, sequence})
	}
	return hits, nil
}

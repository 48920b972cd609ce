package search

import (
	"bytes"
	"context"
	"slices"

	bleve "github.com/blevesearch/bleve_index_api"
)

// phrases says which entries hold the phrases of a query. Bleve has a searcher for
// phrases, whose time in an entry grows with the square of how often it repeats a
// word, and with a power of that for a phrase that repeats it. Here it is linear in
// the words of the entry and of the phrase.
type phrases struct {
	phrases [][]*places
	words   map[string]*places
}

// newPhrases is for the phrases of more than one word.
func newPhrases(ctx context.Context, reader bleve.IndexReader, q Query) (*phrases, error) {
	p := &phrases{words: make(map[string]*places)}
	for _, phrase := range q.phrases {
		if len(phrase) == 1 {
			continue
		}
		of := make([]*places, len(phrase))
		for n, word := range phrase {
			if p.words[word] == nil {
				entries, err := reader.TermFieldReader(ctx, []byte(word), fieldText, false, false, true)
				if err != nil {
					p.close()
					return nil, err
				}
				p.words[word] = &places{entries: entries}
			}
			of[n] = p.words[word]
		}
		p.phrases = append(p.phrases, of)
	}
	return p, nil
}

func (p *phrases) close() {
	for _, word := range p.words {
		_ = word.entries.Close()
	}
}

// hold says whether an entry, which has all the words, has all the phrases. It must
// be asked for entries in the order of their ids.
func (p *phrases) hold(id bleve.IndexInternalID) (bool, error) {
	for _, phrase := range p.phrases {
		starts, err := phrase[0].in(id)
		if err != nil {
			return false, err
		}
		starts = slices.Clone(starts)
		for n, word := range phrase[1:] {
			stand, err := word.in(id)
			if err != nil {
				return false, err
			}
			starts = followed(starts, stand, uint64(n)+1)
		}
		if len(starts) == 0 {
			return false, nil
		}
	}
	return true, nil
}

// followed leaves of starts those that have a place at a distance behind them. Both
// ascend.
func followed(starts, places []uint64, distance uint64) []uint64 {
	left := starts[:0]
	for _, start := range starts {
		for len(places) > 0 && places[0] < start+distance {
			places = places[1:]
		}
		if len(places) > 0 && places[0] == start+distance {
			left = append(left, start)
		}
	}
	return left
}

// places are where one word stands in entries.
type places struct {
	entries bleve.TermFieldReader
	at      bleve.TermFieldDoc // the entry it is at
	stand   []uint64           // places in that one
}

// in gives the places in an entry, ascending. They are good until the next call.
func (p *places) in(id bleve.IndexInternalID) ([]uint64, error) {
	if bytes.Equal(p.at.ID, id) {
		return p.stand, nil
	}
	p.stand = p.stand[:0]
	entry, err := p.entries.Advance(id, &p.at)
	if err != nil || entry == nil || !bytes.Equal(entry.ID, id) {
		return nil, err
	}
	for _, vector := range entry.Vectors {
		p.stand = append(p.stand, vector.Pos)
	}
	return p.stand, nil
}

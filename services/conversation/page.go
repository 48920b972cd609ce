package conversation

import (
	"slices"
	"strconv"

	"github.com/benbjohnson/immutable"

	"weir/internal/fault"
)

const (
	defaultPageSize = 100
	// maxPageBytes is where a page ends before it is full. It is measured on the
	// events, which are about as large as the messages made of them.
	maxPageBytes = 2 << 20
	// runLength is how many positions share one run. A run is rewritten by each
	// message that joins it, and a page reads whole runs.
	runLength = 128
)

// place is where the journal holds a message, and how large its event is: with
// both, a page is cut exactly before anything is read.
type place struct {
	Sequence uint64
	Bytes    uint32
}

func runOf(position int64) int64 { return (position - 1) / runLength }

// withPlace adds the place of the next position.
func withPlace(runs *immutable.Map[int64, []place], position int64, p place) *immutable.Map[int64, []place] {
	run, _ := runs.Get(runOf(position))
	// Older states share the run, so it is copied, not extended.
	return runs.Set(runOf(position), slices.Concat(run, []place{p}))
}

func (c conversation) place(position int64) (place, bool) {
	if c.runs == nil || position < 1 {
		return place{}, false
	}
	run, _ := c.runs.Get(runOf(position))
	i := (position - 1) % runLength
	if i >= int64(len(run)) {
		return place{}, false
	}
	return run[i], true
}

// listing is a request for a page of messages.
type listing struct {
	newestFirst bool
	// from is the position to start at, 0 for the first in the order.
	from int64
	// size is the most messages, defaultPageSize if 0.
	size int64
}

// span is the positions from first to last, both included; none where last is
// smaller.
type span struct{ first, last int64 }

func (s span) len() int { return int(s.last - s.first + 1) }

// span gives the positions that a listing could show. A start that does not
// exist is refused: moving it would skip or repeat something unseen.
func (c conversation) span(l listing) (span, error) {
	size := l.size
	if size == 0 {
		size = defaultPageSize
	}
	from := l.from
	switch {
	case from == 0 && l.newestFirst:
		from = c.Head
	case from == 0:
		from = 1
	case from > c.Head:
		return span{}, fault.New(fault.CursorUnavailable, "the last position is %d, there is no %d", c.Head, from).
			Field("from", "is past the last position").With("head", strconv.FormatInt(c.Head, 10))
	}
	if l.newestFirst {
		return span{max(1, from-size+1), from}, nil
	}
	return span{from, min(from+size-1, c.Head)}, nil
}

// fit shortens a span to what a page takes in bytes, but never to nothing: one
// message fits any page. It gives false where the state lacks a place.
func (c conversation) fit(s span, newestFirst bool) (span, bool) {
	total := 0
	for i := range int64(s.len()) {
		position := s.first + i
		if newestFirst {
			position = s.last - i
		}
		p, ok := c.place(position)
		if !ok {
			return span{}, false
		}
		if total += int(p.Bytes); total <= maxPageBytes || i == 0 {
			continue
		}
		if newestFirst {
			return span{position + 1, s.last}, true
		}
		return span{s.first, position - 1}, true
	}
	return s, true
}

// next is where to go on after a span, 0 when there is nothing more.
func (c conversation) next(s span, newestFirst bool) int64 {
	switch {
	case newestFirst:
		return s.first - 1
	case s.last < c.Head:
		return s.last + 1
	}
	return 0
}

// before is the version of the conversation right before a position: reading on
// from there gives it. False where the state lacks the place.
func (c conversation) before(position int64) (uint64, bool) {
	if position == 1 {
		return c.First, true
	}
	p, ok := c.place(position - 1)
	return p.Sequence, ok
}

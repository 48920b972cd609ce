package conversation

import (
	"strconv"

	"github.com/benbjohnson/immutable"

	"weir/internal/fault"
)

const (
	defaultPageSize = 100
	// maxPageBytes is where a page ends before it is full.
	maxPageBytes = 2 << 20
	// runLength is how many positions share one run. A run is rewritten by each
	// message that joins it, and a page reads whole runs.
	runLength = 64
)

// place is where the journal holds a message and how large it is: with both, a
// page is cut exactly before anything is read. The zero place is none.
type place struct {
	// Sequence is the event that holds it, which may hold others too.
	Sequence uint64
	Bytes    uint32
	ID       idHash
}

func (p place) exists() bool { return p.Sequence != 0 }

func runOf(position int64) int64 { return (position - 1) / runLength }

// withPlace sets the place of a position. Positions come in order but where the
// event of one was erased: its place comes with the event that erased it.
func withPlace(runs *immutable.Map[int64, []place], position int64, p place) *immutable.Map[int64, []place] {
	old, _ := runs.Get(runOf(position))
	at := int((position - 1) % runLength)
	// Older states share the run, so it is copied.
	run := make([]place, max(len(old), at+1))
	copy(run, old)
	run[at] = p
	return runs.Set(runOf(position), run)
}

func (c conversation) place(position int64) (place, bool) {
	if c.runs == nil || position < 1 {
		return place{}, false
	}
	run, _ := c.runs.Get(runOf(position))
	i := (position - 1) % runLength
	if i >= int64(len(run)) || !run[i].exists() {
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

func (s span) len() int { return int(max(0, s.last-s.first+1)) }

// within is the part of the span that is in another one.
func (s span) within(o span) span { return span{max(s.first, o.first), min(s.last, o.last)} }

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
		return span{}, pastHead("from", from, c.Head)
	}
	if l.newestFirst {
		return span{max(1, from-size+1), from}, nil
	}
	return span{from, min(from+size-1, c.Head)}, nil
}

// pastHead refuses a cursor that is not there.
func pastHead(field string, position, head int64) error {
	return fault.New(fault.CursorUnavailable, "the last position is %d, there is no %d", head, position).
		Field(field, "is past the last position").With("head", strconv.FormatInt(head, 10))
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

// fit is how many of some sizes, in order, a page of so many bytes takes: at least
// one, whatever its size.
func fit(sizes []uint32, most int) int {
	total := 0
	for i, bytes := range sizes {
		if total += int(bytes); total > most && i > 0 {
			return i
		}
	}
	return len(sizes)
}

package inbox

import (
	"cmp"
	"hash/maphash"
	"iter"
	"time"

	"github.com/benbjohnson/immutable"
)

// place is where a message stands in its inbox: higher priority first, then by
// arrival. It never changes, so a message that comes back is at its old place.
type place struct {
	priority int32
	arrival  arrival
}

// arrival is when a message came: the sequence of its event, and which of the
// messages in that event it is. No two messages of an inbox have the same.
type arrival struct {
	Sequence uint64 `json:"sequence"`
	Index    int32  `json:"index,omitempty"`
}

func compareArrivals(a, b arrival) int {
	return cmp.Or(cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.Index, b.Index))
}

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), compareArrivals(a.arrival, b.arrival))
}

// moment is when something happens to a message by itself.
type moment struct {
	at      time.Time
	arrival arrival
}

func compareMoments(a, b moment) int {
	return cmp.Or(a.at.Compare(b.at), compareArrivals(a.arrival, b.arrival))
}

// ticket says under which request a message was claimed.
type ticket struct {
	request string
	arrival arrival
}

func compareTickets(a, b ticket) int {
	return cmp.Or(cmp.Compare(a.request, b.request), compareArrivals(a.arrival, b.arrival))
}

// The indexes of an inbox. All give message ids, and all are persistent: a
// change shares what it does not touch with the state before.
type (
	queue    = immutable.SortedMap[place, string]
	timeline = immutable.SortedMap[moment, string]
	tickets  = immutable.SortedMap[ticket, string]
)

type comparer[K any] func(a, b K) int

func (c comparer[K]) Compare(a, b K) int { return c(a, b) }

// idHasher spreads message ids with a seed of this process. Senders choose ids,
// and under a known hash they could choose ones that collide.
type idHasher struct{ seed maphash.Seed }

var hasher = idHasher{maphash.MakeSeed()}

func (h idHasher) Hash(id string) uint32 { return uint32(maphash.String(h.seed, id)) }

func (h idHasher) Equal(a, b string) bool { return a == b }

// first is the earliest entry of a timeline.
func first(t *timeline) (at moment, id string, ok bool) {
	if t.Len() == 0 {
		return at, id, false // mostly; an iterator is large
	}
	return t.Iterator().Next()
}

// upTo ranges over the ids whose moment has come by now.
func upTo(t *timeline, now time.Time) iter.Seq[string] {
	return func(yield func(string) bool) {
		if t.Len() == 0 {
			return
		}
		for itr := t.Iterator(); !itr.Done(); {
			m, id, _ := itr.Next()
			if m.at.After(now) || !yield(id) {
				return
			}
		}
	}
}

// all ranges over a timeline.
func all(t *timeline) iter.Seq[string] {
	return func(yield func(string) bool) {
		for itr := t.Iterator(); !itr.Done(); {
			if _, id, _ := itr.Next(); !yield(id) {
				return
			}
		}
	}
}

package inbox

import (
	"cmp"
	"hash/maphash"
	"iter"
	"math"
	"time"

	"github.com/benbjohnson/immutable"
)

// place is where a message stands in its inbox: those that interrupt first, then
// higher priority, then by arrival. It never changes, so a message that comes
// back is at its old place.
type place struct {
	interrupts bool
	priority   int32
	arrival    arrival
}

// front is before the places of all messages.
var front = place{interrupts: true, priority: math.MaxInt32}

// arrival is when a message came: the sequence of its event, and which of the
// messages in that event it is. No two live messages of an inbox have the same.
type arrival struct {
	Sequence uint64 `json:"sequence"`
	Index    int32  `json:"index,omitempty"`
}

func compareArrivals(a, b arrival) int {
	return cmp.Or(cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.Index, b.Index))
}

func comparePlaces(a, b place) int {
	if a.interrupts != b.interrupts {
		if a.interrupts {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(b.priority, a.priority), compareArrivals(a.arrival, b.arrival))
}

// moment is when something happens to a message, or has happened.
type moment struct {
	at      time.Time
	arrival arrival
}

func compareMoments(a, b moment) int {
	return cmp.Or(a.at.Compare(b.at), compareArrivals(a.arrival, b.arrival))
}

func newestFirst(a, b moment) int { return compareMoments(b, a) }

// ticket finds a message by a name that it shares with others: the request by
// which it was claimed, or its busy key.
type ticket struct {
	name    string
	arrival arrival
}

func compareTickets(a, b ticket) int {
	return cmp.Or(cmp.Compare(a.name, b.name), compareArrivals(a.arrival, b.arrival))
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

func sorted[K any](compare func(a, b K) int) *immutable.SortedMap[K, string] {
	return immutable.NewSortedMap[K, string](comparer[K](compare))
}

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
		if at, _, ok := first(t); !ok || at.at.After(now) {
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

// from ranges over an index, from a key on.
func from[K any](index *immutable.SortedMap[K, string], key K) iter.Seq2[K, string] {
	return func(yield func(K, string) bool) {
		if index.Len() == 0 {
			return
		}
		itr := index.Iterator()
		for itr.Seek(key); !itr.Done(); {
			at, id, _ := itr.Next()
			if !yield(at, id) {
				return
			}
		}
	}
}

// under ranges over the ids that share a name, by arrival.
func under(t *tickets, name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for at, id := range from(t, ticket{name: name}) {
			if at.name != name || !yield(id) {
				return
			}
		}
	}
}

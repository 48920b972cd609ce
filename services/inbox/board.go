package inbox

import (
	"container/list"
	"time"
)

const (
	// offerPatience is how long a watcher that was told of a goal has to claim from
	// it, before another one is told.
	offerPatience = 2 * time.Second
	// maxPosted bounds the goals on one board. Those beyond it stay in the list of
	// inboxes that are ready, and come from there as places get free.
	maxPosted = 20_000
)

// board says which goal is told to which watcher, for one tenant at one replica. It
// is plain data: whoever drives it reads the inboxes, sends, and brings the time.
//
//	           changed, reread             given to a watcher
//	(nothing) ────────────────▶ QUEUED ◀──────────────────────▶ LOOKED AT
//	    ▲                         ▲        it changed meanwhile     │  │
//	    │                         │ claimed from, 2 s,              │  │ has work:
//	    │                         │ the watcher left                │  │ told
//	    │                         └──────── OFFERED ◀───────────────┼──┘
//	    └───────────────────────────────────────────────────────────┘ has none
//
// What always holds:
//
//	a goal is looked at for, or offered to, one watcher at the most
//	a watcher looks at one goal at a time, and is told of no more than it wants
//	no goal is queued while a watcher of it waits
//	of the queued goals that it may hear of, a watcher gets the one queued first
type board struct {
	posted map[string]*post
	queue  list.List // of *post, by ticket
	offers list.List // of *post, by until

	// waiting are watchers of all goals that have nothing to do, by ticket. Those
	// that named their goals are found by them.
	waiting  list.List
	byGoal   map[string]map[*watcher]struct{}
	watchers int
	ofAll    int // of the watchers

	tickets uint64
	called  []*watcher
}

// post is a goal that has work, or may have.
type post struct {
	goal   string
	ticket uint64
	state  postState
	at     *list.Element // in queue or offers
	// by is who looks at it, or was told of it last.
	by    *watcher
	until time.Time
	// changed is the newest version that may have brought work, claimed the newest
	// that took some, and seen the one that was offered.
	changed, claimed, seen uint64
}

type postState int

const (
	queued postState = iota
	lookedAt
	offered
)

// watcher is who wants to hear of goals.
type watcher struct {
	goals map[string]struct{} // nil for all
	want  int
	// busy is set from being given a goal until the driver says free.
	busy, gone bool
	looks      *post // what it was given, until the driver says what it saw
	told       map[*post]struct{}
	ticket     uint64 // since when it waits; 0 when it does not
	at         *list.Element
}

func newBoard() *board {
	return &board{posted: make(map[string]*post), byGoal: make(map[string]map[*watcher]struct{})}
}

func (b *board) next() uint64 {
	b.tickets++
	return b.tickets
}

// join adds a watcher of some goals, of all if there are none.
func (b *board) join(goals []string) *watcher {
	w := &watcher{}
	b.watchers++
	if len(goals) == 0 {
		b.ofAll++
		return w
	}
	w.goals = make(map[string]struct{}, len(goals))
	for _, goal := range goals {
		w.goals[goal] = struct{}{}
		if b.byGoal[goal] == nil {
			b.byGoal[goal] = make(map[*watcher]struct{})
		}
		b.byGoal[goal][w] = struct{}{}
	}
	return w
}

// leave removes a watcher. What it was told and nobody claimed from goes back to
// where it was.
func (b *board) leave(w *watcher) {
	w.gone = true
	b.watchers--
	b.rest(w)
	for goal := range w.goals {
		delete(b.byGoal[goal], w)
		if len(b.byGoal[goal]) == 0 {
			delete(b.byGoal, goal)
		}
	}
	if w.goals == nil {
		b.ofAll--
	}
	if p := w.looks; p != nil {
		w.looks = nil
		b.enqueue(p)
	}
	for p := range w.told {
		b.withdraw(p)
		b.enqueue(p)
	}
	if w.goals == nil && b.ofAll > 0 {
		return
	}
	// Goals that nobody hears of any more would only take places.
	for goal, p := range b.posted {
		if !b.watched(goal) && p.state == queued {
			b.queue.Remove(p.at)
			delete(b.posted, goal)
		}
	}
}

func (b *board) watched(goal string) bool { return b.ofAll > 0 || len(b.byGoal[goal]) > 0 }

// wants adds to what a watcher wants to be told.
func (b *board) wants(w *watcher, more int) {
	w.want += more
	b.serve(w)
}

// changed says that a goal may have work as of a version. One that is on the board
// keeps its place.
func (b *board) changed(goal string, version uint64) {
	if p := b.posted[goal]; p != nil {
		p.changed = max(p.changed, version)
		return
	}
	if !b.watched(goal) || b.full() {
		return
	}
	p := &post{goal: goal, ticket: b.next(), changed: version}
	b.posted[goal] = p
	b.enqueue(p)
}

func (b *board) full() bool { return len(b.posted) >= maxPosted }

// claimed says that somebody claimed from a goal. If work is left there, the next to
// be told is another one, when all that wait now have been.
func (b *board) claimed(goal string, version uint64) {
	p := b.posted[goal]
	if p == nil {
		return
	}
	p.claimed = max(p.claimed, version)
	if p.state == offered && version > p.seen {
		b.behind(p)
	}
}

// expire ends offers that nobody claimed from in time, and gives how many.
func (b *board) expire(now time.Time) (lapsed int) {
	for at := b.offers.Front(); at != nil; at = b.offers.Front() {
		p := at.Value.(*post)
		if p.until.After(now) {
			break
		}
		b.behind(p)
		lapsed++
	}
	return lapsed
}

// behind takes an offer back and puts its goal at the end of the queue.
func (b *board) behind(p *post) {
	b.withdraw(p)
	p.ticket = b.next()
	b.enqueue(p)
}

func (b *board) withdraw(p *post) {
	b.offers.Remove(p.at)
	delete(p.by.told, p)
}

// calls gives the watchers that were given a goal to look at, each once. The driver
// reads that goal for each, says looked or failed, sends, and then says free.
func (b *board) calls() []*watcher {
	called := b.called
	b.called = nil
	return called
}

// looked says what a watcher saw in the goal that it was given: whether it had work
// at a version. It gives whether the watcher is to be told now.
func (b *board) looked(w *watcher, version uint64, work bool, now time.Time) (tell bool) {
	p := w.looks
	if p == nil {
		return false // it left
	}
	w.looks = nil
	switch {
	case work && p.claimed > version, !work && p.changed > version:
		b.enqueue(p) // what it saw is the past
	case work:
		p.state, p.seen, p.until = offered, version, now.Add(offerPatience)
		p.at = b.offers.PushBack(p)
		if w.told == nil {
			w.told = make(map[*post]struct{})
		}
		w.told[p] = struct{}{}
		w.want--
		return true
	default:
		delete(b.posted, p.goal)
	}
	return false
}

// failed says that the goal could not be read. It is looked at again, after the
// others.
func (b *board) failed(w *watcher) {
	if p := w.looks; p != nil {
		w.looks = nil
		p.ticket = b.next()
		b.enqueue(p)
	}
}

// free says that a watcher is ready for the next goal.
func (b *board) free(w *watcher) {
	w.busy = false
	b.serve(w)
}

// serve gives a watcher the next goal, or lets it wait.
func (b *board) serve(w *watcher) {
	if w.gone || w.busy || w.want == 0 || w.ticket > 0 {
		return
	}
	if p := b.first(w); p != nil {
		b.queue.Remove(p.at)
		b.give(w, p)
		return
	}
	w.ticket = b.next()
	if w.goals == nil {
		w.at = b.waiting.PushBack(w)
	}
}

// first is the goal that was queued first, of those that a watcher hears of.
func (b *board) first(w *watcher) *post {
	if w.goals == nil {
		if at := b.queue.Front(); at != nil {
			return at.Value.(*post)
		}
		return nil
	}
	var first *post
	for goal := range w.goals {
		if p := b.posted[goal]; p != nil && p.state == queued && (first == nil || p.ticket < first.ticket) {
			first = p
		}
	}
	return first
}

// enqueue gives a goal to who waits for it, or puts it into the queue by its ticket.
func (b *board) enqueue(p *post) {
	if w := b.waiter(p); w != nil {
		b.give(w, p)
		return
	}
	p.state = queued
	last := b.queue.Back()
	if last == nil || last.Value.(*post).ticket < p.ticket {
		p.at = b.queue.PushBack(p)
		return
	}
	// It was taken from the front, or near it.
	at := b.queue.Front()
	for at.Value.(*post).ticket < p.ticket {
		at = at.Next()
	}
	p.at = b.queue.InsertBefore(p, at)
}

// waiter is who has waited longest for a goal, rather another one than was told of it
// last. Nil if nobody waits.
func (b *board) waiter(p *post) *watcher {
	var found *watcher
	better := func(w *watcher) {
		switch {
		case found == nil,
			found == p.by && w != p.by,
			w != p.by && w.ticket < found.ticket:
			found = w
		}
	}
	if at := b.waiting.Front(); at != nil {
		better(at.Value.(*watcher))
		if at = at.Next(); at != nil && found == p.by {
			better(at.Value.(*watcher))
		}
	}
	for w := range b.byGoal[p.goal] {
		if w.ticket > 0 {
			better(w)
		}
	}
	return found
}

func (b *board) give(w *watcher, p *post) {
	b.rest(w)
	w.busy, w.looks = true, p
	p.state, p.by, p.at = lookedAt, w, nil
	b.called = append(b.called, w)
}

// rest ends a watcher's waiting.
func (b *board) rest(w *watcher) {
	if w.at != nil {
		b.waiting.Remove(w.at)
	}
	w.at, w.ticket = nil, 0
}

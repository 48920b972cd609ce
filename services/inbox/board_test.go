package inbox

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// boardModel drives a board as a replica does, over inboxes that are numbers, and
// holds what it does against a plain account of it.
type boardModel struct {
	*rapid.T
	board    *board
	now      time.Time
	version  uint64
	inboxes  map[string]*inboxModel
	watchers []*watcherModel
}

// inboxModel is what is true of one goal.
type inboxModel struct {
	messages int
	version  uint64
	// unheard is set while a change was lost.
	unheard bool
	// told is who was told of it, while that stands in the way of telling another.
	told  *watcherModel
	until time.Time
}

type watcherModel struct {
	w            *watcher
	goals        []string
	wanted, told int
	gone         bool
}

func (m *boardModel) goal() string {
	return rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(m.T, "goal")
}

func (m *boardModel) watcher() *watcherModel {
	if len(m.watchers) == 0 {
		m.Skip("nobody watches")
	}
	return rapid.SampledFrom(m.watchers).Draw(m.T, "watcher")
}

func (w *watcherModel) hears(goal string) bool {
	return len(w.goals) == 0 || slices.Contains(w.goals, goal)
}

func (m *boardModel) change(goal string, by int) *inboxModel {
	in := m.inboxes[goal]
	m.version++
	in.messages, in.version = in.messages+by, m.version
	return in
}

func (m *boardModel) enqueue(*rapid.T) {
	goal := m.goal()
	in := m.change(goal, 1)
	if in.unheard = rapid.IntRange(0, 4).Draw(m.T, "lost") == 0; !in.unheard {
		m.board.changed(goal, in.version)
	}
}

// claim takes a message, told of it or not; the word of it may come late or never.
func (m *boardModel) claim(*rapid.T) {
	if goal := m.goal(); m.inboxes[goal].messages > 0 {
		m.claimed(goal)
	}
}

func (m *boardModel) claimed(goal string) {
	in := m.change(goal, -1)
	in.told = nil
	m.board.claimed(goal, in.version)
}

func (m *boardModel) join(*rapid.T) {
	w := &watcherModel{goals: rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}), 0, 3, rapid.ID).Draw(m.T, "goals")}
	w.w = m.board.join(w.goals)
	m.watchers = append(m.watchers, w)
	m.reread(nil)
}

func (m *boardModel) leave(*rapid.T) {
	w := m.watcher()
	m.board.leave(w.w)
	w.gone = true
	m.watchers = slices.DeleteFunc(m.watchers, func(other *watcherModel) bool { return other == w })
	for _, in := range m.inboxes {
		if in.told == w {
			in.told = nil
		}
	}
}

func (m *boardModel) wants(*rapid.T) {
	w := m.watcher()
	more := rapid.IntRange(1, 3).Draw(m.T, "more")
	w.wanted += more
	m.board.wants(w.w, more)
}

// reread is what mends lost words.
func (m *boardModel) reread(*rapid.T) {
	for _, goal := range slices.Sorted(maps.Keys(m.inboxes)) {
		if in := m.inboxes[goal]; in.messages > 0 {
			in.unheard = false
			m.board.changed(goal, in.version)
		}
	}
}

func (m *boardModel) wait(*rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(1, 3000).Draw(m.T, "ms")) * time.Millisecond)
	m.board.expire(m.now)
}

// look does what the watchers were called for, now or later.
func (m *boardModel) look(*rapid.T) {
	for _, called := range m.board.calls() {
		p := called.looks
		if p == nil {
			m.board.free(called)
			continue
		}
		if rapid.IntRange(0, 9).Draw(m.T, "unreadable") == 0 {
			m.board.failed(called)
			m.board.free(called)
			continue
		}
		in := m.inboxes[p.goal]
		version, work := in.version, in.messages > 0
		// Something may happen between the read and what comes of it.
		switch rapid.IntRange(0, 5).Draw(m.T, "meanwhile") {
		case 0:
			m.board.changed(p.goal, m.change(p.goal, 1).version)
		case 1:
			if in.messages > 0 {
				m.claimed(p.goal)
			}
		}
		if m.board.looked(called, version, work, m.now) {
			m.told(called, p.goal, in)
		}
		m.board.free(called)
	}
}

func (m *boardModel) told(to *watcher, goal string, in *inboxModel) {
	at := slices.IndexFunc(m.watchers, func(w *watcherModel) bool { return w.w == to })
	if at < 0 {
		m.Fatalf("%s was told to who left", goal)
	}
	w := m.watchers[at]
	if in.told != nil && m.now.Before(in.until) {
		m.Fatalf("%s was told to two at once", goal)
	}
	if !w.hears(goal) {
		m.Fatalf("%s was told to who did not ask for it", goal)
	}
	if w.told++; w.told > w.wanted {
		m.Fatalf("a watcher wanted %d and was told %d", w.wanted, w.told)
	}
	in.told, in.until = w, m.now.Add(offerPatience)
}

// check holds the board against what it promises.
func (m *boardModel) check(*rapid.T) {
	places, by := map[*post]int{}, map[*watcher]int{}
	var last uint64
	for at := m.board.queue.Front(); at != nil; at = at.Next() {
		p := at.Value.(*post)
		if places[p]++; p.state != queued || p.ticket <= last {
			m.Fatalf("%s is in the queue in state %d, behind %d with %d", p.goal, p.state, last, p.ticket)
		}
		last = p.ticket
		for _, w := range m.watchers {
			if w.hears(p.goal) && w.w.want > 0 && !w.w.busy {
				m.Fatalf("%s is queued while a watcher of it waits", p.goal)
			}
		}
	}
	for at := m.board.offers.Front(); at != nil; at = at.Next() {
		places[at.Value.(*post)]++
	}
	for _, w := range m.watchers {
		if w.w.want != w.wanted-w.told || w.w.want < 0 {
			m.Fatalf("a watcher wanted %d, was told %d, and wants %d", w.wanted, w.told, w.w.want)
		}
		if w.w.looks != nil {
			places[w.w.looks]++
			by[w.w]++
		}
	}
	for goal, p := range m.board.posted {
		if places[p] != 1 || p.goal != goal {
			m.Fatalf("%s is in %d places", goal, places[p])
		}
	}
	for goal, in := range m.inboxes {
		heard := slices.ContainsFunc(m.watchers, func(w *watcherModel) bool { return w.hears(goal) })
		if p := m.board.posted[goal]; heard && in.messages > 0 && !in.unheard && p == nil {
			m.Fatalf("%s has work and is forgotten", goal)
		}
	}
}

// served claims whatever is told, one message at a time, until there is nothing left.
// Nobody waits for more than one round of the others.
func (m *boardModel) served() {
	for len(m.watchers) > 0 {
		m.leave(nil)
	}
	m.look(nil) // what those who left were called for
	w := &watcherModel{wanted: 1 << 20}
	w.w = m.board.join(nil)
	m.watchers = append(m.watchers, w)
	m.reread(nil)
	m.board.wants(w.w, w.wanted)
	left, since := 0, map[string]int{}
	for _, in := range m.inboxes {
		left += in.messages
	}
	for round := 1; left > 0; round++ {
		called := m.board.calls()
		if len(called) != 1 || called[0].looks == nil {
			m.Fatalf("%d messages are left, and %d are called", left, len(called))
		}
		goal := called[0].looks.goal
		in := m.inboxes[goal]
		if m.board.looked(called[0], in.version, in.messages > 0, m.now) {
			m.told(called[0], goal, in)
			for other, at := range since {
				if m.inboxes[other].messages > 0 && round-at > 2*len(m.inboxes) {
					m.Fatalf("%s waits since round %d, and it is round %d", other, at, round)
				}
			}
			since[goal] = round
			m.claimed(goal)
			left--
		}
		m.board.free(called[0])
		m.check(nil)
	}
}

func TestABoardTellsEveryGoalToOneWatcherAtATime(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &boardModel{T: rt, board: newBoard(), now: time.Unix(0, 0), inboxes: map[string]*inboxModel{}}
		for _, goal := range []string{"a", "b", "c", "d", "e"} {
			m.inboxes[goal] = &inboxModel{}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"enqueue": m.enqueue, "claim": m.claim, "join": m.join, "leave": m.leave, "wants": m.wants,
			"reread": m.reread, "wait": m.wait, "look": m.look, "": m.check,
		})
		m.served()
	})
}

// lookAll answers every call with what the goals have, and gives who was told what.
func lookAll(b *board, now time.Time, work func(goal string) bool) (told []string, to []*watcher) {
	for calls := b.calls(); len(calls) > 0; calls = b.calls() {
		for _, w := range calls {
			goal := w.looks.goal
			if b.looked(w, 1, work(goal), now) {
				told, to = append(told, goal), append(to, w)
			}
			b.free(w)
		}
	}
	return told, to
}

func always(string) bool { return true }

func TestGoalsAreToldInTheOrderTheyCameIn(t *testing.T) {
	b := newBoard()
	w := b.join(nil)
	var want []string
	for i := range 5 {
		want = append(want, fmt.Sprint("g", i))
		b.changed(want[i], 1)
		b.changed(want[0], 1) // a flood does not move it
	}
	b.wants(w, 10)
	if told, _ := lookAll(b, time.Time{}, always); !slices.Equal(told, want) {
		t.Fatalf("told %v", told)
	}
}

func TestWhatNobodyClaimedFromIsToldToAnotherOne(t *testing.T) {
	b, start := newBoard(), time.Unix(0, 0)
	one, two := b.join(nil), b.join(nil)
	b.wants(one, 5)
	b.wants(two, 5)
	b.changed("g", 1)
	var order []*watcher
	for i := range 4 {
		_, to := lookAll(b, start.Add(time.Duration(i)*offerPatience), always)
		order = append(order, to...)
		b.expire(start.Add(time.Duration(i+1)*offerPatience - 1))
		if more := b.calls(); len(more) != 0 {
			t.Fatal("told again too early")
		}
		b.expire(start.Add(time.Duration(i+1) * offerPatience))
	}
	if !slices.Equal(order, []*watcher{one, two, one, two}) {
		t.Fatal("the same one was told again")
	}
	// Where there is no other, that one is.
	b.leave(two)
	if _, to := lookAll(b, start, always); !slices.Equal(to, []*watcher{one}) {
		t.Fatalf("told %d", len(to))
	}
}

func TestALateWordOfAnOldClaimTakesNoOfferBack(t *testing.T) {
	b := newBoard()
	w := b.join(nil)
	b.wants(w, 2)
	b.changed("g", 1)
	if told, _ := lookAll(b, time.Time{}, always); len(told) != 1 {
		t.Fatalf("told %v", told)
	}
	b.claimed("g", 1) // which the offer had seen
	if more := b.calls(); len(more) != 0 {
		t.Fatal("it was offered again")
	}
	b.claimed("g", 2)
	if more := b.calls(); len(more) != 1 {
		t.Fatal("after a claim it was not looked at again")
	}
}

func TestABoardHasAnEnd(t *testing.T) {
	b := newBoard()
	w := b.join(nil)
	for i := range maxPosted + 10 {
		b.changed(fmt.Sprint("g", i), 1)
	}
	if len(b.posted) != maxPosted {
		t.Fatalf("it holds %d", len(b.posted))
	}
	b.leave(w)
	if len(b.posted) != 0 {
		t.Fatalf("it holds %d that nobody hears of", len(b.posted))
	}
}

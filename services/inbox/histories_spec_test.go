package inbox

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"weir/internal/fault"
)

// What an inbox is, said once more in as few words as will do, for the checker of
// histories. It shares nothing with decide and evolve.
//
// Times are nanoseconds on the one clock of this machine. A command was decided at
// some time between its call and its return, so what depends on time is known only
// to lie between two bounds.

// invocation is a command as a client made it.
type invocation struct {
	verb     verb
	messages []int // of hold commands
	message  int   // of an enqueue
	content  int   // which of the contents that an id was enqueued with
	priority int32
	request  int
	most     int
	token    string
	span     time.Duration // the lease of claim and extend, the delay of release
	call     int64
	ret      int64 // forever where the outcome is unknown
}

type verb int

const (
	enqueues verb = iota
	claims
	extends
	finishes
	releases
	redrives
	peeks
	ends // the history: what nobody knows the outcome of need not have happened by then
)

var verbNames = []string{"enqueue", "claim", "extend", "done", "release", "redrive", "peek", "end"}

// response is what came back.
type response struct {
	// unknown says that it may have happened, now or later, or never. Lost says that
	// the service promises that it never did.
	unknown, lost bool
	refusal       fault.Reason // "" for none
	state         specState
	depth         int
	token         string
	until         int64
	seen          []seen
}

// seen is a message as a claim or a peek shows it.
type seen struct {
	message, content int
	state            specState
	deliveries       int
	reclaimed        bool
	until            int64
}

type specState uint8

const (
	specNone specState = iota
	specPending
	specClaimed
	specDone
	specDead
)

const forever = math.MaxInt64

// entry is one message. Lo and hi bound when its lease ends, or from when on it may
// be served.
type entry struct {
	state      specState
	content    int
	priority   int32
	arrival    int
	deliveries int
	reclaimed  bool
	request    int    // that claimed it
	since      int    // which claim
	token      string // of the newest claim, "" while nobody was told
	lo, hi     int64
}

// world is the state of one inbox: entries by message. It does not count what came:
// two that will behave alike are then equal.
type world struct {
	entries []entry
	limit   int
	ended   bool
}

const specMaxDeliveries = 5

// passed says whether a time that is known to lie between two bounds had come when a
// command was decided: surely, or perhaps.
func (c invocation) passed(lo, hi int64) (surely, perhaps bool) {
	const truncated = int64(time.Millisecond) // the service cuts its clock's nanoseconds off
	return hi <= c.call-truncated, lo <= c.ret
}

// lapsed says it of a claimed message's lease.
func (c invocation) lapsed(e entry) (surely, perhaps bool) { return c.passed(e.lo, e.hi) }

// servable says whether a claim could get a message.
func (c invocation) servable(e entry) (surely, perhaps bool) {
	if e.state == specPending || e.state == specClaimed && e.deliveries < specMaxDeliveries {
		return c.passed(e.lo, e.hi)
	}
	return false, false
}

func (w world) clone() world {
	w.entries = slices.Clone(w.entries)
	return w
}

// inOrder sorts messages as they are served.
func (w world) inOrder(messages []int) []int {
	slices.SortFunc(messages, func(a, b int) int {
		x, y := w.entries[a], w.entries[b]
		return cmp.Or(cmp.Compare(y.priority, x.priority), cmp.Compare(x.arrival, y.arrival))
	})
	return messages
}

// depth is how many wait or are claimed. One whose last lease has ended is dead, and
// does not count.
func (w world) depth(c invocation) (least, most int) {
	for _, e := range w.entries {
		if e.state != specPending && e.state != specClaimed {
			continue
		}
		surely, perhaps := c.died(e)
		if !surely {
			most++
		}
		if !perhaps {
			least++
		}
	}
	return least, most
}

// died says whether a message had died by time alone.
func (c invocation) died(e entry) (surely, perhaps bool) {
	if e.state != specClaimed || e.deliveries < specMaxDeliveries {
		return false, false
	}
	return c.lapsed(e)
}

// shows says whether a message may be shown in a state.
func (c invocation) shows(e entry, s specState) bool {
	if e.state != specClaimed {
		return e.state == s
	}
	surely, perhaps := c.lapsed(e)
	after := specPending
	if e.deliveries >= specMaxDeliveries {
		after = specDead
	}
	return s == specClaimed && !surely || s == after && perhaps
}

// step gives the worlds that may follow when a command gets an answer, none when it
// can't have got that one. A command of which nobody knows the outcome takes its
// place among the others only if it does something there. Else it comes after the
// end, so that the checker need not try where in between it did nothing; unless it is
// settled when it can have done something at the latest: then it may do nothing till then.
func (w world) step(c invocation, a response) []world {
	switch {
	case a.lost:
		return []world{w}
	case c.verb == ends:
		w.ended = true
		return []world{w}
	case a.unknown && w.ended:
		return []world{w}
	case a.unknown && c.ret != forever:
		return append(w.effect(c, a), w)
	}
	return w.effect(c, a)
}

// effect gives the worlds in which a command did something, or was answered.
func (w world) effect(c invocation, a response) []world {
	switch c.verb {
	case enqueues:
		return w.enqueue(c, a)
	case claims:
		return w.claim(c, a)
	case peeks:
		return w.peek(c, a)
	case redrives:
		return w.redrive(c, a)
	default:
		return w.hold(c, a)
	}
}

func (w world) enqueue(c invocation, a response) []world {
	e := w.entries[c.message]
	least, most := w.depth(c)
	fresh := e.state == specNone
	switch {
	case a.unknown && (!fresh || least >= w.limit):
		return nil
	case a.refusal == fault.InboxFull:
		return possible(w, fresh && most >= w.limit)
	case a.refusal == fault.IdempotencyMismatch:
		return possible(w, !fresh && e.content != c.content)
	case a.refusal != "":
		return nil
	case !fresh:
		return possible(w, e.content == c.content && c.shows(e, a.state) && a.depth >= least && a.depth <= most)
	case least >= w.limit:
		return nil
	case !a.unknown && (a.state != specPending || a.depth < least+1 || a.depth > most+1):
		return nil
	}
	arrival := 1
	for _, e := range w.entries {
		arrival = max(arrival, e.arrival+1)
	}
	w = w.clone()
	w.entries[c.message] = entry{state: specPending, content: c.content, priority: c.priority, arrival: arrival}
	return []world{w}
}

func possible(w world, is bool) []world {
	if !is {
		return nil
	}
	return []world{w}
}

func (w world) claim(c invocation, a response) []world {
	if a.refusal != "" {
		return nil
	}
	shown := make([]int, len(a.seen))
	for i, s := range a.seen {
		shown[i] = s.message
	}
	before, certain := w.heldBy(c)
	if a.unknown && certain {
		return nil
	}
	if len(before) > 0 && !a.unknown && (certain || slices.Equal(before, shown)) {
		return w.claimedBefore(c, a, before, shown)
	}
	var sure, perhaps []int
	for i, e := range w.entries {
		switch surely, maybe := c.servable(e); {
		case surely:
			sure = append(sure, i)
		case maybe:
			perhaps = append(perhaps, i)
		}
	}
	if a.unknown {
		return w.claimedUnseen(c, sure, perhaps)
	}
	for _, i := range perhaps {
		if slices.Contains(shown, i) {
			sure = append(sure, i)
		}
	}
	if sure = w.inOrder(sure); !slices.Equal(sure[:min(c.most, len(sure))], shown) {
		return nil
	}
	for _, s := range a.seen {
		e := w.entries[s.message]
		if s.content != e.content || s.state != specClaimed || s.deliveries != e.deliveries+1 ||
			s.reclaimed != (e.reclaimed || e.state == specClaimed) || s.until != a.seen[0].until {
			return nil
		}
	}
	if len(shown) == 0 {
		return possible(w, a.token == "")
	}
	until := a.seen[0].until
	known := slices.ContainsFunc(w.entries, func(e entry) bool { return e.token == a.token })
	if a.token == "" || known || !c.decidedFor(until) {
		return nil
	}
	return []world{w.claimed(c, shown, a.token, until, until)}
}

// decidedFor says whether a command can have set a time: its span from when it was
// decided.
func (c invocation) decidedFor(until int64) bool {
	const truncated = int64(time.Millisecond)
	at := until - int64(c.span)
	return at >= c.call-truncated && at <= c.ret
}

func (w world) claimed(c invocation, messages []int, token string, lo, hi int64) world {
	since := 1
	for _, e := range w.entries {
		since = max(since, e.since+1)
	}
	w = w.clone()
	for _, i := range messages {
		e := &w.entries[i]
		e.reclaimed = e.reclaimed || e.state == specClaimed
		e.state, e.token, e.request, e.since = specClaimed, token, c.request, since
		e.deliveries++
		e.lo, e.hi = lo, hi
	}
	return w
}

// heldBy gives what the newest claim of a request holds, and whether that is beyond
// doubt.
func (w world) heldBy(c invocation) (held []int, certain bool) {
	since := 0
	for i, e := range w.entries {
		surely, perhaps := c.lapsed(e)
		if e.state != specClaimed || e.request != c.request || surely || e.since < since {
			continue
		}
		if e.since > since {
			held, since, certain = nil, e.since, false
		}
		held, certain = append(held, i), certain || !perhaps
	}
	return w.inOrder(held), certain
}

// claimedBefore is a claim that was made again, and tells what it was told, or would
// have been.
func (w world) claimedBefore(c invocation, a response, before, shown []int) []world {
	if !slices.Equal(before, shown) || a.token == "" {
		return nil
	}
	w = w.clone()
	for i, s := range a.seen {
		e := &w.entries[before[i]]
		if e.token != "" && e.token != a.token || s.until < e.lo || s.until > e.hi ||
			s.content != e.content || s.deliveries != e.deliveries || s.reclaimed != e.reclaimed {
			return nil
		}
		e.token, e.lo, e.hi = a.token, s.until, s.until
	}
	return []world{w}
}

// claimedUnseen is a claim of which nobody knows what it got: of what was perhaps
// servable, any part.
func (w world) claimedUnseen(c invocation, sure, perhaps []int) []world {
	var after []world
	for subset := range 1 << min(len(perhaps), 4) {
		got := slices.Clone(sure)
		for i, message := range perhaps {
			if subset>>i&1 == 1 {
				got = append(got, message)
			}
		}
		got = w.inOrder(got)
		if got = got[:min(c.most, len(got))]; len(got) > 0 {
			after = append(after, w.claimed(c, got, "", c.call+int64(c.span), forever))
		}
	}
	return after
}

// hold is a command on messages that the caller has claimed, or says so.
func (w world) hold(c invocation, a response) []world {
	var changes []int
	canWork, canBeStale := true, false
	for _, i := range c.messages {
		e := w.entries[i]
		fits := e.token == c.token
		surely, perhaps := c.lapsed(e)
		switch {
		case e.state == specClaimed && fits:
			canWork, canBeStale = canWork && !surely, canBeStale || perhaps
			changes = append(changes, i)
		case e.state == specDone && c.verb == finishes:
		case (e.state == specPending || e.state == specDead) && c.verb == releases && fits:
		default:
			canWork, canBeStale = false, true
		}
	}
	switch {
	case a.unknown && (!canWork || len(changes) == 0):
		return nil
	case a.refusal == fault.StaleClaim:
		return possible(w, canBeStale)
	case a.refusal != "" || !canWork:
		return nil
	case c.verb == extends && !a.unknown && !c.decidedFor(a.until):
		return nil
	}
	w = w.clone()
	for _, i := range changes {
		e := &w.entries[i]
		switch c.verb {
		case finishes:
			*e = entry{state: specDone, content: e.content}
		case extends:
			e.lo, e.hi = a.until, a.until
			if a.unknown {
				e.lo, e.hi = c.call+int64(c.span), forever
			}
		case releases:
			e.state = specPending
			if e.deliveries >= specMaxDeliveries {
				e.state = specDead
			}
			e.lo, e.hi = 0, 0
			if c.span > 0 {
				e.lo, e.hi = c.call+int64(c.span)-int64(time.Millisecond), forever
				if !a.unknown {
					e.hi = c.ret + int64(c.span)
				}
			}
		}
	}
	return []world{w}
}

// redrive makes a dead message pending again, at its old place.
func (w world) redrive(c invocation, a response) []world {
	e := w.entries[c.message]
	surely, perhaps := c.died(e)
	if e.state == specDead {
		surely, perhaps = true, true
	}
	least, most := w.depth(c)
	switch {
	case a.unknown && (!perhaps || least >= w.limit):
		return nil
	case a.refusal == fault.InboxFull:
		return possible(w, perhaps && most >= w.limit)
	case a.refusal == fault.MessageNotFound:
		return possible(w, e.state == specNone)
	case a.refusal == fault.StateConflict:
		return possible(w, e.state == specDone)
	case a.refusal != "" || e.state == specNone || e.state == specDone:
		return nil
	}
	var after []world
	if !surely { // it is passed over
		after = append(after, w)
	}
	if perhaps && least < w.limit {
		w = w.clone()
		w.entries[c.message] = entry{
			state: specPending, content: e.content, priority: e.priority, arrival: e.arrival,
			reclaimed: e.reclaimed || e.state == specClaimed,
		}
		after = append(after, w)
	}
	return after
}

// peek shows all that waits, in order.
func (w world) peek(c invocation, a response) []world {
	var waiting []int
	for i, e := range w.entries {
		if _, perhaps := c.died(e); perhaps && !slices.ContainsFunc(a.seen, func(s seen) bool { return s.message == i }) {
			continue
		}
		if e.state == specPending || e.state == specClaimed {
			waiting = append(waiting, i)
		}
	}
	if a.refusal != "" || len(waiting) != len(a.seen) {
		return nil
	}
	for n, i := range w.inOrder(waiting) {
		s, e := a.seen[n], w.entries[i]
		if s.message != i || s.content != e.content || s.deliveries != e.deliveries || !c.shows(e, s.state) {
			return nil
		}
	}
	return []world{w}
}

var worldSeed = maphash.MakeSeed()

// specification is the model for the checker: an inbox with a limit, in a history
// with so many message ids.
func specification(limit, messages int) porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{world{limit: limit, entries: make([]entry, messages)}} },
		Step: func(state, input, output any) []any {
			var after []any
			for _, w := range state.(world).step(input.(invocation), output.(response)) {
				after = append(after, w)
			}
			return after
		},
		Equal: func(a, b any) bool {
			x, y := a.(world), b.(world)
			return x.ended == y.ended && slices.Equal(x.entries, y.entries)
		},
		Hash: func(state any) uint64 {
			var h maphash.Hash
			h.SetSeed(worldSeed)
			for _, e := range state.(world).entries {
				maphash.WriteComparable(&h, e)
			}
			return h.Sum64()
		},
		DescribeOperation: func(input, output any) string { return describe(input.(invocation), output.(response)) },
		DescribeState:     func(state any) string { return state.(world).String() },
	}
	return model.ToModel()
}

func (w world) String() string {
	var all []string
	for i, e := range w.entries {
		if e.state != specNone {
			all = append(all, fmt.Sprintf("m%d %s at %d, %d times, by %.4s", i, specStates[e.state], e.arrival, e.deliveries, e.token))
		}
	}
	return strings.Join(all, "; ")
}

var specStates = []string{"unknown", "pending", "claimed", "done", "dead"}

func describe(c invocation, a response) string {
	text := verbNames[c.verb]
	switch c.verb {
	case enqueues:
		text += fmt.Sprintf(" m%d (content %d, priority %d)", c.message, c.content, c.priority)
	case claims:
		text += fmt.Sprintf(" r%d, %d at most for %v", c.request, c.most, c.span)
	case redrives:
		text += fmt.Sprintf(" m%d", c.message)
	case peeks, ends:
	default:
		text += fmt.Sprintf(" m%v by %.4s, %v", c.messages, c.token, c.span)
	}
	switch {
	case a.lost:
		return text + " → lost the race"
	case a.unknown:
		return text + " → ?"
	case a.refusal != "":
		return text + " → " + string(a.refusal)
	case c.verb == enqueues:
		return text + fmt.Sprintf(" → %s, depth %d", specStates[a.state], a.depth)
	case c.verb == claims || c.verb == peeks:
		for _, s := range a.seen {
			text += fmt.Sprintf(" → m%d %s, %d times", s.message, specStates[s.state], s.deliveries)
		}
		return text + fmt.Sprintf(" → by %.4s", a.token)
	default:
		return text + " → ok"
	}
}

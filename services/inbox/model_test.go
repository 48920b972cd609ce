package inbox

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	inboxv1 "weir/gen/inbox/v1"
)

// model is an inbox as one would write it down on paper: a list of messages,
// and a walk over all of it for every question.
type model struct {
	messages    []modelMessage
	mode        mode
	note        string
	updated     time.Time // of the newest event, by the clock that was ahead
	events      int
	interrupted int // the event
	arrivals    int
}

type modelMessage struct {
	id, content string
	key         string
	interrupts  bool
	priority    int32
	arrival     int // its place
	letter      int // when it truly came
	enqueued    time.Time
	notBefore   time.Time
	expires     time.Time // zero for never
	state       string    // pending, delayed, claimed, dead, done, expired, replaced, discarded
	until       time.Time
	token       string // of the newest claim, unless its lease end was recorded
	request     string
	claimant    string
	claim       int // the event
	last        bool
	deliveries  int
	failed      int // deliveries that ended without done, ever
	reclaimed   bool
	died        time.Time
	ended       time.Time
}

const modelKeep = time.Minute

func (m *model) clone() *model {
	c := *m
	c.messages = slices.Clone(m.messages)
	return &c
}

// find gives a message, or an ended one whose id is remembered.
func (m *model) find(id string) *modelMessage {
	for i := range m.messages {
		if m.messages[i].id == id {
			return &m.messages[i]
		}
	}
	return nil
}

// where says where a message stands at a time.
func (x *modelMessage) where(now time.Time) string {
	expired := !x.expires.IsZero() && !now.Before(x.expires)
	switch x.state {
	case "claimed":
		switch {
		case now.Before(x.until):
			return "held"
		case x.last:
			return "spent"
		case expired:
			return "outlived"
		}
		return "lapsed"
	case "pending", "delayed":
		switch {
		case expired:
			return "overdue"
		case x.state == "pending":
			return "ready"
		case now.Before(x.notBefore):
			return "delayed"
		}
		return "due"
	}
	return x.state
}

// all gives the messages that stand in one of some places, in order.
func (m *model) all(now time.Time, places ...string) []*modelMessage {
	var found []*modelMessage
	for i := range m.messages {
		if slices.Contains(places, m.messages[i].where(now)) {
			found = append(found, &m.messages[i])
		}
	}
	inOrder(found)
	return found
}

func (m *model) count(states ...string) int {
	n := 0
	for i := range m.messages {
		if slices.Contains(states, m.messages[i].state) {
			n++
		}
	}
	return n
}

func (m *model) depth() int { return m.count("pending", "delayed", "claimed") }

func inOrder(messages []*modelMessage) {
	rank := func(x *modelMessage) int {
		if x.interrupts {
			return 0
		}
		return 1
	}
	slices.SortFunc(messages, func(a, b *modelMessage) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.priority, a.priority), cmp.Compare(a.arrival, b.arrival))
	})
}

// byTime sorts as a list of deadlines is.
func byTime(messages []*modelMessage, at func(*modelMessage) time.Time) []string {
	slices.SortFunc(messages, func(a, b *modelMessage) int {
		return cmp.Or(at(a).Compare(at(b)), cmp.Compare(a.arrival, b.arrival))
	})
	return ids(messages)
}

// held is what the newest claim of a request holds.
func (m *model) held(request string, now time.Time) []*modelMessage {
	var found []*modelMessage
	for _, x := range m.all(now, "held") {
		if x.request != request || len(found) > 0 && x.claim < found[0].claim {
			continue
		}
		if len(found) > 0 && x.claim > found[0].claim {
			found = nil
		}
		found = append(found, x)
	}
	return found
}

func ids(messages []*modelMessage) []string {
	var out []string
	for _, x := range messages {
		out = append(out, x.id)
	}
	return out
}

// end takes a message out; its id stays.
func (m *model) end(x *modelMessage, as string, now time.Time) {
	if m.updated.After(now) {
		now = m.updated
	}
	x.state, x.ended = as, now
}

// fail ends a delivery.
func (x *modelMessage) fail() {
	x.failed++
	x.reclaimed, x.token = true, ""
}

// enqueue gives what an enqueue comes to, and does it.
func (m *model) enqueue(c enqueue, now time.Time) string {
	after := m.clone()
	after.messages = slices.DeleteFunc(after.messages, func(x modelMessage) bool {
		return !x.ended.IsZero() && x.ended.Before(now.Add(-modelKeep))
	})
	said := "MessagesEnqueued"
	added := 0
	for _, n := range c.Messages {
		content := fmt.Sprint(n.Body, n.Priority, n.NotBefore, n.Expires, n.Policy, n.BusyKey)
		if x := after.find(n.ID); x != nil {
			if x.content != content {
				return "IDEMPOTENCY_MISMATCH"
			}
			continue
		}
		if m.mode == draining {
			return "INBOX_DRAINING"
		}
		after.arrivals++
		x := modelMessage{
			id: n.ID, content: content, key: n.BusyKey, priority: n.Priority, arrival: after.arrivals, letter: after.arrivals,
			enqueued: now, notBefore: n.NotBefore, expires: n.Expires, state: "pending",
		}
		said += " " + n.ID
		if n.Priority != 0 {
			said += fmt.Sprint(" priority ", n.Priority)
		}
		if !n.NotBefore.IsZero() {
			x.state = "delayed"
			said += " not before " + offset(n.NotBefore)
		}
		if !n.Expires.IsZero() {
			said += " until " + offset(n.Expires)
		}
		switch n.Policy {
		case inboxv1.BusyPolicy_BUSY_POLICY_REJECT:
			for _, other := range after.all(now, "ready", "due", "delayed", "lapsed", "held") {
				if n.BusyKey == "" || other.key == n.BusyKey {
					return "INBOX_BUSY"
				}
			}
		case inboxv1.BusyPolicy_BUSY_POLICY_REPLACE:
			var newest *modelMessage
			for _, other := range after.all(now, "ready", "due", "delayed", "lapsed") {
				if other.key == n.BusyKey && (newest == nil || other.letter > newest.letter) {
					newest = other
				}
			}
			if newest != nil {
				x.arrival = newest.arrival
				after.end(newest, "replaced", now)
				said += " in place of " + newest.id
			}
		case inboxv1.BusyPolicy_BUSY_POLICY_INTERRUPT:
			x.interrupts = true
			after.interrupted = m.events + 1
		}
		after.messages = append(after.messages, x)
		added++
	}
	switch {
	case added == 0:
		return "nothing"
	case after.depth() > m.depth() && after.depth() > c.Rules.Limit:
		return "INBOX_FULL"
	}
	*m = *after
	return said + " from agent:ann"
}

// claim gives what a claim comes to, and does it.
func (m *model) claim(c claim, now time.Time) string {
	held, free := m.held(c.Request, now), m.all(now, "ready", "due", "lapsed")
	free = free[:min(len(free), c.Max)]
	switch {
	case len(held) > 0 && (held[0].claimant != c.Claimant || len(held) > c.Max):
		return "IDEMPOTENCY_MISMATCH"
	case len(held) > 0 || len(free) == 0 || m.mode == paused:
		return "nothing"
	}
	for _, x := range free {
		if x.state == "claimed" {
			x.fail()
		}
		x.state, x.token, x.request, x.claimant, x.claim = "claimed", c.Token, c.Request, c.Claimant, m.events+1
		x.until = now.Add(c.Lease)
		x.deliveries++
		x.last = x.deliveries >= c.Rules.Deliveries
	}
	return fmt.Sprintf("MessagesClaimed %v by %s under %s until %s", ids(free), c.Claimant, c.Token, offset(now.Add(c.Lease)))
}

// deadlines gives what is recorded of what time has done, and does it.
func (m *model) deadlines(now time.Time) string {
	until := func(x *modelMessage) time.Time { return x.until }
	passed := m.all(now, "due")
	due := byTime(passed, func(x *modelMessage) time.Time { return x.notBefore })
	for _, x := range passed {
		x.state = "pending"
	}
	spent := m.all(now, "spent")
	dead := byTime(spent, until)
	for _, x := range spent {
		x.fail()
		x.state, x.died = "dead", x.until
	}
	over, overdue := m.all(now, "outlived"), m.all(now, "overdue")
	gone := append(byTime(over, until), byTime(overdue, func(x *modelMessage) time.Time { return x.expires })...)
	back := m.all(now, "lapsed")
	lapsed := byTime(back, until)
	for _, x := range back {
		x.fail()
		x.state = "pending"
	}
	for _, x := range append(over, overdue...) {
		m.end(x, "expired", now)
	}
	said := ""
	for i, list := range [][]string{due, lapsed, dead, gone} {
		if len(list) > 0 {
			said += fmt.Sprintf(" %s %v", []string{"due", "lapsed", "dead", "expired"}[i], list)
		}
	}
	if said == "" {
		return "nothing"
	}
	return "DeadlinesPassed" + said
}

// operate gives what a redrive or a discard comes to, and does it.
func (m *model) operate(redrive bool, c operation, now time.Time) string {
	if m.events == 0 {
		return "INBOX_NOT_FOUND"
	}
	var change []*modelMessage
	added := 0
	for _, id := range c.IDs {
		x := m.find(id)
		if x == nil {
			return "MESSAGE_NOT_FOUND"
		}
		switch at := x.where(now); {
		case at == "dead" || at == "spent":
			change = append(change, x)
			if at == "dead" {
				added++
			}
		case !redrive && at == "discarded":
		case redrive && slices.Contains([]string{"ready", "due", "delayed", "lapsed", "held"}, at):
		default:
			return "STATE_CONFLICT"
		}
	}
	if len(change) == 0 {
		return "nothing"
	}
	if !redrive {
		for _, x := range change {
			m.end(x, "discarded", now)
		}
		return fmt.Sprintf("MessagesDiscarded %v", ids(change))
	}
	if added > 0 && m.depth()+added > c.Rules.Limit {
		return "INBOX_FULL"
	}
	for _, x := range change {
		if x.state == "claimed" {
			x.fail()
		}
		x.state, x.deliveries, x.token = "pending", 0, ""
	}
	return fmt.Sprintf("MessagesRedriven %v", ids(change))
}

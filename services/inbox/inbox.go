package inbox

import (
	"time"

	"github.com/benbjohnson/immutable"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
)

// An inbox is the messages of one goal. It begins with the first message that
// is enqueued, or when an operator pauses or drains it, and never ends. What can
// happen to each of its messages is drawn in message.go; here is what holds for
// them together:
//
//	pending + delayed + claimed ≤ limit   refused at it, never evicted
//	dead ≤ maxDead + limit                likewise, since any that waits may die
//	finished ids ≤ maxBuckets·bucketSize  the oldest are forgotten
//
// The first may be passed by redriven messages that replaced none, never by more
// than one command finds room for.

// Limits of one inbox.
const (
	defaultLimit = 200
	maxLimit     = 10_000
	maxDead      = 10_000
	// keepIDs is how long the id of a finished message is remembered.
	defaultKeepIDs = 7 * 24 * time.Hour
	minKeepIDs     = time.Hour
	maxKeepIDs     = 90 * 24 * time.Hour
	// maxServed bounds the bodies in one answer and in one batch: a gRPC client
	// takes 4 MiB unless it was told otherwise, and a claim that it can't receive
	// would be out of reach until the lease ends.
	maxServed = 3 << 20
	// retryFull is when a sender may try again at a full inbox.
	retryFull = time.Second
)

// rules are the limits that this service was told. What follows from an event
// never depends on them; only decisions do.
type rules struct {
	Limit      int // messages of an inbox
	Body       int // bytes
	Deliveries int // of a message, before it is dead
	KeepIDs    time.Duration
}

// self is the actor of what no caller asked for.
const self = "service:inbox"

// mode is what an inbox takes and gives.
type mode string

const (
	open     mode = ""
	paused   mode = "paused"
	draining mode = "draining"
)

var modes = map[mode]inboxv1.InboxState{
	open:     inboxv1.InboxState_INBOX_STATE_OPEN,
	paused:   inboxv1.InboxState_INBOX_STATE_PAUSED,
	draining: inboxv1.InboxState_INBOX_STATE_DRAINING,
}

// inbox is the state of one goal's mail. The zero inbox is one that nobody has
// written to.
type inbox struct {
	root
	messages *immutable.Map[string, message]
	finished finished

	// The indexes follow from messages.
	waiting  *queue    // pending, delayed and claimed
	ready    *queue    // pending
	ages     *timeline // pending, by when it was enqueued
	delayed  *timeline // delayed, by not_before
	leases   *timeline // claimed, by the end of the lease
	expiries *timeline // pending and delayed that expire, by when
	deaths   *timeline // dead, the newest first
	requests *tickets  // claimed, by request id
	busy     *tickets  // with a busy key, unless dead
	// history is how many deliveries the messages remember together.
	history int

	// touched names the fields of the document that the newest event changed.
	touched []string
}

// root is what does not grow, and all that a count needs.
type root struct {
	Mode   mode   `json:"mode,omitempty"`
	Note   string `json:"note,omitempty"`
	Counts counts `json:"counts"`
	// Finished is how many ids are remembered, FirstBucket where the oldest are.
	Finished    int    `json:"finished,omitempty"`
	FirstBucket uint64 `json:"first_bucket,omitempty"`
	// Import is the state file that it began with.
	Import imported `json:"import,omitzero"`
	// Interrupted is the sequence of the newest message that interrupts.
	Interrupted uint64 `json:"interrupted,omitempty"`
	// Updated is the latest time that any event was decided at.
	Updated time.Time `json:"updated"`
	// Oldest is when the message that is pending longest was enqueued.
	Oldest time.Time `json:"oldest,omitzero"`
	// Due is when time alone changes the counts next, zero for never.
	Due time.Time `json:"due,omitzero"`
}

// counts are how many messages stand where, as of the newest event.
type counts struct {
	Pending int `json:"pending,omitempty"`
	Delayed int `json:"delayed,omitempty"`
	Claimed int `json:"claimed,omitempty"`
	Dead    int `json:"dead,omitempty"`
}

// depth is what counts against the limit.
func (c counts) depth() int { return c.Pending + c.Delayed + c.Claimed }

func newInbox() inbox {
	return inbox{
		messages: immutable.NewMap[string, message](hasher),
		finished: newFinished(),
		waiting:  sorted(comparePlaces),
		ready:    sorted(comparePlaces),
		ages:     sorted(compareMoments),
		delayed:  sorted(compareMoments),
		leases:   sorted(compareMoments),
		expiries: sorted(compareMoments),
		deaths:   sorted(newestFirst),
		requests: sorted(compareTickets),
		busy:     sorted(compareTickets),
	}
}

// exists says whether anything has happened to it.
func (s inbox) exists() bool { return s.messages != nil }

// standing is where a message stands at a time, and whether a token is that of
// its newest claim.
func (s inbox) standing(id, token string, now time.Time) (at standing, fits bool) {
	if !s.exists() {
		return unknown, false
	}
	if m, ok := s.messages.Get(id); ok {
		return m.standing(now), token != "" && token == m.Hold.Token
	}
	if e, ok := s.finished.find(id); ok {
		return standing(e.as), false
	}
	return unknown, false
}

// countsAt is the counts at a time, which may be later than the newest event.
func (s inbox) countsAt(now time.Time) counts {
	c := s.Counts
	for id, at := range s.turned(now) {
		switch at {
		case due:
			c.Delayed, c.Pending = c.Delayed-1, c.Pending+1
		case lapsed:
			c.Claimed, c.Pending = c.Claimed-1, c.Pending+1
		case spent:
			c.Claimed, c.Dead = c.Claimed-1, c.Dead+1
		case outlived:
			c.Claimed--
		case overdue:
			if m, _ := s.messages.Get(id); m.State == waits {
				c.Delayed--
			} else {
				c.Pending--
			}
		}
	}
	return c
}

// oldestAt is when the message that is pending longest at a time was enqueued,
// zero where none is.
func (s inbox) oldestAt(now time.Time) time.Time {
	if s.Due.IsZero() || s.Due.After(now) {
		return s.Oldest
	}
	var oldest time.Time
	older := func(t time.Time) {
		if oldest.IsZero() || t.Before(oldest) {
			oldest = t
		}
	}
	for id, at := range s.turned(now) {
		if transitions[at][toClaim] == happens {
			m, _ := s.messages.Get(id)
			older(m.Enqueued)
		}
	}
	for _, id := range from(s.ages, moment{}) {
		if m, _ := s.messages.Get(id); m.standing(now) == ready {
			older(m.Enqueued)
			break
		}
	}
	return oldest
}

func notFound(goal string) error {
	return fault.New(fault.InboxNotFound, "there is no inbox %s", goal)
}

package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"weir/internal/fault"
)

// A message, from its arrival to its end:
//
//	             release, lease end
//	           ┌───────────────────────┐
//	           ▼                       │
//	 ──▶ PENDING ─────── claim ──▶ CLAIMED ── done ──▶ DONE ──▶ forgotten
//	    (delayed until                 │  ▲ │                   after 7 days
//	     not_before)            extend └──┘ │
//	                                        └─ release, lease end: DEAD
//	                                           after 5 deliveries
//
// Two changes need no event, since time alone makes them: a delayed message
// becomes servable at not_before, and a claim is void at the end of its lease.
// From that instant on every replica answers so, whether or not anybody has
// recorded the end (MessagesClaimed by the next worker, or DeadlinesPassed).

// Limits of one message.
const (
	maxBody       = 64 << 10
	maxDelay      = 30 * 24 * time.Hour
	maxDeliveries = 5
)

// state is what the events say of a live message. Done ones are not live: all
// that is kept of them is a finished.
type state string

const (
	pending state = "pending"
	claimed state = "claimed"
	dead    state = "dead"
)

// message is what an inbox keeps of a live message. What it says stands in the
// event that enqueued it, at Arrival, and is kept nowhere else.
type message struct {
	State       state     `json:"state"`
	Arrival     arrival   `json:"arrival"`
	Priority    int32     `json:"priority,omitempty"`
	Bytes       int       `json:"bytes"` // of the body
	Fingerprint []byte    `json:"fingerprint"`
	NotBefore   time.Time `json:"not_before,omitzero"`
	Deliveries  int32     `json:"deliveries,omitempty"`
	Reclaimed   bool      `json:"reclaimed,omitempty"`
	Hold        hold      `json:"hold,omitzero"`
}

// hold is by whom and until when a message is claimed. Of a message that was
// released the token stays, which tells a retry of the release from a stale one.
type hold struct {
	Token    string    `json:"token"`
	Request  string    `json:"request,omitempty"`
	Claimant string    `json:"claimant,omitempty"`
	Until    time.Time `json:"until,omitzero"`
	// Since is the sequence of the claim. Under one request id there may be
	// several claims, one after the other; the newest counts.
	Since uint64 `json:"since,omitempty"`
}

// finished is what outlives a message: enough to answer a retry of its enqueue.
type finished struct {
	At          time.Time `json:"at"`
	Arrival     arrival   `json:"arrival"`
	Fingerprint []byte    `json:"fingerprint"`
}

func (m message) place() place { return place{m.Priority, m.Arrival} }

// standing is where a message stands at a given time.
type standing int

const (
	unknown standing = iota // never enqueued here, or forgotten
	delayed                 // pending, but not yet
	ready                   // pending
	held                    // claimed, under a lease that lasts
	lapsed                  // claimed, under a lease that has ended
	spent                   // lapsed, and delivered too often to be served again
	buried                  // dead
	done
	standings int = iota
)

func (m message) standing(now time.Time) standing {
	switch {
	case m.State == dead:
		return buried
	case m.State == pending && m.NotBefore.After(now):
		return delayed
	case m.State == pending:
		return ready
	case m.Hold.Until.After(now):
		return held
	case m.Deliveries >= maxDeliveries:
		return spent
	default:
		return lapsed
	}
}

// command is what can be asked of one message. Those that carry a claim token
// stand twice: with the token of the message's newest claim, and with another.
type command int

const (
	enqueueSame  command = iota // under this id, with the same content
	enqueueOther                // under this id, with other content
	toClaim
	toExtend
	toFinish
	toRelease
	toExtendStale
	toFinishStale
	toReleaseStale
	toExpire
	commands int = iota
)

// outcome is what a command comes to for one message.
type outcome int

const (
	nothing  outcome = iota // it is so already, or the command passes the message over
	happens                 // the event names the message
	stale                   // STALE_CLAIM for the whole command
	mismatch                // IDEMPOTENCY_MISMATCH
)

// transitions is the whole state machine of a message; deciding is looking up.
var transitions = [standings][commands]outcome{
	//         enqueue:           claim:   with the token:         with another token:    lease end:
	//         same     other              extend   done     release  extend done     release
	unknown: {happens, happens, nothing, stale, stale, stale, stale, stale, stale, nothing},
	delayed: {nothing, mismatch, nothing, stale, stale, nothing, stale, stale, stale, nothing},
	ready:   {nothing, mismatch, happens, stale, stale, nothing, stale, stale, stale, nothing},
	held:    {nothing, mismatch, nothing, happens, happens, happens, stale, stale, stale, nothing},
	lapsed:  {nothing, mismatch, happens, stale, stale, stale, stale, stale, stale, happens},
	spent:   {nothing, mismatch, nothing, stale, stale, stale, stale, stale, stale, happens},
	buried:  {nothing, mismatch, nothing, stale, stale, nothing, stale, stale, stale, nothing},
	done:    {nothing, mismatch, nothing, stale, nothing, stale, stale, nothing, stale, nothing},
}

// withToken is the column of a command that carries a claim token.
func (c command) withToken(fits bool) command {
	if fits {
		return c
	}
	return c + toExtendStale - toExtend
}

func staleClaim(id string) error {
	return fault.New(fault.StaleClaim, "the claim token does not hold message %s now", id).With("message_id", id)
}

// fingerprint tells a retry from other content under the same id. Every part
// goes in behind its length, so no two contents run together to the same bytes.
func (c enqueue) fingerprint() []byte {
	data := make([]byte, 0, len(c.Sender)+len(c.Body)+len(c.Correlation)+64)
	for _, part := range []string{c.Sender, c.Body, c.Correlation} {
		data = binary.BigEndian.AppendUint64(data, uint64(len(part)))
		data = append(data, part...)
	}
	data = binary.BigEndian.AppendUint64(data, uint64(c.Priority))
	if !c.NotBefore.IsZero() {
		data = binary.BigEndian.AppendUint64(data, uint64(c.NotBefore.Unix()))
		data = binary.BigEndian.AppendUint64(data, uint64(c.NotBefore.Nanosecond()))
	}
	sum := sha256.Sum256(data)
	return sum[:]
}

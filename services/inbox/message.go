package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"
	"time"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
)

// A message, from its arrival to its end:
//
//	           release, lease end            redrive
//	          ┌───────────────────┐  ┌────────────────────────┐
//	          ▼                   │  ▼                        │
//	──▶ PENDING ──── claim ──▶ CLAIMED ── last delivery ──▶ DEAD ── discard ──▶ DISCARDED
//	    │ ▲   │                 ▲ │ │    (release, lease end)
//	    │ │   │          extend └─┘ └─── done ──▶ DONE
//	    │ │   └─ another with its busy_key ──▶ REPLACED
//	    │ └───── delay end ──── DELAYED ◀── enqueue, release with a delay
//	    └─────── expiry ──▶ EXPIRED          (what holds for PENDING holds for it, but
//	                                          it is not claimed)
//
// A redriven message is PENDING. DONE, EXPIRED, REPLACED and DISCARDED are ends; the
// id stays known for a while, so that a retry of the enqueue is told from a new one.
//
// Four changes need no event, since time alone makes them: a delay ends, a lease
// ends, a message expires that nobody has claimed, and a lease ends that was the
// last or outlived the message. From that instant on every replica answers so,
// whether or not anybody has recorded it (DeadlinesPassed, or MessagesClaimed by
// the next worker).

// Limits of one message.
const (
	defaultBody       = 64 << 10
	maxBody           = 1 << 20
	maxDelay          = 30 * 24 * time.Hour
	defaultDeliveries = 5
	maxDeliveries     = 20
	// maxHistory bounds the deliveries that are remembered of a message, the newest.
	maxHistory = 20
)

// state is what the events say of a live message. Ended ones are not live: all
// that is kept of them is in finished.go.
type state string

const (
	pending state = "pending"
	waits   state = "delayed" // pending, and not to be served before NotBefore
	claimed state = "claimed"
	dead    state = "dead"
)

// message is what an inbox keeps of a live message. What it says stands in the
// event that enqueued it, at Letter, and is kept nowhere else.
type message struct {
	State  state   `json:"state"`
	Letter arrival `json:"letter"`
	// Arrival is its place in the order: where Letter is, or where that of the
	// message was that it replaced.
	Arrival     arrival   `json:"arrival"`
	Enqueued    time.Time `json:"enqueued"`
	Interrupts  bool      `json:"interrupts,omitempty"`
	Priority    int32     `json:"priority,omitempty"`
	Bytes       int       `json:"bytes"` // of the body
	Fingerprint []byte    `json:"fingerprint"`
	BusyKey     string    `json:"busy_key,omitempty"`
	Replaces    string    `json:"replaces,omitempty"`
	NotBefore   time.Time `json:"not_before,omitzero"`
	Expires     time.Time `json:"expires,omitzero"`
	Deliveries  int32     `json:"deliveries,omitempty"`
	Reclaimed   bool      `json:"reclaimed,omitempty"`
	Hold        hold      `json:"hold,omitzero"`
	Origin      origin    `json:"origin,omitzero"`
	// Refusal is set once the message is a notice.
	Refusal refusal    `json:"refusal,omitzero"`
	History []delivery `json:"history,omitempty"`
	Died    time.Time  `json:"died,omitzero"`
}

// hold is by whom and until when a message is claimed. Of a message that was
// released the token stays, which tells a retry of the release from a stale one.
type hold struct {
	Token    string    `json:"token"`
	Request  string    `json:"request,omitempty"`
	Claimant string    `json:"claimant,omitempty"`
	From     time.Time `json:"from,omitzero"`
	Until    time.Time `json:"until,omitzero"`
	// Since is the sequence of the claim. Under one request id there may be
	// several claims, one after the other; the newest counts.
	Since uint64 `json:"since,omitempty"`
	// Last says that the message was then delivered as often as it may be.
	Last bool `json:"last,omitempty"`
}

// delivery is a claim that did not end with the message being done.
type delivery struct {
	Claimant string              `json:"claimant"`
	From     time.Time           `json:"from"`
	To       time.Time           `json:"to"`
	End      inboxv1.DeliveryEnd `json:"end"`
}

func (m message) place() place { return place{m.Interrupts, m.Priority, m.Arrival} }

// standing is where a message stands at a given time.
type standing int

const (
	unknown  standing = iota // never enqueued here, or forgotten
	delayed                  // pending, but not yet
	due                      // pending: its delay is over, which is not recorded
	ready                    // pending
	overdue                  // expired, by time alone
	held                     // claimed, under a lease that lasts
	lapsed                   // claimed, under a lease that has ended
	outlived                 // lapsed, and expired meanwhile
	spent                    // lapsed, and delivered too often to be served again
	buried                   // dead
	done                     // and all below: ended, only the id is known
	expired
	replaced
	discarded
	standings int = iota
)

func (m message) standing(now time.Time) standing {
	expires := !m.Expires.IsZero() && !m.Expires.After(now)
	switch {
	case m.State == dead:
		return buried
	case m.State == claimed && m.Hold.Until.After(now):
		return held
	case m.State == claimed && m.Hold.Last:
		return spent
	case m.State == claimed && expires:
		return outlived
	case m.State == claimed:
		return lapsed
	case expires:
		return overdue
	case m.State == pending:
		return ready
	case m.NotBefore.After(now):
		return delayed
	default:
		return due
	}
}

// command is what can be asked of one message. Those that carry a claim token
// stand twice: with the token of the message's newest claim, and with another.
type command int

const (
	enqueueSame  command = iota // under this id, with the same content
	enqueueOther                // under this id, with other content
	toReplace                   // by a new one with its busy_key
	toClaim
	toExtend
	toFinish
	toRelease
	toExtendStale
	toFinishStale
	toReleaseStale
	toRedrive
	toDiscard
	toPass       // the deadline that it has, of its delay, lease or life, is recorded
	commands int = iota
)

// outcome is what a command comes to for one message.
type outcome int

const (
	nothing  outcome = iota // it is so already, or the command passes the message over
	happens                 // the event names the message
	stale                   // STALE_CLAIM for the whole command
	mismatch                // IDEMPOTENCY_MISMATCH
	missing                 // MESSAGE_NOT_FOUND
	conflict                // STATE_CONFLICT
)

// transitions is the whole state machine of a message; deciding is looking up.
var transitions = [standings][commands]outcome{
	//          enqueue:           replace: claim:   with the token:            with another:        redrive, discard:    deadline:
	//          same     other                       extend   done     release  extend done   release
	unknown:   {happens, happens, nothing, nothing, stale, stale, stale, stale, stale, stale, missing, missing, nothing},
	delayed:   {nothing, mismatch, happens, nothing, stale, stale, nothing, stale, stale, stale, nothing, conflict, nothing},
	due:       {nothing, mismatch, happens, happens, stale, stale, nothing, stale, stale, stale, nothing, conflict, happens},
	ready:     {nothing, mismatch, happens, happens, stale, stale, nothing, stale, stale, stale, nothing, conflict, nothing},
	overdue:   {nothing, mismatch, nothing, nothing, stale, stale, nothing, stale, stale, stale, conflict, conflict, happens},
	held:      {nothing, mismatch, nothing, nothing, happens, happens, happens, stale, stale, stale, nothing, conflict, nothing},
	lapsed:    {nothing, mismatch, happens, happens, stale, stale, stale, stale, stale, stale, nothing, conflict, happens},
	outlived:  {nothing, mismatch, nothing, nothing, stale, stale, stale, stale, stale, stale, conflict, conflict, happens},
	spent:     {nothing, mismatch, nothing, nothing, stale, stale, stale, stale, stale, stale, happens, happens, happens},
	buried:    {nothing, mismatch, nothing, nothing, stale, stale, nothing, stale, stale, stale, happens, happens, nothing},
	done:      {nothing, mismatch, nothing, nothing, stale, nothing, stale, stale, nothing, stale, conflict, conflict, nothing},
	expired:   {nothing, mismatch, nothing, nothing, stale, stale, stale, stale, stale, stale, conflict, conflict, nothing},
	replaced:  {nothing, mismatch, nothing, nothing, stale, stale, stale, stale, stale, stale, conflict, conflict, nothing},
	discarded: {nothing, mismatch, nothing, nothing, stale, stale, stale, stale, stale, stale, conflict, nothing, nothing},
}

// messageStates is how standings look from outside.
var messageStates = [standings]inboxv1.MessageState{
	delayed:   inboxv1.MessageState_MESSAGE_STATE_PENDING,
	due:       inboxv1.MessageState_MESSAGE_STATE_PENDING,
	ready:     inboxv1.MessageState_MESSAGE_STATE_PENDING,
	overdue:   inboxv1.MessageState_MESSAGE_STATE_EXPIRED,
	held:      inboxv1.MessageState_MESSAGE_STATE_CLAIMED,
	lapsed:    inboxv1.MessageState_MESSAGE_STATE_PENDING,
	outlived:  inboxv1.MessageState_MESSAGE_STATE_EXPIRED,
	spent:     inboxv1.MessageState_MESSAGE_STATE_DEAD,
	buried:    inboxv1.MessageState_MESSAGE_STATE_DEAD,
	done:      inboxv1.MessageState_MESSAGE_STATE_DONE,
	expired:   inboxv1.MessageState_MESSAGE_STATE_EXPIRED,
	replaced:  inboxv1.MessageState_MESSAGE_STATE_REPLACED,
	discarded: inboxv1.MessageState_MESSAGE_STATE_DISCARDED,
}

// open says that a message waits or is claimed, and counts against the limit.
func (at standing) open() bool {
	shown := messageStates[at]
	return shown == inboxv1.MessageState_MESSAGE_STATE_PENDING || shown == inboxv1.MessageState_MESSAGE_STATE_CLAIMED
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
func (m newMessage) fingerprint(sender string) []byte {
	data := make([]byte, 0, len(sender)+len(m.Body)+len(m.Correlation)+len(m.BusyKey)+128)
	for _, part := range []string{sender, m.Body, m.Correlation, m.BusyKey} {
		data = binary.BigEndian.AppendUint64(data, uint64(len(part)))
		data = append(data, part...)
	}
	data = binary.BigEndian.AppendUint64(data, uint64(m.Priority))
	data = binary.BigEndian.AppendUint64(data, uint64(m.Policy))
	for _, t := range []time.Time{m.NotBefore, m.Expires} {
		if t.IsZero() {
			data = append(data, 0)
			continue
		}
		data = append(data, 1)
		data = binary.BigEndian.AppendUint64(data, uint64(t.Unix()))
		data = binary.BigEndian.AppendUint64(data, uint64(t.Nanosecond()))
	}
	sum := sha256.Sum256(data)
	return sum[:]
}

// stateName is a standing in the words of the API.
func stateName(at standing) string {
	return strings.ToLower(strings.TrimPrefix(messageStates[at].String(), "MESSAGE_STATE_"))
}

package inbox

import (
	"time"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
)

// A dispatch, the record of one item of work that was given away:
//
//	 ──▶ BEGUN ── mark sent ──▶ SENT
//	      │  ▲                  ▲ │  ▲
//	      └──┘                  │ └──┘
//	     begin again            │ begin again, mark sent again
//	 ────────── mark sent ──────┘
//	            (unbegun)
//
// Its id is assigned by the first event and never changes. Beginning again is
// how somebody who crashed finds out what they did before, so it is recorded
// each time and never refused.

// dispatchState is where a dispatch stands.
type dispatchState string

const (
	begun dispatchState = "begun"
	sent  dispatchState = "sent"
)

// dispatch is the state of one. The zero dispatch is one that nobody has begun.
type dispatch struct {
	ID             string        `json:"id"`
	Goal           string        `json:"goal"`
	Item           string        `json:"item"`
	State          dispatchState `json:"state"`
	Attempts       int32         `json:"attempts"`
	ConversationID string        `json:"conversation_id,omitempty"`
	Unbegun        bool          `json:"unbegun,omitempty"`
	Owner          string        `json:"owner"`
	Created        time.Time     `json:"created"`
	Updated        time.Time     `json:"updated"`
}

// dispatchID names the aggregate of (goal, item). A goal holds no colon, so no
// two pairs have one name.
func dispatchID(goal, item string) string { return goal + ":" + item }

// Commands. NewID is the id that the dispatch gets if it has none yet.

type begin struct {
	Goal, Item string
	NewID      string
	Actor      string
}

type markSent struct {
	Goal, Item     string
	NewID          string
	ConversationID string
	Actor          string
}

// How a dispatch stands to a command.
type progress int

const (
	unheard  progress = iota
	underway          // begun, not sent
	sentHere          // sent, to the conversation of the command or one it doesn't name
	sentElsewhere
	progresses int = iota
)

type dispatchCommand int

const (
	toBegin dispatchCommand = iota
	toMarkSent
	dispatchCommands int = iota
)

// dispatchTransitions is the whole state machine of a dispatch.
var dispatchTransitions = [progresses][dispatchCommands]outcome{
	//               begin    mark sent
	unheard:       {happens, happens},
	underway:      {happens, happens},
	sentHere:      {happens, nothing},
	sentElsewhere: {happens, mismatch},
}

func (d dispatch) progress(conversation string) progress {
	switch {
	case d.State == "":
		return unheard
	case d.State == begun:
		return underway
	case d.ConversationID == conversation:
		return sentHere
	default:
		return sentElsewhere
	}
}

// decideBegin counts one more attempt.
func decideBegin(d dispatch, c begin, _ time.Time) (*inboxv1.Event, error) {
	if dispatchTransitions[d.progress("")][toBegin] != happens {
		return nil, nil
	}
	return &inboxv1.Event{Actor: c.Actor, Event: &inboxv1.Event_DispatchBegun{DispatchBegun: &inboxv1.DispatchBegun{
		Goal: c.Goal, Item: c.Item, DispatchId: d.idOr(c.NewID), Attempt: d.Attempts + 1,
	}}}, nil
}

// decideSent records where the work goes on.
func decideSent(d dispatch, c markSent, _ time.Time) (*inboxv1.Event, error) {
	switch dispatchTransitions[d.progress(c.ConversationID)][toMarkSent] {
	case nothing:
		return nil, nil
	case mismatch:
		return nil, fault.New(fault.DispatchMismatch, "the dispatch was sent to conversation %s", d.ConversationID).
			With("dispatch_id", d.ID).With("conversation_id", d.ConversationID)
	}
	return &inboxv1.Event{Actor: c.Actor, Event: &inboxv1.Event_DispatchSent{DispatchSent: &inboxv1.DispatchSent{
		Goal: c.Goal, Item: c.Item, DispatchId: d.idOr(c.NewID), ConversationId: c.ConversationID,
	}}}, nil
}

func (d dispatch) idOr(newID string) string {
	if d.ID != "" {
		return d.ID
	}
	return newID
}

// replay says whether the newest begin found the work begun, or sent, before.
func (d dispatch) replay() bool { return d.Attempts > 1 || d.Unbegun }

// warning is what somebody who begins again must know.
func (d dispatch) warning() string {
	if d.State != begun || !d.replay() {
		return ""
	}
	return "begun before and never marked sent: a conversation may exist without its first message"
}

// evolveDispatch follows one event.
func evolveDispatch(d dispatch, e aggregate.Recorded[*inboxv1.Event]) dispatch {
	if d.State == "" {
		d.Owner, d.Created = e.Event.GetActor(), e.Time
	}
	d.Updated = e.Time
	switch happened := e.Event.GetEvent().(type) {
	case *inboxv1.Event_DispatchBegun:
		b := happened.DispatchBegun
		d.ID, d.Goal, d.Item, d.Attempts = b.GetDispatchId(), b.GetGoal(), b.GetItem(), b.GetAttempt()
		if d.State == "" {
			d.State = begun
		}
	case *inboxv1.Event_DispatchSent:
		m := happened.DispatchSent
		d.ID, d.Goal, d.Item, d.ConversationID = m.GetDispatchId(), m.GetGoal(), m.GetItem(), m.GetConversationId()
		d.Unbegun = d.Unbegun || d.State == ""
		d.State = sent
	}
	return d
}

package inbox

import (
	"time"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
)

// What operators do to an inbox: they hold it up, and see to its dead messages.

// setMode makes an inbox open, paused or draining.
type setMode struct {
	Goal  string
	Mode  mode
	Note  string
	Actor string
}

// decideMode is the first event of an inbox that nobody has written to, unless it
// is to be open: that it is.
func decideMode(s inbox, c setMode, _ time.Time) (*inboxv1.Event, error) {
	if s.Mode == c.Mode && s.Note == c.Note {
		return nil, nil
	}
	return &inboxv1.Event{Actor: c.Actor, Event: &inboxv1.Event_InboxStateChanged{InboxStateChanged: &inboxv1.InboxStateChanged{
		Goal: c.Goal, State: modes[c.Mode], Note: c.Note,
	}}}, nil
}

// modeOf is the mode that an event tells. One that this version does not know is
// refused when the event is decoded, or else holds nothing up.
func modeOf(state inboxv1.InboxState) mode {
	for m, known := range modes {
		if known == state {
			return m
		}
	}
	return open
}

// operation is a command on dead messages.
type operation struct {
	Goal  string
	IDs   []string
	Actor string
	Rules rules
}

// decideRedrive makes dead messages pending again.
func decideRedrive(s inbox, c operation, now time.Time) (*inboxv1.Event, error) {
	ids, err := s.operates(toRedrive, c, now)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	depth := s.Counts.depth()
	for _, id := range ids {
		if m, _ := s.messages.Get(id); m.State == dead { // else it counts already
			depth++
		}
	}
	if depth > s.Counts.depth() && depth > c.Rules.Limit {
		return nil, s.full(len(ids), c.Rules.Limit)
	}
	return &inboxv1.Event{Actor: c.Actor, Event: &inboxv1.Event_MessagesRedriven{MessagesRedriven: &inboxv1.MessagesRedriven{
		Goal: c.Goal, MessageIds: ids,
	}}}, nil
}

// decideDiscard ends dead messages.
func decideDiscard(s inbox, c operation, now time.Time) (*inboxv1.Event, error) {
	ids, err := s.operates(toDiscard, c, now)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	return &inboxv1.Event{Actor: c.Actor, Event: &inboxv1.Event_MessagesDiscarded{MessagesDiscarded: &inboxv1.MessagesDiscarded{
		Goal: c.Goal, MessageIds: ids,
	}}}, nil
}

// operates gives those of a command's messages that it changes. One that it must
// not change makes it change none.
func (s inbox) operates(what command, c operation, now time.Time) ([]string, error) {
	if !s.exists() {
		return nil, notFound(c.Goal)
	}
	var ids []string
	for _, id := range c.IDs {
		at, _ := s.standing(id, "", now)
		switch transitions[at][what] {
		case missing:
			return nil, fault.New(fault.MessageNotFound, "there is no message %s in the inbox", id).With("message_id", id)
		case conflict:
			return nil, fault.New(fault.StateConflict, "message %s is not dead, it is %s", id, stateName(at)).With("message_id", id)
		case happens:
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// deadAt gives up to most ids of messages that are dead at a time, the newest death
// first, from behind one of them on. Those that are dead by time alone died when
// their lease ended.
func (s inbox) deadAt(behind moment, most int, now time.Time) []string {
	found := sorted(newestFirst)
	for id, at := range s.turned(now) {
		if m, _ := s.messages.Get(id); at == spent && newestFirst(behind, m.death()) < 0 {
			found = found.Set(m.death(), id)
		}
	}
	n := 0
	for at, id := range from(s.deaths, behind) {
		if at == behind {
			continue
		}
		if n++; n > most {
			break
		}
		found = found.Set(at, id)
	}
	var ids []string
	for _, id := range from(found, latest) {
		if len(ids) == most {
			break
		}
		ids = append(ids, id)
	}
	return ids
}

// latest is before all deaths, the newest first.
var latest = moment{at: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)}

// death is when a message died, or will have when its last lease ends.
func (m message) death() moment {
	if m.State == dead {
		return moment{m.Died, m.Arrival}
	}
	return moment{m.Hold.Until, m.Arrival}
}

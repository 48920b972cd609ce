package inbox

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
)

// evolveInbox follows one event.
func evolveInbox(s inbox, e aggregate.Recorded[*inboxv1.Event]) inbox {
	if !s.exists() {
		s = newInbox()
	}
	s.touched = []string{aggregate.RootField}
	s = s.advance(e.Time)
	switch happened := e.Event.GetEvent().(type) {
	case *inboxv1.Event_MessagesEnqueued:
		s = s.enqueued(happened.MessagesEnqueued, e.Sequence)
	case *inboxv1.Event_MessagesClaimed:
		s = s.claimed(happened.MessagesClaimed, e.Sequence)
	case *inboxv1.Event_LeaseExtended:
		until := fromTimestamp(happened.LeaseExtended.GetLeaseExpireTime())
		s = s.change(happened.LeaseExtended.GetMessageIds(), func(m message) message {
			m.Hold.Until = until
			return m
		})
	case *inboxv1.Event_MessagesDone:
		s = s.done(happened.MessagesDone.GetMessageIds(), e.Time)
	case *inboxv1.Event_MessagesReleased:
		until := fromTimestamp(happened.MessagesReleased.GetNotBefore())
		s = s.change(happened.MessagesReleased.GetMessageIds(), func(m message) message { return m.released(until) })
	case *inboxv1.Event_DeadlinesPassed:
		s = s.change(happened.DeadlinesPassed.GetLapsedMessageIds(), message.expired)
		s = s.change(happened.DeadlinesPassed.GetDeadMessageIds(), message.died)
	}
	return s.forget().counted()
}

// advance moves the clock of the state, never back, and with it the messages
// whose delay is over. Each is moved once for each time that it was delayed.
func (s inbox) advance(now time.Time) inbox {
	if !now.After(s.Updated) {
		return s
	}
	s.Updated = now
	for id := range upTo(s.delayed, now) {
		m, _ := s.messages.Get(id)
		s.delayed = s.delayed.Delete(moment{m.NotBefore, m.Arrival})
		s.ready = s.ready.Set(m.place(), id)
	}
	return s
}

func (s inbox) enqueued(e *inboxv1.MessagesEnqueued, sequence uint64) inbox {
	for i, m := range e.GetMessages() {
		s = s.set(m.GetMessageId(), message{
			State:       pending,
			Arrival:     arrival{sequence, int32(i)},
			Priority:    m.GetPriority(),
			Bytes:       len(m.GetBody()),
			Fingerprint: m.GetFingerprint(),
			NotBefore:   fromTimestamp(m.GetNotBefore()),
		})
	}
	return s
}

func (s inbox) claimed(e *inboxv1.MessagesClaimed, sequence uint64) inbox {
	by := hold{
		Token:    e.GetClaimToken(),
		Request:  e.GetRequestId(),
		Claimant: e.GetClaimant(),
		Until:    fromTimestamp(e.GetLeaseExpireTime()),
		Since:    sequence,
	}
	return s.change(e.GetMessageIds(), func(m message) message {
		// Claimed already means that its lease had ended, and this claim is
		// what records it.
		m.Reclaimed = m.Reclaimed || m.State == claimed
		m.State = claimed
		m.Deliveries++
		m.Hold = by
		return m
	})
}

func (s inbox) done(ids []string, at time.Time) inbox {
	for _, id := range ids {
		m, ok := s.messages.Get(id)
		if !ok {
			continue
		}
		s = s.unset(id, m)
		s.messages = s.messages.Delete(id)
		s.touched = append(s.touched, messageField+id)
		s = s.finish(id, finished{At: at, Arrival: m.Arrival, Fingerprint: m.Fingerprint})
	}
	return s
}

func (s inbox) finish(id string, f finished) inbox {
	s.finished = s.finished.Set(id, f)
	s.ends = s.ends.Set(moment{f.At, f.Arrival}, id)
	s.touched = append(s.touched, finishedField+id)
	return s
}

func (m message) released(until time.Time) message {
	m.State = pending
	if m.Deliveries >= maxDeliveries {
		m.State = dead
	}
	m.NotBefore = until
	m.Hold = hold{Token: m.Hold.Token}
	return m
}

func (m message) expired() message {
	m.State = pending
	m.Reclaimed = true
	m.Hold = hold{}
	return m
}

func (m message) died() message {
	m = m.expired()
	m.State = dead
	return m
}

// change replaces messages, passing over ids that are not there.
func (s inbox) change(ids []string, to func(message) message) inbox {
	for _, id := range ids {
		if m, ok := s.messages.Get(id); ok {
			s = s.set(id, to(m))
		}
	}
	return s
}

// set puts a message where it belongs, in place of what it was before.
func (s inbox) set(id string, m message) inbox {
	if before, ok := s.messages.Get(id); ok {
		s = s.unset(id, before)
	}
	s.messages = s.messages.Set(id, m)
	switch {
	case m.State == claimed:
		s.leases = s.leases.Set(moment{m.Hold.Until, m.Arrival}, id)
		s.requests = s.requests.Set(ticket{m.Hold.Request, m.Arrival}, id)
	case m.standing(s.Updated) == delayed:
		s.delayed = s.delayed.Set(moment{m.NotBefore, m.Arrival}, id)
	case m.State == pending:
		s.ready = s.ready.Set(m.place(), id)
	}
	s.touched = append(s.touched, messageField+id)
	return s
}

// unset takes a message out of the indexes.
func (s inbox) unset(id string, m message) inbox {
	s.leases = s.leases.Delete(moment{m.Hold.Until, m.Arrival})
	s.requests = s.requests.Delete(ticket{m.Hold.Request, m.Arrival})
	s.delayed = s.delayed.Delete(moment{m.NotBefore, m.Arrival})
	s.ready = s.ready.Delete(m.place())
	return s
}

// forget drops ids of messages that were finished long ago.
func (s inbox) forget() inbox {
	for range forgetAtOnce {
		oldest, id, ok := first(s.ends)
		if !ok || s.finished.Len() <= maxFinished && oldest.at.Add(keepFinished).After(s.Updated) {
			break
		}
		s.ends = s.ends.Delete(oldest)
		s.finished = s.finished.Delete(id)
		s.touched = append(s.touched, finishedField+id)
	}
	return s
}

// counted closes the root over the indexes.
func (s inbox) counted() inbox {
	s.Counts = counts{Pending: s.ready.Len(), Delayed: s.delayed.Len(), Claimed: s.leases.Len()}
	s.Counts.Dead = s.messages.Len() - s.Counts.depth()
	s.Finished = s.finished.Len()
	s.Turns = time.Time{}
	for _, t := range []*timeline{s.delayed, s.leases} {
		if m, _, ok := first(t); ok && (s.Turns.IsZero() || m.at.Before(s.Turns)) {
			s.Turns = m.at
		}
	}
	return s
}

func notFound(goal string) error {
	return fault.New(fault.InboxNotFound, "there is no inbox %s", goal)
}

// timestamp and fromTimestamp keep "none" apart from the year 1.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func fromTimestamp(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

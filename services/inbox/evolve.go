package inbox

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
)

// evolveInbox follows one event.
func evolveInbox(s inbox, e aggregate.Recorded[*inboxv1.Event]) inbox {
	if !s.exists() {
		s = newInbox()
	}
	s.touched = []string{aggregate.RootField}
	s = s.advanced(e.Time)
	switch happened := e.Event.GetEvent().(type) {
	case *inboxv1.Event_MessagesEnqueued:
		s = s.forget(fromTimestamp(happened.MessagesEnqueued.GetForgetBefore()))
		by := originOf(happened.MessagesEnqueued.GetSender(), happened.MessagesEnqueued)
		for i, m := range happened.MessagesEnqueued.GetMessages() {
			s = s.enqueued(m, by, arrival{e.Sequence, int32(i)}, e.Time)
		}
	case *inboxv1.Event_MessagesClaimed:
		s = s.claimed(happened.MessagesClaimed, e.Sequence, e.Time).refused(e)
	case *inboxv1.Event_LeaseExtended:
		until := fromTimestamp(happened.LeaseExtended.GetLeaseExpireTime())
		s = s.change(happened.LeaseExtended.GetMessageIds(), func(m message) message {
			m.Hold.Until = until
			return m
		})
	case *inboxv1.Event_MessagesDone:
		s = s.ended(happened.MessagesDone.GetMessageIds(), done)
	case *inboxv1.Event_MessagesReleased:
		until := fromTimestamp(happened.MessagesReleased.GetNotBefore())
		s = s.change(happened.MessagesReleased.GetMessageIds(), func(m message) message { return m.released(e.Time, until) })
	case *inboxv1.Event_DeadlinesPassed:
		s = s.change(happened.DeadlinesPassed.GetDueMessageIds(), message.due)
		s = s.change(happened.DeadlinesPassed.GetLapsedMessageIds(), message.lapsed)
		s = s.change(happened.DeadlinesPassed.GetDeadMessageIds(), message.died)
		s = s.ended(happened.DeadlinesPassed.GetExpiredMessageIds(), expired)
	case *inboxv1.Event_MessagesRedriven:
		s = s.change(happened.MessagesRedriven.GetMessageIds(), message.redriven)
	case *inboxv1.Event_MessagesDiscarded:
		s = s.ended(happened.MessagesDiscarded.GetMessageIds(), discarded)
	case *inboxv1.Event_GoalImported:
		s = s.imported(happened.GoalImported, e.Event.GetActor(), e.Sequence, e.Time)
	case *inboxv1.Event_GoalImportFinished:
		s = s.importFinished()
	case *inboxv1.Event_InboxStateChanged:
		s.Mode, s.Note = modeOf(happened.InboxStateChanged.GetState()), happened.InboxStateChanged.GetNote()
	}
	return s.counted()
}

// advanced moves the time of the inbox, never back.
func (s inbox) advanced(now time.Time) inbox {
	if now.After(s.Updated) {
		s.Updated = now
	}
	return s
}

// enqueued takes one message in, in place of the one that it replaces.
func (s inbox) enqueued(e *inboxv1.EnqueuedMessage, by origin, at arrival, now time.Time) inbox {
	m := message{
		State:       pending,
		Letter:      at,
		Arrival:     at,
		Enqueued:    now,
		Interrupts:  e.GetBusyPolicy() == inboxv1.BusyPolicy_BUSY_POLICY_INTERRUPT,
		Priority:    e.GetPriority(),
		Bytes:       len(e.GetBody()),
		Fingerprint: e.GetFingerprint(),
		BusyKey:     e.GetBusyKey(),
		Replaces:    e.GetReplacedMessageId(),
		NotBefore:   fromTimestamp(e.GetNotBefore()),
		Expires:     fromTimestamp(e.GetExpireTime()),
		Origin:      by.said(e.GetConversationId()),
	}
	if m.NotBefore.After(now) {
		m.State = waits
	}
	if old, ok := s.messages.Get(m.Replaces); ok && m.Replaces != "" {
		m.Arrival = old.Arrival
		s = s.ended([]string{m.Replaces}, replaced)
	}
	if m.Interrupts {
		s.Interrupted = at.Sequence
	}
	return s.set(e.GetMessageId(), m)
}

func (s inbox) claimed(e *inboxv1.MessagesClaimed, sequence uint64, now time.Time) inbox {
	by := hold{
		Token:    e.GetClaimToken(),
		Request:  e.GetRequestId(),
		Claimant: e.GetClaimant(),
		From:     now,
		Until:    fromTimestamp(e.GetLeaseExpireTime()),
		Since:    sequence,
	}
	return s.change(e.GetMessageIds(), func(m message) message {
		if m.State == claimed { // its lease had ended, and this claim is what records it
			m = m.lapsed()
		}
		m.State = claimed
		m.Deliveries++
		m.Hold = by
		m.Hold.Last = m.Deliveries >= e.GetMaxDeliveries()
		return m
	})
}

func (m message) released(now, until time.Time) message {
	m = m.delivered(now, inboxv1.DeliveryEnd_DELIVERY_END_RELEASED)
	m.State, m.NotBefore = pending, until
	switch {
	case m.Hold.Last:
		m.State, m.Died = dead, now
	case until.After(now):
		m.State = waits
	}
	m.Hold = hold{Token: m.Hold.Token}
	return m
}

func (m message) due() message {
	m.State = pending
	return m
}

func (m message) lapsed() message {
	m = m.delivered(m.Hold.Until, inboxv1.DeliveryEnd_DELIVERY_END_LEASE_ENDED)
	m.State, m.Reclaimed, m.Hold = pending, true, hold{}
	return m
}

func (m message) died() message {
	died := m.Hold.Until
	m = m.lapsed()
	m.State, m.Died = dead, died
	return m
}

// redriven also holds for a message that is dead by time alone.
func (m message) redriven() message {
	if m.State == claimed {
		m = m.lapsed()
	}
	m.State, m.Deliveries, m.Hold = pending, 0, hold{}
	m.NotBefore, m.Died = time.Time{}, time.Time{}
	return m
}

// delivered remembers how the claim that holds a message ended.
func (m message) delivered(at time.Time, end inboxv1.DeliveryEnd) message {
	old := m.History[max(0, len(m.History)-maxHistory+1):]
	// A copy: the history before belongs to the state before.
	m.History = append(append(make([]delivery, 0, len(old)+1), old...), delivery{m.Hold.Claimant, m.Hold.From, at, end})
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

// ended takes messages out, and remembers their ids.
func (s inbox) ended(ids []string, as standing) inbox {
	for _, id := range ids {
		m, ok := s.messages.Get(id)
		if !ok {
			continue
		}
		s = s.unset(id, m)
		s.messages = s.messages.Delete(id)
		s.touched = append(s.touched, messageField+id)
		s = s.finish(id, m.Fingerprint, as)
	}
	return s
}

// finish remembers an id, as of now: the order of ends is that of events.
func (s inbox) finish(id string, fingerprint []byte, as standing) inbox {
	var bucket uint64
	s.finished, bucket = s.finished.with(ended{id: hashID(id), print: printOf(fingerprint), at: second(s.Updated), as: uint8(as)})
	s.touch(bucket)
	s.finished = s.finished.bounded(maxBuckets, s.touch)
	return s
}

func (s *inbox) touch(bucket uint64) {
	s.touched = append(s.touched, finishedFieldOf(bucket))
}

// forget drops the ids of messages that ended before a time.
func (s inbox) forget(before time.Time) inbox {
	s.finished = s.finished.forget(before, s.touch)
	return s
}

// set puts a message where it belongs, in place of what it was before.
func (s inbox) set(id string, m message) inbox {
	if before, ok := s.messages.Get(id); ok {
		s = s.unset(id, before)
	}
	s.messages = s.messages.Set(id, m)
	s.history += len(m.History)
	s.touched = append(s.touched, messageField+id)
	if m.State == dead {
		s.deaths = s.deaths.Set(m.death(), id)
		return s
	}
	s.waiting = s.waiting.Set(m.place(), id)
	if m.BusyKey != "" {
		s.busy = s.busy.Set(ticket{m.BusyKey, m.Arrival}, id)
	}
	switch m.State {
	case claimed:
		s.leases = s.leases.Set(moment{m.Hold.Until, m.Arrival}, id)
		s.requests = s.requests.Set(ticket{m.Hold.Request, m.Arrival}, id)
		return s
	case waits:
		s.delayed = s.delayed.Set(moment{m.NotBefore, m.Arrival}, id)
	case pending:
		s.ready = s.ready.Set(m.place(), id)
		s.ages = s.ages.Set(moment{m.Enqueued, m.Letter}, id)
	}
	if !m.Expires.IsZero() {
		s.expiries = s.expiries.Set(moment{m.Expires, m.Arrival}, id)
	}
	return s
}

// unset takes a message out of the indexes that set put it into.
func (s inbox) unset(id string, m message) inbox {
	s.history -= len(m.History)
	if m.State == dead {
		s.deaths = s.deaths.Delete(m.death())
		return s
	}
	s.waiting = s.waiting.Delete(m.place())
	if m.BusyKey != "" {
		s.busy = s.busy.Delete(ticket{m.BusyKey, m.Arrival})
	}
	switch m.State {
	case claimed:
		s.leases = s.leases.Delete(moment{m.Hold.Until, m.Arrival})
		s.requests = s.requests.Delete(ticket{m.Hold.Request, m.Arrival})
		return s
	case waits:
		s.delayed = s.delayed.Delete(moment{m.NotBefore, m.Arrival})
	case pending:
		s.ready = s.ready.Delete(m.place())
		s.ages = s.ages.Delete(moment{m.Enqueued, m.Letter})
	}
	if !m.Expires.IsZero() {
		s.expiries = s.expiries.Delete(moment{m.Expires, m.Arrival})
	}
	return s
}

// counted closes the root over the indexes.
func (s inbox) counted() inbox {
	s.Counts = counts{Pending: s.ready.Len(), Delayed: s.delayed.Len(), Claimed: s.leases.Len(), Dead: s.deaths.Len()}
	s.Finished, s.FirstBucket = s.finished.count, s.finished.first
	oldest, _, _ := first(s.ages)
	s.Oldest, s.Due = oldest.at, time.Time{}
	for _, t := range []*timeline{s.delayed, s.leases, s.expiries} {
		if m, _, ok := first(t); ok && (s.Due.IsZero() || m.at.Before(s.Due)) {
			s.Due = m.at
		}
	}
	return s
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

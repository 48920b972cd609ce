package inbox

import (
	"math"
	"strconv"
	"time"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
)

// enqueue is one or several messages for a goal, all or none.
type enqueue struct {
	Goal     string
	Sender   origin
	Messages []newMessage
	Rules    rules
	// Batch says that refusals name the message that a field is of.
	Batch bool
}

type newMessage struct {
	ID           string
	Body         string
	Priority     int32
	Correlation  string
	NotBefore    time.Time // zero for at once
	Expires      time.Time // zero for never
	Policy       inboxv1.BusyPolicy
	BusyKey      string
	Conversation string // that it was said in
}

// decideEnqueue takes messages in. It goes through them as if each were enqueued by
// itself, so one of a batch may be busy with, or replace, one before it. Those that
// are there already are passed over.
func decideEnqueue(s inbox, c enqueue, now time.Time) (*inboxv1.Event, error) {
	if err := c.fits(); err != nil {
		return nil, err
	}
	after, keep := s, now.Add(-c.Rules.KeepIDs)
	if !after.exists() {
		after = newInbox()
	}
	after = after.advanced(now)
	after.touched = nil // what is added to it must not be in memory that s has
	e := &inboxv1.MessagesEnqueued{
		Goal: c.Goal, Sender: c.Sender.Subject, OnBehalfOf: c.Sender.chain(), Session: c.Sender.Session, Operation: c.Sender.Operation,
	}
	if oldest, ok := after.finished.oldest(); ok && oldest.before(keep) {
		e.ForgetBefore = timestamp(keep)
	}
	for i, m := range c.Messages {
		fingerprint := m.fingerprint(c.Sender.Subject)
		switch after.enqueuing(m.ID, fingerprint, keep, now) {
		case nothing:
			continue
		case mismatch:
			return nil, fault.New(fault.IdempotencyMismatch, "message %s was enqueued before with other content", m.ID).
				With("message_id", m.ID)
		}
		if err := c.allowed(i, s.Counts.depth(), now); err != nil {
			return nil, err
		}
		if s.Mode == draining {
			return nil, fault.New(fault.InboxDraining, "the inbox takes no messages: it is being drained")
		}
		enqueued := m.toProto(fingerprint)
		var err error
		if enqueued.ReplacedMessageId, err = after.makeWay(m, now); err != nil {
			return nil, err
		}
		e.Messages = append(e.Messages, enqueued)
		// No event is as late as this one.
		after = after.enqueued(enqueued, c.Sender, arrival{math.MaxUint64, int32(i)}, now)
	}
	if len(e.GetMessages()) == 0 {
		return nil, nil
	}
	if err := s.room(after.waiting.Len(), len(e.GetMessages()), c.Rules.Limit); err != nil {
		return nil, err
	}
	return &inboxv1.Event{Actor: c.Sender.Subject, Event: &inboxv1.Event_MessagesEnqueued{MessagesEnqueued: e}}, nil
}

// enqueuing is what the enqueue of an id comes to. An id whose time is over is as
// good as forgotten: the event of this enqueue is what forgets it.
func (s inbox) enqueuing(id string, fingerprint []byte, keep, now time.Time) outcome {
	at, column := unknown, enqueueSame
	if m, ok := s.messages.Get(id); ok {
		at = m.standing(now)
		if string(m.Fingerprint) != string(fingerprint) {
			column = enqueueOther
		}
	} else if e, ok := s.finished.find(id); ok && !e.before(keep) {
		at = standing(e.as)
		if e.print != printOf(fingerprint) {
			column = enqueueOther
		}
	}
	return transitions[at][column]
}

// makeWay is what the busy policy of a message asks of those before it: REJECT that
// there is none, REPLACE that one gives up its place.
func (s inbox) makeWay(m newMessage, now time.Time) (replaced string, err error) {
	switch m.Policy {
	case inboxv1.BusyPolicy_BUSY_POLICY_REJECT:
		if id, ok := s.busyWith(m.BusyKey, now); ok {
			return "", fault.New(fault.InboxBusy, "message %s is not done yet, and %s was not to wait behind another", id, m.ID).
				With("message_id", id)
		}
	case inboxv1.BusyPolicy_BUSY_POLICY_REPLACE:
		// Of several it replaces the newest: what is said later must not be served
		// before what was said earlier.
		var newest arrival
		for id := range under(s.busy, m.BusyKey) {
			other, _ := s.messages.Get(id)
			if transitions[other.standing(now)][toReplace] == happens && compareArrivals(newest, other.Letter) < 0 {
				replaced, newest = id, other.Letter
			}
		}
	}
	return replaced, nil
}

// busyWith gives a message that waits or is claimed: one with the key, or where
// that is empty any.
func (s inbox) busyWith(key string, now time.Time) (string, bool) {
	if key != "" {
		for id := range under(s.busy, key) {
			if m, _ := s.messages.Get(id); m.standing(now).open() {
				return id, true
			}
		}
		return "", false
	}
	for _, id := range from(s.waiting, front) {
		if m, _ := s.messages.Get(id); m.standing(now).open() {
			return id, true
		}
	}
	return "", false
}

// room refuses what the inbox has no room for: it would hold so many, of which so
// many are new.
func (s inbox) room(depth, added, limit int) error {
	switch {
	case depth > s.Counts.depth() && depth > limit:
		return s.full(added, limit)
	case depth > s.Counts.depth() && s.Counts.Dead >= maxDead:
		return fault.New(fault.InboxFull, "the inbox is full: it holds %d dead messages, and its limit is %d; besides, %d are waiting",
			s.Counts.Dead, maxDead, s.Counts.depth()).
			With("limit", strconv.Itoa(maxDead)).With("dead", strconv.Itoa(s.Counts.Dead)).With("depth", strconv.Itoa(s.Counts.depth()))
	}
	return nil
}

// full refuses so many messages more than the inbox has room for.
func (s inbox) full(added, limit int) error {
	return fault.New(fault.InboxFull, "the inbox is full: it holds %d messages, its limit is %d, and %d more would not fit",
		s.Counts.depth(), limit, added).
		With("limit", strconv.Itoa(limit)).With("depth", strconv.Itoa(s.Counts.depth())).Retry(retryFull)
}

// fits refuses a batch for what it is as a whole.
func (c enqueue) fits() error {
	size, seen := 0, make(map[string]bool, len(c.Messages))
	for i, m := range c.Messages {
		if seen[m.ID] {
			return malformed(c.field(i, "message_id"), "must be another one for each message of a batch")
		}
		seen[m.ID] = true
		size += len(m.Body)
	}
	if size > maxServed {
		return fault.New(fault.TooLarge, "the bodies are %d bytes together, and the limit of a batch is %d", size, maxServed).
			Field("messages", "must have at most "+strconv.Itoa(maxServed)+" bytes of bodies").
			With("size", strconv.Itoa(size)).With("limit", strconv.Itoa(maxServed))
	}
	return nil
}

// allowed refuses a new message for what it says itself.
func (c enqueue) allowed(i, depth int, now time.Time) error {
	m := c.Messages[i]
	keyed := m.Policy == inboxv1.BusyPolicy_BUSY_POLICY_REJECT || m.Policy == inboxv1.BusyPolicy_BUSY_POLICY_REPLACE
	switch {
	case len(m.Body) > c.Rules.Body:
		return fault.New(fault.TooLarge, "a body of %d bytes is over the limit of %d; the inbox holds %d of %d messages",
			len(m.Body), c.Rules.Body, depth, c.Rules.Limit).
			Field(c.field(i, "body"), "must be at most "+strconv.Itoa(c.Rules.Body)+" bytes").
			With("size", strconv.Itoa(len(m.Body))).With("limit", strconv.Itoa(c.Rules.Body)).With("depth", strconv.Itoa(depth))
	case m.NotBefore.After(now.Add(maxDelay)):
		return fault.New(fault.FieldInvalid, "a message can be delayed by at most 30 days").
			Field(c.field(i, "not_before"), "must be at most 30 days ahead")
	case !m.Expires.IsZero() && !m.Expires.After(now):
		return fault.New(fault.FieldInvalid, "a message that has expired already would never be served").
			Field(c.field(i, "expire_time"), "must be in the future")
	case !m.Expires.IsZero() && !m.Expires.After(m.NotBefore):
		return fault.New(fault.FieldInvalid, "a message that expires before its delay ends would never be served").
			Field(c.field(i, "expire_time"), "must be after not_before")
	case m.BusyKey == "" && m.Policy == inboxv1.BusyPolicy_BUSY_POLICY_REPLACE:
		return fault.New(fault.FieldInvalid, "what a message replaces is found by its busy_key").
			Field(c.field(i, "busy_key"), "must be given with BUSY_POLICY_REPLACE")
	case m.BusyKey != "" && !keyed:
		return fault.New(fault.FieldInvalid, "a busy_key says what a message rejects or replaces, and this one does neither").
			Field(c.field(i, "busy_key"), "must be given only with BUSY_POLICY_REJECT or BUSY_POLICY_REPLACE")
	}
	return nil
}

// field names a field of one message, as the request has it.
func (c enqueue) field(i int, name string) string {
	if !c.Batch {
		return name
	}
	return "messages[" + strconv.Itoa(i) + "]." + name
}

func (m newMessage) toProto(fingerprint []byte) *inboxv1.EnqueuedMessage {
	return &inboxv1.EnqueuedMessage{
		MessageId:      m.ID,
		Body:           m.Body,
		Priority:       m.Priority,
		CorrelationId:  m.Correlation,
		NotBefore:      timestamp(m.NotBefore),
		ExpireTime:     timestamp(m.Expires),
		BusyPolicy:     m.Policy,
		BusyKey:        m.BusyKey,
		ConversationId: m.Conversation,
		Fingerprint:    fingerprint,
	}
}

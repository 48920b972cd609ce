package inbox

import (
	"bytes"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/benbjohnson/immutable"
	"google.golang.org/protobuf/types/known/timestamppb"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
)

// An inbox is the messages of one goal. It begins with the first message that
// is enqueued and never ends. What can happen to each of its messages is drawn
// in message.go; here is what holds for them together:
//
//	pending + delayed + claimed ≤ limit   refused at it, never evicted
//	dead ≤ maxDead + limit                likewise, since any that waits may die
//	finished ids ≤ maxFinished            the oldest are forgotten
//
// Every message is in exactly one of ready, delayed, leases, or dead.

// Limits of one inbox.
const (
	defaultLimit = 200
	maxLimit     = 10_000
	maxDead      = 10_000
	// keepFinished is how long the id of a finished message is remembered, and
	// maxFinished how many of them are, the newest. An id costs some hundred
	// bytes in memory and in Redis.
	keepFinished = 7 * 24 * time.Hour
	maxFinished  = 10_000
	// forgetAtOnce bounds what one event forgets. It is more than one event can
	// finish, so the ids never get ahead of it.
	forgetAtOnce = 128
	// expireAtOnce bounds what one DeadlinesPassed names.
	expireAtOnce = 500
	// maxServed bounds the bodies in one answer: a gRPC client takes 4 MiB
	// unless it was told otherwise, and a claim that it can't receive would be
	// out of reach until the lease ends.
	maxServed = 3 << 20
	// retryFull is when a sender may try again at a full inbox.
	retryFull = time.Second
)

// self is the actor of what no caller asked for.
const self = "service:inbox"

// inbox is the state of one goal's mail. The zero inbox is one that nobody has
// written to.
type inbox struct {
	root
	messages *immutable.Map[string, message]
	finished *immutable.Map[string, finished]

	// The indexes follow from the maps above and Updated.
	ready    *queue    // pending and not delayed, as of Updated
	delayed  *timeline // pending and delayed, as of Updated, by not_before
	leases   *timeline // claimed, by the end of the lease
	requests *tickets  // claimed, by request id
	ends     *timeline // finished, by when

	// touched names the fields of the document that the newest event changed.
	touched []string
}

// root is what does not grow, and all that a count needs.
type root struct {
	Counts   counts `json:"counts"`
	Finished int    `json:"finished,omitempty"`
	// Updated is the latest time that any event was decided at.
	Updated time.Time `json:"updated"`
	// Turns is when time alone changes the counts next, zero for never.
	Turns time.Time `json:"turns,omitzero"`
}

// counts are how many messages stand where.
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
		finished: immutable.NewMap[string, finished](hasher),
		ready:    immutable.NewSortedMap[place, string](comparer[place](comparePlaces)),
		delayed:  immutable.NewSortedMap[moment, string](comparer[moment](compareMoments)),
		leases:   immutable.NewSortedMap[moment, string](comparer[moment](compareMoments)),
		requests: immutable.NewSortedMap[ticket, string](comparer[ticket](compareTickets)),
		ends:     immutable.NewSortedMap[moment, string](comparer[moment](compareMoments)),
	}
}

// exists says whether anybody has written to it.
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
	if _, ok := s.finished.Get(id); ok {
		return done, false
	}
	return unknown, false
}

// Commands.

type enqueue struct {
	Goal, ID    string
	Sender      string
	Body        string
	Priority    int32
	Correlation string
	NotBefore   time.Time // zero for at once
	Limit       int       // of the inbox
}

type claim struct {
	Goal     string
	Request  string
	Claimant string
	Token    string // new, and such that nobody can guess it
	Max      int
	Lease    time.Duration
}

// holding is a command on messages that the caller has claimed.
type holding struct {
	Goal  string
	IDs   []string
	Token string
	Actor string
	// For is the new lease of an extend, the delay of a release.
	For time.Duration
}

// decideEnqueue takes a message in.
func decideEnqueue(s inbox, c enqueue, now time.Time) (*inboxv1.Event, error) {
	fingerprint := c.fingerprint()
	column := enqueueSame
	if known := s.fingerprint(c.ID); known != nil && !bytes.Equal(known, fingerprint) {
		column = enqueueOther
	}
	at, _ := s.standing(c.ID, "", now)
	switch transitions[at][column] {
	case nothing:
		return nil, nil
	case mismatch:
		return nil, fault.New(fault.IdempotencyMismatch, "message %s was enqueued before with other content", c.ID).
			With("message_id", c.ID)
	}
	depth := s.Counts.depth()
	switch {
	case len(c.Body) > maxBody:
		return nil, fault.New(fault.TooLarge, "a body of %d bytes is over the limit of %d; the inbox holds %d of %d messages",
			len(c.Body), maxBody, depth, c.Limit).
			Field("body", "must be at most "+strconv.Itoa(maxBody)+" bytes").
			With("size", strconv.Itoa(len(c.Body))).With("limit", strconv.Itoa(maxBody)).With("depth", strconv.Itoa(depth))
	case c.NotBefore.After(now.Add(maxDelay)):
		return nil, fault.New(fault.FieldInvalid, "a message can be delayed by at most 30 days").
			Field("not_before", "must be at most 30 days ahead")
	case depth >= c.Limit:
		return nil, fault.New(fault.InboxFull, "the inbox is full: it holds %d messages, and its limit is %d", depth, c.Limit).
			With("limit", strconv.Itoa(c.Limit)).With("depth", strconv.Itoa(depth)).Retry(retryFull)
	case s.Counts.Dead >= maxDead:
		return nil, fault.New(fault.InboxFull, "the inbox is full: it holds %d dead messages, and its limit is %d; besides, %d are waiting",
			s.Counts.Dead, maxDead, depth).
			With("limit", strconv.Itoa(maxDead)).With("dead", strconv.Itoa(s.Counts.Dead)).With("depth", strconv.Itoa(depth))
	}
	return &inboxv1.Event{Actor: c.Sender, Event: &inboxv1.Event_MessagesEnqueued{MessagesEnqueued: &inboxv1.MessagesEnqueued{
		Goal:   c.Goal,
		Sender: c.Sender,
		Messages: []*inboxv1.EnqueuedMessage{{
			MessageId:     c.ID,
			Body:          c.Body,
			Priority:      c.Priority,
			CorrelationId: c.Correlation,
			NotBefore:     timestamp(c.NotBefore),
			Fingerprint:   fingerprint,
		}},
	}}}, nil
}

// fingerprint is that of a known id, nil for an unknown one.
func (s inbox) fingerprint(id string) []byte {
	if !s.exists() {
		return nil
	}
	if m, ok := s.messages.Get(id); ok {
		return m.Fingerprint
	}
	f, _ := s.finished.Get(id)
	return f.Fingerprint
}

// decideClaim gives messages to a worker, in order. Those whose lease has ended
// are among them, whether or not that was recorded.
func decideClaim(s inbox, c claim, now time.Time) (*inboxv1.Event, error) {
	if !s.exists() {
		return nil, nil
	}
	if before := s.held(c.Request, now); len(before) > 0 {
		// Whoever else makes up the same request id must not get this token.
		if m, _ := s.messages.Get(before[0]); m.Hold.Claimant != c.Claimant || len(before) > c.Max {
			return nil, fault.New(fault.IdempotencyMismatch, "request %s was made before and asked for something else", c.Request).
				With("request_id", c.Request)
		}
		return nil, nil
	}
	ids := s.limited(s.servable(now), c.Max)
	if len(ids) == 0 {
		return nil, nil
	}
	return &inboxv1.Event{Actor: c.Claimant, Event: &inboxv1.Event_MessagesClaimed{MessagesClaimed: &inboxv1.MessagesClaimed{
		Goal:            c.Goal,
		RequestId:       c.Request,
		ClaimToken:      c.Token,
		Claimant:        c.Claimant,
		MessageIds:      ids,
		LeaseExpireTime: timestamppb.New(now.Add(c.Lease)),
	}}}, nil
}

// held gives the messages, in order, that the newest claim of a request still
// holds.
func (s inbox) held(request string, now time.Time) []string {
	if !s.exists() {
		return nil
	}
	var ids []string
	var since uint64
	itr := s.requests.Iterator()
	for itr.Seek(ticket{request: request}); !itr.Done(); {
		t, id, _ := itr.Next()
		if t.request != request {
			break
		}
		m, _ := s.messages.Get(id)
		if m.standing(now) != held || m.Hold.Since < since {
			continue
		}
		if m.Hold.Since > since {
			ids, since = nil, m.Hold.Since
		}
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int { return comparePlaces(s.place(a), s.place(b)) })
	return ids
}

func (s inbox) place(id string) place {
	m, _ := s.messages.Get(id)
	return m.place()
}

// servable ranges over what can be claimed at a time, in order.
func (s inbox) servable(now time.Time) iter.Seq[string] {
	var turned []string // by time alone, since Updated
	for id := range upTo(s.delayed, now) {
		turned = append(turned, id)
	}
	for id := range upTo(s.leases, now) {
		if m, _ := s.messages.Get(id); transitions[m.standing(now)][toClaim] == happens {
			turned = append(turned, id)
		}
	}
	return s.inOrder(turned)
}

// waiting ranges over all that waits or is claimed, in order.
func (s inbox) waiting() iter.Seq[string] {
	return s.inOrder(slices.AppendSeq(slices.Collect(all(s.delayed)), all(s.leases)))
}

// inOrder merges others into the ready messages.
func (s inbox) inOrder(others []string) iter.Seq[string] {
	slices.SortFunc(others, func(a, b string) int { return comparePlaces(s.place(a), s.place(b)) })
	return func(yield func(string) bool) {
		rest := others
		for itr := s.ready.Iterator(); !itr.Done(); {
			at, id, _ := itr.Next()
			for len(rest) > 0 && comparePlaces(s.place(rest[0]), at) < 0 {
				if !yield(rest[0]) {
					return
				}
				rest = rest[1:]
			}
			if !yield(id) {
				return
			}
		}
		for _, id := range rest {
			if !yield(id) {
				return
			}
		}
	}
}

// limited takes ids from the front, as many as fit into one answer.
func (s inbox) limited(ids iter.Seq[string], most int) []string {
	var taken []string
	size := 0
	for id := range ids {
		m, _ := s.messages.Get(id)
		if size += m.Bytes; len(taken) == most || len(taken) > 0 && size > maxServed {
			break
		}
		taken = append(taken, id)
	}
	return taken
}

// decideExtend moves the end of a lease: to c.For from now.
func decideExtend(s inbox, c holding, now time.Time) (*inboxv1.Event, error) {
	ids, err := s.holds(toExtend, c, now)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	return &inboxv1.Event{Actor: c.Actor, Event: &inboxv1.Event_LeaseExtended{LeaseExtended: &inboxv1.LeaseExtended{
		Goal: c.Goal, MessageIds: ids, LeaseExpireTime: timestamppb.New(now.Add(c.For)),
	}}}, nil
}

// decideDone finishes messages.
func decideDone(s inbox, c holding, now time.Time) (*inboxv1.Event, error) {
	ids, err := s.holds(toFinish, c, now)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	return &inboxv1.Event{Actor: c.Actor, Event: &inboxv1.Event_MessagesDone{MessagesDone: &inboxv1.MessagesDone{
		Goal: c.Goal, MessageIds: ids,
	}}}, nil
}

// decideRelease gives messages back, to be served at once or after c.For.
func decideRelease(s inbox, c holding, now time.Time) (*inboxv1.Event, error) {
	ids, err := s.holds(toRelease, c, now)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	released := &inboxv1.MessagesReleased{Goal: c.Goal, MessageIds: ids}
	if c.For > 0 {
		released.NotBefore = timestamppb.New(now.Add(c.For))
	}
	return &inboxv1.Event{Actor: c.Actor, Event: &inboxv1.Event_MessagesReleased{MessagesReleased: released}}, nil
}

// holds gives those of a command's messages that it changes. One that the token
// does not hold makes the whole command stale.
func (s inbox) holds(what command, c holding, now time.Time) ([]string, error) {
	if !s.exists() {
		return nil, notFound(c.Goal)
	}
	var ids []string
	for _, id := range c.IDs {
		at, fits := s.standing(id, c.Token, now)
		switch transitions[at][what.withToken(fits)] {
		case stale:
			return nil, staleClaim(id)
		case happens:
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// decideExpire records leases that have ended.
func decideExpire(s inbox, goal string, now time.Time) (*inboxv1.Event, error) {
	if !s.exists() {
		return nil, nil
	}
	expired := &inboxv1.DeadlinesPassed{Goal: goal}
	n := 0
	for id := range upTo(s.leases, now) {
		if n++; n > expireAtOnce {
			break
		}
		if m, _ := s.messages.Get(id); m.standing(now) == spent {
			expired.DeadMessageIds = append(expired.DeadMessageIds, id)
		} else {
			expired.LapsedMessageIds = append(expired.LapsedMessageIds, id)
		}
	}
	if n == 0 {
		return nil, nil
	}
	return &inboxv1.Event{Actor: self, Event: &inboxv1.Event_DeadlinesPassed{DeadlinesPassed: expired}}, nil
}

// look decides nothing: it is for reading a state that is known to be the newest.
func look(inbox, struct{}, time.Time) (*inboxv1.Event, error) { return nil, nil }

// due is when the inbox wants to be looked at: a lease ends.
func (s inbox) due() time.Time {
	if !s.exists() {
		return time.Time{}
	}
	m, _, _ := first(s.leases)
	return m.at
}

// countsAt is the counts at a time, which may be later than the newest event.
func (s inbox) countsAt(now time.Time) counts {
	c := s.Counts
	for range upTo(s.delayed, now) {
		c.Delayed--
		c.Pending++
	}
	for id := range upTo(s.leases, now) {
		c.Claimed--
		if m, _ := s.messages.Get(id); m.standing(now) == spent {
			c.Dead++
		} else {
			c.Pending++
		}
	}
	return c
}

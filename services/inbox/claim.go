package inbox

import (
	"iter"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
)

type claim struct {
	Goal     string
	Request  string
	Claimant string
	Token    string // new, and such that nobody can guess it
	Max      int
	Lease    time.Duration
	Rules    rules
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

// decideClaim gives messages to a worker, in order. Those whose lease or delay has
// ended are among them, whether or not that was recorded.
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
	if s.Mode == paused {
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
		MaxDeliveries:   int32(c.Rules.Deliveries),
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
	for id := range under(s.requests, request) {
		m, _ := s.messages.Get(id)
		if m.standing(now) != held || m.Hold.Since < since {
			continue
		}
		if m.Hold.Since > since {
			ids, since = nil, m.Hold.Since
		}
		ids = append(ids, id)
	}
	s.sort(ids)
	return ids
}

func (s inbox) sort(ids []string) {
	slices.SortFunc(ids, func(a, b string) int { return comparePlaces(s.place(a), s.place(b)) })
}

func (s inbox) place(id string) place {
	m, _ := s.messages.Get(id)
	return m.place()
}

// servable ranges over what can be claimed at a time, in order.
func (s inbox) servable(now time.Time) iter.Seq[string] {
	var turned []string // by time alone
	for id, at := range s.turned(now) {
		if transitions[at][toClaim] == happens {
			turned = append(turned, id)
		}
	}
	s.sort(turned)
	return func(yield func(string) bool) {
		rest := turned
		for at, id := range from(s.ready, front) {
			for len(rest) > 0 && comparePlaces(s.place(rest[0]), at) < 0 {
				if !yield(rest[0]) {
					return
				}
				rest = rest[1:]
			}
			if m, _ := s.messages.Get(id); m.standing(now) == ready && !yield(id) {
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

// openFrom ranges over what waits or is claimed at a time, in order, from behind a
// place on.
func (s inbox) openFrom(behind place, now time.Time) iter.Seq[string] {
	return func(yield func(string) bool) {
		for at, id := range from(s.waiting, behind) {
			if m, _ := s.messages.Get(id); at != behind && m.standing(now).open() && !yield(id) {
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

// interrupted says whether a message that interrupts came after the claim that
// holds one of these.
func (s inbox) interrupted(ids []string) bool {
	for _, id := range ids {
		if m, ok := s.messages.Get(id); ok && m.Hold.Since < s.Interrupted {
			return true
		}
	}
	return false
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

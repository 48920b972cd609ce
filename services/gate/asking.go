package gate

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/services/gate/policy"
)

// askLimit is after how many denials in a row the same request is no longer
// brought before a person.
const askLimit = 3

// askAttempts bounds how often the search for the right round starts over while
// others open and close rounds.
const askAttempts = 4

// asker finds or makes the approval of a request.
//
// The ids of one request's approvals are its fingerprint and a round, 1, 2, 3 …
// So two checks of the same request meet on one aggregate, whichever replica
// they come to, and the journal's version check makes one approval of them. A
// round is only opened when the one before is over.
type asker struct {
	approvals *aggregate.Loop[Approval, *gatev1.Event]
	checks    *aggregate.Loop[Check, *gatev1.Event]
	ttl       time.Duration
}

// fingerprint names what makes two requests the same one: all that people are
// shown of it, and all that policies look at but the time. It is the first part of
// approval ids, so it is short and holds no content.
func fingerprint(caller identity.Caller, req request) string {
	return digestOf("approval", caller.Tenant, caller.Subject, caller.Session, chainOf(caller.OnBehalfOf), strconv.FormatBool(caller.Confined),
		req.Operation, req.Effect.String(), req.SpecDigest, req.InputDigest, req.Conversation, req.Target)
}

// settle leaves nothing open in terms: behind a caller either stands a person,
// who is told when nobody answers, or nobody, and then it waits until somebody
// does.
func (s *asker) settle(t policy.Terms, subject string, onBehalfOf []string) policy.Terms {
	if t.TTL == 0 {
		t.TTL = s.ttl
	}
	if t.OnTimeout == "" {
		t.OnTimeout = policy.TimeoutWait
		if identity.Human.Is(subject) || slices.ContainsFunc(onBehalfOf, identity.Human.Is) {
			t.OnTimeout = policy.TimeoutDeny
		}
	}
	return t
}

// errAskLimit says that the same request was denied too often.
var errAskLimit = errors.New("denied too often")

func (s *asker) ask(ctx context.Context, caller identity.Caller, req request) (Approval, error) {
	print := fingerprint(caller, req)
	key := func(round int) journal.Key {
		return approvalKind().Key(caller.Tenant, print+"-"+strconv.Itoa(round))
	}
	flagged := false
	for range askAttempts {
		round, last, err := s.lastRound(ctx, key)
		if err != nil {
			return Approval{}, err
		}
		if round == 0 {
			round = 1
		} else {
			_, err := decideRequest(last, req, s.approvals.Now())
			if errors.Is(err, errOtherTerms) {
				if _, err := s.supersede(ctx, key(round), req.Terms, key(round+1).ID); err != nil {
					return Approval{}, err
				}
				continue
			}
			if err != nil && !errors.Is(err, errTaken) {
				return Approval{}, err
			}
			if errors.Is(err, errTaken) {
				if req.Refusals = refusals(last); req.Refusals >= askLimit {
					return Approval{}, errAskLimit
				}
				round++
			}
		}
		if !flagged {
			// Only a request that is really put before people is looked through.
			req, flagged = s.inspect(ctx, caller, req), true
		}
		req.ApprovalID = key(round).ID
		found, err := s.approvals.Do(ctx, key(round), bind(req, decideRequest))
		if errors.Is(err, errTaken) || errors.Is(err, errOtherTerms) {
			continue // it ended, or other terms came in force, while we looked
		}
		return found.State, err
	}
	return Approval{}, fault.New(fault.Contention, "too many checks of one request")
}

// supersede ends an approval that is not on these terms, and gives its state then.
func (s *asker) supersede(ctx context.Context, key journal.Key, terms policy.Terms, by string) (Approval, error) {
	after, err := s.approvals.Do(ctx, key, func(a Approval, _ time.Time) (*gatev1.Event, error) {
		return decideSupersede(a, terms, by)
	})
	return after.State, err
}

// inspect masks what looks like a credential, and flags what a person should
// look at twice.
func (s *asker) inspect(ctx context.Context, caller identity.Caller, req request) request {
	input := inspectInput(req.Input)
	req.Input = input.shown
	req.Flags = escalations(matter{
		Operation: req.Operation, Effect: req.Effect, Input: input, Terms: req.Terms,
		FirstUse: s.firstUse(ctx, caller, req.Operation),
	})
	return req
}

// firstUse says whether a caller has never used an operation. Where that can't
// be told it says so too: a flag too many only draws the eye.
func (s *asker) firstUse(ctx context.Context, caller identity.Caller, operation string) bool {
	lists := []string{usedList(caller.Subject, operation)}
	redeemed, _, err := s.approvals.List(ctx, aggregate.PageRequest[Approval]{Tenant: caller.Tenant, Lists: lists, Size: 1})
	if err == nil && len(redeemed) > 0 {
		return false
	}
	allowed, _, err := s.checks.List(ctx, aggregate.PageRequest[Check]{Tenant: caller.Tenant, Lists: lists, Size: 1})
	return err != nil || len(allowed) == 0
}

// again decides the request of an approval as things stand now, with the input
// that it has now.
func (s *asker) again(book *policy.Book, a Approval, now time.Time) policy.Answer {
	answer := book.Decide(&policy.Question{
		Subject: a.Requester, Session: a.Session, Confined: a.Confined, OnBehalfOf: a.OnBehalfOf,
		Operation: a.Operation, Effect: a.Effect, Conversation: a.Conversation, Target: a.Target,
		Input: policy.NewInput(a.Input), Now: now,
	})
	answer.Terms = s.settle(answer.Terms, a.Requester, a.OnBehalfOf)
	return answer
}

// refusals counts denials in a row, the last approval's included. One that was
// approved starts the count anew.
func refusals(last Approval) int {
	switch last.State {
	case stateDenied:
		return last.Refusals + 1
	case stateApproved, stateRedeemed:
		return 0
	default:
		return last.Refusals
	}
}

// lastRound finds the newest approval of a request; round 0 when there is none.
// Rounds have no holes, so doubling and halving finds it in a few reads.
func (s *asker) lastRound(ctx context.Context, key func(int) journal.Key) (int, Approval, error) {
	var last Approval
	exists := func(round int) (bool, error) {
		found, err := s.approvals.Read(ctx, key(round))
		if err == nil && found.Exists() {
			last = found.State
		}
		return found.Exists(), err
	}
	low, high := 0, 1
	for {
		there, err := exists(high)
		if err != nil {
			return 0, Approval{}, err
		}
		if !there {
			break
		}
		low, high = high, high*2
	}
	for high-low > 1 {
		middle := low + (high-low)/2
		there, err := exists(middle)
		if err != nil {
			return 0, Approval{}, err
		}
		if there {
			low = middle
		} else {
			high = middle
		}
	}
	return low, last, nil
}

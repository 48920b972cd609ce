package gate

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"strconv"
	"strings"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
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
}

// fingerprint names what makes two requests the same one. It is the first part
// of approval ids, so it is short and holds no content.
func fingerprint(caller identity.Caller, req request) string {
	h := sha256.New()
	for _, part := range []string{caller.Tenant, caller.Subject, caller.Session, req.Operation, req.SpecDigest, req.InputDigest} {
		// Lengths keep ("a", "bc") and ("ab", "c") apart.
		_, _ = fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil)[:16]))
}

// errAskLimit says that the same request was denied too often.
var errAskLimit = errors.New("denied too often")

func (s *asker) ask(ctx context.Context, caller identity.Caller, req request) (Approval, error) {
	print := fingerprint(caller, req)
	key := func(round int) journal.Key {
		return approvalKind().Key(caller.Tenant, print+"-"+strconv.Itoa(round))
	}
	for range askAttempts {
		round, last, err := s.lastRound(ctx, key)
		if err != nil {
			return Approval{}, err
		}
		if round == 0 {
			round = 1
		} else if _, err := decideRequest(last, req, s.approvals.Now()); errors.Is(err, errTaken) {
			if req.Refusals = refusals(last); req.Refusals >= askLimit {
				return Approval{}, errAskLimit
			}
			round++
		}
		req.ApprovalID = key(round).ID
		found, err := s.approvals.Do(ctx, key(round), bind(req, decideRequest))
		if errors.Is(err, errTaken) {
			continue // it ended while we looked
		}
		return found.State, err
	}
	return Approval{}, fault.New(fault.Contention, "too many checks of one request")
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

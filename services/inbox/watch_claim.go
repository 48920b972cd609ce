package inbox

import (
	"container/list"
	"context"
	"math/rand/v2"
	"time"

	"weir/internal/fault"
	"weir/internal/journal"
)

const (
	// lookAgain is how long a claim that waits trusts that it hears of what comes.
	lookAgain = 5 * time.Second
	// answerMargin is what is left of a call's deadline to bring the answer back.
	answerMargin = 250 * time.Millisecond
)

// waitingClaims are those of one inbox, those that waited longest in front.
type waitingClaims struct {
	asleep list.List // of *waitingClaim
	count  int       // also those that are looking
}

// waitingClaim waits for a hint. It is asleep or was woken; then it looks, and either
// it finds the inbox empty, or it wakes the next one. So one message wakes one claim
// of however many wait for it, and none that is there is left to nobody.
type waitingClaim struct {
	woken chan struct{}
	at    *list.Element // in asleep, nil once woken
}

// wake wakes the first, if there is one.
func (c *waitingClaims) wake() bool {
	at := c.asleep.Front()
	if at == nil {
		return false
	}
	w := c.asleep.Remove(at).(*waitingClaim)
	w.at = nil
	w.woken <- struct{}{} // has room, since it was empty when it fell asleep
	return true
}

func (h *hub) wake(key journal.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if claims := h.claims[key]; claims != nil {
		claims.wake()
	}
}

// attempt claims once. Each time with the same request, so that it makes no
// difference how often.
type attempt func(context.Context) (served, error)

// served is what a claim came to at a time: the messages that its request holds, in
// order, and the inbox that they are in.
type served struct {
	ids   []string
	state inbox
	at    time.Time
}

// claim claims, and where nothing is served waits for it up to a time, but not beyond
// the call. When the service stops it waits no longer. What never happens is
// that something is claimed for a caller who has left.
func (h *hub) claim(ctx context.Context, key journal.Key, wait time.Duration, try attempt) (served, error) {
	try = h.counting(try)
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)-answerMargin)
	}
	if wait <= 0 {
		return try(ctx)
	}
	until := time.NewTimer(wait)
	defer until.Stop()
	w, full := h.fallAsleep(key)
	if full != nil {
		got, err := try(ctx)
		if err == nil && len(got.ids) == 0 {
			err = full
		}
		return got, err
	}
	// Until it has seen the inbox empty, what it was woken for is for the next one.
	empty := false
	defer func() { h.awake(key, w, !empty) }()
	for {
		empty = false
		got, err := try(ctx)
		if err != nil || len(got.ids) > 0 {
			return got, err
		}
		empty = true
		again := time.NewTimer(untilNext(got.state.Due, got.at))
		select {
		case <-w.woken:
			h.sleepAgain(key, w)
		case <-again.C:
		case <-until.C:
			return got, nil
		case <-h.stopping.Done():
			return got, nil
		case <-ctx.Done():
		}
		again.Stop()
		if ctx.Err() != nil {
			empty = false // whatever woke it, it did not look
			return got, fault.From(ctx.Err())
		}
	}
}

// counting counts what attempts come to.
func (h *hub) counting(try attempt) attempt {
	return func(ctx context.Context) (served, error) {
		got, err := try(ctx)
		switch {
		case err != nil:
		case len(got.ids) > 0:
			h.found.Inc()
		default:
			h.empty.Inc()
		}
		return got, err
	}
}

// untilNext is how long to wait without a hint: until time alone makes something
// servable, or until a hint may have been lost.
func untilNext(turns, now time.Time) time.Duration {
	// Not all at once, which who waits for many inboxes would otherwise do.
	next := lookAgain + rand.N(lookAgain/5)
	if turns.After(now) {
		next = min(next, turns.Sub(now))
	}
	return next
}

// fallAsleep registers a claim. From then on it hears of what comes.
func (h *hub) fallAsleep(key journal.Key) (*waitingClaim, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting >= maxWaiting {
		return nil, fault.New(fault.LimitReached, "nothing is pending, and this replica serves %d waiting claims already", maxWaiting).Retry(time.Second)
	}
	h.waiting++
	claims := h.claims[key]
	if claims == nil {
		claims = &waitingClaims{}
		h.claims[key] = claims
	}
	claims.count++
	w := &waitingClaim{woken: make(chan struct{}, 1)}
	w.at = claims.asleep.PushBack(w)
	return w, nil
}

func (h *hub) sleepAgain(key journal.Key, w *waitingClaim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.at = h.claims[key].asleep.PushBack(w)
}

// awake ends a claim's waiting. Where there may be more, or it was woken and did not
// look, the next one is woken.
func (h *hub) awake(key journal.Key, w *waitingClaim, more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting--
	claims := h.claims[key]
	claims.count--
	if w.at != nil {
		claims.asleep.Remove(w.at)
	} else {
		more = true
	}
	if more {
		claims.wake()
	}
	if claims.count == 0 {
		delete(h.claims, key)
	}
}

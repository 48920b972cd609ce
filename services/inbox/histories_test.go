package inbox

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
	"weir/internal/meshtest"
)

// make torture sets these.
var (
	histories  = flag.Int("histories", 10, "how many histories are recorded and checked")
	operations = flag.Int("operations", 200, "how many operations each has")
)

const (
	// historiesAtOnce are recorded side by side, on the same servers, each in an inbox
	// of its own, by so many clients.
	historiesAtOnce  = 8
	clientsOfHistory = 6
	// checkLimit is how long the checker may take over one history. What it could not
	// decide by then is counted and told; more than two and one in undecidedShare fail the
	// test, since nobody has shown that they are right.
	checkLimit     = 16 * time.Second
	undecidedShare = 20
	// mostChoices is among how many calls with an unknown outcome those that happened
	// are guessed.
	mostChoices = 12
	longLease   = 15 * time.Minute
	shortLease  = time.Second
)

// Whatever happens to the servers, what clients are told could have come from one
// inbox that does one thing after the other; and no acknowledged message is lost.
func TestHistoriesAreLinearizable(t *testing.T) {
	t.Parallel()
	newUnrest(t, disturbances).checked(*histories, historiesAtOnce, longLease)
}

// So they are where claims run out and are served again. Only Redis is disturbed here:
// a claim of which nobody knows the outcome could have run out at any time, and there
// would be too many ways to explain what came of it.
func TestHistoriesOfClaimsThatRunOutAreLinearizable(t *testing.T) {
	t.Parallel()
	newUnrest(t, disturbancesOfRedis).checked(max(*histories/8, 1), 2*historiesAtOnce, shortLease)
}

// checked records histories, some side by side, and has each checked.
func (u *unrest) checked(count, atOnce int, lease time.Duration) {
	ctx, stop := context.WithCancel(u.t.Context())
	var unrest sync.WaitGroup
	unrest.Go(func() { u.disturb(ctx) })

	var next, calls, unknown, undecided, reclaimed, slowest atomic.Int64
	var recorders sync.WaitGroup
	for range atOnce {
		recorders.Go(func() {
			for n := next.Add(1); n <= int64(count) && !u.t.Failed(); n = next.Add(1) {
				h := newHistory(fmt.Sprintf("history-%d", n), *operations, lease)
				u.recorded(h)
				started := time.Now()
				if !h.check(u.t) {
					undecided.Add(1)
				}
				calls.Add(int64(len(h.calls)))
				unknown.Add(int64(h.count(func(_ invocation, a response) bool { return a.unknown })))
				reclaimed.Add(int64(h.count(func(_ invocation, a response) bool {
					return slices.ContainsFunc(a.seen, func(s seen) bool { return s.reclaimed })
				})))
				slowest.Store(max(slowest.Load(), int64(time.Since(started))))
			}
		})
	}
	recorders.Wait()
	stop()
	unrest.Wait()
	if lease == shortLease && reclaimed.Load() == 0 {
		u.t.Error("no claim ran out")
	}
	if n := undecided.Load(); n > max(int64(count/undecidedShare), 2) {
		u.t.Errorf("%d histories of %d could not be decided on", n, count)
	}
	u.t.Logf("%d histories, %d not decided on, %d calls, of which %d with an unknown outcome and %d that show messages served again; the slowest check took %v; %v",
		count, undecided.Load(), calls.Load(), unknown.Load(), reclaimed.Load(), time.Duration(slowest.Load()), u.disturbed)
}

// recorded lets clients do what they like to one inbox, and then looks what is there.
func (u *unrest) recorded(h *history) {
	var clients sync.WaitGroup
	for i := range clientsOfHistory {
		c := &historian{
			history: h, id: i, progress: &u.progress, random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
			service: inboxv1.NewInboxServiceClient(u.conns[i%len(u.conns)]),
		}
		clients.Go(func() { c.work(u.t.Context()) })
	}
	clients.Wait()
	u.inventory(h)
	now := time.Now().UnixNano()
	h.record(clientsOfHistory, invocation{verb: ends, call: now, ret: now}, response{})
}

// inventory sees to it that each message whose enqueue was acknowledged is there, or
// has been finished by somebody who held it.
func (u *unrest) inventory(h *history) {
	c := &historian{history: h, id: clientsOfHistory, progress: &u.progress, service: inboxv1.NewInboxServiceClient(u.conns[0])}
	sure := func(a invocation) (answer response) {
		for u.t.Context().Err() == nil {
			if answer = c.call(u.t.Context(), a); !answer.unknown && !answer.lost {
				return answer
			}
			c.patience(u.t.Context())
		}
		return answer
	}
	visible := make(map[int]bool)
	h.left = sure(invocation{verb: peeks}).seen
	for _, s := range h.left {
		visible[s.message] = true
	}
	for _, i := range c.dead(u.t) {
		visible[i] = true
	}
	for message, acked := range h.acked {
		if visible[message] {
			continue
		}
		// A message that is not there any more would be enqueued now.
		if again := sure(acked); again.state != specDone || !h.ended[message] {
			u.t.Errorf("%s: message m%d was acknowledged, and is lost: now it is %s", h.goal, message, specStates[again.state])
		}
	}
}

// dead is what died.
func (c *historian) dead(t *testing.T) []int {
	c.patience(t.Context())
	var found []int
	meshtest.Eventually(t, "dead messages can be listed", func() bool {
		out, err := c.service.ListDead(t.Context(), &inboxv1.ListDeadRequest{Goal: c.goal, PageSize: 100})
		for _, m := range out.GetMessages() {
			found = append(found, messageNumber(m.GetMessage().GetMessageId()))
		}
		return err == nil && out.GetNextPageToken() == ""
	})
	return found
}

// check has the history checked, and where it is wrong, shown. It says whether it was
// decided.
func (h *history) check(t *testing.T) bool {
	t.Helper()
	model := specification(historyLimit, int(h.messages.Load()))
	h.calls = h.withTraces()
	result := explained(model, h.calls)
	if result != porcupine.Illegal {
		return result == porcupine.Ok
	}
	t.Errorf("%s: the checker says %s of %d calls, %d of them with an unknown outcome", h.goal, result, len(h.calls),
		h.count(func(_ invocation, a response) bool { return a.unknown }))
	shown := h.until(h.firstWrong(model))
	for _, o := range shown {
		t.Logf("%d: %d…%d %s", o.ClientId, o.Call, o.Return, describe(o.Input.(invocation), o.Output.(response)))
	}
	return true
}

// explained has the checker look for an order in which all answers are right. Where
// that takes too long, it is tried with each choice of those calls that happened among
// the ones with an unknown outcome, the smallest first: one choice alone is quickly
// decided on.
func explained(model porcupine.Model, calls []porcupine.Operation) porcupine.CheckResult {
	result := porcupine.CheckOperationsTimeout(model, calls, checkLimit/4)
	var open []int
	for i, o := range calls {
		if o.Return == forever && o.Output.(response).unknown {
			open = append(open, i)
		}
	}
	if result != porcupine.Unknown || len(open) > mostChoices {
		return result
	}
	choices := make([]int, 1<<len(open))
	for i := range choices {
		choices[i] = i
	}
	slices.SortStableFunc(choices, func(a, b int) int { return cmp.Compare(bits.OnesCount(uint(a)), bits.OnesCount(uint(b))) })
	for deadline := time.Now().Add(checkLimit); len(choices) > 0 && time.Now().Before(deadline); choices = choices[1:] {
		var chosen []porcupine.Operation
		for i, o := range calls {
			if n := slices.Index(open, i); n < 0 || choices[0]>>n&1 == 1 {
				chosen = append(chosen, o)
			}
		}
		if porcupine.CheckOperationsTimeout(model, chosen, checkLimit/20) == porcupine.Ok {
			return porcupine.Ok
		}
	}
	return porcupine.Unknown
}

// firstWrong is how many answers there are in the shortest beginning of a history that
// is surely wrong.
func (h *history) firstWrong(model porcupine.Model) int {
	return sort.Search(len(h.calls)-1, func(n int) bool {
		return porcupine.CheckOperationsTimeout(model, h.until(n), checkLimit/8) == porcupine.Illegal
	})
}

// until is a history as it stood after so many answers: what was under way then has
// an unknown outcome.
func (h *history) until(answers int) []porcupine.Operation {
	calls := slices.SortedFunc(slices.Values(h.calls), func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	if answers >= len(calls) {
		return calls
	}
	at := calls[answers].Return
	var shown []porcupine.Operation
	for i, o := range calls {
		if o.Call > at {
			continue
		}
		if i > answers {
			input := o.Input.(invocation)
			input.ret = forever
			o.Input, o.Output, o.Return = input, response{unknown: true}, forever
		}
		if !o.Output.(response).unknown || o.Input.(invocation).verb != peeks {
			shown = append(shown, o)
		}
	}
	return append(shown, porcupine.Operation{Input: invocation{verb: ends, call: at + 1, ret: at + 1}, Output: response{}, Call: at + 1, Return: at + 1})
}

// The checker refuses what must not be.
func TestWrongHistoriesAreRefused(t *testing.T) {
	at := int64(time.Hour)
	tick := func(a invocation, out response) porcupine.Operation {
		at += int64(10 * time.Millisecond)
		a.call, a.ret = at, at+int64(5*time.Millisecond)
		return porcupine.Operation{Input: a, Output: out, Call: a.call, Return: a.ret}
	}
	put := func(message, depth int) porcupine.Operation {
		return tick(invocation{verb: enqueues, message: message}, response{state: specPending, depth: depth})
	}
	claim := func(request int, token string, message, deliveries int) porcupine.Operation {
		until := at + int64(12*time.Millisecond) + int64(longLease)
		return tick(invocation{verb: claims, request: request, most: 1, span: longLease},
			response{token: token, seen: []seen{{message: message, state: specClaimed, deliveries: deliveries, until: until}}})
	}
	let := func(token string) porcupine.Operation {
		return tick(invocation{verb: releases, messages: []int{0}, token: token}, response{})
	}
	finish := func(token string) porcupine.Operation {
		return tick(invocation{verb: finishes, messages: []int{0}, token: token}, response{})
	}
	look := func(shown ...seen) porcupine.Operation {
		return tick(invocation{verb: peeks}, response{seen: shown})
	}
	pendingSeen := seen{message: 0, state: specPending}
	for name, c := range map[string]struct {
		calls []porcupine.Operation
		right bool
	}{
		"all in order":                      {[]porcupine.Operation{put(0, 1), claim(1, "a", 0, 1), finish("a"), look()}, true},
		"served twice under a live lease":   {[]porcupine.Operation{put(0, 1), claim(1, "a", 0, 1), claim(2, "b", 0, 2)}, false},
		"done by a stale token":             {[]porcupine.Operation{put(0, 1), claim(1, "a", 0, 1), let("a"), claim(2, "b", 0, 2), finish("a")}, false},
		"lost":                              {[]porcupine.Operation{put(0, 1), look()}, false},
		"there again after it was done":     {[]porcupine.Operation{put(0, 1), claim(1, "a", 0, 1), finish("a"), look(pendingSeen)}, false},
		"out of order":                      {[]porcupine.Operation{put(0, 1), put(1, 2), claim(1, "a", 1, 1)}, false},
		"more than it holds":                {[]porcupine.Operation{put(0, 1), put(1, 3)}, false},
		"one token for two claims":          {[]porcupine.Operation{put(0, 1), put(1, 2), claim(1, "a", 0, 1), claim(2, "a", 1, 1)}, false},
		"a delivery that was not counted":   {[]porcupine.Operation{put(0, 1), claim(1, "a", 0, 1), let("a"), claim(2, "b", 0, 1)}, false},
		"stale although the token holds it": {[]porcupine.Operation{put(0, 1), claim(1, "a", 0, 1), tick(invocation{verb: finishes, messages: []int{0}, token: "a"}, response{refusal: fault.StaleClaim})}, false},
	} {
		if got := porcupine.CheckOperations(specification(historyLimit, 2), c.calls); got != c.right {
			t.Errorf("%s: the checker says %v", name, got)
		}
	}
}

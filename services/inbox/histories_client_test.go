package inbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
	"weir/internal/journal"
)

// history is what clients did to one inbox, and what they were told.
type history struct {
	goal string
	// lease is how long claims last: so long that none ends before the history, or
	// so short that most do.
	lease    time.Duration
	budget   atomic.Int64 // operations that are left
	messages atomic.Int64 // ids in use
	requests atomic.Int64

	mu    sync.Mutex
	calls []porcupine.Operation
	acked map[int]invocation // the enqueues that were acknowledged, by message
	ended map[int]bool
	left  []seen // what waited or was claimed at the end
}

func newHistory(goal string, operations int, lease time.Duration) *history {
	h := &history{goal: goal, lease: lease, acked: make(map[int]invocation), ended: make(map[int]bool)}
	h.budget.Store(int64(operations))
	return h
}

// historian is one client of it, which makes one call at a time.
type historian struct {
	*history
	id      int
	service inboxv1.InboxServiceClient
	random  *rand.Rand
	// progress counts calls, on all inboxes.
	progress *atomic.Int64
	holds    []holds      // newest last
	let      []holds      // that it gave up
	own      []invocation // its enqueues
}

// holds is what a claim gave.
type holds struct {
	token    string
	messages []int
}

const (
	// callLimit is how long a client waits for an answer. What it does not get until
	// then may happen still.
	callLimit = 10 * time.Second
)

func messageName(i int) string { return "m" + strconv.Itoa(i) }

func messageNumber(name string) int {
	i, err := strconv.Atoi(strings.TrimPrefix(name, "m"))
	if err != nil {
		return -1
	}
	return i
}

func contentOf(body string) int {
	i, err := strconv.Atoi(strings.TrimPrefix(body, "content "))
	if err != nil {
		return -1
	}
	return i
}

// work makes calls until the history has enough of them.
func (c *historian) work(ctx context.Context) {
	for c.budget.Add(-1) >= 0 && ctx.Err() == nil {
		c.again(ctx, c.choose())
		if c.lease == shortLease {
			_ = journal.Pause(ctx, rand.N(shortLease/8)) // so that claims run out meanwhile
		}
	}
}

// again makes a call, and where nobody knows what came of it, mostly once more, when
// the service is there again.
func (c *historian) again(ctx context.Context, a invocation) {
	for {
		answer := c.call(ctx, a)
		if !answer.unknown {
			if !answer.lost {
				c.settle(a, answer)
			}
			return
		}
		c.patience(ctx)
		if c.random.IntN(8) == 0 || c.budget.Add(-1) < 0 {
			return
		}
	}
}

// settle ends the attempts before the newest call of this client, where its answer shows
// that none of them can change anything any more: the id is known, or the token worth
// nothing. A claim that went astray could still take what comes later.
func (c *historian) settle(of invocation, answer response) {
	switch {
	case of.verb == finishes, of.verb == releases:
	case of.verb == enqueues && answer.refusal != fault.InboxFull:
	default:
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	newest := true
	var ret int64
	for i := len(c.calls) - 1; i >= 0; i-- {
		o := &c.calls[i]
		switch {
		case o.ClientId != c.id:
		case newest:
			newest, ret = false, o.Return
		case !o.Output.(response).unknown || !o.Input.(invocation).asks(of):
			return
		default:
			input := o.Input.(invocation)
			input.ret = ret
			o.Input, o.Return = input, ret
		}
	}
}

// asks says whether two calls ask the same.
func (c invocation) asks(other invocation) bool {
	return c.verb == other.verb && c.message == other.message && c.content == other.content && c.token == other.token &&
		slices.Equal(c.messages, other.messages)
}

// patience waits until the service has its journal again.
func (c *historian) patience(ctx context.Context) {
	for ctx.Err() == nil {
		if _, err := c.peek(ctx); err == nil || fault.Is(err, fault.InboxNotFound) {
			return
		}
		_ = journal.Pause(ctx, 10*time.Millisecond)
	}
}

func (c *historian) peek(ctx context.Context) (*inboxv1.PeekResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return c.service.Peek(ctx, &inboxv1.PeekRequest{Goal: c.goal, PageSize: 100}, grpc.WaitForReady(true))
}

// choose thinks of the next call.
func (c *historian) choose() invocation {
	switch n := c.random.IntN(100); {
	case n < 5:
		return invocation{verb: peeks}
	case n < 12 && len(c.own) > 0: // once more, sometimes with other content
		again := c.own[c.random.IntN(len(c.own))]
		again.content = c.random.IntN(4) / 3
		return again
	case n < 16 && len(c.own) > 0: // mostly of one that is not dead
		return invocation{verb: redrives, message: c.own[c.random.IntN(len(c.own))].message}
	case n < 22 && len(c.let) > 0: // by a token that is worth nothing any more
		old := c.let[c.random.IntN(len(c.let))]
		return invocation{verb: extends + verb(c.random.IntN(3)), messages: old.messages, token: old.token, span: c.lease}
	case n < 60 && len(c.holds) > 0:
		return c.chooseHold()
	case n < 75 || len(c.holds) > 2:
		return invocation{verb: claims, request: int(c.requests.Add(1)), most: 1 + c.random.IntN(3), span: c.lease}
	default:
		a := invocation{verb: enqueues, message: int(c.messages.Add(1)) - 1, priority: int32(c.random.IntN(3)) / 2}
		c.own = append(c.own, a)
		return a
	}
}

// chooseHold goes on with what it claimed: all of it, or one message.
func (c *historian) chooseHold() invocation {
	i := c.random.IntN(len(c.holds))
	h := c.holds[i]
	a := invocation{verb: finishes, messages: h.messages, token: h.token}
	if c.lease == shortLease && c.random.IntN(3) == 0 { // it forgets what it has
		c.holds = slices.Delete(c.holds, i, i+1)
		c.let = append(c.let, h)
		return invocation{verb: peeks}
	}
	switch c.random.IntN(10) {
	case 0, 1:
		a.verb, a.span = extends, c.lease
		return a
	case 2, 3:
		a.verb, a.span = releases, [...]time.Duration{0, 0, 0, 20 * time.Millisecond, time.Hour}[c.random.IntN(5)]
	}
	if len(h.messages) > 1 && c.random.IntN(2) == 0 {
		n := c.random.IntN(len(h.messages))
		a.messages = h.messages[n : n+1]
		c.holds[i].messages = slices.Delete(slices.Clone(h.messages), n, n+1)
	} else {
		c.holds = slices.Delete(c.holds, i, i+1)
	}
	c.let = append(c.let, holds{h.token, a.messages})
	return a
}

// definite are refusals that change nothing.
var definite = []fault.Reason{
	fault.StaleClaim, fault.InboxFull, fault.IdempotencyMismatch, fault.MessageNotFound, fault.StateConflict,
}

// call makes one call and writes it down.
func (c *historian) call(ctx context.Context, a invocation) response {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	a.call = time.Now().UnixNano()
	answer, err := c.make(ctx, a)
	a.ret = time.Now().UnixNano()
	switch reason := fault.ReasonOf(err); {
	case err == nil:
	case slices.Contains(definite, reason):
		answer = response{refusal: reason}
	case reason == fault.Contention:
		answer = response{lost: true}
	default:
		answer = response{unknown: true}
		a.ret = forever
	}
	if a.verb == claims && answer.token != "" {
		var got []int
		for _, s := range answer.seen {
			got = append(got, s.message)
		}
		c.holds = append(c.holds, holds{answer.token, got})
	}
	// What changed nothing that anybody could see is left out.
	if answer.unknown && (a.verb == peeks || a.verb == extends && a.span == longLease) {
		return answer
	}
	c.record(c.id, a, answer)
	c.progress.Add(1)
	return answer
}

func (h *history) record(client int, a invocation, answer response) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, porcupine.Operation{ClientId: client, Input: a, Output: answer, Call: a.call, Return: a.ret})
	if a.verb == enqueues && answer.refusal == "" && !answer.unknown && !answer.lost {
		h.acked[a.message] = a
	}
	if a.verb == finishes && answer.refusal == "" && !answer.lost {
		for _, i := range a.messages {
			h.ended[i] = true
		}
	}
}

// make is the call itself.
func (c *historian) make(ctx context.Context, a invocation) (response, error) {
	var names []string
	for _, i := range a.messages {
		names = append(names, messageName(i))
	}
	switch a.verb {
	case enqueues:
		out, err := c.service.Enqueue(ctx, &inboxv1.EnqueueRequest{
			Goal: c.goal, MessageId: messageName(a.message), Body: fmt.Sprintf("content %d", a.content), Priority: a.priority,
		})
		return response{state: specStateOf(out.GetState()), depth: int(out.GetDepth())}, err
	case claims:
		out, err := c.service.Claim(ctx, &inboxv1.ClaimRequest{
			Goal: c.goal, RequestId: fmt.Sprintf("r%d", a.request), Max: int32(a.most), Lease: durationpb.New(a.span),
		})
		return response{token: out.GetClaimToken(), seen: seenOf(out.GetMessages())}, err
	case peeks:
		out, err := c.peek(ctx)
		return response{seen: seenOf(out.GetMessages())}, err
	case redrives:
		_, err := c.service.Redrive(ctx, &inboxv1.RedriveRequest{Goal: c.goal, MessageIds: []string{messageName(a.message)}})
		return response{}, err
	case extends:
		out, err := c.service.Extend(ctx, &inboxv1.ExtendRequest{
			Goal: c.goal, MessageIds: names, ClaimToken: a.token, Lease: durationpb.New(a.span),
		})
		return response{until: out.GetLeaseExpireTime().AsTime().UnixNano()}, err
	case finishes:
		_, err := c.service.Done(ctx, &inboxv1.DoneRequest{Goal: c.goal, MessageIds: names, ClaimToken: a.token})
		return response{}, err
	default:
		_, err := c.service.Release(ctx, &inboxv1.ReleaseRequest{
			Goal: c.goal, MessageIds: names, ClaimToken: a.token, Delay: durationpb.New(a.span),
		})
		return response{}, err
	}
}

func specStateOf(s inboxv1.MessageState) specState {
	return map[inboxv1.MessageState]specState{
		inboxv1.MessageState_MESSAGE_STATE_PENDING: specPending,
		inboxv1.MessageState_MESSAGE_STATE_CLAIMED: specClaimed,
		inboxv1.MessageState_MESSAGE_STATE_DONE:    specDone,
		inboxv1.MessageState_MESSAGE_STATE_DEAD:    specDead,
	}[s]
}

func seenOf(messages []*inboxv1.Message) []seen {
	var all []seen
	for _, m := range messages {
		s := seen{
			message: messageNumber(m.GetMessageId()), content: contentOf(m.GetBody()),
			state: specStateOf(m.GetState()), deliveries: int(m.GetDeliveries()), reclaimed: m.GetReclaimed(),
		}
		if until := m.GetLeaseExpireTime(); until != nil {
			s.until = until.AsTime().UnixNano()
		}
		all = append(all, s)
	}
	return all
}

// count is how many calls there are of some kind.
func (h *history) count(of func(invocation, response) bool) (n int) {
	for _, o := range h.calls {
		if of(o.Input.(invocation), o.Output.(response)) {
			n++
		}
	}
	return n
}

// withTraces leaves out calls with an unknown outcome that certainly did nothing
// before the end, as what was found then shows. The checker would have to try them
// everywhere.
func (h *history) withTraces() []porcupine.Operation {
	known := make(map[int]bool)    // messages that somebody was told of
	answered := make(map[int]bool) // requests that were given something
	leases := make(map[int64]bool) // that somebody was told of
	for _, o := range h.calls {
		in, out := o.Input.(invocation), o.Output.(response)
		if out.unknown || out.lost {
			continue
		}
		switch in.verb {
		case enqueues:
			known[in.message] = known[in.message] || out.refusal != fault.InboxFull
		case extends:
			leases[out.until] = true
		case claims:
			answered[in.request] = len(out.seen) > 0
			for _, s := range out.seen {
				leases[s.until] = true
			}
		}
		for _, s := range out.seen {
			known[s.message] = true
		}
	}
	left := make(map[int]bool)
	foreign := h.lease != longLease // what was claimed by whom can't be told any more
	for _, s := range h.left {
		left[s.message] = true
		foreign = foreign || s.state == specClaimed && !leases[s.until]
	}
	return slices.DeleteFunc(slices.Clone(h.calls), func(o porcupine.Operation) bool {
		in := o.Input.(invocation)
		if !o.Output.(response).unknown {
			return false
		}
		switch in.verb {
		case enqueues:
			return !known[in.message]
		case claims:
			return !foreign && !answered[in.request]
		case finishes:
			return !slices.ContainsFunc(in.messages, func(i int) bool { return !left[i] })
		default:
			return false
		}
	})
}

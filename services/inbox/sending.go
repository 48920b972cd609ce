package inbox

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	conversationv1 "weir/gen/conversation/v1"
	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

// dispatcher does weir's errands: it sends what was dispatched, and tells workers to go
// on. Whoever calls it, and however often: a caller that waits, the event that an
// awaited item is finished, or the clock after somebody died. An errand was journaled
// before it begins, all its ids are derived from what was, and each of its steps can be
// done again, so several replicas at it do no more than one.
type dispatcher struct {
	dispatches    *dispatchLoop
	inboxes       *inboxLoop
	journal       *journal.Journal
	conversations conversationv1.ConversationServiceClient
	messages      conversationv1.MessageServiceClient
	rules         rules // of inboxes
	// before is called with the name of each step that comes. Tests die in it.
	before func(step string)
}

// task is an errand, with all that it takes.
type task struct {
	key    journal.Key
	state  dispatch
	plan   *inboxv1.DispatchPlan // empty for an item that was sent by hand
	worker string                // whom to tell; empty for nobody that weir knows
}

// step is one thing of an errand.
type step struct {
	name string
	// needed says whether the errand has it.
	needed func(task) bool
	do     func(*dispatcher, context.Context, task) error
}

// steps are in this order. Nobody hears of a conversation before its first message
// is in it.
var steps = [...]step{
	{"create", func(t task) bool { return !t.state.Settled }, (*dispatcher).create},
	{"seed", func(t task) bool { return !t.state.Resuming }, (*dispatcher).seed},
	{"tell", func(t task) bool { return t.worker != "" }, (*dispatcher).tell},
	{"record", func(task) bool { return true }, (*dispatcher).record},
}

// drive does what can be done now, and gives the dispatch as it is then. A refusal is
// recorded and is no error of drive; an error says that trying again may help.
func (s *dispatcher) drive(ctx context.Context, key journal.Key) (dispatch, error) {
	d, err := s.newest(ctx, key)
	if err == nil && d.waits() {
		d, err = s.settle(ctx, key, d)
	}
	if err != nil || !d.busy() {
		return d, err
	}
	t, err := s.task(ctx, key, d)
	if err != nil {
		return d, err
	}
	for i, step := range steps {
		if !step.needed(t) {
			continue
		}
		if s.before != nil {
			s.before(step.name)
		}
		if i > 0 {
			// It may have been abandoned meanwhile, or another replica was faster.
			if d, err = s.newest(ctx, key); err != nil || !d.busy() || d.Errand.errandID != t.state.Errand.errandID {
				return d, err
			}
		}
		if err := step.do(s, ctx, t); err != nil {
			return s.failed(ctx, t, err)
		}
	}
	return s.newest(ctx, key)
}

func (s *dispatcher) newest(ctx context.Context, key journal.Key) (dispatch, error) {
	found, err := s.dispatches.Newest(ctx, key)
	return found.State, err
}

// failed records a refusal. What is away was not refused, and is only tried again.
func (s *dispatcher) failed(ctx context.Context, t task, err error) (dispatch, error) {
	refusal := fault.From(err)
	switch refusal.Kind() {
	case fault.KindUnavailable, fault.KindContention, fault.KindCancelled, fault.KindDeadlineExceeded:
		return t.state, err
	}
	after, _, err := do(ctx, s.dispatches, t.key, decideFail, failing{
		Errand: t.state.Errand.errandID, Text: string(refusal.Reason()) + ": " + refusal.Message(),
	})
	return after.State, err
}

// task reads the plan, which stands in the journal alone.
func (s *dispatcher) task(ctx context.Context, key journal.Key, d dispatch) (task, error) {
	t := task{key: key, state: d, worker: d.Worker, plan: &inboxv1.DispatchPlan{}}
	if d.Errand.Plan == 0 {
		return t, nil
	}
	e, err := s.journal.Get(ctx, d.Errand.Plan)
	if err != nil {
		return task{}, err
	}
	read, err := aggregate.Decode[*inboxv1.Event](e)
	if err != nil {
		return task{}, err
	}
	if t.plan = read.Event.GetDispatchBegun().GetPlan(); e.Key != key || t.plan == nil {
		return task{}, fault.New(fault.EventUnreadable, "the plan of a dispatch cannot be read").
			Wrap(fmt.Errorf("event %d is of %s, and not a plan of %s", e.Sequence, e.Key, key))
	}
	return t, nil
}

// asOwner acts for the owner as it was when it asked. Whether it still may is for the
// other service to say.
func (t task) asOwner(ctx context.Context) context.Context {
	return identity.ActFor(ctx, identity.Caller{
		Tenant: t.key.Tenant, Subject: t.state.Owner, Session: t.plan.GetSession(),
		Confined: t.plan.GetConfined(), OnBehalfOf: t.plan.GetOnBehalfOf(), Operation: t.plan.GetOperation(),
	})
}

// create makes the conversation. Where it is there already, with this owner and these
// participants, it is ours: nobody else could own it, and nobody could know its id. Any
// other is refused, and its id is not used.
func (s *dispatcher) create(ctx context.Context, t task) error {
	_, err := s.conversations.CreateConversation(t.asOwner(ctx), &conversationv1.CreateConversationRequest{
		ConversationId: t.state.ConversationID,
		Title:          cmp.Or(t.plan.GetTitle(), t.state.Item),
		Participants:   []string{agentOf(t.plan.GetWorker())},
	})
	return err
}

// seed says what is to be done, to nobody: who is addressed would find the message in
// the inbox once more, by itself.
func (s *dispatcher) seed(ctx context.Context, t task) error {
	_, err := s.messages.AppendMessage(t.asOwner(ctx), &conversationv1.AppendMessageRequest{
		ConversationId: t.state.ConversationID,
		MessageId:      t.seedID(),
		Parts:          []*conversationv1.Part{{Part: &conversationv1.Part_Text{Text: t.plan.GetSeed()}}},
	})
	return err
}

// tell puts a message into the worker's inbox.
func (s *dispatcher) tell(ctx context.Context, t task) error {
	about := work{
		Goal: t.state.Goal, Item: t.state.Item, DispatchID: t.state.ID, ConversationID: t.state.ConversationID,
		Attempt: t.state.Errand.Attempt,
	}
	if t.state.Resuming {
		about.Finished = t.state.Mention
	} else {
		about.MessageID = t.seedID()
	}
	body, err := json.Marshal(about)
	if err != nil {
		return fault.New(fault.Bug, "a message cannot be written as JSON").Wrap(err)
	}
	return enqueueOwn(ctx, s.inboxes, inboxKey(t.key.Tenant, t.worker), s.rules, originOf(t.state.Owner, t.plan), newMessage{
		ID:           t.derived(workPrefix, "inbox"),
		Body:         string(body),
		Priority:     t.plan.GetPriority(),
		Conversation: t.state.ConversationID,
	})
}

// record ends the errand.
func (s *dispatcher) record(ctx context.Context, t task) error {
	_, _, err := do(ctx, s.dispatches, t.key, decideSent, sending{t.state.Errand.errandID})
	return err
}

func (t task) seedID() string { return t.derived("seed-", "conversation") }

// derived is an id that only this errand of this dispatch has.
func (t task) derived(prefix, where string) string {
	sum := digest(where, t.state.ID, fmt.Sprint(t.state.Errand.Attempt), fmt.Sprint(t.state.Errand.Round))
	return prefix + base64.RawURLEncoding.EncodeToString(sum)
}

// work is the body of a message about dispatched work: where the work is, and none of
// what it says.
type work struct {
	Goal           string `json:"goal"`
	Item           string `json:"item"`
	DispatchID     string `json:"dispatch_id"`
	ConversationID string `json:"conversation_id"`
	// MessageID is the seed, in a message that gives the work.
	MessageID string `json:"message_id,omitempty"`
	Attempt   int32  `json:"attempt"`
	// Finished are the items that were waited for, in a message to go on.
	Finished []string `json:"finished,omitempty"`
}

// sweep drives whatever stood still, until ctx ends.
func (s *dispatcher) sweep(ctx context.Context) error {
	return s.dispatches.Sweep(ctx, func(ctx context.Context, key journal.Key) (time.Duration, error) {
		d, err := s.drive(ctx, key)
		if err == nil && d.waits() {
			err = s.refuseCircle(ctx, key, d)
		}
		return d.pause(s.dispatches.Now()), err
	})
}

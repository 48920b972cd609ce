package inbox

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/maypok86/otter/v2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	conversationv1 "weir/gen/conversation/v1"
	gatev1 "weir/gen/gate/v1"
	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

const (
	// checkKept is how long an answer about a sender counts. A worker that claims one
	// message after another asks once in this time.
	checkKept = time.Second
	// checkWithin is how long peers have to answer.
	checkWithin = 2 * time.Second
	// checksAtOnce bounds what one claim asks side by side, and checkRounds how often
	// it asks because other messages are in front meanwhile.
	checksAtOnce = 32
	checkRounds  = 5
	// checksRemembered bounds the answers in memory: some 3 MB.
	checksRemembered = 10_000
)

// checks asks the gate where senders stand, and the conversation service whether what
// they spoke in is there. It is safe for concurrent use.
type checks struct {
	gate          gatev1.GateServiceClient
	conversations conversationv1.ConversationServiceClient
	answers       *otter.Cache[checked, verdict]
}

// checked is a question in full: in which tenant, and for a conversation, whether it is
// within reach of whom.
type checked struct {
	tenant, receiver string
	question
}

func newChecks(gate, conversations grpc.ClientConnInterface) *checks {
	return &checks{
		gate:          gatev1.NewGateServiceClient(gate),
		conversations: conversationv1.NewConversationServiceClient(conversations),
		answers: otter.Must(&otter.Options[checked, verdict]{
			MaximumSize:      checksRemembered,
			ExpiryCalculator: otter.ExpiryWriting[checked, verdict](checkKept),
		}),
	}
}

// deliver runs a claim, and asks about those senders of whom nothing is known. When
// somebody can't be asked, nothing is claimed: mail that waits is better than mail
// from somebody who was stopped.
//
// Errors: PEER_UNAVAILABLE; CALLER_DISABLED where the receiver is; CONTENTION.
func (c *checks) deliver(ctx context.Context, inboxes *inboxLoop, key journal.Key, cmd claim) (aggregate.Snapshot[inbox], time.Time, error) {
	fresh := make(map[question]verdict)
	known := func(q question) (verdict, bool) {
		if v, ok := fresh[q]; ok {
			return v, true
		}
		v, ok := c.answers.GetIfPresent(asking(key, q))
		if ok {
			fresh[q] = v // so that it can't expire between two looks of one claim
		}
		return v, ok
	}
	for range checkRounds {
		after, at, err := do(ctx, inboxes, key, decideDelivery, checkedClaim{cmd, known})
		missing, ok := errors.AsType[unchecked](err)
		if !ok {
			return after, at, err
		}
		answers, err := c.ask(ctx, key, missing)
		if err != nil {
			return aggregate.Snapshot[inbox]{}, time.Time{}, err
		}
		maps.Copy(fresh, answers)
	}
	return aggregate.Snapshot[inbox]{}, time.Time{}, fault.New(fault.Contention, "messages of other senders came to the front while those of some were checked").Retry(checkWithin / 40)
}

func asking(key journal.Key, q question) checked {
	full := checked{tenant: key.Tenant, question: q}
	if q.Subject == "" {
		full.receiver = string(identity.Agent) + ":" + key.ID
	}
	return full
}

// ask answers questions side by side.
func (c *checks) ask(ctx context.Context, key journal.Key, questions []question) (map[question]verdict, error) {
	found := make([]verdict, len(questions))
	var group errgroup.Group
	group.SetLimit(checksAtOnce)
	for i, q := range questions {
		group.Go(func() (err error) {
			// Claims that want the same answer share one call, so it must not end with
			// the claim that happened to be first.
			found[i], err = c.answers.Get(context.WithoutCancel(ctx), asking(key, q), otter.LoaderFunc[checked, verdict](c.one))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	answers := make(map[question]verdict, len(questions))
	for i, q := range questions {
		answers[q] = found[i]
	}
	return answers, nil
}

func (c *checks) one(ctx context.Context, q checked) (verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	if q.Subject == "" {
		return c.conversation(ctx, q)
	}
	return c.sender(ctx, q)
}

// sender asks the gate, acting for the sender.
func (c *checks) sender(ctx context.Context, q checked) (verdict, error) {
	answer, err := c.gate.CheckStanding(identity.ActFor(ctx, q.caller(q.tenant)), &gatev1.CheckStandingRequest{Operation: q.Operation})
	switch refusal := fault.From(err); {
	case err == nil && answer.GetConfined():
		return inboxv1.RefusalReason_REFUSAL_REASON_SENDER_CONFINED, nil
	case err == nil && !answer.GetGranted():
		return inboxv1.RefusalReason_REFUSAL_REASON_SENDER_NOT_GRANTED, nil
	case err == nil:
		return goodStanding, nil
	// The inbox itself may be the disabled one, which says nothing of the sender.
	case refusal.Reason() == fault.CallerDisabled && q.names(refusal.Metadata("subject")):
		return inboxv1.RefusalReason_REFUSAL_REASON_SENDER_DISABLED, nil
	}
	return goodStanding, peerUnavailable("the gate", err)
}

// conversation asks acting for the receiver, who must be able to read what the message
// points at.
func (c *checks) conversation(ctx context.Context, q checked) (verdict, error) {
	receiver := identity.Caller{Tenant: q.tenant, Subject: q.receiver}
	_, err := c.conversations.GetConversation(identity.ActFor(ctx, receiver), &conversationv1.GetConversationRequest{ConversationId: q.Conversation})
	switch refusal := fault.From(err); {
	case err == nil:
		return goodStanding, nil
	case refusal.Reason() == fault.ConversationNotFound:
		return inboxv1.RefusalReason_REFUSAL_REASON_CONVERSATION_GONE, nil
	case refusal.Reason() == fault.CallerDisabled && refusal.Metadata("subject") == q.receiver:
		// Not the sender's fault: the mail waits until the receiver is back.
		return goodStanding, fault.New(fault.CallerDisabled, "%s, to whom the messages go, is disabled", q.receiver).With("subject", q.receiver)
	}
	return goodStanding, peerUnavailable("the conversation service", err)
}

func peerUnavailable(peer string, err error) error {
	return fault.New(fault.PeerUnavailable, "whether senders may still send cannot be asked of %s", peer).Retry(time.Second).Wrap(err)
}

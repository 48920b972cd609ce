package main

import (
	"context"
	"fmt"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/identity"
	"weir/internal/serve"
	"weir/services/inbox"
)

// inboxes is many inboxes, which rows fill and empty.
type inboxes struct {
	service inboxv1.InboxServiceClient
	sent    []int // to each, ever
	waiting []int // in each
}

// inboxLimit is the most that the service allows, so that the row that only
// fills inboxes has room.
const inboxLimit = 10_000

func goal(n int) string { return fmt.Sprintf("goal-%04d", n) }

func (m *mesh) openInboxes() (*inboxes, error) {
	if m.inboxes != nil {
		return m.inboxes, nil
	}
	// Claims ask the gate about senders, some once a second.
	if _, err := m.gate(identity.Caller{}); err != nil {
		return nil, err
	}
	token, err := m.tokenFile(identity.Caller{Tenant: identity.AnyTenant, Subject: "service:inbox", Scopes: []string{"gate.check"}})
	if err != nil {
		return nil, err
	}
	conn, err := m.service("inbox", identity.Caller{
		Tenant: tenant, Subject: "service:bench", Scopes: []string{"inbox.claim", "inbox.enqueue"},
	}, func(ctx context.Context, c serve.Config) error {
		c.Peer.TokenFile = token
		// Nothing was said in a conversation, so that service is never asked.
		return inbox.Run(ctx, inbox.Config{
			Serve: c, Stores: m.stores(), Gate: m.services["gate"], Conversation: "dns:///127.0.0.1:1", Limit: inboxLimit,
		})
	})
	if err != nil {
		return nil, err
	}
	b := &inboxes{
		service: inboxv1.NewInboxServiceClient(conn),
		sent:    make([]int, m.many),
		waiting: make([]int, m.many),
	}
	m.inboxes = b
	// The first message makes the inbox.
	return b, b.stock(m, 1)
}

func (b *inboxes) enqueue(ctx context.Context, n int) error {
	b.sent[n]++
	_, err := b.service.Enqueue(ctx, &inboxv1.EnqueueRequest{
		Goal: goal(n), MessageId: fmt.Sprintf("m%d", b.sent[n]), Body: text,
	})
	if err == nil {
		b.waiting[n]++
	}
	return err
}

// stock sees to it that each inbox holds so many messages.
func (b *inboxes) stock(m *mesh, each int) error {
	return m.each(func(ctx context.Context, n int) error {
		for b.waiting[n] < each {
			if err := b.enqueue(ctx, n); err != nil {
				return err
			}
		}
		return nil
	})
}

// openEnqueue fills many inboxes.
func openEnqueue(m *mesh) (workload, error) {
	b, err := m.openInboxes()
	if err != nil {
		return nil, err
	}
	return func(callers int) ([]call, error) {
		calls := make([]call, callers)
		for i, mine := range shares(callers, m.many) {
			calls[i] = func(ctx context.Context) error { return b.enqueue(ctx, mine.next()) }
		}
		return calls, nil
	}, nil
}

// openClaimDone empties them: each caller claims a message, then finishes it,
// and each of the two is a call of its own.
func openClaimDone(m *mesh) (workload, error) {
	b, err := m.openInboxes()
	if err != nil {
		return nil, err
	}
	return func(callers int) ([]call, error) {
		// Enough for the first slice, and mostly for all: messages that were
		// enqueued by the other row are here to be claimed too.
		if err := b.stock(m, 4); err != nil {
			return nil, err
		}
		calls := make([]call, callers)
		for i, mine := range shares(callers, m.many) {
			w := worker{inboxes: b, mine: mine}
			calls[i] = w.next
		}
		return calls, nil
	}, nil
}

// worker is a caller that claims and finishes, in turn.
type worker struct {
	*inboxes
	mine  share
	claim *inboxv1.DoneRequest // to finish next, nil when there is none
}

func (w *worker) next(ctx context.Context) error {
	if w.claim != nil {
		_, err := w.service.Done(ctx, w.claim)
		w.claim = nil
		return err
	}
	n, ok := w.pick()
	if !ok {
		return errDry
	}
	claimed := w.sent[n] - w.waiting[n]
	answer, err := w.service.Claim(ctx, &inboxv1.ClaimRequest{
		Goal: goal(n), RequestId: fmt.Sprintf("r%d", claimed), Max: 1,
	})
	if err != nil {
		return err
	}
	if len(answer.GetMessages()) != 1 {
		return fmt.Errorf("a claim gave %d messages where %d wait", len(answer.GetMessages()), w.waiting[n])
	}
	w.waiting[n]--
	w.claim = &inboxv1.DoneRequest{
		Goal: goal(n), MessageIds: []string{answer.GetMessages()[0].GetMessageId()}, ClaimToken: answer.GetClaimToken(),
	}
	return nil
}

// pick gives the next inbox of the caller's in which something waits.
func (w *worker) pick() (int, bool) {
	for range w.waiting {
		if n := w.mine.next(); w.waiting[n] > 0 {
			return n, true
		}
	}
	return 0, false
}

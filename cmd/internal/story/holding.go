package story

import (
	"context"
	"fmt"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
)

// What an operator and a busy agent do with an inbox.

// Messages that Omar sends.
const (
	first  = "long"
	urgent = "urgent"
	poison = "poison"
	// deaths is how often a message is delivered before it is dead.
	deaths = 5
)

func (s *story) send(ctx context.Context, id string, policy inboxv1.BusyPolicy) error {
	_, err := s.inboxes.Enqueue(ctx, &inboxv1.EnqueueRequest{Goal: goal, MessageId: id, Body: "This is " + id + ".", BusyPolicy: policy}, s.omar)
	return err
}

// claims claims one message, which must be this one.
func (s *story) claims(ctx context.Context, request, id string) (*inboxv1.ClaimResponse, error) {
	claimed, err := s.claimOne(ctx, request)
	if err != nil {
		return nil, err
	}
	if m := claimed.GetMessages(); len(m) != 1 || m[0].GetMessageId() != id {
		return nil, fmt.Errorf("the claim gave %v, and not %s", m, id)
	}
	return claimed, nil
}

func (s *story) beBusy(ctx context.Context) error {
	if err := s.send(ctx, first, inboxv1.BusyPolicy_BUSY_POLICY_ENQUEUE); err != nil {
		return err
	}
	claimed, err := s.claims(ctx, "busy", first)
	if err != nil {
		return err
	}
	s.token = claimed.GetClaimToken()
	calm, err := s.extend(ctx)
	if err != nil {
		return err
	}
	s.check(!calm.GetInterrupted(), "Bob is at work on what Omar sent, and says so: nothing else is urgent")
	err = s.send(ctx, "second", inboxv1.BusyPolicy_BUSY_POLICY_REJECT)
	s.refused(err, fault.InboxBusy, "what is only for an idle Bob is refused")
	return s.send(ctx, urgent, inboxv1.BusyPolicy_BUSY_POLICY_INTERRUPT)
}

func (s *story) extend(ctx context.Context) (*inboxv1.ExtendResponse, error) {
	return s.inboxes.Extend(ctx, &inboxv1.ExtendRequest{Goal: goal, MessageIds: []string{first}, ClaimToken: s.token}, s.bob)
}

func (s *story) interrupted(ctx context.Context) error {
	told, err := s.extend(ctx)
	if err != nil {
		return err
	}
	s.check(told.GetInterrupted(), "the next time that he says so, he is told")
	if _, err := s.inboxes.Release(ctx, &inboxv1.ReleaseRequest{Goal: goal, MessageIds: []string{first}, ClaimToken: s.token}, s.bob); err != nil {
		return err
	}
	for _, id := range []string{urgent, first} {
		claimed, err := s.claims(ctx, "after-"+id, id)
		if err != nil {
			return err
		}
		if err := s.finishes(ctx, claimed); err != nil {
			return err
		}
	}
	s.check(true, "he gives back what he has, and gets the urgent one first")
	return nil
}

func (s *story) die(ctx context.Context) error {
	if err := s.send(ctx, poison, inboxv1.BusyPolicy_BUSY_POLICY_ENQUEUE); err != nil {
		return err
	}
	for i := range deaths {
		claimed, err := s.claims(ctx, fmt.Sprintf("try-%d", i), poison)
		if err != nil {
			return err
		}
		if _, err := s.inboxes.Release(ctx, &inboxv1.ReleaseRequest{Goal: goal, MessageIds: []string{poison}, ClaimToken: claimed.GetClaimToken()}, s.bob); err != nil {
			return err
		}
	}
	waiting, err := s.peek(ctx)
	if err != nil {
		return err
	}
	same(&s.report, len(waiting), 0, "after %d times it holds nobody up any more", deaths)
	return nil
}

func (s *story) redrive(ctx context.Context) error {
	listed, err := s.inboxes.ListDead(ctx, &inboxv1.ListDeadRequest{Goal: goal}, s.omar)
	if err != nil {
		return err
	}
	if len(listed.GetMessages()) != 1 {
		return fmt.Errorf("%d messages are dead", len(listed.GetMessages()))
	}
	same(&s.report, len(listed.GetMessages()[0].GetDeliveries()), deaths, "Omar sees it, and how each time ended")
	if _, err := s.inboxes.Redrive(ctx, &inboxv1.RedriveRequest{Goal: goal, MessageIds: []string{poison}}, s.omar); err != nil {
		return err
	}
	claimed, err := s.claims(ctx, "cured", poison)
	if err != nil {
		return err
	}
	same(&s.report, claimed.GetMessages()[0].GetDeliveries(), 1, "he has Bob try again, as if it were the first time")
	return s.finishes(ctx, claimed)
}

func (s *story) hold(ctx context.Context) error {
	if _, err := s.inboxes.PauseInbox(ctx, &inboxv1.PauseInboxRequest{Goal: goal, Note: "Bob is being looked at."}, s.omar); err != nil {
		return err
	}
	if err := s.send(ctx, "patient", inboxv1.BusyPolicy_BUSY_POLICY_ENQUEUE); err != nil {
		return err
	}
	s.check(true, "what is sent is kept")
	held, err := s.claimOne(ctx, "held")
	if err != nil {
		return err
	}
	s.check(len(held.GetMessages()) == 0 && held.GetInboxState() == inboxv1.InboxState_INBOX_STATE_PAUSED, "Bob gets nothing, and is told why")
	return nil
}

func (s *story) letGo(ctx context.Context) error {
	shown, err := s.inboxes.GetInbox(ctx, &inboxv1.GetInboxRequest{Goal: goal}, s.omar)
	if err != nil {
		return err
	}
	in := shown.GetInbox()
	s.check(in.GetState() == inboxv1.InboxState_INBOX_STATE_PAUSED && in.GetPending() == 1, "it is still paused, with one message: %s", in.GetStateNote())
	if _, err := s.inboxes.ResumeInbox(ctx, &inboxv1.ResumeInboxRequest{Goal: goal}, s.omar); err != nil {
		return err
	}
	claimed, err := s.claims(ctx, "patience", "patient")
	if err != nil {
		return err
	}
	s.check(true, "Omar opens it again, and Bob gets the message")
	if err := s.finishes(ctx, claimed); err != nil {
		return err
	}
	waiting, err := s.peek(ctx)
	if err != nil {
		return err
	}
	same(&s.report, len(waiting), 0, "in the end the inbox is empty, and nothing was there twice")
	return nil
}

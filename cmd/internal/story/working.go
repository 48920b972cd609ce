package story

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"

	conversationv1 "weir/gen/conversation/v1"
	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
)

func (s *story) peek(ctx context.Context) ([]*inboxv1.Message, error) {
	peeked, err := s.inboxes.Peek(ctx, &inboxv1.PeekRequest{Goal: goal}, s.bob)
	if fault.Is(err, fault.InboxNotFound) {
		return nil, nil
	}
	return peeked.GetMessages(), err
}

func (s *story) claimAs(ctx context.Context, id string) (*inboxv1.ClaimResponse, error) {
	return s.inboxes.Claim(ctx, &inboxv1.ClaimRequest{
		Goal: goal, RequestId: id, Max: 10, Lease: &durationpb.Duration{Seconds: 300},
	}, s.bob)
}

func (s *story) claim(ctx context.Context) error {
	waiting, err := until(ctx, s.peek, func(m []*inboxv1.Message) bool { return len(m) > 0 })
	if err != nil {
		return err
	}
	same(&s.report, len(waiting), 1, "one message waits")
	claimed, err := s.claimAs(ctx, "claim-1")
	if err != nil {
		return err
	}
	if len(claimed.GetMessages()) != 1 {
		return fmt.Errorf("the claim gave %d messages", len(claimed.GetMessages()))
	}
	message := claimed.GetMessages()[0]
	s.delivered, s.token = message.GetMessageId(), claimed.GetClaimToken()
	body, err := object(message.GetBody())
	if err != nil {
		return err
	}
	read, err := s.messages.GetMessage(ctx, &conversationv1.GetMessageRequest{
		ConversationId: fmt.Sprint(body["conversation_id"]), MessageId: fmt.Sprint(body["message_id"]),
	}, s.bob)
	if err != nil {
		return err
	}
	same(&s.report, read.GetMessage().GetParts()[0].GetText(), words, "it says where: there Bob reads what Alice said")
	same(&s.report, message.GetSender(), "agent:alice", "from Alice")
	s.check(s.token != "", "under a lease, with a claim token")
	second, err := s.claimAs(ctx, "claim-2")
	if err != nil {
		return err
	}
	same(&s.report, len(second.GetMessages()), 0, "while it lasts nobody else gets it")
	return nil
}

func (s *story) done(ctx context.Context, token string) error {
	_, err := s.inboxes.Done(ctx, &inboxv1.DoneRequest{Goal: goal, MessageIds: []string{s.delivered}, ClaimToken: token}, s.bob)
	return err
}

func (s *story) finish(ctx context.Context) error {
	stale := s.token
	if _, err := s.inboxes.Release(ctx, &inboxv1.ReleaseRequest{
		Goal: goal, MessageIds: []string{s.delivered}, ClaimToken: stale,
	}, s.bob); err != nil {
		return err
	}
	s.check(true, "the claim still held: Bob gives the message back by its token")
	claimed, err := s.claimAs(ctx, "claim-3")
	if err != nil {
		return err
	}
	s.check(len(claimed.GetMessages()) == 1 && claimed.GetClaimToken() != stale, "he claims it again, and has another token")
	s.refused(s.done(ctx, stale), fault.StaleClaim, "the old token finishes nothing")
	waiting, err := s.peek(ctx)
	if err != nil {
		return err
	}
	s.check(len(waiting) == 1 && waiting[0].GetState() == inboxv1.MessageState_MESSAGE_STATE_CLAIMED, "and has changed nothing")

	s.token = claimed.GetClaimToken()
	if err := s.done(ctx, s.token); err != nil {
		return err
	}
	waiting, err = s.peek(ctx)
	if err != nil {
		return err
	}
	same(&s.report, len(waiting), 0, "the one that holds finishes it: the inbox is empty")
	return nil
}

func (s *story) begin(ctx context.Context) (*inboxv1.BeginResponse, error) {
	return s.dispatches.Begin(ctx, &inboxv1.BeginRequest{Goal: goal, Item: item}, s.alice)
}

func (s *story) dispatch(ctx context.Context) error {
	begun, err := s.begin(ctx)
	if err != nil {
		return err
	}
	s.dispatchID = begun.GetDispatch().GetDispatchId()
	s.check(s.dispatchID != "" && !begun.GetReplay(), "the dispatch begins, as %s", s.dispatchID)
	return nil
}

func (s *story) dispatchAgain(ctx context.Context) error {
	begun, err := s.begin(ctx)
	if err != nil {
		return err
	}
	same(&s.report, begun.GetDispatch().GetDispatchId(), s.dispatchID, "beginning it again gives the same id")
	s.check(begun.GetReplay() && begun.GetWarning() != "", "and says so: %s", begun.GetWarning())
	sent, err := s.dispatches.MarkSent(ctx, &inboxv1.MarkSentRequest{Goal: goal, Item: item, ConversationId: conversation}, s.alice)
	if err != nil {
		return err
	}
	same(&s.report, sent.GetDispatch().GetState(), inboxv1.DispatchState_DISPATCH_STATE_SENT, "Alice notes that the work is sent")
	return nil
}

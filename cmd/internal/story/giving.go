package story

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"

	conversationv1 "weir/gen/conversation/v1"
	gatev1 "weir/gen/gate/v1"
	inboxv1 "weir/gen/inbox/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/fault"
)

// Work that Alice has weir give to Bob. The goal is hers, since she is who gives it away.
const (
	giver   = "alice"
	review  = "sum up the review"
	giving  = "give-bob-work"
	seed    = "Sum up what came of the review, in one page."
	summary = "https://example.com/review/summary"
)

func (s *story) startWork(ctx context.Context) error {
	if _, err := s.policies.PutGrant(ctx, &gatev1.PutGrantRequest{Grant: &gatev1.Grant{
		GrantId: "alice-gives", Subject: "agent:alice", Operations: []string{"dispatch/start"},
	}}, s.ann); err != nil {
		return err
	}
	_, err := s.dispatches.Dispatch(ctx, &inboxv1.DispatchRequest{Goal: giver, Item: review, RequestId: "past-the-gate", Worker: goal, Seed: seed}, s.alice)
	s.refused(err, fault.ScopeMissing, "past the registry and the gate Alice can't give away anything")
	input := fmt.Sprintf(`{"goal": %q, "item": %q, "worker": %q, "seed": %q}`, giver, review, goal, seed)
	asked, err := s.invoke(ctx, giving, "dispatch/start", input, s.alice)
	if err != nil {
		return err
	}
	same(&s.report, asked.GetState(), registryv1.InvocationState_INVOCATION_STATE_AWAITING_APPROVAL, "by the operation dispatch/start she can ask to")
	_, err = s.work(ctx)
	s.refused(err, fault.DispatchNotFound, "nothing is given away yet")
	_, err = s.approvals.DecideApproval(ctx, &gatev1.DecideApprovalRequest{
		ApprovalId: asked.GetApprovalId(), RequestId: "give", Decision: gatev1.Decision_DECISION_APPROVE, InputDigest: asked.GetInputDigest(),
	}, s.carol)
	s.check(err == nil, "Carol approves%s", because(err))
	return err
}

// work is what the record says of it.
func (s *story) work(ctx context.Context) (*inboxv1.Dispatch, error) {
	found, err := s.dispatches.GetDispatch(ctx, &inboxv1.GetDispatchRequest{Goal: giver, Item: review}, s.alice)
	return found.GetDispatch(), err
}

func (s *story) workArrives(ctx context.Context) error {
	sent, err := until(ctx, func(ctx context.Context) (*inboxv1.Dispatch, error) {
		d, err := s.work(ctx)
		if fault.Is(err, fault.DispatchNotFound) {
			return nil, nil
		}
		return d, err
	}, func(d *inboxv1.Dispatch) bool { return d.GetState() == inboxv1.DispatchState_DISPATCH_STATE_SENT })
	if err != nil {
		return err
	}
	same(&s.report, sent.GetState(), inboxv1.DispatchState_DISPATCH_STATE_SENT, "the work is sent, whatever was killed on the way")
	same(&s.report, sent.GetOwner(), "agent:alice", "Alice owns it")
	s.workplace = sent.GetConversationId()

	// Whatever else was said to Bob meanwhile is in his inbox, too.
	for try := 1; s.assignment == ""; try++ {
		claimed, err := until(ctx, func(ctx context.Context) (*inboxv1.ClaimResponse, error) {
			return s.claimOne(ctx, fmt.Sprintf("find-work-%d", try))
		}, func(c *inboxv1.ClaimResponse) bool { return len(c.GetMessages()) > 0 })
		if err != nil {
			return err
		}
		if len(claimed.GetMessages()) == 0 {
			return fmt.Errorf("the work is not in Bob's inbox")
		}
		message := claimed.GetMessages()[0]
		if body, err := object(message.GetBody()); err == nil && body["conversation_id"] == s.workplace {
			s.assignment, s.token = message.GetMessageId(), claimed.GetClaimToken()
		} else if err := s.finishes(ctx, claimed); err != nil {
			return err
		}
	}
	s.check(true, "Bob finds it in his inbox, and it says where to go on")
	page, err := s.messages.ListMessages(ctx, &conversationv1.ListMessagesRequest{ConversationId: s.workplace}, s.bob)
	if err != nil {
		return err
	}
	seeds := 0
	for _, m := range page.GetMessages() {
		if m.GetAuthor() == "agent:alice" && len(m.GetParts()) == 1 && m.GetParts()[0].GetText() == seed {
			seeds++
		}
	}
	same(&s.report, seeds, 1, "there Alice's seed stands, once")
	return nil
}

func (s *story) reportWork(ctx context.Context) error {
	done := &inboxv1.ReportRequest{Goal: giver, Item: review, RequestId: "report-1", Kind: inboxv1.ReportKind_REPORT_KIND_DONE, Text: "One page."}
	_, err := s.dispatches.Report(ctx, done, s.bob)
	s.refused(err, fault.FieldInvalid, "Bob can't say that it is done, and show nothing")
	done.Evidence = []*inboxv1.Evidence{{Uri: summary, Title: "the page"}}
	for range 2 {
		if _, err := s.dispatches.Report(ctx, done, s.bob); err != nil {
			return err
		}
	}
	if _, err := s.inboxes.Done(ctx, &inboxv1.DoneRequest{Goal: goal, MessageIds: []string{s.assignment}, ClaimToken: s.token}, s.bob); err != nil {
		return err
	}
	s.check(true, "with what shows it he can, and finishes the message that told him")
	_, err = s.dispatches.Accept(ctx, &inboxv1.AcceptRequest{Goal: giver, Item: review}, s.bob)
	s.refused(err, fault.NotOwner, "that it will do is not for him to say")
	return nil
}

func (s *story) acceptWork(ctx context.Context) error {
	d, err := s.work(ctx)
	if err != nil {
		return err
	}
	shown := ""
	if evidence := d.GetReport().GetEvidence(); len(evidence) > 0 {
		shown = evidence[0].GetUri()
	}
	s.check(d.GetState() == inboxv1.DispatchState_DISPATCH_STATE_DONE && shown == summary, "Alice sees that it is done, and where: %s", shown)
	accepted, err := s.dispatches.Accept(ctx, &inboxv1.AcceptRequest{Goal: giver, Item: review, Note: "Fine."}, s.alice)
	if err != nil {
		return err
	}
	same(&s.report, accepted.GetDispatch().GetState(), inboxv1.DispatchState_DISPATCH_STATE_ACCEPTED, "she accepts it")
	counted, err := s.dispatches.GetGoal(ctx, &inboxv1.GetGoalRequest{Goal: giver}, s.alice)
	if err != nil {
		return err
	}
	same(&s.report, counted.GetGoal().GetOpen(), 0, "of all that she gave away nothing is open")
	return nil
}

// claimOne claims the first message of Bob's inbox.
func (s *story) claimOne(ctx context.Context, request string) (*inboxv1.ClaimResponse, error) {
	return s.inboxes.Claim(ctx, &inboxv1.ClaimRequest{Goal: goal, RequestId: request, Lease: &durationpb.Duration{Seconds: 300}}, s.bob)
}

func (s *story) finishes(ctx context.Context, claimed *inboxv1.ClaimResponse) error {
	var ids []string
	for _, m := range claimed.GetMessages() {
		ids = append(ids, m.GetMessageId())
	}
	_, err := s.inboxes.Done(ctx, &inboxv1.DoneRequest{Goal: goal, MessageIds: ids, ClaimToken: claimed.GetClaimToken()}, s.bob)
	return err
}

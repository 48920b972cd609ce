package story

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	conversationv1 "weir/gen/conversation/v1"
	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/fault"
)

// What Dave, another agent, wants to say; it costs money, says Ann's policy.
const (
	offers       = "offers" // the conversation
	offer        = "We take the offer."
	otherOffer   = "We take all offers."
	firstOffer   = "offer-1"
	secondOffer  = "offer-2"
	anotherOffer = "offer-3"
)

// govern is what Ann writes: talking needs one of finance and one of security, and
// reading is free.
func govern() *gatev1.Policy {
	return &gatev1.Policy{
		PolicyId: "money", Layer: gatev1.Layer_LAYER_TENANT, Description: "What costs money needs two.",
		Rules: []*gatev1.Rule{
			{
				RuleId: "talk", Verdict: gatev1.Verdict_VERDICT_ASK, Operations: []string{"conversation/say"},
				When: "subject == 'agent:dave'", Description: "Dave's words bind the house.",
				Terms: &gatev1.Terms{
					Approvers:    []*gatev1.Approver{{Scope: "approval.decide.finance", Count: 1}, {Scope: "approval.decide.security", Count: 1}},
					Ttl:          durationpb.New(patience * 10),
					NoteRequired: true,
				},
			},
			{RuleId: "read", Verdict: gatev1.Verdict_VERDICT_ALLOW, Operations: []string{"conversation/*"}, Effects: []registryv1.Effect{registryv1.Effect_EFFECT_READ}},
		},
	}
}

func (s *story) applyPolicy(ctx context.Context) error {
	open := govern()
	open.Rules[1].Effects = nil
	_, err := s.policies.PutPolicy(ctx, &gatev1.PutPolicyRequest{Policy: open}, s.ann)
	s.refused(err, fault.PolicyUnsafe, "a policy whose ALLOW would let something write unasked")
	told := ""
	if found := fault.From(err).Violations(); len(found) > 0 {
		told = found[0].Description
	}
	s.check(told != "", "it says which rule, and what it would open: %s", told)

	put, err := s.policies.PutPolicy(ctx, &gatev1.PutPolicyRequest{Policy: govern()}, s.ann)
	if err != nil {
		return err
	}
	s.check(put.GetPolicy().GetRevision() > 0, "narrowed to what reads it is stored, as revision %d", put.GetPolicy().GetRevision())
	grant := &gatev1.Grant{GrantId: "dave", Subject: "agent:dave", Operations: []string{"conversation/say"}}
	if _, err := s.policies.PutGrant(ctx, &gatev1.PutGrantRequest{Grant: grant}, s.ann); err != nil {
		return err
	}
	if _, err := s.conversations.CreateConversation(ctx, &conversationv1.CreateConversationRequest{
		ConversationId: offers, Title: "Offers", Participants: []string{"agent:dave"},
	}, s.omar); err != nil {
		return err
	}
	explained, err := s.policies.ExplainCheck(ctx, &gatev1.ExplainCheckRequest{Check: &gatev1.DryRun{
		Caller: &gatev1.Caller{Subject: "agent:dave"}, Operation: "conversation/say", Effect: registryv1.Effect_EFFECT_WRITE,
	}}, s.ann)
	if err != nil {
		return err
	}
	same(&s.report, explained.GetVerdict().String()+" by "+explained.GetRule(), "VERDICT_ASK by money/talk", "a dry run says what Dave will be told, and why")
	return nil
}

func offerInput(text string) string {
	return fmt.Sprintf(`{"conversation_id": %q, "parts": [{"text": %q}]}`, offers, text)
}

func (s *story) askTwo(ctx context.Context) error {
	asked, err := s.invoke(ctx, firstOffer, "conversation/say", offerInput(offer), s.dave)
	if err != nil {
		return err
	}
	same(&s.report, asked.GetState(), registryv1.InvocationState_INVOCATION_STATE_AWAITING_APPROVAL, "Dave's invocation awaits approval")
	s.approval, s.digest = asked.GetApprovalId(), asked.GetInputDigest()
	_, err = s.agree(ctx, "carol", s.carol)
	s.refused(err, fault.ApproverScopeMissing, "Carol, of neither group, can't approve it")
	_, err = s.agree(ctx, "omar", s.omarDeciding)
	s.refused(err, fault.SelfApproval, "nor can Omar, for whom Dave asks")
	after, err := s.agree(ctx, "fay", s.fay)
	if err != nil {
		return err
	}
	same(&s.report, after.GetState(), gatev1.ApprovalState_APPROVAL_STATE_PENDING, "Fay, of finance, approves, and it still waits")
	same(&s.report, len(after.GetMissing()), 1, "for one more")
	return nil
}

// agree approves, and asks that it be remembered for this session.
func (s *story) agree(ctx context.Context, id string, as grpc.CallOption) (*gatev1.Approval, error) {
	answer, err := s.approvals.DecideApproval(ctx, &gatev1.DecideApprovalRequest{
		ApprovalId: s.approval, RequestId: id, Decision: gatev1.Decision_DECISION_APPROVE, InputDigest: s.digest, Note: "fine",
		Remember: &gatev1.Remember{Scope: gatev1.RememberScope_REMEMBER_SCOPE_INPUT, Ttl: durationpb.New(patience * 10)},
	}, as)
	return answer.GetApproval(), err
}

func (s *story) secondVoice(ctx context.Context) error {
	after, err := s.agree(ctx, "sam", s.sam)
	if err != nil {
		return err
	}
	s.check(after.GetState() != gatev1.ApprovalState_APPROVAL_STATE_PENDING, "Sam, of security, approves: now there are two")
	s.trust = after.GetTrustId()
	s.check(s.trust != "", "both asked that it be remembered: trust %s", s.trust)
	return s.succeeds(ctx, firstOffer, "the operation ran")
}

func (s *story) succeeds(ctx context.Context, id, says string) error {
	done, err := until(ctx, func(ctx context.Context) (*registryv1.Invocation, error) {
		answer, err := s.operations.GetInvocation(ctx, &registryv1.GetInvocationRequest{InvocationId: id}, s.dave)
		return answer.GetInvocation(), err
	}, ended)
	if err != nil {
		return err
	}
	same(&s.report, done.GetState(), registryv1.InvocationState_INVOCATION_STATE_SUCCEEDED, "%s%s", says, why(done))
	return nil
}

func (s *story) useTrust(ctx context.Context) error {
	listed, err := s.approvals.ListTrusts(ctx, &gatev1.ListTrustsRequest{}, s.dave)
	if err != nil {
		return err
	}
	if len(listed.GetTrusts()) == 1 {
		same(&s.report, listed.GetTrusts()[0].GetTrustId(), s.trust, "Dave holds it: %s", listed.GetTrusts()[0].GetLabel())
	} else {
		s.check(false, "Dave holds one trust: %d", len(listed.GetTrusts()))
	}
	again, err := s.invoke(ctx, secondOffer, "conversation/say", offerInput(offer), s.dave)
	if err != nil {
		return err
	}
	s.check(again.GetApprovalId() == "", "he says the same again, and nobody is asked")
	if err := s.succeeds(ctx, secondOffer, "it ran"); err != nil {
		return err
	}
	other, err := s.invoke(ctx, anotherOffer, "conversation/say", offerInput(otherOffer), s.dave)
	if err != nil {
		return err
	}
	same(&s.report, other.GetState(), registryv1.InvocationState_INVOCATION_STATE_AWAITING_APPROVAL, "other words are asked about")
	if _, err := s.approvals.RevokeTrust(ctx, &gatev1.RevokeTrustRequest{TrustId: s.trust}, s.fay); err != nil {
		return err
	}
	s.check(true, "Fay revokes it")
	return nil
}

// why says how an invocation failed.
func why(i *registryv1.Invocation) string {
	if i.GetError() == nil {
		return ""
	}
	return ": " + i.GetError().GetReason() + ", " + i.GetError().GetMessage()
}

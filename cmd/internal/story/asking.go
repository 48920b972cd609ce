package story

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/fault"
)

func (s *story) prepare(ctx context.Context) error {
	grant := &gatev1.Grant{GrantId: "alice", Subject: "agent:alice", Operations: []string{"conversation/say", "conversation/read"}}
	if _, err := s.policies.PutGrant(ctx, &gatev1.PutGrantRequest{Grant: grant}, s.ann); err != nil {
		return err
	}
	s.check(true, "Ann grants Alice conversation/say and conversation/read, and nothing else")
	_, err := s.policies.PutGrant(ctx, &gatev1.PutGrantRequest{Grant: grant}, s.alice)
	s.refused(err, fault.ScopeMissing, "Alice can't grant herself anything")

	created, err := s.conversations.CreateConversation(ctx, &conversationv1.CreateConversationRequest{
		ConversationId: conversation, Title: "Plans", Participants: []string{"agent:alice", "agent:bob"},
	}, s.omar)
	if err != nil {
		return err
	}
	same(&s.report, created.GetConversation().GetOwner(), "human:omar", "Omar owns the conversation, as his token says")
	return nil
}

// sayInput is what Alice wants to run.
func sayInput() string {
	return fmt.Sprintf(`{"conversation_id": %q, "to": ["agent:bob"], "parts": [{"text": %q}]}`, conversation, words)
}

func (s *story) invoke(ctx context.Context, id, operation, input string, as grpc.CallOption) (*registryv1.Invocation, error) {
	answer, err := s.operations.Invoke(ctx, &registryv1.InvokeRequest{InvocationId: id, Operation: operation, InputJson: &input}, as)
	return answer.GetInvocation(), err
}

func (s *story) ask(ctx context.Context) error {
	asked, err := s.invoke(ctx, invocation, "conversation/say", sayInput(), s.alice)
	if err != nil {
		return err
	}
	same(&s.report, asked.GetState(), registryv1.InvocationState_INVOCATION_STATE_AWAITING_APPROVAL, "the invocation awaits approval")
	s.approval, s.digest = asked.GetApprovalId(), asked.GetInputDigest()
	s.check(s.approval != "", "it names its approval, %s", s.approval)

	again, err := s.invoke(ctx, invocation, "conversation/say", sayInput(), s.alice)
	if err != nil {
		return err
	}
	same(&s.report, again.GetApprovalId(), s.approval, "asking again under the same id is the same asking")
	said, err := s.said(ctx)
	if err != nil {
		return err
	}
	same(&s.report, len(said.texts), 0, "nothing was said yet")
	return nil
}

func (s *story) askBadly(ctx context.Context) error {
	before, err := s.asked(ctx)
	if err != nil {
		return err
	}
	for _, bad := range []struct {
		what, id, input string
		reason          fault.Reason
	}{
		{"JSON that breaks off", "broken", `{"conversation_id": "plans", "parts": [{"text": "x"`, fault.JSONInvalid},
		{"JSON with a key twice", "twice", `{"conversation_id": "plans", "conversation_id": "other", "parts": [{"text": "x"}]}`, fault.JSONInvalid},
		{"an input without what the schema requires", "lacking", `{"conversation_id": "plans"}`, fault.SchemaMismatch},
		{"an input with what the schema doesn't know", "forged", `{"conversation_id": "plans", "author": "human:carol", "parts": [{"text": "x"}]}`, fault.SchemaMismatch},
	} {
		_, err := s.invoke(ctx, bad.id, "conversation/say", bad.input, s.alice)
		s.refused(err, bad.reason, "%s", bad.what)
		_, err = s.operations.GetInvocation(ctx, &registryv1.GetInvocationRequest{InvocationId: bad.id}, s.alice)
		s.refused(err, fault.InvocationNotFound, "… and no invocation is left of it")
	}
	after, err := s.asked(ctx)
	if err != nil {
		return err
	}
	same(&s.report, before, 1, "one approval was asked for before")
	same(&s.report, after, 1, "and one is after")
	return nil
}

// asked is how many approvals the story's tenant has.
func (s *story) asked(ctx context.Context) (int, error) {
	listed, err := s.approvals.ListApprovals(ctx, &gatev1.ListApprovalsRequest{}, s.carol)
	return len(listed.GetApprovals()), err
}

func (s *story) askForNothing(ctx context.Context) error {
	ungranted, none := "conversation/list", "conversation/shout"
	var answers [2][]byte
	for i, operation := range []string{ungranted, none} {
		_, err := s.invoke(ctx, "nothing", operation, `{}`, s.alice)
		s.refused(err, fault.OperationNotFound, "invoking %s", operation)
		if answers[i], err = (proto.MarshalOptions{Deterministic: true}).Marshal(status.Convert(err).Proto()); err != nil {
			return err
		}
	}
	same(&s.report, string(answers[0]), string(answers[1]), "the two answers are the same, byte for byte")

	_, err := s.operations.DescribeOperation(ctx, &registryv1.DescribeOperationRequest{Operation: ungranted}, s.alice)
	s.refused(err, fault.OperationNotFound, "describing the first")
	listed, err := s.operations.ListOperations(ctx, &registryv1.ListOperationsRequest{}, s.alice)
	if err != nil {
		return err
	}
	var names []string
	for _, operation := range listed.GetOperations() {
		names = append(names, operation.GetName())
	}
	same(&s.report, fmt.Sprint(names), "[conversation/read conversation/say]", "Alice's list has what she was granted")
	_, err = s.invoke(ctx, "nothing", "conversation/say", sayInput(), s.bob)
	s.refused(err, fault.OperationNotFound, "to Bob, who was granted nothing, even conversation/say")
	return nil
}

// object reads JSON that weir made.
func object(text string) (map[string]any, error) {
	var value map[string]any
	err := json.Unmarshal([]byte(text), &value)
	return value, err
}

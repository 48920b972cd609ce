package story

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"google.golang.org/grpc"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/fault"
)

func (s *story) decide(ctx context.Context, id string, decision gatev1.Decision, digest string, as grpc.CallOption) (*gatev1.Approval, error) {
	answer, err := s.approvals.DecideApproval(ctx, &gatev1.DecideApprovalRequest{
		ApprovalId: s.approval, RequestId: id, Decision: decision, InputDigest: digest,
	}, as)
	return answer.GetApproval(), err
}

func (s *story) look(ctx context.Context) error {
	listed, err := s.approvals.ListApprovals(ctx, &gatev1.ListApprovalsRequest{
		State: gatev1.ApprovalState_APPROVAL_STATE_PENDING,
	}, s.carol)
	if err != nil {
		return err
	}
	same(&s.report, len(listed.GetApprovals()), 1, "one approval waits for her")
	if len(listed.GetApprovals()) == 0 {
		return fmt.Errorf("approval %s is not there to be decided", s.approval)
	}
	shown := listed.GetApprovals()[0]
	same(&s.report, shown.GetApprovalId(), s.approval, "it is the one that the invocation named")
	same(&s.report, shown.GetRequester()+" "+shown.GetOperation(), "agent:alice conversation/say", "it says who asks, and for what")
	wanted, err := object(sayInput())
	if err != nil {
		return err
	}
	input, err := object(shown.GetInputJson())
	s.check(err == nil && reflect.DeepEqual(input, wanted), "it shows the input as it will run: %s", shown.GetInputJson())
	sum := sha256.Sum256([]byte(shown.GetInputJson()))
	same(&s.report, shown.GetInputDigest(), hex.EncodeToString(sum[:]), "its digest is that of what it shows")
	same(&s.report, shown.GetInputDigest(), s.digest, "and that of the invocation's input")

	const approve = gatev1.Decision_DECISION_APPROVE
	_, err = s.decide(ctx, "no-1", approve, s.digest, s.alice)
	s.refused(err, fault.ScopeMissing, "Alice can't approve her own: an agent's token has no scope for it")
	_, err = s.decide(ctx, "no-2", approve, s.digest, s.aliceDeciding)
	s.refused(err, fault.SelfApproval, "and if hers had it")
	_, err = s.decide(ctx, "no-3", approve, s.digest, s.bobDeciding)
	s.refused(err, fault.NotAPerson, "nor can another agent")
	_, err = s.decide(ctx, "no-4", approve, strings.Repeat("0", len(s.digest)), s.carol)
	s.refused(err, fault.DigestMismatch, "Carol can't approve another digest than the one she was shown")
	return s.approvalIs(ctx, gatev1.ApprovalState_APPROVAL_STATE_PENDING, "after all that it is still pending")
}

func (s *story) approvalIs(ctx context.Context, state gatev1.ApprovalState, says string) error {
	found, err := s.approvals.GetApproval(ctx, &gatev1.GetApprovalRequest{ApprovalId: s.approval}, s.carol)
	if err != nil {
		return err
	}
	same(&s.report, found.GetApproval().GetState(), state, "%s", says)
	return nil
}

func (s *story) approve(ctx context.Context) error {
	if err := s.approvalIs(ctx, gatev1.ApprovalState_APPROVAL_STATE_PENDING, "it still waits"); err != nil {
		return err
	}
	approved, err := s.decide(ctx, "yes", gatev1.Decision_DECISION_APPROVE, s.digest, s.carol)
	if err != nil {
		return err
	}
	same(&s.report, approved.GetVotes()[0].GetDecider(), "human:carol", "Carol approves")
	_, err = s.decide(ctx, "changed-my-mind", gatev1.Decision_DECISION_DENY, s.digest, s.carol)
	s.refused(err, fault.ApprovalDecided, "a second decision comes too late")
	return nil
}

// ended says that an invocation is over.
func ended(i *registryv1.Invocation) bool {
	switch i.GetState() {
	case registryv1.InvocationState_INVOCATION_STATE_REQUESTED,
		registryv1.InvocationState_INVOCATION_STATE_AWAITING_APPROVAL,
		registryv1.InvocationState_INVOCATION_STATE_RUNNING:
		return false
	}
	return true
}

func (s *story) await(ctx context.Context) error {
	done, err := until(ctx, s.invocation, ended)
	if err != nil {
		return err
	}
	same(&s.report, done.GetState(), registryv1.InvocationState_INVOCATION_STATE_SUCCEEDED, "the invocation succeeded")
	if err := s.approvalIs(ctx, gatev1.ApprovalState_APPROVAL_STATE_REDEEMED, "the approval is used up"); err != nil {
		return err
	}
	described, err := s.operations.DescribeOperation(ctx, &registryv1.DescribeOperationRequest{Operation: "conversation/say"}, s.alice)
	if err != nil {
		return err
	}
	err = valid(done.GetOutputJson(), described.GetOperation().GetOutputSchema())
	s.check(err == nil, "the output is valid against the operation's schema%s", because(err))

	output, err := object(done.GetOutputJson())
	if err != nil {
		return err
	}
	said, _ := output["message"].(map[string]any)
	s.message, _ = said["message_id"].(string)
	s.check(s.message != "" && said["position"] != nil, "it is the message, with its position: %v", said["position"])
	return nil
}

func (s *story) invocation(ctx context.Context) (*registryv1.Invocation, error) {
	answer, err := s.operations.GetInvocation(ctx, &registryv1.GetInvocationRequest{InvocationId: invocation}, s.alice)
	return answer.GetInvocation(), err
}

// valid holds JSON against a JSON Schema, by itself: weir's word is not taken for it.
func valid(text, schema string) error {
	definition, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	if err != nil {
		return err
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("weir:output", definition); err != nil {
		return err
	}
	compiled, err := compiler.Compile("weir:output")
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return err
	}
	return compiled.Validate(value)
}

// because appends an error to what a check says, if there is one.
func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + strings.ReplaceAll(err.Error(), "\n", " ")
}

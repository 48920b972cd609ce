package conversation

import (
	"context"
	"strings"

	conversationv1 "weir/gen/conversation/v1"
	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/journal"
)

const (
	gateService = "gate"
	// approvalsConsumer names the place in the gate's stream that the replicas
	// share.
	approvalsConsumer = "conversation-approvals"
	approvalsFilter   = "weir.gate.*.approval.*"
)

// approvals makes it appear in the conversation that a caller runs in when a person
// is asked about what it wants, and what came of it. In between, the conversation
// waits.
type approvals struct{ teller }

// handle takes one event of the gate.
func (a approvals) handle(ctx context.Context, e journal.Event) error {
	recorded, err := aggregate.Decode[*gatev1.Event](e)
	if err != nil {
		return err
	}
	end := &conversationv1.ApprovalNote{ApprovalId: e.Key.ID}
	switch event := recorded.Event.GetEvent().(type) {
	case *gatev1.Event_ApprovalRequested:
		_, err := a.asked(ctx, e.Key, event.ApprovalRequested)
		return err
	case *gatev1.Event_ApprovalDecided:
		if event.ApprovalDecided.GetOutcome() == gatev1.ApprovalState_APPROVAL_STATE_PENDING {
			return nil // more people are needed
		}
		end.State = approvalStateName(event.ApprovalDecided.GetOutcome())
		end.DecidedBy, end.Note = recorded.Event.GetActor(), event.ApprovalDecided.GetNote()
	case *gatev1.Event_ApprovalTimedOut:
		end.State = approvalStateName(gatev1.ApprovalState_APPROVAL_STATE_APPROVED)
	case *gatev1.Event_ApprovalExpired:
		end.State = approvalStateName(gatev1.ApprovalState_APPROVAL_STATE_EXPIRED)
	case *gatev1.Event_ApprovalCancelled:
		end.State = approvalStateName(gatev1.ApprovalState_APPROVAL_STATE_CANCELLED)
	case *gatev1.Event_ApprovalSuperseded:
		end.State = approvalStateName(gatev1.ApprovalState_APPROVAL_STATE_SUPERSEDED)
	default:
		return nil
	}
	return a.ended(ctx, e.Key, end)
}

// asked shows that a person is asked. Shown is false where it must not appear.
func (a approvals) asked(ctx context.Context, approval journal.Key, r *gatev1.ApprovalRequested) (shown bool, err error) {
	if r.GetConversationId() == "" {
		return false, nil
	}
	m := askNote(&conversationv1.ApprovalNote{
		ApprovalId: approval.ID, Operation: r.GetOperation(), Requester: r.GetRequester(),
		State: pending, ApproverScopes: approverScopes(r.GetTerms()),
	})
	return a.show(ctx, approval.Tenant, r.GetConversationId(), r.GetRequester(), m)
}

// ended shows what came of an approval behind the question. The events that end
// one don't name the conversation; its first one does. An approval that was given
// and then not used expires, which its conversation need not know: it has an
// answer.
func (a approvals) ended(ctx context.Context, approval journal.Key, end *conversationv1.ApprovalNote) error {
	first, err := a.starts.start(ctx, gateService, approval)
	if err != nil {
		return err
	}
	recorded, err := aggregate.Decode[*gatev1.Event](first)
	if err != nil {
		return err
	}
	request := recorded.Event.GetApprovalRequested()
	switch {
	case request == nil:
		return fault.New(fault.EventUnreadable, "an approval does not begin with its request")
	case request.GetConversationId() == "":
		return nil
	}
	end.Operation, end.Requester = request.GetOperation(), request.GetRequester()
	return a.showEnd(ctx, approval.Tenant, request.GetConversationId(), answerNote(end), func() (bool, error) {
		return a.asked(ctx, approval, request)
	})
}

// approverScopes are the scopes of which an approver holds one.
func approverScopes(terms *gatev1.Terms) []string {
	var scopes []string
	for _, approver := range terms.GetApprovers() {
		scopes = append(scopes, approver.GetScope())
	}
	if len(scopes) == 0 {
		return []string{scopeDecide}
	}
	return set(scopes)
}

// approvalStateName is an approval's state as notes spell it, such as DENIED.
func approvalStateName(s gatev1.ApprovalState) string {
	return strings.TrimPrefix(s.String(), "APPROVAL_STATE_")
}

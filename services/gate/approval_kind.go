package gate

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/hot"
	"weir/internal/visible"
	"weir/services/gate/policy"
)

const approvalKindName = "approval"

func approvalKind() aggregate.Kind[Approval, *gatev1.Event] {
	return aggregate.Kind[Approval, *gatev1.Event]{
		Name:   approvalKindName,
		Evolve: evolveApproval,
		Codec: aggregate.RootCodec[Approval, *gatev1.Event]{Bytes: func(a Approval) int {
			size := 2048 + len(a.Schema) + 512*len(a.Votes)
			if a.Input != nil {
				size += len(*a.Input)
			}
			if a.Asked != nil && a.Asked.Input != nil {
				size += len(*a.Asked.Input)
			}
			return size
		}},
		Lists: func(a Approval, _ uint64) []hot.Entry {
			lists := []hot.Entry{
				{Set: approvalList("", ""), Score: a.First},
				{Set: approvalList("", a.State), Score: a.First},
				{Set: approvalList(a.Requester, ""), Score: a.First},
				{Set: approvalList(a.Requester, a.State), Score: a.First},
			}
			if a.State == stateRedeemed {
				lists = append(lists, hot.Entry{Set: usedList(a.Requester, a.Operation), Score: a.First})
			}
			return lists
		},
		Due: func(a Approval) time.Time {
			if !a.live() {
				return time.Time{}
			}
			return a.Expires
		},
	}
}

// approvalList names the list of one requester's approvals in one state; empty
// stands for all of either.
func approvalList(requester string, state approvalState) string {
	return "approvals/" + requester + "/" + string(state)
}

// usedList names the list of a caller's uses of one operation.
func usedList(subject, operation string) string { return "used/" + subject + "/" + operation }

// approvalToProto shows an approval. All text that an agent had a hand in is
// made visible, since a person relies on what it looks like.
func approvalToProto(a Approval) *gatev1.Approval {
	out := &gatev1.Approval{
		ApprovalId:     a.ID,
		State:          stateToProto[a.State],
		Operation:      a.Operation,
		Effect:         a.Effect.Proto(),
		SpecDigest:     a.SpecDigest,
		InputJson:      shown(a.Input),
		InputDigest:    a.InputDigest,
		Requester:      a.Requester,
		OnBehalfOf:     a.OnBehalfOf,
		Confined:       a.Confined,
		Session:        a.Session,
		RequestId:      a.RequestID,
		ConversationId: a.Conversation,
		Rules:          a.Rules,
		Why:            a.Why,
		Terms:          a.Terms.Proto(),
		CreateTime:     timestamppb.New(a.Created),
		ExpireTime:     deadline(a.Expires),
		DecideTime:     deadline(a.Decided),
		PolicyRevision: a.Revision,
		AmendedBy:      a.AmendedBy,
		SupersededBy:   a.SupersededBy,
		ByTimeout:      a.ByTimeout,
		TrustId:        a.TrustID,
	}
	if a.Asked != nil {
		out.AskedInputJson, out.AskedInputDigest = shown(a.Asked.Input), a.Asked.Digest
	}
	for _, f := range a.Flags {
		out.Flags = append(out.Flags, f.proto())
	}
	for _, v := range a.Votes {
		if !v.Void {
			out.Votes = append(out.Votes, v.proto())
		}
	}
	if a.State == statePending {
		out.Missing = policy.ApproversToProto(a.Terms.Missing(a.approvers()))
	}
	return out
}

// maxListed is the longest input that a list or a watch shows, so that a page of
// large ones can still be sent.
const maxListed = 4 << 10

// approvalInList shows an approval beside others.
func approvalInList(a Approval) *gatev1.Approval {
	out := approvalToProto(a)
	for _, text := range []**string{&out.InputJson, &out.AskedInputJson} {
		if *text != nil && len(**text) > maxListed {
			*text, out.InputOmitted = nil, true
		}
	}
	return out
}

func shown(text *string) *string {
	if text == nil {
		return nil
	}
	s := visible.Text(*text)
	return &s
}

func (v vote) proto() *gatev1.Vote {
	out := &gatev1.Vote{
		Decider: v.Decider, Decision: gatev1.Decision_DECISION_DENY, Note: visible.Text(v.Note),
		CreateTime: timestamppb.New(v.At), Remember: v.Remember.proto(),
	}
	if v.Approve {
		out.Decision = gatev1.Decision_DECISION_APPROVE
	}
	return out
}

var stateToProto = map[approvalState]gatev1.ApprovalState{
	statePending:    gatev1.ApprovalState_APPROVAL_STATE_PENDING,
	stateApproved:   gatev1.ApprovalState_APPROVAL_STATE_APPROVED,
	stateRedeemed:   gatev1.ApprovalState_APPROVAL_STATE_REDEEMED,
	stateDenied:     gatev1.ApprovalState_APPROVAL_STATE_DENIED,
	stateExpired:    gatev1.ApprovalState_APPROVAL_STATE_EXPIRED,
	stateCancelled:  gatev1.ApprovalState_APPROVAL_STATE_CANCELLED,
	stateSuperseded: gatev1.ApprovalState_APPROVAL_STATE_SUPERSEDED,
}

// stateFromProto gives the empty state for unspecified, which lists take as all.
func stateFromProto(s gatev1.ApprovalState) approvalState {
	for own, proto := range stateToProto {
		if proto == s {
			return own
		}
	}
	return ""
}

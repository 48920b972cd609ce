package audit

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	gatev1 "weir/gen/gate/v1"
)

// shown is what a record shows of its event, beside what the leaf covers. The
// payload's digest pins the whole event; who does not believe what is shown
// reads the event itself in the journal and compares its digest.
type shown struct {
	operation   string
	verdict     string
	reason      string
	inputDigest string
}

// show reads it from each type of event. A type without a row shows nothing.
var show = map[protoreflect.FullName]func(*gatev1.Event) shown{
	name[*gatev1.ApprovalRequested](): func(e *gatev1.Event) shown {
		r := e.GetApprovalRequested()
		return shown{operation: r.GetOperation(), verdict: "ASK", reason: strings.Join(r.GetRules(), ", "), inputDigest: r.GetInputDigest()}
	},
	name[*gatev1.ApprovalDecided](): func(e *gatev1.Event) shown {
		d := e.GetApprovalDecided()
		verdict := strings.TrimPrefix(d.GetDecision().String(), "DECISION_")
		return shown{verdict: verdict, reason: d.GetNote(), inputDigest: d.GetAmendedInputDigest()}
	},
	name[*gatev1.ApprovalTimedOut]():   verdict("TIMED_OUT"),
	name[*gatev1.ApprovalRedeemed]():   verdict("REDEEMED"),
	name[*gatev1.ApprovalExpired]():    verdict("EXPIRED"),
	name[*gatev1.ApprovalCancelled]():  verdict("CANCELLED"),
	name[*gatev1.ApprovalSuperseded](): verdict("SUPERSEDED"),
	name[*gatev1.GrantPut](): func(e *gatev1.Event) shown {
		return shown{verdict: "PUT", reason: "to " + e.GetGrantPut().GetSubject()}
	},
	name[*gatev1.GrantDeleted]():  verdict("DELETED"),
	name[*gatev1.PolicyPut]():     verdict("PUT"),
	name[*gatev1.PolicyDeleted](): verdict("DELETED"),
	name[*gatev1.TrustGiven](): func(e *gatev1.Event) shown {
		g := e.GetTrustGiven()
		return shown{operation: g.GetOperation(), verdict: "GIVEN", reason: "to " + g.GetSubject(), inputDigest: g.GetInputDigest()}
	},
	name[*gatev1.TrustRevoked](): func(e *gatev1.Event) shown {
		return shown{verdict: "REVOKED", reason: e.GetTrustRevoked().GetNote()}
	},
	name[*gatev1.TrustExpired](): verdict("EXPIRED"),
	name[*gatev1.WriteAllowed](): func(e *gatev1.Event) shown {
		w := e.GetWriteAllowed()
		return checked("ALLOW", w.GetRequest(), w.GetReason(), w.GetRule()+w.GetTrustId())
	},
	name[*gatev1.CheckDenied](): func(e *gatev1.Event) shown {
		d := e.GetCheckDenied()
		return checked("DENY", d.GetRequest(), d.GetReason(), d.GetRule())
	},
	name[*gatev1.DeliveryRefused](): func(e *gatev1.Event) shown {
		r := e.GetDeliveryRefused()
		return shown{verdict: "REFUSED", reason: fmt.Sprintf("%s: message %s of goal %s, to %s at %s",
			r.GetReason(), r.GetMessageId(), r.GetGoal(), r.GetReceiver(), r.GetRefuseTime().AsTime().Format(time.RFC3339Nano))}
	},
	name[*gatev1.OperationsAnnounced](): verdict("ANNOUNCED"),
}

func name[M proto.Message]() protoreflect.FullName {
	var m M
	return m.ProtoReflect().Descriptor().FullName()
}

func verdict(v string) func(*gatev1.Event) shown {
	return func(*gatev1.Event) shown { return shown{verdict: v} }
}

// checked is for answers to checks: why, and by which rule or trust.
func checked(verdict string, r *gatev1.CheckedRequest, reason, by string) shown {
	if by != "" {
		reason += " " + by
	}
	return shown{operation: r.GetOperation(), verdict: verdict, reason: reason, inputDigest: r.GetInputDigest()}
}

// fill puts into a record what its event shows. Of an event that cannot be
// read, or whose type is not the one in its header, it shows nothing.
func fill(record *gatev1.Record, payload []byte) {
	var event gatev1.Event
	if err := proto.Unmarshal(payload, &event); err != nil {
		return
	}
	m := event.ProtoReflect()
	set := m.WhichOneof(m.Descriptor().Oneofs().ByName("event"))
	if set == nil || string(set.Message().FullName()) != record.GetType() {
		return
	}
	record.Actor = event.GetActor()
	if of, ok := show[set.Message().FullName()]; ok {
		s := of(&event)
		record.Operation, record.Verdict, record.Reason, record.InputDigest = s.operation, s.verdict, s.reason, s.inputDigest
	}
}

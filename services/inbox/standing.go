package inbox

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/identity"
)

// A message may wait for days, and the one who sent it may be stopped meanwhile. So
// the standing of senders is looked at again when their messages are claimed:
//
//	        claim, in good standing
//	MESSAGE ───────────────────────▶ delivered as it is
//	   │
//	   └── claim, refused ──▶ NOTICE: its body is withheld from then on
//
// A notice is a message in all else: it has its place in the order, its lease and its
// end. What was refused once stays refused, whatever becomes of the sender.

// origin is who sent a message, as it was then, and where it was said: all that its
// delivery is decided by, so that a claim need not read letters first. It is comparable,
// and small: a few words for most.
type origin struct {
	Subject string `json:"subject,omitempty"`
	// OnBehalfOf are subjects, the nearest first, parted by spaces.
	OnBehalfOf string `json:"on_behalf_of,omitempty"`
	Session    string `json:"session,omitempty"`
	Operation  string `json:"operation,omitempty"`
	// Conversation is where it was said, if in one.
	Conversation string `json:"conversation,omitempty"`
}

// chain writes those for whom somebody acts as an origin holds them.
func chain(onBehalfOf []string) string { return strings.Join(onBehalfOf, " ") }

func (o origin) chain() []string { return strings.Fields(o.OnBehalfOf) }

// said is the origin of what its sender said in a conversation, if in one.
func (o origin) said(conversation string) origin {
	o.Conversation = conversation
	return o
}

// question is what a peer is asked about an origin: with a subject, the gate about the
// sender; with a conversation, the conversation service about that.
type question origin

// questions are those that must be answered before a message is delivered. The inbox
// itself is asked about by nobody, and what has no sender came from a file.
func (o origin) questions() []question {
	var qs []question
	if o.Subject != "" && (o.Subject != self || o.OnBehalfOf != "") {
		qs = append(qs, question(o.said("")))
	}
	if o.Conversation != "" {
		qs = append(qs, question{Conversation: o.Conversation})
	}
	return qs
}

// caller is the sender, for whom the inbox asks.
func (q question) caller(tenant string) identity.Caller {
	return identity.Caller{
		Tenant: tenant, Subject: q.Subject, Session: q.Session, OnBehalfOf: origin(q).chain(), Operation: q.Operation,
	}
}

// names says whether a subject is the sender or one on whose behalf it sent.
func (q question) names(subject string) bool {
	return subject == q.Subject || slices.Contains(origin(q).chain(), subject)
}

// verdict is the answer to a question: why a message must not be delivered, or
// goodStanding.
type verdict = inboxv1.RefusalReason

const goodStanding = inboxv1.RefusalReason_REFUSAL_REASON_UNSPECIFIED

// verdicts gives the answers that are known.
type verdicts func(question) (verdict, bool)

// checkedClaim is a claim together with what is known of the senders.
type checkedClaim struct {
	claim
	Known verdicts
}

// unchecked is the refusal of a claim that must know more first: each question once.
type unchecked []question

// Error is never seen: who decides again answers it.
func (unchecked) Error() string { return "senders must be checked first" }

// decideDelivery gives messages to a worker as decideClaim does, and names those that
// it gives as notices.
func decideDelivery(s inbox, c checkedClaim, now time.Time) (*inboxv1.Event, error) {
	event, err := decideClaim(s, c.claim, now)
	if err != nil || event == nil {
		return nil, err
	}
	claimed := event.GetMessagesClaimed()
	var missing unchecked
	for _, id := range claimed.GetMessageIds() {
		m, _ := s.messages.Get(id)
		if m.isNotice() {
			continue
		}
		reason := goodStanding
		for _, q := range m.Origin.questions() {
			answer, known := c.Known(q)
			switch {
			case !known && !slices.Contains(missing, q):
				missing = append(missing, q)
			case known && reason == goodStanding:
				reason = answer
			}
		}
		if reason != goodStanding {
			claimed.Refusals = append(claimed.Refusals, &inboxv1.DeliveryRefusal{MessageId: id, Sender: m.Origin.Subject, Reason: reason})
		}
	}
	if len(missing) > 0 {
		return nil, missing
	}
	return event, nil
}

// refusal is what a notice says, zero for a message that is none.
type refusal struct {
	Reason verdict   `json:"reason"`
	At     time.Time `json:"at"`
}

func (m message) isNotice() bool { return m.Refusal != refusal{} }

func (r refusal) proto() *inboxv1.Refusal {
	return &inboxv1.Refusal{Reason: r.Reason, RefuseTime: timestamppb.New(r.At)}
}

// refused turns messages into notices.
func (s inbox) refused(e aggregate.Recorded[*inboxv1.Event]) inbox {
	for _, r := range e.Event.GetMessagesClaimed().GetRefusals() {
		s = s.change([]string{r.GetMessageId()}, func(m message) message {
			m.Refusal = refusal{r.GetReason(), e.Time}
			return m
		})
	}
	return s
}

// recorded is what an event or a plan keeps of how somebody acted.
type recorded interface {
	GetOnBehalfOf() []string
	GetSession() string
	GetOperation() string
}

// originOf is who acted so.
func originOf(subject string, how recorded) origin {
	return origin{Subject: subject, OnBehalfOf: chain(how.GetOnBehalfOf()), Session: how.GetSession(), Operation: how.GetOperation()}
}

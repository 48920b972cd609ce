package gate

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/hot"
	"weir/internal/journal"
)

// Delivery is a message that the inbox did not deliver, since its sender may not send
// any more. The inbox decided that by what the gate told it of the sender; the gate
// hears of it and records it, so that the audit log covers it.
//
//	absent → REFUSED
type Delivery struct {
	Refused bool
}

// decideRefused records a refusal once.
func decideRefused(d Delivery, refused *gatev1.DeliveryRefused, _ time.Time) (*gatev1.Event, error) {
	if d.Refused {
		return nil, nil
	}
	return &gatev1.Event{Actor: refused.GetSender(), Event: &gatev1.Event_DeliveryRefused{DeliveryRefused: refused}}, nil
}

func evolveDelivery(_ Delivery, e aggregate.Recorded[*gatev1.Event]) Delivery {
	return Delivery{Refused: e.Event.GetDeliveryRefused() != nil}
}

const deliveryKindName = "delivery"

func deliveryKind() aggregate.Kind[Delivery, *gatev1.Event] {
	return aggregate.Kind[Delivery, *gatev1.Event]{
		Name:   deliveryKindName,
		Evolve: evolveDelivery,
		Codec:  aggregate.RootCodec[Delivery, *gatev1.Event]{Bytes: func(Delivery) int { return 16 }},
		Lists:  func(Delivery, uint64) []hot.Entry { return nil },
	}
}

// messagesClaimed is the one type of the inbox's events that names refusals.
var messagesClaimed = aggregate.TypeOf(&inboxv1.MessagesClaimed{})

// hearDeliveries records what the inbox refused. The id comes from the inbox's event, so
// hearing that again changes nothing.
func hearDeliveries(deliveries *aggregate.Loop[Delivery, *gatev1.Event]) journal.Handler {
	return func(ctx context.Context, e journal.Event) error {
		if e.Type != messagesClaimed {
			return nil
		}
		recorded, err := aggregate.Decode[*inboxv1.Event](e)
		if err != nil {
			return err
		}
		claimed := recorded.Event.GetMessagesClaimed()
		for _, r := range claimed.GetRefusals() {
			key := deliveryKind().Key(e.Key.Tenant, digestOf("delivery", e.ID, r.GetMessageId()))
			_, err := deliveries.Do(ctx, key, bind(&gatev1.DeliveryRefused{
				Goal:       claimed.GetGoal(),
				MessageId:  r.GetMessageId(),
				Sender:     r.GetSender(),
				Reason:     strings.TrimPrefix(r.GetReason().String(), "REFUSAL_REASON_"),
				Receiver:   claimed.GetClaimant(),
				RefuseTime: timestamppb.New(e.Time),
			}, decideRefused))
			if err != nil {
				return err
			}
		}
		return nil
	}
}

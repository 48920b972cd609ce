package gate

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/journal"
)

// give records the trust that a decision made, once for each decision.
func give(ctx context.Context, trusts *aggregate.Loop[Trust, *gatev1.Event], tenant string, decision *gatev1.Event, sequence uint64) error {
	given, by := proto.CloneOf(decision.GetApprovalDecided().GetTrust()), decision.GetActor()
	given.DecisionSequence = sequence
	_, err := trusts.Do(ctx, trustKind().Key(tenant, given.GetTrustId()), func(t Trust, _ time.Time) (*gatev1.Event, error) {
		return decideGive(t, by, given)
	})
	return err
}

// hearDecisions records the trusts that decisions made. It hears of every
// decision, so that one is made also where the gate died right after it.
func hearDecisions(trusts *aggregate.Loop[Trust, *gatev1.Event]) journal.Handler {
	return func(ctx context.Context, e journal.Event) error {
		recorded, err := aggregate.Decode[*gatev1.Event](e)
		if err != nil {
			return err
		}
		if recorded.Event.GetApprovalDecided().GetTrust() != nil {
			return give(ctx, trusts, e.Key.Tenant, recorded.Event, recorded.Sequence)
		}
		return nil
	}
}

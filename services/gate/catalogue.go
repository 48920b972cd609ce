package gate

import (
	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/hot"
)

// Catalogue is which operations exist, as the registry announced it last. It
// decides nothing: it lets a typo in a pattern be told from a grant.
type Catalogue struct {
	Digest     string
	Operations []string
}

func decideAnnounce(c Catalogue, actor string, in *gatev1.AnnounceOperationsRequest) (*gatev1.Event, error) {
	if c.Digest == in.GetDigest() {
		return nil, nil
	}
	return &gatev1.Event{Actor: actor, Event: &gatev1.Event_OperationsAnnounced{OperationsAnnounced: &gatev1.OperationsAnnounced{
		Digest: in.GetDigest(), Operations: in.GetOperations(),
	}}}, nil
}

func evolveCatalogue(c Catalogue, e aggregate.Recorded[*gatev1.Event]) Catalogue {
	if announced := e.Event.GetOperationsAnnounced(); announced != nil {
		return Catalogue{Digest: announced.GetDigest(), Operations: announced.GetOperations()}
	}
	return c
}

const (
	catalogueKindName = "catalogue"
	// catalogueID is the one catalogue; it belongs to no tenant.
	catalogueID = "operations"
)

func catalogueKind() aggregate.Kind[Catalogue, *gatev1.Event] {
	return aggregate.Kind[Catalogue, *gatev1.Event]{
		Name:   catalogueKindName,
		Evolve: evolveCatalogue,
		Codec:  aggregate.RootCodec[Catalogue, *gatev1.Event]{Bytes: func(c Catalogue) int { return 64 * len(c.Operations) }},
		Lists:  func(Catalogue, uint64) []hot.Entry { return nil },
	}
}

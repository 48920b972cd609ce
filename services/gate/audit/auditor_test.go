package audit

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
)

// odd is a gate that answers some calls in its own way.
type odd struct {
	as
	list  func(*gatev1.ListRecordsResponse) error
	prove func(*gatev1.ProveConsistencyResponse) error
}

func (o odd) ListRecords(ctx context.Context, r *gatev1.ListRecordsRequest, _ ...grpc.CallOption) (*gatev1.ListRecordsResponse, error) {
	answer, err := o.as.ListRecords(ctx, r)
	if err == nil && o.list != nil {
		err = o.list(answer)
	}
	return answer, err
}

func (o odd) ProveConsistency(ctx context.Context, r *gatev1.ProveConsistencyRequest, _ ...grpc.CallOption) (*gatev1.ProveConsistencyResponse, error) {
	answer, err := o.as.ProveConsistency(ctx, r)
	if err == nil && o.prove != nil {
		err = o.prove(answer)
	}
	return answer, err
}

func TestAGateThatLiesOrFallsSilent(t *testing.T) {
	b := newBook(t)
	b.story("1")
	k := newKeys(t, "weir/gate")
	honest := as{b.server(k), "acme"}
	kept := honest.checkpoint(t).GetCheckpoint()
	b.story("2")
	changed := as{forge(t, b.contents()[1:]).server(k), "acme"}

	away := fault.New(fault.PeerUnavailable, "away")
	silentList := func(*gatev1.ListRecordsResponse) error { return away }
	silentProof := func(*gatev1.ProveConsistencyResponse) error { return away }
	for name, test := range map[string]struct {
		gate  odd
		want  string
		found bool
	}{
		"a proof of something else":              {odd{honest, nil, func(r *gatev1.ProveConsistencyResponse) error { r.Hashes[0][0] ^= 1; return nil }}, "is not the beginning", true},
		"a proof that is none":                   {odd{honest, nil, func(r *gatev1.ProveConsistencyResponse) error { r.Hashes[0] = nil; return nil }}, "hash 0 has 0 bytes", true},
		"a record left out":                      {odd{honest, func(r *gatev1.ListRecordsResponse) error { r.Records = r.Records[1:]; return nil }, nil}, "record 0 is missing", true},
		"a record made up":                       {odd{honest, func(r *gatev1.ListRecordsResponse) error { r.Records[3].EventId = "x"; return nil }, nil}, "records 0 to 8 was changed", true},
		"a list that ends early":                 {odd{honest, func(r *gatev1.ListRecordsResponse) error { r.Records = nil; return nil }, nil}, "records 0 to 17 are missing", true},
		"no proof":                               {odd{honest, nil, silentProof}, "away", false},
		"no records":                             {odd{honest, silentList, nil}, "away", false},
		"another history and no records":         {odd{changed, silentList, nil}, "is not the beginning", true},
		"another history and no proof":           {odd{changed, nil, silentProof}, "another root hash than the kept checkpoint", true},
		"another history, of which nothing came": {odd{changed, silentList, silentProof}, "away", false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Audit(t.Context(), test.gate, kept, k.verifier)
			wantError(t, err, test.want)
			if _, found := errors.AsType[Difference](err); found != test.found {
				t.Errorf("a finding: %v: %v", found, err)
			}
		})
	}
}

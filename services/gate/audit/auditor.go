package audit

import (
	"context"
	"errors"
	"fmt"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
)

// Report says what an audit proved.
type Report struct {
	// Kept is the checkpoint that the auditor brought, Now the one that the gate
	// gave; Signed is that one's text, to be kept from now on.
	Kept, Now Checkpoint
	Signed    string
	// Records is how many records were counted again, which is all of them.
	Records int64
}

// Difference is the error of an audit that found something. Any other error says
// that the audit could not be finished.
type Difference struct{ error }

func (d Difference) Unwrap() error { return d.error }

// Audit takes a checkpoint that somebody kept and the verifier key, and checks
// that the gate's log is a continuation of it: by a proof of consistency, and by
// computing the tree from all records. It believes the gate nothing. A Difference
// says what differs; where the proof and the records are both wrong, it says
// what is wrong with each.
func Audit(ctx context.Context, gate gatev1.AuditServiceClient, kept, verifierKey string) (Report, error) {
	var r Report
	var err error
	if r.Kept, err = OpenCheckpoint(kept, verifierKey); err != nil {
		return r, fmt.Errorf("the kept checkpoint: %w", err)
	}
	now, err := gate.GetCheckpoint(ctx, &gatev1.GetCheckpointRequest{})
	if err != nil {
		return r, answered(err)
	}
	r.Signed = now.GetCheckpoint()
	if r.Now, err = OpenCheckpoint(r.Signed, verifierKey); err != nil {
		return r, Difference{fmt.Errorf("the gate's checkpoint: %w", err)}
	}
	if err := Comparable(r.Kept, r.Now); err != nil {
		return r, Difference{err}
	}
	inconsistent := consistency(ctx, gate, r.Kept, r.Now)
	var miscounted error
	r.Records, miscounted = recount(ctx, gate, r.Kept, r.Now)
	found := func(err error) bool { _, is := errors.AsType[Difference](err); return is }
	switch {
	case found(inconsistent) && found(miscounted):
		return r, Difference{fmt.Errorf("%w; %w", inconsistent, miscounted)}
	case found(miscounted), inconsistent == nil:
		return r, miscounted
	default:
		return r, inconsistent
	}
}

// answered makes a Difference of what the gate says where its journal is not
// what it was. It is the same finding, only that the gate had it first.
func answered(err error) error {
	if fault.Is(err, fault.EventUnreadable) {
		return Difference{fmt.Errorf("the gate says: %s", fault.From(err).Message())}
	}
	return err
}

func consistency(ctx context.Context, gate gatev1.AuditServiceClient, kept, now Checkpoint) error {
	var proof [][]byte
	if kept.Size > 0 && kept.Size < now.Size {
		answer, err := gate.ProveConsistency(ctx, &gatev1.ProveConsistencyRequest{OldSize: uint64(kept.Size), NewSize: uint64(now.Size)})
		if err != nil {
			return answered(err)
		}
		proof = answer.GetHashes()
	}
	if err := CheckConsistency(kept, now, proof); err != nil {
		return Difference{err}
	}
	return nil
}

func recount(ctx context.Context, gate gatev1.AuditServiceClient, kept, now Checkpoint) (int64, error) {
	r, err := NewRecount(kept, now)
	if err != nil {
		return 0, Difference{err}
	}
	err = Records(ctx, gate, 0, now.Size, func(m *gatev1.Record) error {
		if err := r.Add(m); err != nil {
			return Difference{err}
		}
		return nil
	})
	if err != nil {
		return r.Size(), answered(err)
	}
	if err := r.Finish(); err != nil {
		return r.Size(), Difference{err}
	}
	return r.Size(), nil
}

// Records calls fn with the records of the gate's log from index first to
// before index end, as far as there are any, in order.
func Records(ctx context.Context, gate gatev1.AuditServiceClient, first, end int64, fn func(*gatev1.Record) error) error {
	for first < end {
		page, err := gate.ListRecords(ctx, &gatev1.ListRecordsRequest{
			FirstIndex: uint64(first), PageSize: int32(min(end-first, maxPage)),
		})
		if err != nil {
			return err
		}
		if len(page.GetRecords()) == 0 {
			return nil
		}
		for _, record := range page.GetRecords() {
			if err := fn(record); err != nil {
				return err
			}
		}
		first += int64(len(page.GetRecords()))
	}
	return nil
}

package audit

import (
	"context"
	"fmt"
	"strconv"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/proto"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

const (
	defaultPage = 100
	maxPage     = 1000
	// maxPageBytes ends a page before a message of the size that clients take
	// would be too small for it. Notes make records long.
	maxPageBytes = 2 << 20
)

// Server answers auditors. All that it shows is of the caller's own tenant.
type Server struct {
	gatev1.UnimplementedAuditServiceServer
	log         *Log
	signer      note.Signer // nil: there are no checkpoints
	verifierKey string
}

// NewServer makes a server over a log that somebody runs. Without a signer there
// are no checkpoints; records and proofs are there all the same.
func NewServer(l *Log, signer note.Signer, verifierKey string) *Server {
	return &Server{log: l, signer: signer, verifierKey: verifierKey}
}

// begin gives the caller's tenant, once the log is complete.
func (s *Server) begin(ctx context.Context) (string, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return "", err
	}
	return caller.Tenant, s.log.Ready()
}

// ListRecords gives a page of records, read back from the journal.
func (s *Server) ListRecords(ctx context.Context, r *gatev1.ListRecordsRequest) (*gatev1.ListRecordsResponse, error) {
	tenant, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	limit := int(r.GetPageSize())
	switch {
	case limit < 0 || limit > maxPage:
		return nil, invalid("page_size", "want 0 to %d", maxPage)
	case limit == 0:
		limit = defaultPage
	}
	// The last page has all that was recorded before the call.
	if size := s.size(tenant); size < r.GetFirstIndex() || size-r.GetFirstIndex() < uint64(limit) {
		if err := s.log.Cover(ctx); err != nil {
			return nil, err
		}
	}
	// The index behind the last one is the empty page that ends a listing.
	if err := s.reach(ctx, tenant, "first_index", r.GetFirstIndex()); err != nil {
		return nil, err
	}
	records, size, err := s.records(ctx, tenant, int64(r.GetFirstIndex()), limit)
	if err != nil {
		return nil, err
	}
	return &gatev1.ListRecordsResponse{Records: records, TreeSize: uint64(size)}, nil
}

// GetCheckpoint signs the tree that covers all that was recorded before.
func (s *Server) GetCheckpoint(ctx context.Context, _ *gatev1.GetCheckpointRequest) (*gatev1.GetCheckpointResponse, error) {
	tenant, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	if s.signer == nil {
		return nil, fault.New(fault.AuditKeyMissing, "this gate has no key to sign checkpoints with")
	}
	if err := s.log.Cover(ctx); err != nil {
		return nil, err
	}
	checkpoint, err := s.log.Checkpoint(tenant)
	if err != nil {
		return nil, bug(err)
	}
	signed, err := checkpoint.Sign(s.signer)
	if err != nil {
		return nil, bug(err)
	}
	return &gatev1.GetCheckpointResponse{
		Checkpoint: signed, TreeSize: uint64(checkpoint.Size), RootHash: checkpoint.Root[:], VerifierKey: s.verifierKey,
	}, nil
}

// ProveInclusion proves that a record stands in the tree of a size.
func (s *Server) ProveInclusion(ctx context.Context, r *gatev1.ProveInclusionRequest) (*gatev1.ProveInclusionResponse, error) {
	tenant, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case r.GetTreeSize() == 0:
		return nil, invalid("tree_size", "want at least 1")
	case r.GetIndex() >= r.GetTreeSize():
		return nil, invalid("index", "want less than tree_size, %d", r.GetTreeSize())
	}
	if err := s.reach(ctx, tenant, "tree_size", r.GetTreeSize()); err != nil {
		return nil, err
	}
	index, size := int64(r.GetIndex()), int64(r.GetTreeSize())
	var proof tlog.RecordProof
	err = s.log.read(tenant, func(t *Tree) (err error) {
		proof, err = t.ProveRecord(size, index)
		return err
	})
	if err != nil {
		return nil, bug(err)
	}
	records, _, err := s.records(ctx, tenant, index, 1)
	if err != nil {
		return nil, err
	}
	return &gatev1.ProveInclusionResponse{Record: records[0], Hashes: hashes(proof)}, nil
}

// ProveConsistency proves that one tree is the beginning of another.
func (s *Server) ProveConsistency(ctx context.Context, r *gatev1.ProveConsistencyRequest) (*gatev1.ProveConsistencyResponse, error) {
	tenant, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case r.GetOldSize() == 0:
		return nil, invalid("old_size", "want at least 1")
	case r.GetOldSize() > r.GetNewSize():
		const want = "want old_size at most new_size"
		return nil, invalid("old_size", "%s", want).Field("new_size", want)
	}
	if err := s.reach(ctx, tenant, "new_size", r.GetNewSize()); err != nil {
		return nil, err
	}
	var proof tlog.TreeProof
	err = s.log.read(tenant, func(t *Tree) (err error) {
		proof, err = t.ProveTree(int64(r.GetNewSize()), int64(r.GetOldSize()))
		return err
	})
	if err != nil {
		return nil, bug(err)
	}
	return &gatev1.ProveConsistencyResponse{Hashes: hashes(proof)}, nil
}

// reach refuses a value beyond the tree. Another replica may have shown a larger
// tree than this one has heard of, so it listens first.
func (s *Server) reach(ctx context.Context, tenant, field string, value uint64) error {
	if value <= s.size(tenant) {
		return nil
	}
	if err := s.log.Cover(ctx); err != nil {
		return err
	}
	size := s.size(tenant)
	if value <= size {
		return nil
	}
	return fault.New(fault.CursorUnavailable, "%s: %d is beyond the tree, which has %d records", field, value, size).
		Field(field, fmt.Sprintf("at most %d", size)).With("tree_size", strconv.FormatUint(size, 10))
}

func (s *Server) size(tenant string) uint64 {
	_, size := s.log.places(tenant, 0, 0)
	return uint64(size)
}

// records reads up to limit records from an index on. Each must still hash to
// what it did when it was put into the tree: a journal that was changed behind
// this replica's back shows here at once.
func (s *Server) records(ctx context.Context, tenant string, first int64, limit int) ([]*gatev1.Record, int64, error) {
	places, size := s.log.places(tenant, first, limit)
	sequences := make([]uint64, len(places))
	for i, p := range places {
		sequences[i] = p.sequence
	}
	records := make([]*gatev1.Record, len(places))
	err := s.log.journal.BySequence(ctx, sequences, func(i int, stored journal.Stored) error {
		record, index := RecordOf(stored), uint64(first)+uint64(i)
		if record.Hash() != places[i].leaf {
			return fault.New(fault.EventUnreadable, "record %d is not what it was: event %d has changed in the journal", index, stored.Sequence).
				With("index", strconv.FormatUint(index, 10))
		}
		records[i] = record.Proto(index)
		fill(records[i], stored.Data)
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	bytes := 0
	for i, r := range records {
		if bytes += proto.Size(r); i > 0 && bytes > maxPageBytes {
			return records[:i], size, nil
		}
	}
	return records, size, nil
}

func hashes(proof []tlog.Hash) [][]byte {
	out := make([][]byte, len(proof))
	for i := range proof {
		out[i] = proof[i][:]
	}
	return out
}

func invalid(field, format string, args ...any) *fault.Error {
	why := fmt.Sprintf(format, args...)
	return fault.New(fault.FieldInvalid, "%s: %s", field, why).Field(field, why)
}

func bug(err error) error {
	return fault.New(fault.Bug, "the audit log could not be computed").Wrap(err)
}

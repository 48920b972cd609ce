package audit

import (
	"fmt"

	"golang.org/x/mod/sumdb/tlog"

	gatev1 "weir/gen/gate/v1"
)

// What an auditor does, without believing anything but the checkpoint that they
// kept and the verifier key. Nothing here asks the gate.

// Comparable refuses two checkpoints between which no proof can be: of two
// tenants, or of a tree that has become smaller.
func Comparable(kept, now Checkpoint) error {
	if kept.Tenant != now.Tenant {
		return fmt.Errorf("the origin differs: the kept checkpoint is of %s, this one of %s", kept.Origin(), now.Origin())
	}
	if now.Size < kept.Size {
		return fmt.Errorf("%d records are missing: the kept checkpoint has %d, now there are %d", kept.Size-now.Size, kept.Size, now.Size)
	}
	return nil
}

// CheckConsistency checks the proof that the tree of the kept checkpoint is the
// beginning of the tree of the newer one. The proof of equal or empty trees is
// empty.
func CheckConsistency(kept, now Checkpoint, proof [][]byte) error {
	if err := Comparable(kept, now); err != nil {
		return err
	}
	if kept.Size == now.Size && kept.Root != now.Root {
		return fmt.Errorf("both checkpoints have %d records, but other root hashes: a record was changed, reordered or replaced", kept.Size)
	}
	if kept.Size == 0 {
		if empty, err := tlog.TreeHash(0, &Tree{}); err != nil || kept.Root != empty {
			return fmt.Errorf("the kept checkpoint has no records, and not the root hash of an empty tree")
		}
		return nil
	}
	path, err := pathOf(proof)
	if err != nil {
		return fmt.Errorf("consistency proof: %w", err)
	}
	if tlog.CheckTree(path, now.Size, now.Root, kept.Size, kept.Root) != nil {
		return fmt.Errorf("the tree of %d records is not the beginning of the tree of %d: one of the first %d was changed, reordered or removed",
			kept.Size, now.Size, kept.Size)
	}
	return nil
}

// CheckInclusion checks the proof that a record stands in a checkpoint's tree.
func CheckInclusion(c Checkpoint, m *gatev1.Record, proof [][]byte) error {
	record, err := FromProto(m)
	if err != nil {
		return err
	}
	path, err := pathOf(proof)
	if err != nil {
		return fmt.Errorf("inclusion proof: %w", err)
	}
	if tlog.CheckRecord(path, c.Size, c.Root, int64(m.GetIndex()), record.Hash()) != nil {
		return fmt.Errorf("record %d is not in the tree of %d records", m.GetIndex(), c.Size)
	}
	return nil
}

func pathOf(proof [][]byte) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(proof))
	for i, hash := range proof {
		if len(hash) != tlog.HashSize {
			return nil, fmt.Errorf("hash %d has %d bytes, want %d", i, len(hash), tlog.HashSize)
		}
		out[i] = tlog.Hash(hash)
	}
	return out, nil
}

// Recount computes the tree again from all records, which come one by one from
// index 0 on. Beside the two root hashes it checks what can be told of a single
// record: its place, the order of sequences, and that it names the one before it
// on its subject.
type Recount struct {
	kept, now Checkpoint
	tree      Tree
	last      map[string]uint64 // sequence of each subject's last record
	sequence  uint64            // of the last record of all
}

// NewRecount begins a recount of the tree of the newer checkpoint.
func NewRecount(kept, now Checkpoint) (*Recount, error) {
	if err := Comparable(kept, now); err != nil {
		return nil, err
	}
	return &Recount{kept: kept, now: now, last: make(map[string]uint64)}, nil
}

// Size is how many records were counted.
func (r *Recount) Size() int64 { return r.tree.Size() }

// Add counts the next record. An error says that it, or one just before it,
// is not as the log wrote it.
func (r *Recount) Add(m *gatev1.Record) error {
	index := r.tree.Size()
	if index >= r.now.Size {
		return fmt.Errorf("record %d is beyond the checkpoint's %d", m.GetIndex(), r.now.Size)
	}
	if m.GetIndex() != uint64(index) {
		return fmt.Errorf("record %d is missing: record %d came in its place", index, m.GetIndex())
	}
	record, err := FromProto(m)
	if err != nil {
		return err
	}
	if record.Sequence <= r.sequence {
		return fmt.Errorf("record %d is out of order: its sequence is %d, after %d", index, record.Sequence, r.sequence)
	}
	// A record without a time is of an event whose headers cannot be read, so
	// that it names nothing.
	if before := r.last[record.Subject]; !record.Time.IsZero() && record.Previous != before {
		return fmt.Errorf("record %d (%s) names event %d as the one before it on its subject, but that is %d: a record was removed, added or reordered",
			index, record.Subject, record.Previous, before)
	}
	if err := r.tree.Add(record.Hash(), record.Sequence); err != nil {
		return err
	}
	r.last[record.Subject], r.sequence = record.Sequence, record.Sequence
	// Told as soon as it can be: what is after it may be endless.
	if r.tree.Size() == r.kept.Size {
		return r.checkRoot(r.kept, "kept checkpoint")
	}
	return nil
}

// Finish checks that all records were there and give the newer root.
func (r *Recount) Finish() error {
	if missing := r.now.Size - r.tree.Size(); missing > 0 {
		return fmt.Errorf("records %d to %d are missing", r.tree.Size(), r.now.Size-1)
	}
	if r.kept.Size == 0 {
		if err := r.checkRoot(r.kept, "kept checkpoint"); err != nil {
			return err
		}
	}
	return r.checkRoot(r.now, "newer checkpoint")
}

func (r *Recount) checkRoot(c Checkpoint, name string) error {
	root, err := r.tree.Root(c.Size)
	if err != nil {
		return err
	}
	if root == c.Root {
		return nil
	}
	first := int64(0)
	if c == r.now && c != r.kept {
		first = r.kept.Size // those before it were right
	}
	return fmt.Errorf("the records give another root hash than the %s of %d records: one of the records %d to %d was changed, added, reordered or removed",
		name, c.Size, first, c.Size-1)
}

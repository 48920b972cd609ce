package audit

import (
	"fmt"
	"slices"

	"golang.org/x/mod/sumdb/tlog"
)

// Tree is the Merkle tree (RFC 6962) over the records of one tenant. Each tenant
// has its own: a proof holds hashes of other records, and a size counts them.
//
// It is kept in memory: two hashes for each record, 64 bytes, and its sequence,
// 8 bytes; a slice that grows may hold a quarter more. It grows with the journal
// and has no other cap.
//
// A Tree is not safe for concurrent use. The size never shrinks and a root of a
// size never changes.
type Tree struct {
	hashes    []tlog.Hash // in the order of tlog.StoredHashIndex
	sequences []uint64    // of the records, in their order
}

// Size is how many records there are.
func (t *Tree) Size() int64 { return int64(len(t.sequences)) }

// Add puts the record with this leaf hash at the end.
func (t *Tree) Add(leaf tlog.Hash, sequence uint64) error {
	hashes, err := tlog.StoredHashesForRecordHash(t.Size(), leaf, t)
	if err != nil {
		return err
	}
	t.hashes = append(t.hashes, hashes...)
	t.sequences = append(t.sequences, sequence)
	return nil
}

// Root is the hash of the tree's first size records.
func (t *Tree) Root(size int64) (tlog.Hash, error) {
	if err := t.within(size); err != nil {
		return tlog.Hash{}, err
	}
	return tlog.TreeHash(size, t)
}

// Leaf is the leaf hash of a record.
func (t *Tree) Leaf(index int64) tlog.Hash { return t.hashes[tlog.StoredHashIndex(0, index)] }

// ProveRecord proves that a record stands in the tree of a size.
func (t *Tree) ProveRecord(size, index int64) (tlog.RecordProof, error) {
	if err := t.within(size); err != nil {
		return nil, err
	}
	return tlog.ProveRecord(size, index, t)
}

// ProveTree proves that the tree of size old is the beginning of that of size.
func (t *Tree) ProveTree(size, old int64) (tlog.TreeProof, error) {
	if err := t.within(size); err != nil {
		return nil, err
	}
	return tlog.ProveTree(size, old, t)
}

// Sequences gives those of the records from index first on, up to limit of them.
func (t *Tree) Sequences(first int64, limit int) []uint64 {
	rest := t.sequences[first:]
	return slices.Clone(rest[:min(limit, len(rest))])
}

// ReadHashes makes the tree the tlog.HashReader of its own hashes.
func (t *Tree) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		if index < 0 || index >= int64(len(t.hashes)) {
			return nil, fmt.Errorf("hash %d of a tree of %d", index, len(t.hashes))
		}
		out[i] = t.hashes[index]
	}
	return out, nil
}

func (t *Tree) within(size int64) error {
	if size < 0 || size > t.Size() {
		return fmt.Errorf("size %d of a tree of %d records", size, t.Size())
	}
	return nil
}

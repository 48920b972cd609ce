package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/mod/sumdb/tlog"
	"pgregory.net/rapid"
)

// The definitions of RFC 6962, section 2.1, word by word.

func naiveRoot(leaves [][]byte) [32]byte {
	switch len(leaves) {
	case 0:
		return sha256.Sum256(nil)
	case 1:
		return sha256.Sum256(append([]byte{0}, leaves[0]...))
	}
	k := split(len(leaves))
	left, right := naiveRoot(leaves[:k]), naiveRoot(leaves[k:])
	return sha256.Sum256(slices.Concat([]byte{1}, left[:], right[:]))
}

// split is the largest power of two smaller than n.
func split(n int) int {
	k := 1
	for 2*k < n {
		k *= 2
	}
	return k
}

func naivePath(m int, leaves [][]byte) [][32]byte {
	if len(leaves) == 1 {
		return nil
	}
	k := split(len(leaves))
	if m < k {
		return append(naivePath(m, leaves[:k]), naiveRoot(leaves[k:]))
	}
	return append(naivePath(m-k, leaves[k:]), naiveRoot(leaves[:k]))
}

func naiveProof(m int, leaves [][]byte, whole bool) [][32]byte {
	if m == len(leaves) {
		if whole {
			return nil
		}
		return [][32]byte{naiveRoot(leaves)}
	}
	k := split(len(leaves))
	if m <= k {
		return append(naiveProof(m, leaves[:k], whole), naiveRoot(leaves[k:]))
	}
	return append(naiveProof(m-k, leaves[k:], false), naiveRoot(leaves[:k]))
}

func grown(t *rapid.T, n int) (*Tree, [][]byte) {
	tree := &Tree{}
	leaves := make([][]byte, n)
	for i := range leaves {
		leaves[i] = rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "leaf")
		if err := tree.Add(tlog.RecordHash(leaves[i]), uint64(2*i+1)); err != nil {
			t.Fatal(err)
		}
	}
	return tree, leaves
}

func equal[H ~[32]byte](got []H, want [][32]byte) bool {
	return slices.EqualFunc(got, want, func(a H, b [32]byte) bool { return [32]byte(a) == b })
}

func TestTheTreeIsThatOfRFC6962(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 70).Draw(t, "n")
		tree, leaves := grown(t, n)
		if tree.Size() != int64(n) {
			t.Fatalf("size %d of %d", tree.Size(), n)
		}
		size := rapid.IntRange(0, n).Draw(t, "size")
		root, err := tree.Root(int64(size))
		if err != nil || [32]byte(root) != naiveRoot(leaves[:size]) {
			t.Fatalf("root of %d: %v, %v", size, root, err)
		}
		for old := 1; old <= size; old++ {
			proof, err := tree.ProveTree(int64(size), int64(old))
			if err != nil || !equal(proof, naiveProof(old, leaves[:size], true)) {
				t.Fatalf("proof of %d in %d: %v, %v", old, size, proof, err)
			}
		}
		for i := range size {
			proof, err := tree.ProveRecord(int64(size), int64(i))
			if err != nil || !equal(proof, naivePath(i, leaves[:size])) {
				t.Fatalf("path of %d in %d: %v, %v", i, size, proof, err)
			}
		}
		for i, leaf := range leaves {
			if tree.Leaf(int64(i)) != tlog.RecordHash(leaf) {
				t.Fatalf("leaf %d", i)
			}
		}
	})
}

func TestATreeRefusesWhatItDoesNotHave(t *testing.T) {
	tree := &Tree{}
	for i := range 5 {
		if err := tree.Add(tlog.Hash{byte(i)}, uint64(10+i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, size := range []int64{-1, 6} {
		if _, err := tree.Root(size); err == nil {
			t.Errorf("root of %d", size)
		}
		if _, err := tree.ProveRecord(size, 0); err == nil {
			t.Errorf("path in %d", size)
		}
		if _, err := tree.ProveTree(size, 1); err == nil {
			t.Errorf("proof in %d", size)
		}
	}
	if _, err := tree.ReadHashes([]int64{100}); err == nil {
		t.Error("a hash beyond the end")
	}
	if got := tree.Sequences(3, 10); !slices.Equal(got, []uint64{13, 14}) {
		t.Errorf("sequences %v", got)
	}
	if got := tree.Sequences(0, 2); !slices.Equal(got, []uint64{10, 11}) {
		t.Errorf("sequences %v", got)
	}
}

// BenchmarkTree says what an event costs in time and memory.
func BenchmarkTree(b *testing.B) {
	for b.Loop() {
		const events = 100_000
		tree := &Tree{}
		for i := range uint64(events) {
			if err := tree.Add(tlog.RecordHash(binary.BigEndian.AppendUint64(nil, i)), i); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(32*len(tree.hashes)+8*len(tree.sequences))/events, "bytes/event")
		b.ReportMetric(float64(32*cap(tree.hashes)+8*cap(tree.sequences))/events, "held-bytes/event")
	}
}

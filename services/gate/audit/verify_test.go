package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	gatev1 "weir/gen/gate/v1"
)

// history makes a tree of n records on few subjects, and the records.
func history(n int) (*Tree, []*gatev1.Record) {
	tree, last := &Tree{}, map[string]uint64{}
	records := make([]*gatev1.Record, n)
	for i := range records {
		r := Record{
			Sequence: uint64(3*i + 2), Subject: fmt.Sprintf("weir.gate.acme.policy.p%d", i%3),
			EventID: fmt.Sprint(i), Type: "t", Time: time.Unix(int64(i), 0).UTC(),
		}
		r.Previous = last[r.Subject]
		last[r.Subject] = r.Sequence
		if err := tree.Add(r.Hash(), r.Sequence); err != nil {
			panic(err)
		}
		records[i] = r.Proto(uint64(i))
	}
	return tree, records
}

func checkpointOf(tree *Tree, size int64) Checkpoint {
	root, err := tree.Root(size)
	if err != nil {
		panic(err)
	}
	return Checkpoint{Tenant: "acme", Size: size, Root: root}
}

func counted(kept, now Checkpoint, records []*gatev1.Record) error {
	r, err := NewRecount(kept, now)
	if err != nil {
		return err
	}
	for _, m := range records {
		if err := r.Add(m); err != nil {
			return err
		}
	}
	return r.Finish()
}

func TestARecountTakesTheTrueRecordsAndNoOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 30).Draw(t, "n")
		tree, records := history(n)
		kept := checkpointOf(tree, int64(rapid.IntRange(0, n).Draw(t, "kept")))
		now := checkpointOf(tree, int64(n))
		if err := counted(kept, now, records); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return
		}
		i := rapid.IntRange(0, n-1).Draw(t, "i")
		changed := proto.CloneOf(records[i])
		changes := map[string]func(){
			"sequence": func() { changed.Sequence++ },
			"previous": func() { changed.Previous++ },
			"subject":  func() { changed.Subject += "x" },
			"id":       func() { changed.EventId += "x" },
			"type":     func() { changed.Type += "x" },
			"time":     func() { changed.EventTime = timestamppb.New(changed.EventTime.AsTime().Add(time.Microsecond)) },
			"no time":  func() { changed.EventTime = nil },
			"digest":   func() { changed.PayloadDigest = strings.Repeat("0", 63) + "1" },
			"index":    func() { changed.Index++ },
		}
		name := rapid.SampledFrom(slices.Sorted(maps.Keys(changes))).Draw(t, "change")
		changes[name]()
		tampered := slices.Clone(records)
		tampered[i] = changed
		if counted(kept, now, tampered) == nil {
			t.Fatalf("%s of record %d of %d was changed", name, i, n)
		}
		if counted(kept, now, slices.Delete(slices.Clone(records), i, i+1)) == nil {
			t.Fatalf("record %d of %d was left out", i, n)
		}
		if counted(kept, now, slices.Insert(slices.Clone(records), i, records[i])) == nil {
			t.Fatalf("record %d of %d came twice", i, n)
		}
	})
}

func TestARecountNamesTheFirstRecordThatIsWrong(t *testing.T) {
	tree, records := history(12)
	kept, now := checkpointOf(tree, 5), checkpointOf(tree, 12)
	with := func(i int, change func(*gatev1.Record)) []*gatev1.Record {
		out := slices.Clone(records)
		out[i] = proto.CloneOf(out[i])
		change(out[i])
		return out
	}
	for name, test := range map[string]struct {
		records []*gatev1.Record
		want    string
	}{
		"changed before the kept one": {with(2, func(r *gatev1.Record) { r.Type = "x" }), "one of the records 0 to 4 was changed"},
		"changed after the kept one":  {with(8, func(r *gatev1.Record) { r.Type = "x" }), "one of the records 5 to 11 was changed"},
		"left out":                    {slices.Concat(records[:3], records[4:]), "record 3 is missing: record 4 came in its place"},
		"out of order":                {with(3, func(r *gatev1.Record) { r.Sequence = 1 }), "record 3 is out of order"},
		"chain":                       {with(7, func(r *gatev1.Record) { r.Previous = 2 }), "record 7 (weir.gate.acme.policy.p1) names event 2"},
		"the end":                     {records[:10], "records 10 to 11 are missing"},
		"too many":                    {append(slices.Clone(records), records[0]), "beyond the checkpoint's 12"},
	} {
		t.Run(name, func(t *testing.T) { wantError(t, counted(kept, now, test.records), test.want) })
	}
	empty := Checkpoint{Tenant: "acme", Root: tlog.Hash{1}}
	wantError(t, counted(empty, now, records), "kept checkpoint of 0 records")
	wantError(t, counted(now, kept, records), "7 records are missing")
}

func TestConsistencyIsProvedForEverySizeAndNoOtherTree(t *testing.T) {
	const n = 20
	tree, _ := history(n)
	other := &Tree{}
	for i := range n {
		if err := other.Add(tlog.Hash{byte(i)}, uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	for size := int64(0); size <= n; size++ {
		for old := int64(0); old <= size; old++ {
			var proof [][]byte
			if old > 0 {
				path, err := tree.ProveTree(size, old)
				if err != nil {
					t.Fatal(err)
				}
				proof = hashes(path)
			}
			kept, now := checkpointOf(tree, old), checkpointOf(tree, size)
			if err := CheckConsistency(kept, now, proof); err != nil {
				t.Errorf("%d in %d: %v", old, size, err)
			}
			if old == 0 {
				continue
			}
			if CheckConsistency(checkpointOf(other, old), now, proof) == nil {
				t.Errorf("%d in %d: another old tree", old, size)
			}
			if CheckConsistency(kept, checkpointOf(other, size), proof) == nil {
				t.Errorf("%d in %d: another new tree", old, size)
			}
			if len(proof) > 0 && CheckConsistency(kept, now, proof[1:]) == nil {
				t.Errorf("%d in %d: a proof that is cut short", old, size)
			}
		}
	}
	kept, now := checkpointOf(tree, 5), checkpointOf(tree, 9)
	wantError(t, CheckConsistency(kept, now, [][]byte{{1}}), "hash 0 has 1 bytes")
	wantError(t, CheckConsistency(now, kept, nil), "4 records are missing")
	kept.Tenant = "bell"
	wantError(t, CheckConsistency(kept, now, nil), "the origin differs")
	wantError(t, CheckConsistency(Checkpoint{Tenant: "acme", Root: tlog.Hash{1}}, now, nil), "not the root hash of an empty tree")
}

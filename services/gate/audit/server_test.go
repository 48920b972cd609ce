package audit

import (
	"strings"
	"testing"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
)

func TestRecordsSayWhoDidWhatAndWhyAndNeverAnInput(t *testing.T) {
	b := newBook(t)
	b.story("1")
	gate := as{b.server(newKeys(t, "weir/gate")), "acme"}
	var lines []string
	for i, r := range gate.records(t) {
		if r.GetIndex() != uint64(i) || r.GetEventTime() == nil || len(r.GetPayloadDigest()) != 64 || r.GetEventId() == "" {
			t.Errorf("record %d: %v", i, r)
		}
		if strings.Contains(r.String(), "secret-input") {
			t.Errorf("record %d shows an input: %v", i, r)
		}
		lines = append(lines, strings.Join([]string{
			strings.TrimPrefix(r.GetType(), "weir.gate.v1."), r.GetActor(), r.GetOperation(), r.GetVerdict(), r.GetReason(), r.GetInputDigest(),
		}, " | "))
	}
	const want = `PolicyPut | human:ann |  | PUT |  | 
ApprovalRequested | agent:alice | files/write | ASK | p/ask | a1
CheckDenied | agent:bob | files/erase | DENY | NOT_GRANTED | d1
ApprovalDecided | human:carol |  | APPROVE | looks right | 
WriteAllowed | agent:bob | files/touch | ALLOW | RULE p/allow | w1
ApprovalRedeemed | agent:alice |  | REDEEMED |  | 
TrustGiven | service:gate | files/write | GIVEN | to agent:alice | a1
CheckDenied | agent:bob | files/erase | DENY | NOT_GRANTED | d3
WriteAllowed | agent:bob | files/touch | ALLOW | RULE p/allow | w3`
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTenantsSeeNothingOfEachOther(t *testing.T) {
	b := newBook(t)
	b.story("1")
	k := newKeys(t, "weir/gate")
	server := b.server(k)
	sizes := map[string]uint64{"acme": acmeStory, "bell": bellStory, "nobody": 0, "gate": 0, "*": 0}
	for tenant, size := range sizes {
		gate := as{server, tenant}
		for _, r := range gate.records(t) {
			if !strings.HasPrefix(r.GetSubject(), "weir.gate."+tenant+".") {
				t.Errorf("%s sees %v", tenant, r)
			}
		}
		checkpoint := gate.checkpoint(t)
		list, err := gate.ListRecords(t.Context(), &gatev1.ListRecordsRequest{PageSize: 1})
		if err != nil || list.GetTreeSize() != size || checkpoint.GetTreeSize() != size || uint64(len(gate.records(t))) != size {
			t.Errorf("%s: %d and %d records, %v", tenant, list.GetTreeSize(), checkpoint.GetTreeSize(), err)
		}
		if c, err := OpenCheckpoint(checkpoint.GetCheckpoint(), checkpoint.GetVerifierKey()); err != nil || c.Tenant != tenant {
			t.Errorf("%s: got %+v, %v", tenant, c, err)
		}
		_, err = gate.ProveInclusion(t.Context(), &gatev1.ProveInclusionRequest{Index: size, TreeSize: size + 1})
		wantReason(t, err, fault.CursorUnavailable)
	}
}

func TestARecordIsProvedToStandInTheTreeOfEverySize(t *testing.T) {
	b := newBook(t)
	b.story("1")
	b.story("2")
	gate := as{b.server(newKeys(t, "weir/gate")), "acme"}
	records := gate.records(t)
	for _, size := range []uint64{1, 2, 3, 8, 9, 16, 17, 18} {
		checkpoint := Checkpoint{Tenant: "acme", Size: int64(size)}
		if err := gate.server.log.read("acme", func(t *Tree) (err error) {
			checkpoint.Root, err = t.Root(checkpoint.Size)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		for index := range size {
			proof, err := gate.ProveInclusion(t.Context(), &gatev1.ProveInclusionRequest{Index: index, TreeSize: size})
			if err != nil {
				t.Fatal(err)
			}
			if err := CheckInclusion(checkpoint, proof.GetRecord(), proof.GetHashes()); err != nil {
				t.Error(err)
			}
			other := records[(index+1)%uint64(len(records))]
			other.Index = index
			if CheckInclusion(checkpoint, other, proof.GetHashes()) == nil {
				t.Errorf("another record stands at %d of %d", index, size)
			}
			records = gate.records(t)
			moved := proof.GetRecord()
			moved.Index += size
			if CheckInclusion(checkpoint, moved, proof.GetHashes()) == nil {
				t.Errorf("a record stands at %d of %d", moved.Index, size)
			}
		}
	}
	wantError(t, CheckInclusion(Checkpoint{Size: 5}, records[0], [][]byte{{1}}), "hash 0 has 1 bytes")
	wantError(t, CheckInclusion(Checkpoint{Size: 5}, &gatev1.Record{Index: 3}, nil), "record 3: payload_digest")
	records[0].Index = 1 << 63
	wantError(t, CheckInclusion(Checkpoint{Size: 5}, records[0], nil), "record 9223372036854775808 is not in the tree of 5 records")
}

func TestPagesOfRecords(t *testing.T) {
	b := newBook(t)
	b.story("1")
	gate := as{b.server(newKeys(t, "weir/gate")), "acme"}
	for _, test := range []struct {
		first uint64
		size  int32
		want  int
	}{{0, 4, 4}, {4, 4, 4}, {8, 4, 1}, {9, 4, 0}, {0, 0, 9}, {0, 1000, 9}, {2, 1, 1}} {
		page, err := gate.ListRecords(t.Context(), &gatev1.ListRecordsRequest{FirstIndex: test.first, PageSize: test.size})
		if err != nil || len(page.GetRecords()) != test.want || page.GetTreeSize() != acmeStory {
			t.Errorf("%+v: %v, %v", test, page, err)
		}
		for i, r := range page.GetRecords() {
			if r.GetIndex() != test.first+uint64(i) {
				t.Errorf("%+v: record %d", test, r.GetIndex())
			}
		}
	}
}

func TestAPageEndsBeforeItIsTooLarge(t *testing.T) {
	b := newBook(t)
	const notes = 12
	for range notes {
		e := decided("ap")
		e.GetApprovalDecided().Note = strings.Repeat("x", 400<<10)
		b.write("acme", "approval", "ap", e)
	}
	gate := as{b.server(newKeys(t, "weir/gate")), "acme"}
	page, err := gate.ListRecords(t.Context(), &gatev1.ListRecordsRequest{})
	if err != nil || len(page.GetRecords()) != 5 {
		t.Errorf("%d records, %v", len(page.GetRecords()), err)
	}
	if got := len(gate.records(t)); got != notes {
		t.Errorf("%d records in all", got)
	}
}

func TestRequestsThatCannotBeAnsweredAreRefused(t *testing.T) {
	b := newBook(t)
	b.story("1")
	k := newKeys(t, "weir/gate")
	gate := as{b.server(k), "acme"}
	list := func(first uint64, size int32) error {
		_, err := gate.ListRecords(t.Context(), &gatev1.ListRecordsRequest{FirstIndex: first, PageSize: size})
		return err
	}
	inclusion := func(index, size uint64) error {
		_, err := gate.ProveInclusion(t.Context(), &gatev1.ProveInclusionRequest{Index: index, TreeSize: size})
		return err
	}
	consistency := func(old, size uint64) error {
		_, err := gate.ProveConsistency(t.Context(), &gatev1.ProveConsistencyRequest{OldSize: old, NewSize: size})
		return err
	}
	const huge = 1 << 63
	for name, test := range map[string]struct {
		err    error
		reason fault.Reason
		field  string
	}{
		"a page of less than nothing":  {list(0, -1), fault.FieldInvalid, "page_size"},
		"a page too large":             {list(0, 1001), fault.FieldInvalid, "page_size"},
		"records beyond the end":       {list(10, 1), fault.CursorUnavailable, "first_index"},
		"records far beyond":           {list(huge, 1), fault.CursorUnavailable, "first_index"},
		"no tree":                      {inclusion(0, 0), fault.FieldInvalid, "tree_size"},
		"an index beyond its tree":     {inclusion(5, 5), fault.FieldInvalid, "index"},
		"a tree that is not there":     {inclusion(0, 10), fault.CursorUnavailable, "tree_size"},
		"a tree far beyond":            {inclusion(huge, huge+1), fault.CursorUnavailable, "tree_size"},
		"no old tree":                  {consistency(0, 5), fault.FieldInvalid, "old_size"},
		"an old tree that is larger":   {consistency(6, 5), fault.FieldInvalid, "new_size"},
		"no trees":                     {consistency(0, 0), fault.FieldInvalid, "old_size"},
		"a new tree that is not there": {consistency(1, 10), fault.CursorUnavailable, "new_size"},
		"a new tree far beyond":        {consistency(huge, huge), fault.CursorUnavailable, "new_size"},
	} {
		t.Run(name, func(t *testing.T) {
			wantReason(t, test.err, test.reason)
			named := false
			for _, v := range fault.From(test.err).Violations() {
				named = named || v.Field == test.field
			}
			if !named {
				t.Errorf("%v does not name %s", test.err, test.field)
			}
		})
	}
	wantError(t, list(10, 1), "first_index: 10 is beyond the tree, which has 9 records")

	// Nobody's call is answered to nobody.
	_, err := gate.server.ListRecords(t.Context(), &gatev1.ListRecordsRequest{})
	wantReason(t, err, fault.TokenMissing)

	keyless := as{NewServer(gate.server.log, nil, ""), "acme"}
	_, err = keyless.GetCheckpoint(t.Context(), &gatev1.GetCheckpointRequest{})
	wantReason(t, err, fault.AuditKeyMissing)
	if len(keyless.records(t)) != acmeStory {
		t.Error("without a key there are records all the same")
	}
}

package main

import (
	"slices"
	"testing"
)

func TestRowsThatNeedMuchHaveAMeshOfTheirOwn(t *testing.T) {
	var names [][]string
	for _, together := range meshes(table) {
		names = append(names, rowNames(together))
	}
	if len(names) != 5 {
		t.Fatalf("%d meshes, want 5: %v", len(names), names)
	}
	if !slices.Contains(names[0], "append_message") || !slices.Contains(names[0], "pg_insert") ||
		!slices.Contains(names[1], "page_old_1m") || !slices.Contains(names[1], "pg_select") ||
		!slices.Equal(names[2], []string{"tail_fanout_1000"}) ||
		!slices.Contains(names[3], "claim_depth_10000") || !slices.Contains(names[4], "asynq_cycle") {
		t.Errorf("got %v", names)
	}
	// Rows are only compared on the same mesh.
	for _, together := range meshes(table) {
		for _, r := range together {
			if r.ratioTo != "" && !slices.Contains(rowNames(together), r.ratioTo) {
				t.Errorf("%s is compared with %s, which is elsewhere", r.name, r.ratioTo)
			}
		}
	}
}

func TestTheThousandthPageOfAMillion(t *testing.T) {
	if from := oldPage(1_000_000); from != 999*pageSize+1 {
		t.Errorf("it begins at %d", from)
	}
	if from := oldPage(1000); from != 1 {
		t.Errorf("the old page of the shortest begins at %d", from)
	}
}

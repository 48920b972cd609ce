package console

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// However two texts differ, the edits hold the one and the other, and keep as many lines
// as they can.
func TestEditsTurnOneIntoTheOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 7)
		before, after := some.Draw(t, "before"), some.Draw(t, "after")
		var was, is []string
		kept := 0
		for _, e := range edits(before, after) {
			if e.kind == ' ' {
				kept++
			}
			if e.kind != '+' {
				was = append(was, e.line)
			}
			if e.kind != '-' {
				is = append(is, e.line)
			}
		}
		if !slices.Equal(was, before) || !slices.Equal(is, after) {
			t.Fatalf("%v to %v: %v, %v", before, after, was, is)
		}
		if most := common(before, after); kept != most {
			t.Fatalf("%v to %v keeps %d lines of %d", before, after, kept, most)
		}
	})
}

// common is the longest that both have in common, in order, by trying everything.
func common(a, b []string) int {
	if len(a) == 0 || len(b) == 0 {
		return 0
	}
	most := max(common(a[1:], b), common(a, b[1:]))
	if a[0] == b[0] {
		most = max(most, 1+common(a[1:], b[1:]))
	}
	return most
}

func TestADiffShowsWhatChanges(t *testing.T) {
	var out strings.Builder
	(&Terminal{Out: &out}).Diff("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\nfive\x1b\n6\n7\n8\n9\n")
	want := "    ⋮\n    2\n    3\n    4\n  - 5\n  + five\\u001b\n    6\n    7\n    8\n    ⋮\n"
	if out.String() != want {
		t.Errorf("shown is\n%q\nwant\n%q", out.String(), want)
	}
}

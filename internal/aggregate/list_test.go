package aggregate

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"weir/internal/fault"
	"weir/internal/hot"
)

// sorted is a ledger that stands in one more list by each of its entries.
func (r *rig) sorted() *ledgerLoop {
	kind := ledgerKind()
	kind.Lists = func(l ledger, version uint64) []hot.Entry {
		lists := []hot.Entry{{Set: "all", Score: l.First}, {Set: "active", Score: version}}
		for itr := l.Entries.Iterator(); !itr.Done(); {
			id, _, _ := itr.Next()
			lists = append(lists, hot.Entry{Set: "with " + id, Score: l.First})
		}
		return lists
	}
	j, h := r.open(r.nats.Connect())
	return New(kind, j, h, slog.New(slog.DiscardHandler))
}

// paged gives the ids of all pages, and how many there were.
func paged(t testing.TB, l *ledgerLoop, page ledgerPage) ([]string, int) {
	t.Helper()
	var ids []string
	for pages := 1; ; pages++ {
		items, next, err := l.List(t.Context(), page)
		if err != nil {
			t.Fatal(err)
		}
		if next != "" && len(items) != page.Size {
			t.Fatalf("page %d has %d items of %d, and there are more", pages, len(items), page.Size)
		}
		for _, item := range items {
			if item.Score != item.State.First {
				t.Errorf("%s stands at %d, want %d", item.ID, item.Score, item.State.First)
			}
			ids = append(ids, item.ID)
		}
		if next == "" {
			return ids, pages
		}
		page.Token = next
	}
}

func TestAPageIsFullHoweverManyAreLeftOut(t *testing.T) {
	r := newRig(t)
	a := r.replica()
	r.project(a)
	const count = 60
	var all []string
	kept := map[string][]string{}
	for i := range count {
		id := fmt.Sprint("id", i)
		entry := "plain"
		switch {
		case i == 0 || i == count-1:
			entry = "ends"
		case i%7 == 0:
			entry = "seventh"
		case i >= 20 && i < 50:
			entry = "run"
		}
		must(t, a, id, entry)
		all = append([]string{id}, all...)
		kept[entry] = append([]string{id}, kept[entry]...)
	}
	waitListed(t, a, "all", all...)
	for entry, want := range kept {
		keep := func(l ledger) bool { return l.has(entry) }
		for _, size := range []int{1, 2, 5, len(want), len(want) + 1, count} {
			got, pages := paged(t, a, ledgerPage{Tenant: "acme", Lists: []string{"all"}, Size: size, Keep: keep})
			if !slices.Equal(got, want) {
				t.Errorf("%s, in pages of %d: %v, want %v", entry, size, got, want)
			}
			// The last page may be empty: what was left of the list held nothing.
			if most := len(want)/size + 1; pages > most {
				t.Errorf("%s came in %d pages of %d, want at most %d", entry, pages, size, most)
			}
		}
	}
	nothing := func(ledger) bool { return false }
	if got, pages := paged(t, a, ledgerPage{Tenant: "acme", Lists: []string{"all"}, Size: 3, Keep: nothing}); len(got) != 0 || pages != 1 {
		t.Errorf("of nothing there are %v in %d pages", got, pages)
	}
}

func TestTheShortestListIsReadAndATokenStaysWithIt(t *testing.T) {
	r := newRig(t)
	a := r.sorted()
	r.project(a)
	for i := range 12 {
		id := fmt.Sprint("id", i)
		must(t, a, id, "often")
		if i%3 == 0 {
			must(t, a, id, "seldom")
		}
	}
	looked := 0
	page := ledgerPage{
		Tenant: "acme", Lists: []string{"all", "with often", "with seldom"}, Size: 2,
		Keep: func(l ledger) bool { looked++; return l.has("seldom") && l.has("often") },
	}
	waitComplete(t, a)
	items, next, err := a.List(t.Context(), page)
	if err != nil || len(items) != 2 || items[0].ID != "id9" || items[1].ID != "id6" || looked != 2 {
		t.Fatalf("the first page is %v, %v, after a look at %d", items, err, looked)
	}
	// By now another list is the shortest.
	for i := range 12 {
		must(t, a, fmt.Sprint("id", i), "seldom")
		must(t, a, fmt.Sprint("other", i), "seldom")
	}
	page.Token = next
	items, _, err = a.List(t.Context(), page)
	if err != nil || len(items) != 2 || items[0].ID != "id5" || items[1].ID != "id4" {
		t.Errorf("the second page is %v, %v", items, err)
	}
	page.Lists = []string{"all", "with often"}
	if _, _, err := a.List(t.Context(), page); !fault.Is(err, fault.PageTokenInvalid) {
		t.Errorf("a token of none of the lists: %v", err)
	}
}

// Who goes through a list from its oldest end meets everything once, and what
// moved on again.
func TestAListFromItsOldestEnd(t *testing.T) {
	r := newRig(t)
	a := r.replica()
	r.project(a)
	for i := range 7 {
		must(t, a, fmt.Sprint("id", i), "one")
	}
	waitComplete(t, a)
	var met []string
	for after := uint64(0); ; {
		items, err := a.Oldest(t.Context(), "acme", "active", after, 3, RootField)
		if err != nil {
			t.Fatal(err)
		}
		if len(items) == 0 {
			break
		}
		for _, item := range items {
			if item.Score != item.Version || item.State.Count == 0 || item.State.has("one") {
				t.Errorf("%s at %d is %+v", item.ID, item.Score, item.State)
			}
			met = append(met, item.ID)
			after = item.Score
		}
		if len(met) == 3 {
			must(t, a, "id1", "two")
		}
	}
	if want := "[id0 id1 id2 id3 id4 id5 id6 id1]"; fmt.Sprint(met) != want {
		t.Errorf("met %v, want %s", met, want)
	}
	r.redis.Flush()
	if _, err := a.Oldest(t.Context(), "acme", "active", 0, 3); !fault.Is(err, fault.IndexRebuilding) {
		t.Errorf("of a flushed redis it is %v", err)
	}
}

package hot_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/journal"
)

// listPage gives a page of one list, and the token of the next.
func listPage(ctx context.Context, list hot.List, size int, token string, h *hot.Store) ([]string, string, error) {
	list, before, err := h.Choose(ctx, token, list)
	if err != nil {
		return nil, "", err
	}
	places, err := list.Newest(ctx, before, size+1)
	next := ""
	if len(places) > size {
		places = places[:size]
		next = list.Token(places[size-1].Score)
	}
	ids := make([]string, len(places))
	for i, place := range places {
		ids[i] = place.ID
	}
	return ids, next, err
}

func wantList(t testing.TB, h *hot.Store, list string, want ...string) {
	t.Helper()
	got, next, err := listPage(t.Context(), h.List("acme", "thing", list), 100, "", h)
	if err != nil || next != "" || !slices.Equal(got, want) {
		t.Fatalf("list %q is %v, %q, %v; want %v", list, got, next, err, want)
	}
}

func newestFirst(t *testing.T, s *server) {
	h := s.open(t)
	wantList(t, h, "all")
	for i, id := range []string{"c", "a", "b"} {
		wasPut(t, h, key(id), uint64(8+i), in(uint64(8+i), "all"), "root=1")
	}
	other := journal.Key{Tenant: "other", Kind: "thing", ID: "z"}
	wasPut(t, h, other, 20, in(20, "all"), "root=1")
	wasPut(t, h, journal.Key{Tenant: "acme", Kind: "else", ID: "z"}, 21, in(21, "all"), "root=1")
	wantList(t, h, "all", "b", "a", "c")
	wantList(t, h, "none")
	// Sequences are compared as numbers, also beyond 32 bits.
	wasPut(t, h, key("c"), 1<<40+1, in(1<<40+1, "all"), "root=1")
	wasPut(t, h, key("a"), 1<<40, in(1<<40, "all"), "root=1")
	wantList(t, h, "all", "c", "a", "b")
}

func rowsReplace(t *testing.T, s *server) {
	h, k := s.open(t), key("x")
	wasPut(t, h, k, 5, in(5, "all", "pending"), "root=5")
	wantList(t, h, "pending", "x")
	wasPut(t, h, k, 6, in(6, "all", "decided", "with: space"), "root=6")
	wantList(t, h, "pending")
	wantList(t, h, "decided", "x")
	wantList(t, h, "with: space", "x")
	// A slow replica's row and document come late.
	wasPut(t, h, k, 5, in(5, "all", "pending"), "root=5")
	refreshed(t, h, k, 0, 4, set("root=4"), in(4, "pending"), hot.Newer)
	wantList(t, h, "pending")
	wantList(t, h, "decided", "x")
	// Also after it had gone from all lists.
	wasPut(t, h, k, 10, hot.Row{}, "root=10")
	wasPut(t, h, k, 9, in(9, "all", "pending"), "root=9")
	for _, list := range []string{"all", "pending", "decided", "with: space"} {
		wantList(t, h, list)
	}
	wasPut(t, h, k, 11, in(11, "pending"), "root=11")
	wantList(t, h, "pending", "x")
}

func pages(t *testing.T, s *server) {
	h := s.open(t)
	add := func(version uint64) {
		k := key(fmt.Sprint("id", version))
		wasPut(t, h, k, version, in(version, "all"), "root=1")
	}
	for version := uint64(1); version <= 7; version++ {
		add(version)
	}
	page := func(size int, token string) ([]string, string) {
		t.Helper()
		ids, next, err := listPage(t.Context(), h.List("acme", "thing", "all"), size, token, h)
		if err != nil {
			t.Fatal(err)
		}
		return ids, next
	}
	first, next := page(3, "")
	if fmt.Sprint(first) != "[id7 id6 id5]" || next == "" {
		t.Fatalf("the first page is %v, %q", first, next)
	}
	add(8) // what is new meanwhile is on no later page
	second, next := page(3, next)
	if fmt.Sprint(second) != "[id4 id3 id2]" || next == "" {
		t.Fatalf("the second page is %v, %q", second, next)
	}
	last, next := page(3, next)
	if fmt.Sprint(last) != "[id1]" || next != "" {
		t.Fatalf("the last page is %v, %q", last, next)
	}
	if all, next := page(8, ""); len(all) != 8 || next != "" {
		t.Fatalf("one full page is %v, %q", all, next)
	}
}

func foreignTokens(t *testing.T, s *server) {
	h := s.open(t)
	for version := uint64(1); version <= 40; version++ {
		for _, k := range []journal.Key{{Tenant: "acme", Kind: "thing", ID: fmt.Sprint(version)}, {Tenant: "evil", Kind: "thing", ID: fmt.Sprint(version)}} {
			wasPut(t, h, k, version, in(version, "all", "other"), "root=1")
		}
	}
	_, token, err := listPage(t.Context(), h.List("acme", "thing", "all"), 3, "", h)
	if err != nil || token == "" {
		t.Fatalf("token is %q, %v", token, err)
	}
	if _, _, err := listPage(t.Context(), h.List("acme", "thing", "all"), 5, token, h); err != nil {
		t.Fatalf("with another size: %v", err)
	}
	for name, list := range map[string][3]string{
		"another list":   {"acme", "thing", "other"},
		"another tenant": {"evil", "thing", "all"},
		"another kind":   {"acme", "else", "all"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := listPage(t.Context(), h.List(list[0], list[1], list[2]), 3, token, h)
			wantReason(t, err, fault.PageTokenInvalid)
		})
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	for _, altered := range []string{
		"x", "....", "%", token + "A", token + "=", token[1:], token[:len(token)-1], "A" + token,
		base64.RawURLEncoding.EncodeToString([]byte("." + string(text))),
		base64.RawURLEncoding.EncodeToString([]byte(string(text) + "zzzzzzzzzzzzzzzz")),
		base64.RawURLEncoding.EncodeToString([]byte("0" + string(text))),
		base64.RawURLEncoding.EncodeToString([]byte(string(text) + "\n")),
		base64.StdEncoding.EncodeToString([]byte(string(text) + " +inf")),
	} {
		_, _, err := listPage(t.Context(), h.List("acme", "thing", "all"), 3, altered, h)
		if !fault.Is(err, fault.PageTokenInvalid) {
			t.Errorf("token %q: %v, want PAGE_TOKEN_INVALID", altered, err)
		}
	}
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// taken gives the ids that are due, sorted.
func taken(t testing.TB, h *hot.Store, now time.Time, hold time.Duration) []string {
	t.Helper()
	keys, err := h.TakeDue(t.Context(), "thing", now, now.Add(hold), 100)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]string, len(keys))
	for i, k := range keys {
		if k != key(k.ID) {
			t.Errorf("took %v", k)
		}
		ids[i] = k.ID
	}
	slices.Sort(ids)
	return ids
}

func takenOnce(t *testing.T, s *server) {
	h, other := s.open(t), s.open(t)
	const count = 40 // in all shards
	var want []string
	for i := range count {
		id := fmt.Sprint("early", i)
		want = append(want, id)
		wasPut(t, h, key(id), uint64(i+1), due(noon.Add(-time.Duration(i)*time.Second)), "root=1")
	}
	slices.Sort(want)
	wasPut(t, h, key("late"), 100, due(noon.Add(time.Hour)), "root=1")
	wasPut(t, h, key("never"), 101, due(time.Time{}), "root=1")
	wasPut(t, h, journal.Key{Tenant: "acme", Kind: "else", ID: "x"}, 102, due(noon.Add(-time.Hour)), "root=1")

	if got := taken(t, h, noon.Add(-time.Hour), time.Minute); len(got) != 0 {
		t.Fatalf("before its time came %v", got)
	}
	var both [2][]string
	var wg sync.WaitGroup
	for i, replica := range []*hot.Store{h, other} {
		wg.Go(func() { both[i] = taken(t, replica, noon, time.Minute) })
	}
	wg.Wait()
	got := append(both[0], both[1]...)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("the replicas took %v and %v", both[0], both[1])
	}
	if got := taken(t, h, noon.Add(59*time.Second), time.Minute); len(got) != 0 {
		t.Fatalf("while they are held came %v", got)
	}
	if got := taken(t, other, noon.Add(time.Minute), time.Hour); !slices.Equal(got, want) {
		t.Fatalf("after the hold came %v", got)
	}
	if got := taken(t, h, noon.Add(time.Hour), time.Hour); !slices.Equal(got, []string{"late"}) {
		t.Fatalf("an hour later came %v", got)
	}
	// At most so many of each shard; the rest is not lost.
	keys, err := h.TakeDue(t.Context(), "thing", noon.Add(24*time.Hour), noon.Add(48*time.Hour), 1)
	if err != nil || len(keys) < 2 || len(keys) > 16 {
		t.Fatalf("one of each shard are %d, %v", len(keys), err)
	}
	if got := taken(t, h, noon.Add(24*time.Hour), time.Hour); len(got) != count+1-len(keys) {
		t.Fatalf("after %d came %d", len(keys), len(got))
	}
}

func dueMoves(t *testing.T, s *server) {
	h, k := s.open(t), key("x")
	wasPut(t, h, k, 1, due(noon), "root=1")
	wasPut(t, h, k, 2, due(noon.Add(time.Hour)), "root=2")
	wasPut(t, h, k, 1, due(noon), "root=1") // late
	if got := taken(t, h, noon, time.Minute); len(got) != 0 {
		t.Fatalf("took %v at a time that was moved", got)
	}
	if got := taken(t, h, noon.Add(time.Hour), 3*time.Hour); len(got) != 1 {
		t.Fatalf("took %v", got)
	}
	wasPut(t, h, k, 3, due(noon.Add(2*time.Hour)), "root=3") // what was taken is appended to
	if got := taken(t, h, noon.Add(2*time.Hour), time.Minute); len(got) != 1 {
		t.Fatalf("took %v at the new time", got)
	}
	wasPut(t, h, k, 4, due(time.Time{}), "root=4")
	if got := taken(t, h, noon.Add(1000*time.Hour), time.Minute); len(got) != 0 {
		t.Fatalf("took %v, which has no deadline any more", got)
	}
}

func postponed(t *testing.T, s *server) {
	h, k := s.open(t), key("x")
	wasPut(t, h, k, 1, due(noon), "root=1")
	if got := taken(t, h, noon, time.Minute); len(got) != 1 {
		t.Fatalf("took %v", got)
	}
	postpone := func(held, until time.Time) {
		t.Helper()
		if err := h.Postpone(t.Context(), k, held, until); err != nil {
			t.Fatal(err)
		}
	}
	postpone(noon.Add(time.Minute), noon.Add(time.Hour))
	if got := taken(t, h, noon.Add(59*time.Minute), time.Minute); len(got) != 0 {
		t.Fatalf("took %v before the time it was postponed to", got)
	}
	if got := taken(t, h, noon.Add(time.Hour), time.Minute); len(got) != 1 {
		t.Fatalf("took %v", got)
	}
	// An append meanwhile has set it anew: that stands.
	wasPut(t, h, k, 2, due(noon.Add(2*time.Hour)), "root=2")
	postpone(noon.Add(time.Hour+time.Minute), noon.Add(100*time.Hour))
	if got := taken(t, h, noon.Add(2*time.Hour), time.Minute); len(got) != 1 {
		t.Fatalf("took %v", got)
	}
	wasPut(t, h, k, 3, due(time.Time{}), "root=3")
	postpone(noon.Add(2*time.Hour+time.Minute), noon.Add(3*time.Hour))
	if got := taken(t, h, noon.Add(1000*time.Hour), time.Minute); len(got) != 0 {
		t.Fatalf("took %v, which has no deadline any more", got)
	}
}

// Of lists that hold all that is wanted the shortest is read, and a token goes on
// in the one that it came from, whichever is the shortest by then.
func chooses(t *testing.T, s *server) {
	h := s.open(t)
	for version := uint64(1); version <= 6; version++ {
		lists := []string{"all"}
		if version > 2 {
			lists = append(lists, "some")
		}
		if version == 4 {
			lists = append(lists, "few")
		}
		wasPut(t, h, key(fmt.Sprint(version)), version, in(version, lists...), "root=1")
	}
	list := func(set string) hot.List { return h.List("acme", "thing", set) }
	want := func(want hot.List, score uint64, token string, of ...hot.List) {
		t.Helper()
		got, before, err := h.Choose(t.Context(), token, of...)
		if err != nil || got != want || before != score {
			t.Errorf("it chose %v from %d, %v; want %v from %d", got, before, err, want, score)
		}
	}
	want(list("some"), 0, "", list("all"), list("some"))
	want(list("some"), 0, "", list("some"), list("all"))
	want(list("few"), 0, "", list("all"), list("few"), list("some"))
	want(list("none"), 0, "", list("all"), list("none"), list("some"))
	want(list("all"), 0, "", list("all"))
	token := list("all").Token(5)
	want(list("all"), 5, token, list("few"), list("all"))
	_, _, err := h.Choose(t.Context(), token, list("few"), list("some"))
	wantReason(t, err, fault.PageTokenInvalid)
	_, _, err = h.Choose(t.Context(), "")
	wantReason(t, err, fault.Bug)
}

func oldestFirst(t *testing.T, s *server) {
	h := s.open(t)
	for version := uint64(3); version <= 7; version++ {
		wasPut(t, h, key(fmt.Sprint(version)), version, in(version, "all"), "root=1")
	}
	list := h.List("acme", "thing", "all")
	for after, want := range map[uint64]string{
		0: "[{3 3} {4 4}]", 2: "[{3 3} {4 4}]", 3: "[{4 4} {5 5}]", 6: "[{7 7}]", 7: "[]",
	} {
		got, err := list.Oldest(t.Context(), after, 2)
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("after %d come %v, %v; want %s", after, got, err, want)
		}
	}
	// What moves on while somebody goes through is met again, and nothing is missed.
	wasPut(t, h, key("3"), 8, in(8, "all"), "root=2")
	if got, err := list.Oldest(t.Context(), 7, 2); err != nil || fmt.Sprint(got) != "[{3 8}]" {
		t.Errorf("at last come %v, %v", got, err)
	}
}

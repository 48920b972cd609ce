package hot_test

import (
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

func wantList(t testing.TB, h *hot.Store, list string, want ...string) {
	t.Helper()
	got, next, err := h.List(t.Context(), "acme", "thing", list, 100, "")
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
		ids, next, err := h.List(t.Context(), "acme", "thing", "all", size, token)
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
	_, token, err := h.List(t.Context(), "acme", "thing", "all", 3, "")
	if err != nil || token == "" {
		t.Fatalf("token is %q, %v", token, err)
	}
	if _, _, err := h.List(t.Context(), "acme", "thing", "all", 5, token); err != nil {
		t.Fatalf("with another size: %v", err)
	}
	for name, list := range map[string][3]string{
		"another list":   {"acme", "thing", "other"},
		"another tenant": {"evil", "thing", "all"},
		"another kind":   {"acme", "else", "all"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := h.List(t.Context(), list[0], list[1], list[2], 3, token)
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
		_, _, err := h.List(t.Context(), "acme", "thing", "all", 3, altered)
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

package hot_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/journal"
)

func absent(t *testing.T, s *server) {
	h := s.open(t)
	wantDocument(t, h, key("x"), 0)
	d, err := h.Read(t.Context(), key("x"), "root")
	if err != nil || d.Version != 0 || len(d.Fields) != 0 {
		t.Fatalf("got %v, %v", d, err)
	}
}

func changesInOrder(t *testing.T, s *server) {
	h, k := s.open(t), key("x")
	refreshed(t, h, k, 0, 3, set("root=1", "e:a=A", "e:b=B"), in(3, "all"), hot.Written)
	wantDocument(t, h, k, 3, "root=1", "e:a=A", "e:b=B")
	change := set("root=2", "e:c=C")
	change.Del = []string{"e:a", "e:never"}
	refreshed(t, h, k, 3, 8, change, in(8, "all"), hot.Written)
	wantDocument(t, h, k, 8, "root=2", "e:b=B", "e:c=C")
	// The same events again, as from the projector behind the write path.
	refreshed(t, h, k, 0, 3, set("root=1"), in(3, "all"), hot.Newer)
	refreshed(t, h, k, 3, 8, set("root=again"), in(8, "all"), hot.Newer)
	wantDocument(t, s.open(t), k, 8, "root=2", "e:b=B", "e:c=C")
}

func gap(t *testing.T, s *server) {
	h, k := s.open(t), key("x")
	refreshed(t, h, k, 0, 1, set("root=1", "e:a=A"), in(1, "all"), hot.Written)
	refreshed(t, h, k, 5, 9, set("root=9"), in(9, "all"), hot.Gap)
	wantDocument(t, h, k, 0) // neither the old one nor one with a hole
	refreshed(t, h, k, 1, 5, set("root=5"), in(5, "all"), hot.Newer)
	refreshed(t, h, k, 5, 9, set("root=9"), in(9, "all"), hot.Gap) // said until somebody loads it
	wasPut(t, h, k, 5, in(5, "all"), "root=5")                     // loaded before the last event
	wantDocument(t, h, k, 0)
	wasPut(t, h, k, 9, in(9, "all"), "root=9", "e:a=A")
	wantDocument(t, h, k, 9, "root=9", "e:a=A")
	refreshed(t, h, k, 9, 10, set("root=10"), in(10, "all"), hot.Written)
	wantDocument(t, h, k, 10, "root=10", "e:a=A")
}

// A replica that was asleep since it appended the first event.
func oldCreation(t *testing.T, s *server) {
	h, k := s.open(t), key("x")
	refreshed(t, h, k, 7, 9, set("root=9"), in(9, "all"), hot.Gap) // Redis was flushed in between
	refreshed(t, h, k, 0, 1, set("root=1"), in(1, "all"), hot.Newer)
	wantDocument(t, h, k, 0)
	wasPut(t, h, k, 1, in(1, "all"), "root=1")
	wantDocument(t, h, k, 0)
	refreshed(t, h, k, 9, 12, set("root=12"), in(12, "all"), hot.Gap) // still to be loaded whole
	wasPut(t, h, k, 9, in(9, "all"), "root=9")
	wantDocument(t, h, k, 0)
	wasPut(t, h, k, 15, in(15, "all"), "root=15")
	wantDocument(t, h, k, 15, "root=15")
}

func put(t *testing.T, s *server) {
	h, k := s.open(t), key("x")
	wasPut(t, h, k, 5, in(5, "all"), "root=5", "e:a=A")
	wantDocument(t, h, k, 5, "root=5", "e:a=A")
	wasPut(t, h, k, 4, in(4, "all"), "root=older")
	wasPut(t, h, k, 5, in(5, "all"), "root=same")
	wantDocument(t, h, k, 5, "root=5", "e:a=A")
	wasPut(t, h, k, 6, in(6, "all"), "root=6", "e:b=B")
	wantDocument(t, h, k, 6, "root=6", "e:b=B")
	// 9 comes before 10 as a text.
	wasPut(t, h, k, 10, in(10, "all"), "root=10")
	wasPut(t, h, k, 9, in(9, "all"), "root=9")
	wantDocument(t, h, k, 10, "root=10")
}

func someFields(t *testing.T, s *server) {
	h, k := s.open(t), key("x")
	wasPut(t, h, k, 5, in(5, "all"), "root=5", "e:a=A", "e:b=B")
	d, err := h.Read(t.Context(), k, "root", "e:b", "e:none")
	if err != nil || d.Version != 5 || d.Fields["root"] != "5" || d.Fields["e:b"] != "B" {
		t.Fatalf("got %v, %v", d, err)
	}
	for _, absent := range []string{"e:a", "e:none"} {
		if _, ok := d.Fields[absent]; ok {
			t.Errorf("%s is there", absent)
		}
	}
	if d, err = h.Read(t.Context(), k, "e:none"); err != nil || d.Version != 5 {
		t.Fatalf("with none of the fields it is %v, %v", d, err)
	}
	refreshed(t, h, k, 7, 8, set("root=8"), in(8, "all"), hot.Gap)
	if d, err = h.Read(t.Context(), k, "root"); err != nil || d.Version != 0 {
		t.Fatalf("after a gap it is %v, %v", d, err)
	}
}

func anyBytes(t *testing.T, s *server) {
	h, k := s.open(t), key("x")
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	refreshed(t, h, k, 0, 1, hot.Change{Set: map[string][]byte{"root": all, "e:" + string(all): {}}}, in(1, "all"), hot.Written)
	want := []string{"root=" + string(all)}
	d, err := h.Read(t.Context(), k)
	if err != nil || d.Fields["root"] != string(all) || len(d.Fields) != 2 {
		t.Fatalf("got %q, %v; want %q", d.Fields, err, want)
	}
	if value, ok := d.Fields["e:"+string(all)]; !ok || value != "" {
		t.Errorf("the empty field is %q, %v", value, ok)
	}
}

func unreadableIsKept(t *testing.T, s *server) {
	h, k := s.open(t), key("x")
	wasPut(t, h, k, 5, in(5, "all"), "root={broken", "e:a=A")
	if err := h.MarkUnreadable(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	redisKey := documentKey(t, s)
	before := s.client.HGetAll(t.Context(), redisKey).Val()

	refreshed(t, h, k, 5, 6, set("root=6"), in(6, "all"), hot.Newer)
	refreshed(t, h, k, 8, 9, set("root=9"), in(9, "all"), hot.Newer)
	wasPut(t, h, k, 20, in(20, "all"), "root=20")
	for _, names := range [][]string{nil, {"root"}, {"e:a"}} {
		_, err := h.Read(t.Context(), k, names...)
		wantReason(t, err, fault.DocumentUnreadable)
	}
	if after := s.client.HGetAll(t.Context(), redisKey).Val(); !maps.Equal(before, after) {
		t.Fatalf("it was %q and is %q", before, after)
	}
	if shows, err := h.Shows(t.Context(), k, 20, false); err != nil || !shows {
		t.Errorf("the projector would try again for ever: %v, %v", shows, err)
	}
	// The operator's way out.
	if err := s.client.Del(t.Context(), redisKey).Err(); err != nil {
		t.Fatal(err)
	}
	wasPut(t, h, k, 20, in(20, "all"), "root=20")
	wantDocument(t, h, k, 20, "root=20")
}

// documentKey is the only key in Redis that holds a document.
func documentKey(t *testing.T, s *server) string {
	t.Helper()
	var found []string
	for _, k := range s.keys(t) {
		if strings.HasSuffix(k, "}") {
			found = append(found, k)
		}
	}
	if len(found) != 1 {
		t.Fatalf("documents are %v, want one", found)
	}
	return found[0]
}

func noDocument(t *testing.T, s *server) {
	h, k := s.open(t), key("x")
	wasPut(t, h, k, 5, in(5, "all"), "root=5")
	redisKey := documentKey(t, s)
	for name, spoil := range map[string]func() error{
		"no version":      func() error { return s.client.HDel(t.Context(), redisKey, ".version").Err() },
		"another version": func() error { return s.client.HSet(t.Context(), redisKey, ".version", "five").Err() },
		"another type":    func() error { return s.client.Set(t.Context(), redisKey, "5", 0).Err() },
	} {
		t.Run(name, func(t *testing.T) {
			s.flush(t)
			wasPut(t, h, k, 5, in(5, "all"), "root=5")
			if err := spoil(); err != nil {
				t.Fatal(err)
			}
			_, err := h.Read(t.Context(), k)
			wantReason(t, err, fault.DocumentUnreadable)
			_, err = h.Read(t.Context(), k, "root")
			wantReason(t, err, fault.DocumentUnreadable)
			// The others are not held up.
			wasPut(t, h, key("y"), 6, in(6, "all"), "root=6")
			wantDocument(t, h, key("y"), 6, "root=6")
		})
	}
}

func large(t *testing.T, s *server) {
	h, k := s.open(t), key("x")
	const count = 10_000
	all := make(map[string][]byte, count)
	for i := range count {
		all[fmt.Sprint("e:", i)] = fmt.Append(nil, i)
	}
	if err := h.Put(t.Context(), k, 5, all, in(5, "all")); err != nil {
		t.Fatal(err)
	}
	want := func(version uint64, fields int) {
		t.Helper()
		d, err := h.Read(t.Context(), k)
		if err != nil || d.Version != version || len(d.Fields) != fields {
			t.Fatalf("got %d fields at %d, %v; want %d at %d", len(d.Fields), d.Version, err, fields, version)
		}
	}
	want(5, count)
	// One event may touch them all too. A slow store may get it twice, from the
	// client's retry: then it is there already.
	touch := func(version uint64, change hot.Change) {
		t.Helper()
		if applied, err := h.Refresh(t.Context(), k, version-1, version, change, in(version, "all")); err != nil || applied == hot.Gap {
			t.Fatalf("refresh to %d gave %d, %v", version, applied, err)
		}
		want(version, len(change.Set))
	}
	touch(6, hot.Change{Set: all})
	touch(7, hot.Change{Set: fields("root=7"), Del: slices.Collect(maps.Keys(all))})
}

func anotherStream(t *testing.T, s *server) {
	k := key("x")
	wasPut(t, s.openAs(t, "test", "old"), k, 50, in(50, "all"), "root=old")
	wasPut(t, s.openAs(t, "other", "stream"), k, 60, in(60, "all"), "root=other")
	h := s.open(t)
	wantDocument(t, h, k, 0)
	if ids, _, err := listPage(t.Context(), h.List("acme", "thing", "all"), 10, "", h); err != nil || len(ids) != 0 {
		t.Errorf("its lists show %v, %v", ids, err)
	}
	refreshed(t, h, k, 0, 1, set("root=1"), in(1, "all"), hot.Written)
	wantDocument(t, h, k, 1, "root=1")
}

// Replicas write the events of one history in any order, some twice, and put
// the document whole where they are told of a gap: it ends right.
func anyOrder(t *testing.T, s *server) {
	h := s.open(t)
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		k := key(fmt.Sprint("x", run))
		count := rapid.IntRange(1, 4).Draw(rt, "events")
		content := func(n int) map[string][]byte {
			all := fields(fmt.Sprint("root=", n))
			for i := range n {
				all[fmt.Sprint("e:", i)] = []byte("entry")
			}
			return all
		}
		version := func(n int) uint64 { return uint64(3 * n) }
		order := rapid.SliceOfN(rapid.IntRange(1, count), 0, 6).Draw(rt, "order")
		// The projector at least hears of all of them.
		order = append(order, rapid.Permutation(upTo(count)).Draw(rt, "projector")...)
		for _, n := range order {
			change := set(fmt.Sprint("root=", n), fmt.Sprintf("e:%d=entry", n-1))
			applied, err := h.Refresh(t.Context(), k, version(n-1), version(n), change, in(version(n), "all"))
			if err != nil {
				rt.Fatal(err)
			}
			if applied == hot.Gap {
				if err := h.Put(t.Context(), k, version(n), content(n), in(version(n), "all")); err != nil {
					rt.Fatal(err)
				}
			}
			if d, err := h.Read(t.Context(), k); err != nil {
				rt.Fatal(err)
			} else if d.Version != 0 && len(d.Fields) != int(d.Version)/3+1 {
				rt.Fatalf("at %d it holds %v", d.Version, d.Fields)
			}
		}
		d, err := h.Read(t.Context(), k)
		if err != nil || d.Version != version(count) || len(d.Fields) != count+1 {
			rt.Fatalf("it ends with %v at %d, %v; want version %d", d.Fields, d.Version, err, version(count))
		}
	})
}

func upTo(count int) []int {
	all := make([]int, count)
	for i := range all {
		all[i] = i + 1
	}
	return all
}

// Each id has its own keys, and all keys that are touched at once share a hash
// slot, whatever the id holds.
func hostileIDs(t *testing.T, s *server) {
	h := s.open(t)
	ids := []string{"a.b", "a-b", "{", "}", "{}", "}{", "{x}", "a{b}c", "*", "?", "[a]", ":", "\x00", " ", "\r\n", "é", "\xff", "%7B", ".version"}
	var keys []journal.Key
	for _, id := range ids {
		keys = append(keys, key(id), journal.Key{Tenant: id, Kind: "thing", ID: "x"}, journal.Key{Tenant: "acme", Kind: id, ID: "x"})
	}
	for i, k := range keys {
		row := in(uint64(i+1), "all", k.ID)
		row.HasDue = true
		refreshed(t, h, k, 0, uint64(i+1), set(fmt.Sprint("root=", i)), row, hot.Written)
	}
	for i, k := range keys {
		wantDocument(t, h, k, uint64(i+1), fmt.Sprint("root=", i))
		found, _, err := listPage(t.Context(), h.List(k.Tenant, k.Kind, k.ID), 100, "", h)
		if err != nil || !slices.Contains(found, k.ID) {
			t.Errorf("%q is listed as %q, %v", k, found, err)
		}
	}
	for _, redisKey := range s.keys(t) {
		if strings.Count(redisKey, "{") != 1 || strings.Count(redisKey, "}") != 1 || strings.Contains(redisKey, "{}") {
			t.Errorf("the hash tag of %q is not its own", redisKey)
		}
	}
}

// Redis forgets its scripts when it is restarted, or told to.
func scriptsFlushed(t *testing.T, s *server) {
	h, k := s.open(t), key("x")
	refreshed(t, h, k, 0, 1, set("root=1"), in(1, "all"), hot.Written)
	for version := uint64(1); version < 4; version++ {
		if err := s.client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		refreshed(t, h, k, version, version+1, set(fmt.Sprint("root=", version+1)), in(version+1, "all"), hot.Written)
	}
	if err := s.client.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	wasPut(t, h, k, 9, in(9, "all"), "root=9")
	wantDocument(t, h, k, 9, "root=9")
}

func shows(t *testing.T, s *server) {
	h, k := s.open(t), key("x")
	want := func(version uint64, hasDue, want bool) {
		t.Helper()
		if got, err := h.Shows(t.Context(), k, version, hasDue); err != nil || got != want {
			t.Errorf("shows version %d: %v, %v; want %v", version, got, err, want)
		}
	}
	want(1, false, false)
	refreshed(t, h, k, 0, 9, set("root=9"), in(9, "all"), hot.Written)
	want(9, false, true)
	want(8, false, true)
	want(10, false, false)
	want(9, true, false) // its deadline was never written
	row := in(10, "all")
	row.HasDue = true
	refreshed(t, h, k, 9, 10, set("root=10"), row, hot.Written)
	want(10, true, true)
	refreshed(t, h, k, 11, 12, set("root=12"), row, hot.Gap)
	want(12, false, false)
	want(10, false, false)
	// A document without its row is not shown wholly.
	s.flush(t)
	wasPut(t, h, k, 12, in(12, "all"), "root=12")
	for _, redisKey := range s.keys(t) {
		if strings.HasSuffix(redisKey, ":rows") {
			if err := s.client.Del(t.Context(), redisKey).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	want(12, false, false)
}

package conversation

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
)

func TestADocumentThatIsDamagedIsNotDecoded(t *testing.T) {
	s := started(t)
	s.must(s.run(saying(t, ann, "m1")))
	for name, damage := range map[string]func(map[string]string){
		"no root":            func(d map[string]string) { delete(d, "root") },
		"root is not JSON":   func(d map[string]string) { d["root"] = "{" },
		"run cut":            func(d map[string]string) { d["p:0"] = d["p:0"][:1] },
		"run cut in a hash":  func(d map[string]string) { d["p:0"] = d["p:0"][:8] },
		"run too long":       func(d map[string]string) { d["p:0"] = strings.Repeat(d["p:0"], runLength+1) },
		"run without number": func(d map[string]string) { d["p:x"] = d["p:0"] },
		"run of two numbers": func(d map[string]string) { d["p:00"] = d["p:0"] },
		"a field of no kind": func(d map[string]string) { d["x:m1"] = d["p:0"] },
		"a field of no name": func(d map[string]string) { d[""] = "" },
	} {
		t.Run(name, func(t *testing.T) {
			d := maps.Clone(s.document)
			damage(d)
			if c, err := (codec{}).Decode(d); err == nil {
				t.Fatalf("decoded to %+v", c.root)
			}
		})
	}
}

// paged gives a state of messages of these sizes, as far as pages need it.
func paged(sizes []uint32) conversation {
	c := evolve(conversation{}, aggregate.Recorded[*conversationv1.Event]{Sequence: 1, Event: &conversationv1.Event{
		Event: &conversationv1.Event_ConversationCreated{ConversationCreated: &conversationv1.ConversationCreated{Owner: ann}},
	}})
	for i, size := range sizes {
		c.Head++
		c.runs = withPlace(c.runs, c.Head, place{Sequence: uint64(2 + i), Bytes: size})
	}
	return c
}

// turnPages pages through a whole conversation and gives the positions seen.
func turnPages(t rapid.TB, c conversation, l listing) []int64 {
	t.Helper()
	var seen []int64
	for {
		s, err := c.span(l)
		if err != nil {
			t.Fatal(err)
		}
		var positions []int64
		var sizes []uint32
		for p := s.first; p <= s.last; p++ {
			positions = append(positions, p)
		}
		if l.newestFirst {
			slices.Reverse(positions)
		}
		for _, p := range positions {
			at, _ := c.place(p)
			sizes = append(sizes, at.Bytes)
		}
		n := fit(sizes, maxPageBytes)
		if int64(n) > l.size || n == 0 && len(positions) > 0 {
			t.Fatalf("the page of %d from %d has %d of %d", l.size, l.from, n, len(positions))
		}
		bytes := 0
		for _, size := range sizes[:n] {
			bytes += int(size)
		}
		if bytes > maxPageBytes && n > 1 {
			t.Fatalf("a page of %d messages has %d bytes", n, bytes)
		}
		seen = append(seen, positions[:n]...)
		shown := span{s.first, s.first + int64(n) - 1}
		if l.newestFirst {
			shown = span{s.last - int64(n) + 1, s.last}
		}
		if l.from = c.next(shown, l.newestFirst); l.from == 0 {
			return seen
		}
	}
}

func TestPagingShowsEveryPositionOnceBothWays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 3*runLength).Draw(t, "messages")
		sizes := rapid.SliceOfN(rapid.SampledFrom([]uint32{100, 100, 1 << 18, 1 << 19, 3 << 20}), n, n).Draw(t, "sizes")
		size := rapid.Int64Range(1, 150).Draw(t, "page size")
		c := paged(sizes)
		var want []int64
		for p := range c.Head {
			want = append(want, p+1)
		}
		if got := turnPages(t, c, listing{size: size}); !slices.Equal(got, want) {
			t.Fatalf("forward: %v", got)
		}
		slices.Reverse(want)
		if got := turnPages(t, c, listing{size: size, newestFirst: true}); !slices.Equal(got, want) {
			t.Fatalf("backward: %v", got)
		}
	})
}

func TestAPageNeedsNoMoreThanTheFieldsItAsksFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5*runLength).Draw(t, "messages")
		c := paged(slices.Repeat([]uint32{10}, n))
		l := listing{
			from:        int64(rapid.IntRange(1, n).Draw(t, "from")),
			size:        int64(rapid.IntRange(1, 3*runLength).Draw(t, "size")),
			newestFirst: rapid.Bool().Draw(t, "newest first"),
		}
		s, err := c.span(l)
		if err != nil {
			t.Fatal(err)
		}
		fields := map[string]string{aggregate.RootField: encoded(t, c, aggregate.RootField)}
		for _, name := range runFields(s) {
			fields[name] = encoded(t, c, name)
		}
		part, err := codec{}.Decode(fields)
		if err != nil {
			t.Fatal(err)
		}
		for p := s.first; p <= s.last; p++ {
			want, _ := c.place(p)
			if got, ok := part.place(p); !ok || got != want {
				t.Fatalf("place %d of %v: %+v, %v", p, runFields(s), got, ok)
			}
		}
	})
}

func TestACursorOutsideOfWhatExistsIsUnavailable(t *testing.T) {
	for _, newestFirst := range []bool{false, true} {
		for head, from := range map[int][]int64{0: {1, 2}, 3: {4, 1 << 40}} {
			c := paged(slices.Repeat([]uint32{10}, head))
			for _, from := range from {
				_, err := c.span(listing{from: from, newestFirst: newestFirst})
				wantReason(t, err, fault.CursorUnavailable)
			}
		}
	}
}

func TestTheSizeOfAPlaceIsThatOfItsMessage(t *testing.T) {
	s := started(t)
	event := s.must(s.run(saying(t, ann, "m1")))
	if at, _ := s.state.place(1); int(at.Bytes) != proto.Size(event.GetMessagesAppended().GetMessages()[0]) {
		t.Fatalf("place %+v, the event is %v", at, event)
	}
}

// Ids are found whatever order and number they were added in, and a copy that was
// kept finds what it found.
func TestIDsAreFoundInAllThatFollows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hashes := rapid.SliceOfNDistinct(rapid.Uint64(), 0, 200, rapid.ID).Draw(t, "hashes")
		all := []ids{newIDs(nil)}
		for i, h := range hashes {
			all = append(all, all[i].with(idHash(h), int64(i+1)))
		}
		for n, index := range all {
			for i, h := range hashes {
				position, found := index.find(idHash(h))
				if found != (i < n) || found && position != int64(i+1) {
					t.Fatalf("after %d, hash %d is at %d, %v", n, i, position, found)
				}
			}
			if len(index.all()) > 9 {
				t.Fatalf("%d hashes take %d levels", n, len(index.all()))
			}
		}
	})
}

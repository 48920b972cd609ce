package hot_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/meshtest"
)

var draftLimits = hot.DraftLimits{Drafts: 3, Bytes: 20, Kept: time.Minute}

func wrote(t testing.TB, h *hot.Store, id, author string, offset int64, text string) (int64, error) {
	t.Helper()
	return h.AppendDraft(t.Context(), key("x"), 1, hot.Draft{ID: id, Author: author, Text: text}, offset, draftLimits)
}

// wantWritten says that an addition makes the draft so long.
func wantWritten(t testing.TB, h *hot.Store, id string, offset int64, text string, want int64) {
	t.Helper()
	if got, err := wrote(t, h, id, "bob", offset, text); err != nil || got != want {
		t.Fatalf("%q at %d of %s: %d, %v; want %d", text, offset, id, got, err, want)
	}
}

// wantNotWritten says why an addition is refused.
func wantNotWritten(t testing.TB, h *hot.Store, id, author string, offset int64, text string, want fault.Reason) *fault.Error {
	t.Helper()
	_, err := wrote(t, h, id, author, offset, text)
	wantReason(t, err, want)
	return fault.From(err)
}

// wantDrafts lists what is being written, as id=text.
func wantDrafts(t testing.TB, h *hot.Store, want ...string) {
	t.Helper()
	found, err := h.Drafts(t.Context(), key("x"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range found {
		if d.Author != "bob" {
			t.Errorf("%s is by %s", d.ID, d.Author)
		}
		got = append(got, d.ID+"="+d.Text)
	}
	slices.Sort(got)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("the drafts are %q, want %q", got, want)
	}
}

func draftGrows(t *testing.T, s *server) {
	h := s.open(t)
	wantDrafts(t, h)
	wantWritten(t, h, "m1", 0, "gr\u00fc", 4)
	wantWritten(t, h, "m1", 4, "\u00dfe", 7)
	wantWritten(t, h, "m2", 0, "other", 5)
	wantDrafts(t, s.open(t), "m1=gr\u00fc\u00dfe", "m2=other")
	if got, err := h.Drafts(t.Context(), key("y")); err != nil || len(got) != 0 {
		t.Fatalf("another aggregate has %v, %v", got, err)
	}
	for _, name := range s.keys(t) {
		if left, err := s.client.PTTL(t.Context(), name).Result(); err != nil || left <= 0 || left > draftLimits.Kept {
			t.Errorf("%s lasts for %v, %v", name, left, err)
		}
	}
}

func draftRetried(t *testing.T, s *server) {
	h := s.open(t)
	wantWritten(t, h, "m1", 0, "one ", 4)
	wantWritten(t, h, "m1", 0, "one ", 4)
	wantWritten(t, h, "m1", 0, "on", 4)
	wantWritten(t, h, "m1", 4, "two", 7)
	wantWritten(t, h, "m1", 2, "e tw", 7)
	wantWritten(t, h, "m1", 4, "two three", 13)
	wantDrafts(t, h, "m1=one two three")
}

func draftElsewhere(t *testing.T, s *server) {
	h := s.open(t)
	refusal := wantNotWritten(t, h, "m1", "bob", 4, "two", fault.OffsetMismatch)
	if refusal.Metadata("length") != "0" {
		t.Errorf("the length is said to be %s", refusal.Metadata("length"))
	}
	wantWritten(t, h, "m1", 0, "gr\u00fcn", 5)
	refusal = wantNotWritten(t, h, "m1", "bob", 6, "x", fault.OffsetMismatch)
	if refusal.Metadata("length") != "5" {
		t.Errorf("the length is said to be %s", refusal.Metadata("length"))
	}
	// Other text than what is there, and text that begins within a character.
	wantNotWritten(t, h, "m1", "bob", 2, "o", fault.OffsetMismatch)
	wantNotWritten(t, h, "m1", "bob", 4, "mmm", fault.OffsetMismatch)
	wantNotWritten(t, h, "m1", "bob", 3, "\u00fcn", fault.OffsetMismatch)
	wantDrafts(t, h, "m1=gr\u00fcn")
}

func draftAnew(t *testing.T, s *server) {
	h := s.open(t)
	wantWritten(t, h, "m1", 0, "I think", 7)
	wantWritten(t, h, "m1", 0, "No.", 3)
	wantWritten(t, h, "m1", 3, " Never.", 10)
	wantNotWritten(t, h, "m1", "bob", 0, strings.Repeat("x", 21), fault.TooLarge)
	wantDrafts(t, h, "m1=No. Never.")
	wantWritten(t, h, "m1", 0, "No. But then again", 18)
	wantDrafts(t, h, "m1=No. But then again")
}

func draftLimited(t *testing.T, s *server) {
	h := s.open(t)
	for _, id := range []string{"m1", "m2", "m3"} {
		wantWritten(t, h, id, 0, "words", 5)
	}
	wantNotWritten(t, h, "m4", "bob", 0, "words", fault.LimitReached)
	wantWritten(t, h, "m3", 5, strings.Repeat("x", 15), 20)
	wantNotWritten(t, h, "m3", "bob", 20, "x", fault.TooLarge)
	wantNotWritten(t, h, "m3", "ann", 20, "", fault.AlreadyExists)
	wantNotWritten(t, h, "m3", "ann", 0, "mine", fault.AlreadyExists)
	ended(t, h, "m2")
	wantWritten(t, h, "m4", 0, "words", 5)
	wantDrafts(t, h, "m1=words", "m3=words"+strings.Repeat("x", 15), "m4=words")
	wantNotWritten(t, h, "m2", "bob", 0, "words", fault.LimitReached)
	ended(t, h, "m1")
	wantWritten(t, h, "m1", 0, "mine", 4) // its name makes no room for another
	wantNotWritten(t, h, "m2", "bob", 0, "words", fault.LimitReached)
}

// ended ends a draft and waits until it is gone.
func ended(t testing.TB, h *hot.Store, id string) {
	t.Helper()
	h.EndDrafts(t.Context(), key("x"), []string{"absent", id})
	meshtest.Eventually(t, id+" has ended", func() bool {
		found, err := h.Drafts(t.Context(), key("x"))
		return err == nil && !slices.ContainsFunc(found, func(d hot.Draft) bool { return d.ID == id })
	})
}

func draftsDropped(t *testing.T, s *server) {
	h := s.open(t)
	if err := h.DropDrafts(t.Context(), key("x")); err != nil {
		t.Fatal(err)
	}
	wantWritten(t, h, "m1", 0, "words", 5)
	wantWritten(t, h, "m2", 0, "words", 5)
	if err := h.DropDrafts(t.Context(), key("x")); err != nil {
		t.Fatal(err)
	}
	if left := s.keys(t); len(left) != 0 {
		t.Fatalf("left are %q", left)
	}
}

// What Redis shows to be newer than what the writer saw may be an erasure.
func draftBehind(t *testing.T, s *server) {
	h, k := s.open(t), key("x")
	at := func(version uint64) error {
		_, err := h.AppendDraft(t.Context(), k, version, hot.Draft{ID: "m1", Author: "bob", Text: "words"}, 0, draftLimits)
		return err
	}
	wasPut(t, h, k, 9, in(9, "all"), "root=9")
	for version, want := range map[uint64]error{8: hot.ErrMoved, 9: nil, 10: nil} {
		if err := at(version); !errors.Is(err, want) {
			t.Errorf("at version %d: %v, want %v", version, err, want)
		}
	}
	refreshed(t, h, k, 15, 20, set("root=20"), in(20, "all"), hot.Gap)
	for version, want := range map[uint64]error{10: hot.ErrMoved, 20: nil} {
		if err := at(version); !errors.Is(err, want) {
			t.Errorf("at version %d behind a gap: %v, want %v", version, err, want)
		}
	}
}

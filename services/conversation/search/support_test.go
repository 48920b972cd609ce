package search

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/meshtest"
)

// stream is the one that the tests' indexes are of.
const stream = "WEIR_CONVERSATION 2026-01-01"

var quiet = slog.New(slog.DiscardHandler)

func TestMain(m *testing.M) {
	if folder := os.Getenv(childFolder); folder != "" {
		feed(folder)
		return
	}
	os.Exit(m.Run())
}

// open opens an index that the test closes.
func open(t testing.TB, folder string) *Index {
	t.Helper()
	i := mustOpen(t, folder)
	t.Cleanup(func() {
		if err := i.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return i
}

func mustOpen(t rapid.TB, folder string) *Index {
	t.Helper()
	i, err := Open(folder, stream, quiet)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return i
}

// apply writes what fill puts in a batch.
func apply(t rapid.TB, i *Index, sequence uint64, fill func(*Batch)) (removed int) {
	t.Helper()
	var batch Batch
	fill(&batch)
	removed, err := i.Apply(&batch, sequence)
	if err != nil {
		t.Fatalf("Apply(%d): %v", sequence, err)
	}
	return removed
}

// say adds one entry per text to conversation c of tenant t, each by an event of its
// own, in one batch.
func say(t rapid.TB, i *Index, texts ...string) {
	t.Helper()
	first := i.Sequence()
	apply(t, i, first+uint64(len(texts)), func(b *Batch) {
		for n, text := range texts {
			s := first + uint64(n) + 1
			b.Add(Entry{Tenant: "t", Conversation: "c", Position: int64(s), Sequence: s, Text: text})
		}
	})
}

// positions gives where in conversation c of tenant t a query finds something,
// newest first.
func positions(t rapid.TB, i *Index, query string) []int64 {
	t.Helper()
	q, err := ParseQuery(query)
	if err != nil {
		t.Fatalf("ParseQuery(%q): %v", query, err)
	}
	hits, err := i.Search(context.Background(), "t", "c", q, Cursor{}, 1000)
	if err != nil {
		t.Fatalf("Search(%q): %v", query, err)
	}
	var found []int64
	for _, hit := range hits {
		found = append(found, hit.Position)
	}
	return found
}

func wantPositions(t rapid.TB, i *Index, query string, want ...int64) {
	t.Helper()
	if got := positions(t, i, query); !slices.Equal(got, want) {
		t.Errorf("%q is found at %v, want %v", query, got, want)
	}
}

func purge(t rapid.TB, i *Index) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), meshtest.Patience)
	defer cancel()
	if err := i.Purge(ctx); err != nil {
		t.Fatalf("Purge: %v", err)
	}
}

package search

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	zap "github.com/blevesearch/zapx/v17"

	"weir/internal/meshtest"
)

// inFiles says whether any file in the index's folder holds a word, whether the
// index still uses the file or not. A segment keeps words as paths through an
// automaton, in which no search of its bytes finds them, so it is asked for its
// words, field by field. The names of entries are among them, in the field _id.
func inFiles(t *testing.T, i *Index, word string) bool {
	t.Helper()
	var found bool
	// Scorch's merger may be writing a file or removing one.
	meshtest.Eventually(t, "the files stay as they are", func() bool {
		files, err := os.ReadDir(i.files)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			path := filepath.Join(i.files, file.Name())
			body, err := os.ReadFile(path)
			if err != nil {
				return false
			}
			found = bytes.Contains(body, []byte(word))
			if !found && filepath.Ext(path) == ".zap" {
				if whole, err := checksumHolds(path); !whole || err != nil {
					return false
				}
				found = inSegment(t, path, word)
			}
			if found {
				return true
			}
		}
		return true
	})
	return found
}

func inSegment(t *testing.T, path, word string) bool {
	t.Helper()
	opened, err := (&zap.ZapPlugin{}).Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = opened.Close() }()
	for _, field := range opened.Fields() {
		dictionary, err := opened.Dictionary(field)
		if err != nil {
			t.Fatal(err)
		}
		words := dictionary.AutomatonIterator(nil, nil, nil)
		for {
			entry, err := words.Next()
			if err != nil {
				t.Fatal(err)
			}
			if entry == nil {
				break
			}
			if strings.Contains(entry.Term, word) {
				return true
			}
		}
	}
	return false
}

func TestPurgeLeavesNothingInTheFiles(t *testing.T) {
	t.Parallel()
	for name, batches := range map[string]int{"one segment": 1, "several": 7} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := open(t, t.TempDir())
			for n := range batches {
				sequence := uint64(n) + 1
				apply(t, i, sequence, func(b *Batch) {
					for position := range int64(100) {
						b.Add(Entry{"t", "kept", int64(sequence)*1000 + position, sequence, fmt.Sprint("safe word", position)})
						b.Add(Entry{"t", "erased", int64(sequence)*1000 + position, sequence, fmt.Sprint("secretword", position)})
					}
				})
			}
			words := []string{"secretword7", "secretword99", "erased"}
			for _, word := range words {
				if !inFiles(t, i, word) {
					t.Fatalf("%q is not found in the files before it is removed, so this test cannot fail", word)
				}
			}
			apply(t, i, uint64(batches)+1, func(b *Batch) { b.RemoveConversation("t", "erased") })
			if batches == 1 && !inFiles(t, i, "secretword7") {
				t.Fatal("removing alone took the word out of the files, so this test cannot fail")
			}
			purge(t, i)
			for _, word := range words {
				if inFiles(t, i, word) {
					t.Errorf("%q is in the files after the purge", word)
				}
			}
			if !inFiles(t, i, "word7") || !inFiles(t, i, "kept") {
				t.Error("the purge took what was not removed")
			}
		})
	}
}

func TestPurgeOfASingleEntryAndOfOneSaidAnew(t *testing.T) {
	t.Parallel()
	i := open(t, t.TempDir())
	say(t, i, "redactedword", "replacedword", "keptword")
	apply(t, i, 4, func(b *Batch) {
		b.Remove("t", "c", 1)
		b.Add(Entry{"t", "c", 2, 4, "otherword"})
	})
	// Again and again: a purge with nothing to do, and one of the last purge's result.
	for range 2 {
		purge(t, i)
	}
	for word, want := range map[string]bool{"redactedword": false, "replacedword": false, "keptword": true, "otherword": true} {
		if got := inFiles(t, i, word); got != want {
			t.Errorf("%q is in the files: %v, want %v", word, got, want)
		}
	}
	apply(t, i, 5, func(b *Batch) { b.RemoveConversation("t", "c") })
	purge(t, i)
	for _, word := range []string{"keptword", "otherword"} {
		if inFiles(t, i, word) {
			t.Errorf("%q is in the files of an index without entries", word)
		}
	}
}

// A purge whose context ends may have stopped anywhere.
func TestAPurgeCutShortIsDoneByTheNext(t *testing.T) {
	t.Parallel()
	i := open(t, t.TempDir())
	say(t, i, "secretword", "other")
	apply(t, i, 3, func(b *Batch) { b.Remove("t", "c", 1) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		if err := i.Purge(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("Purge: %v", err)
		}
	}
	say(t, i, "still works")
	wantPositions(t, i, "works", 4)
	purge(t, i)
	if inFiles(t, i, "secretword") {
		t.Error("the word is in the files after the purge")
	}
}

func TestAPurgeThatCannotEndEndsWithItsContext(t *testing.T) {
	t.Parallel()
	i := open(t, t.TempDir())
	// Scorch cannot remove a folder that has something in it. It tries at any time, so
	// the folder comes with that.
	made := filepath.Join(i.files, "made")
	if err := os.MkdirAll(filepath.Join(made, "something"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(made, filepath.Join(i.files, "0000000000ff.zap")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := i.Purge(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Purge: %v, want that its time ran out", err)
	}
	say(t, i, "still works")
	wantPositions(t, i, "works", 1)
}

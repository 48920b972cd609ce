package search

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/blevesearch/bleve/v2/index/scorch"

	"weir/internal/fault"
)

func TestQuerySyntaxIsText(t *testing.T) {
	t.Parallel()
	i := open(t, t.TempDir())
	say(t, i, "wildcard", "wild", "text:wild", "field value", "mail an e", "an E-Mail")
	wantPositions(t, i, "wild*", 3, 2)
	wantPositions(t, i, "wilt~")
	wantPositions(t, i, "text:wild", 3)
	wantPositions(t, i, "FIELD:value", 4)
	wantPositions(t, i, "-wild", 3, 2)
	wantPositions(t, i, "e-mail", 6)
	wantPositions(t, i, "e mail", 6, 5)
}

func TestAPhraseOfOneWordAgainAndAgain(t *testing.T) {
	t.Parallel()
	i := open(t, t.TempDir())
	say(t, i, strings.Repeat("a ", MaxText/2), strings.Repeat("a ", 99)+"b "+strings.Repeat("a ", 99))
	wantPositions(t, i, `"`+strings.Repeat("a ", 99)+`"`, 2, 1)
	wantPositions(t, i, `"a b a"`, 2)
	wantPositions(t, i, `"`+strings.Repeat("a ", 98)+`b"`, 2)
}

func TestWordsTooLongForAQueryAreLeftOut(t *testing.T) {
	t.Parallel()
	i := open(t, t.TempDir())
	long := strings.Repeat("x", MaxQuery)
	say(t, i, "before "+long+"x after", "before "+long+" after")
	wantPositions(t, i, "before after", 2, 1)
	wantPositions(t, i, long, 2)
	wantPositions(t, i, `"before after"`)
	if inFiles(t, i, long+"x") {
		t.Error("a word that no query can hold is indexed")
	}
}

func TestWhatIsBeyondTheBoundIsNotSearched(t *testing.T) {
	t.Parallel()
	i := open(t, t.TempDir())
	say(t, i, "first "+strings.Repeat("x ", MaxText/2)+"last")
	wantPositions(t, i, "first", 1)
	wantPositions(t, i, "last")
}

func TestOneProcessAtATime(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	first := mustOpen(t, folder)
	say(t, first, "kept")
	if _, err := Open(folder, stream, quiet); !errors.Is(err, ErrInUse) {
		t.Fatalf("a second Open: %v, want ErrInUse", err)
	}
	if _, err := Open(folder, "another stream", quiet); !errors.Is(err, ErrInUse) {
		t.Fatalf("a second Open for another stream: %v, want ErrInUse", err)
	}
	wantPositions(t, first, "kept", 1)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	wantPositions(t, open(t, folder), "kept", 1)
}

func TestAClosedIndexRefuses(t *testing.T) {
	t.Parallel()
	i := mustOpen(t, t.TempDir())
	for range 2 {
		if err := i.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, applied := i.Apply(&Batch{}, 1)
	_, searched := i.Search(t.Context(), "t", "", Query{}, Cursor{}, 1)
	for _, err := range []error{applied, searched, i.Purge(t.Context())} {
		if !errors.Is(err, errClosed) {
			t.Errorf("a closed index says %v", err)
		}
	}
}

func TestAnIndexOfAnotherStreamIsBegunAnew(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	i := mustOpen(t, folder)
	say(t, i, "old")
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	other, err := Open(folder, stream+" again", quiet)
	if err != nil {
		t.Fatal(err)
	}
	wantNew(t, other)
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
}

// wantNew says that an index knows nothing, and that it works, and closes it.
func wantNew(t *testing.T, i *Index) {
	t.Helper()
	if i.Sequence() != 0 {
		t.Errorf("the sequence is %d, want 0", i.Sequence())
	}
	wantPositions(t, i, "old")
	say(t, i, "new")
	wantPositions(t, i, "new", 1)
}

func TestADamagedIndexIsBegunAnew(t *testing.T) {
	t.Parallel()
	flip := func(t *testing.T, path string, from, to int64) {
		t.Helper()
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		piece := make([]byte, to-from)
		_, err = file.ReadAt(piece, from)
		for n := range piece {
			piece[n] ^= 0xff
		}
		_, err2 := file.WriteAt(piece, from)
		if err := errors.Join(err, err2, file.Close()); err != nil {
			t.Fatal(err)
		}
	}
	size := func(t *testing.T, path string) int64 {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	for name, damage := range map[string]func(t *testing.T, root, segment string){
		"one byte of a segment": func(t *testing.T, _, segment string) {
			middle := size(t, segment) / 2
			flip(t, segment, middle, middle+1)
		},
		"all of a segment":  func(t *testing.T, _, segment string) { flip(t, segment, 0, size(t, segment)) },
		"a segment cut":     func(t *testing.T, _, segment string) { truncate(t, segment, size(t, segment)/2) },
		"a segment emptied": func(t *testing.T, _, segment string) { truncate(t, segment, 0) },
		"a segment gone":    func(t *testing.T, _, segment string) { remove(t, segment) },
		"the root gone":     func(t *testing.T, root, _ string) { remove(t, root) },
		"the root emptied":  func(t *testing.T, root, _ string) { truncate(t, root, 0) },
		"the root cut":      func(t *testing.T, root, _ string) { truncate(t, root, 2*int64(os.Getpagesize())) },
		"all of the root":   func(t *testing.T, root, _ string) { flip(t, root, 0, size(t, root)) },
		"the root but its head": func(t *testing.T, root, _ string) {
			flip(t, root, 2*int64(os.Getpagesize()), size(t, root))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			i := mustOpen(t, folder)
			say(t, i, "old "+strings.Repeat("words ", 100))
			if err := i.Close(); err != nil {
				t.Fatal(err)
			}
			segments, err := filepath.Glob(filepath.Join(i.files, "*.zap"))
			if err != nil || len(segments) != 1 {
				t.Fatalf("segments %q, %v; want one", segments, err)
			}
			damage(t, filepath.Join(i.files, "root.bolt"), segments[0])
			wantNew(t, open(t, folder))
		})
	}
}

func truncate(t *testing.T, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

// overwrite damages the head of a file in its place, where it is mapped.
func overwrite(t *testing.T, path string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteAt(bytes.Repeat([]byte{0xff}, int(info.Size()/10)), 0)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func TestALeftoverSegmentHarmsNothing(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	i := mustOpen(t, folder)
	say(t, i, "kept")
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	torn := filepath.Join(i.files, "0000000000ff.zap")
	if err := os.WriteFile(torn, []byte("half of a segment"), 0o600); err != nil {
		t.Fatal(err)
	}
	i = open(t, folder)
	wantPositions(t, i, "kept", 1)
	if _, err := os.Stat(torn); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a torn segment is still there: %v", err)
	}
}

func TestABrokenIndexRefusesAndIsBegunAnew(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(t *testing.T, i *Index) error{
		"scorch says so": func(_ *testing.T, i *Index) error {
			failed := scorch.RegistryAsyncErrorCallbacks[callback]
			failed(scorch.NewScorchError("persister", "no room", scorch.ErrPersist), i.files)
			_, err := i.Apply(&Batch{}, i.Sequence()+1)
			return err
		},
		"its folder is gone": func(t *testing.T, i *Index) error {
			if err := os.RemoveAll(i.files); err != nil {
				t.Fatal(err)
			}
			var batch Batch
			batch.Add(Entry{Tenant: "t", Conversation: "c", Position: 4, Sequence: i.Sequence() + 1, Text: "new"})
			_, err := i.Apply(&batch, i.Sequence()+1)
			return err
		},
		// Scorch's merger panics, and is gone; who waits for it would wait forever.
		"a segment changes under it": func(t *testing.T, i *Index) error {
			segments, err := filepath.Glob(filepath.Join(i.files, "*.zap"))
			if err != nil {
				t.Fatal(err)
			}
			apply(t, i, i.Sequence()+1, func(b *Batch) { b.Remove("t", "c", 1) })
			for _, segment := range segments {
				overwrite(t, segment)
			}
			return i.Purge(t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			i := mustOpen(t, folder)
			say(t, i, "old word", "old thing with more", "third of them")
			err := harm(t, i)
			<-i.Broken()
			_, applied := i.Apply(&Batch{}, i.Sequence()+1)
			_, searched := i.Search(t.Context(), "t", "", Query{}, Cursor{}, 1)
			for _, err := range []error{err, applied, searched, i.Purge(t.Context())} {
				if fault.From(err).Reason() != fault.IndexRebuilding {
					t.Errorf("a broken index says %v, want INDEX_REBUILDING", err)
				}
			}
			if err := i.Close(); err != nil {
				t.Fatal(err)
			}
			wantNew(t, open(t, folder))
		})
	}
}

func TestWhatDoesNotBreakAnIndex(t *testing.T) {
	t.Parallel()
	i := open(t, t.TempDir())
	say(t, i, "word")
	failed := scorch.RegistryAsyncErrorCallbacks[callback]
	failed(scorch.NewScorchError("persister", "an old file stays", scorch.ErrCleanup), i.files)
	failed(scorch.NewScorchError("persister", "no room", scorch.ErrPersist), "the folder of another")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	q, err := ParseQuery("word")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.Search(ctx, "t", "c", q, Cursor{}, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("Search for who went away: %v, want that", err)
	}
	say(t, i, "another word")
	wantPositions(t, i, "word", 2, 1)
}

func TestRemovingALargeConversation(t *testing.T) {
	t.Parallel()
	i := open(t, t.TempDir())
	const entries = 2*piece + 5
	apply(t, i, 1, func(b *Batch) {
		for position := range int64(entries) {
			b.Add(Entry{"t", "large", position + 1, 1, "word"})
		}
		b.Add(Entry{"t", "c", 1, 1, "word"})
		b.Add(Entry{"T", "large", 1, 1, "word"})
	})
	removed := apply(t, i, 2, func(b *Batch) {
		b.RemoveConversation("t", "large")
		b.Add(Entry{"t", "large", 7, 2, "word"})
	})
	if removed != entries {
		t.Errorf("removed %d, want %d", removed, entries)
	}
	q, err := ParseQuery("word")
	if err != nil {
		t.Fatal(err)
	}
	for tenant, want := range map[string][]Hit{"t": {{"large", 7, 2}, {"c", 1, 1}}, "T": {{"large", 1, 1}}} {
		got, err := i.Search(t.Context(), tenant, "", q, Cursor{}, 10)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("tenant %s has %v, %v; want %v", tenant, got, err, want)
		}
	}
}

// TestPagingBesideEverythingElse goes through pages while others apply and purge. A
// page is of one moment, and what is new comes before it, so all that was there when
// paging began is seen once.
func TestPagingBesideEverythingElse(t *testing.T) {
	t.Parallel()
	i := open(t, t.TempDir())
	texts := slices.Repeat([]string{"word"}, 20)
	say(t, i, texts...)
	q, err := ParseQuery("word")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var paging sync.WaitGroup
	for range 3 {
		paging.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				there, seen := int64(i.Sequence()), int64(0)
				for after := (Cursor{}); ; {
					hits, err := i.Search(t.Context(), "t", "", q, after, 7)
					if err != nil {
						t.Errorf("Search: %v", err)
						return
					}
					if len(hits) == 0 {
						break
					}
					for _, hit := range hits {
						if seen != 0 && hit.Position != seen-1 || seen == 0 && hit.Position < there {
							t.Errorf("%d follows %d, where there were %d", hit.Position, seen, there)
							return
						}
						seen = hit.Position
					}
					after = hits[len(hits)-1].Cursor()
				}
				if seen != 1 {
					t.Errorf("the last one is %d, want 1", seen)
					return
				}
			}
		})
	}
	for n := range 12 {
		say(t, i, texts...)
		// Said anew, at the same place: there is something to purge.
		apply(t, i, i.Sequence()+1, func(b *Batch) {
			b.Add(Entry{"t", "c", int64(i.Sequence()) + 1, i.Sequence() + 1, "word"})
			b.Add(Entry{"t", "c", 3, 3, "word"})
			b.Remove("t", "other", 1)
		})
		if n%4 == 3 {
			purge(t, i)
		}
	}
	close(done)
	paging.Wait()
}

func TestCloseBesideEverythingElse(t *testing.T) {
	t.Parallel()
	i := mustOpen(t, t.TempDir())
	say(t, i, "word")
	q, err := ParseQuery("word")
	if err != nil {
		t.Fatal(err)
	}
	searches := make(chan struct{}, 100)
	var calling sync.WaitGroup
	for _, call := range []func() error{
		func() error {
			hits, err := i.Search(t.Context(), "t", "c", q, Cursor{}, 1)
			if err == nil && len(hits) != 1 {
				t.Errorf("found %v", hits)
			}
			select {
			case searches <- struct{}{}:
			default:
			}
			return err
		},
		func() error { _, err := i.Apply(&Batch{}, i.Sequence()+1); return err },
		func() error { return i.Purge(t.Context()) },
	} {
		calling.Go(func() {
			var err error
			for err == nil {
				err = call()
			}
			if !errors.Is(err, errClosed) {
				t.Errorf("it ends with %v", err)
			}
		})
	}
	for range cap(searches) {
		<-searches
	}
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	calling.Wait()
}

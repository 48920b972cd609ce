package search

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	if _, err := Open(folder, stream); !errors.Is(err, ErrInUse) {
		t.Fatalf("a second Open: %v, want ErrInUse", err)
	}
	if _, err := Open(folder, "another stream"); !errors.Is(err, ErrInUse) {
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
	other, err := Open(folder, stream+" again")
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
		"its folder is gone": func(t *testing.T, i *Index) error {
			if err := os.RemoveAll(i.files); err != nil {
				t.Fatal(err)
			}
			var batch Batch
			batch.Add(Entry{Tenant: "t", Conversation: "c", Position: 3, Sequence: i.Sequence() + 1, Text: "new"})
			_, err := i.Apply(&batch, i.Sequence()+1)
			return err
		},
		// Scorch's merger panics on it and is gone, and who waits for a merge with it.
		"a segment changes under it": func(t *testing.T, i *Index) error {
			segments, err := filepath.Glob(filepath.Join(i.files, "*.zap"))
			if err != nil {
				t.Fatal(err)
			}
			apply(t, i, i.Sequence()+1, func(b *Batch) { b.Remove("t", "c", 1) })
			for _, segment := range segments {
				body, err := os.ReadFile(segment)
				if err != nil {
					t.Fatal(err)
				}
				file, err := os.OpenFile(segment, os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				_, err = file.WriteAt([]byte(strings.Repeat("\xff", len(body)*3/4)), 0)
				if err := errors.Join(err, file.Close()); err != nil {
					t.Fatal(err)
				}
			}
			return i.Purge(t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			i := mustOpen(t, folder)
			say(t, i, "old", "old")
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

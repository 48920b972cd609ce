// Package watched reads files that operators replace while weir runs: keys, lists,
// certificates, tokens.
package watched

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// File is the parsed content of a file, read again when it changed. It looks at most
// once a second, and only on use, so nothing runs in the background.
//
// A content that was good stays in force until another good one replaces it: a
// half-written or deleted file must neither lock everybody out nor, for a list of the
// disabled, let anybody in.
type File[T any] struct {
	path  string
	parse func([]byte) (T, error)
	now   func() time.Time
	log   *slog.Logger

	nextLook atomic.Int64 // Unix nanoseconds
	current  atomic.Pointer[Content[T]]

	mu       sync.Mutex // held by the one goroutine that looks
	taken    stamp      // of the content in force
	lastFail string
}

// Content is what a file held at some time. It is never changed.
type Content[T any] struct {
	Value T
	Epoch uint64 // counts the contents so far, so that what was derived from an older one can be dropped
}

type stamp struct{ modified, size int64 }

const lookEvery = time.Second

// Open reads the file for the first time. Unlike later ones, that must succeed.
func Open[T any](path string, log *slog.Logger, now func() time.Time, parse func([]byte) (T, error)) (*File[T], error) {
	f := &File[T]{path: path, parse: parse, now: now, log: log}
	f.nextLook.Store(now().Add(lookEvery).UnixNano())
	return f, f.read()
}

// Get is the content in force. One caller a second pays for looking; the others
// meanwhile get what is there.
func (f *File[T]) Get() *Content[T] {
	now := f.now()
	if now.UnixNano() >= f.nextLook.Load() && f.mu.TryLock() {
		defer f.mu.Unlock()
		f.nextLook.Store(now.Add(lookEvery).UnixNano())
		f.look()
	}
	return f.current.Load()
}

func (f *File[T]) look() {
	fail := ""
	if err := f.read(); err != nil {
		fail = err.Error()
	}
	// Once for each failure, not once a second for as long as it lasts.
	if fail != "" && fail != f.lastFail {
		f.log.Error("keeping the old content of a file that can't be read anew", "file", f.path, "error", fail)
	}
	f.lastFail = fail
}

func (f *File[T]) read() error {
	// Stat before reading: a write in between changes the stamp again, and the next
	// look sees it. The stamp is taken only with a good content, so that a bad one is
	// tried again: what was missing may be another file that parse needs.
	info, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	found := stamp{info.ModTime().UnixNano(), info.Size()}
	if found == f.taken {
		return nil
	}
	data, err := os.ReadFile(f.path)
	if err != nil {
		return err
	}
	value, err := f.parse(data)
	if err != nil {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	epoch := uint64(1)
	if old := f.current.Load(); old != nil {
		epoch = old.Epoch + 1
	}
	f.current.Store(&Content[T]{value, epoch})
	f.taken = found
	return nil
}

// Package search is the index behind SearchMessages: words and phrases over the
// text of messages, newest first.
//
// An index is hot state. Each replica has its own, in a folder; a tail of the
// journal feeds it, and how far it got is kept in the index itself, so that entries
// and place never disagree. Whatever is wrong with the files, they are removed and
// the index is fed again from the journal's beginning.
//
// It is built on scorch, the index of bleve, without the layer that bleve has
// above it: no mapping, no query language, no scores. Text is indexed and not
// stored. The files hold the words of a message and where in it they stand, which
// is as good as its text, so erasing content means to Remove it and to Purge.
package search

import (
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/blevesearch/bleve/v2/index/scorch"
	bleve "github.com/blevesearch/bleve_index_api"

	"weir/internal/fault"
)

// Index is one index, open. All of its methods may be called at the same time.
type Index struct {
	files    string // scorch's folder
	log      *slog.Logger
	lock     *os.File
	scorch   *scorch.Scorch
	analysis *bleve.AnalysisQueue

	// sequence is what the index shows durably. It only grows.
	sequence atomic.Uint64

	// writing is held by whoever changes the index: one at a time.
	writing sync.Mutex

	// using is held for reading by every call, so that Close waits for them.
	using  sync.RWMutex
	closed bool

	failure sync.Once
	broken  chan struct{}
	cause   error // set before broken is closed
}

var errClosed = errors.New("search: the index is closed")

// Sequence is up to where the journal shows in the index: the tail goes on behind
// it.
func (i *Index) Sequence() uint64 { return i.sequence.Load() }

// Broken is closed when the index cannot go on: its files cannot be written or
// read, or a goroutine of scorch failed. Everything is refused then with
// INDEX_REBUILDING, and scorch may go on trying in vain until the owner closes the
// index. Open begins with an empty one then.
func (i *Index) Broken() <-chan struct{} { return i.broken }

// Close waits for the calls under way, of which Purge may be a long one unless its
// context ends, and lets go of the folder. The files of a broken index are removed.
func (i *Index) Close() error {
	i.using.Lock()
	defer i.using.Unlock()
	if i.closed {
		return nil
	}
	i.closed = true
	err := i.stop()
	select {
	case <-i.broken:
		// What closing a broken index had to say is of no use.
		err = os.RemoveAll(i.files)
	default:
	}
	return errors.Join(err, i.lock.Close())
}

// use begins a call. It must be ended by i.using.RUnlock unless it is refused.
func (i *Index) use() error {
	i.using.RLock()
	err := i.usable()
	if err != nil {
		i.using.RUnlock()
	}
	return err
}

func (i *Index) usable() error {
	if i.closed {
		return errClosed
	}
	select {
	case <-i.broken:
		return i.refusal()
	default:
		return nil
	}
}

// refusal is for after broken is closed.
func (i *Index) refusal() error {
	return fault.New(fault.IndexRebuilding, "the search index is being rebuilt").Wrap(i.cause)
}

// fail breaks the index and gives what the caller is told.
func (i *Index) fail(err error) error {
	i.breakBy(err)
	return i.refusal()
}

func (i *Index) breakBy(err error) {
	i.failure.Do(func() {
		i.log.Error("the search index is broken", "error", err)
		i.cause = err
		close(i.broken)
	})
}

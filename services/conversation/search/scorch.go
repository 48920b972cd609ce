package search

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"

	"github.com/blevesearch/bleve/v2/index/scorch"
	bleve "github.com/blevesearch/bleve_index_api"
)

// start opens scorch in a folder. Reading what is damaged may panic, or fault in
// mapped memory, so both are taken as errors.
func start(files string, log *slog.Logger) (*Index, error) {
	i := &Index{files: files, log: log, analysis: bleve.NewAnalysisQueue(analyzers), broken: make(chan struct{})}
	config := map[string]any{
		"path":                   files,
		"asyncErrorCallbackName": callback,
		// The folder's lock is held, so nobody has this one, and there is no waiting.
		"bolt_timeout": "1s",
	}
	index, err := scorch.NewScorch(scorch.Name, config, i.analysis)
	if err == nil {
		i.scorch = index.(*scorch.Scorch)
		running.Store(files, i)
		err = recovering(i.scorch.Open)
	}
	if err != nil {
		running.Delete(files)
		i.analysis.Close()
		return nil, err
	}
	return i, nil
}

// analyzers is how many goroutines take the text of a batch apart.
const analyzers = 2

// stop ends what start began.
func (i *Index) stop() error {
	running.Delete(i.files)
	err := i.scorch.Close()
	i.analysis.Close()
	return err
}

// write applies a batch, all or nothing, and returns when it is on disk. An error
// is the end of the index.
func (i *Index) write(batch *bleve.Batch) error {
	return i.await(func() error { return i.scorch.Batch(batch) })
}

// await runs what waits for scorch's own goroutines. If one of these panics, then
// it is gone, and who waits for it waits forever; so the wait ends when the index
// breaks.
func (i *Index) await(do func() error) error {
	done := make(chan error, 1)
	go func() { done <- recovering(do) }()
	select {
	case err := <-done:
		return err
	case <-i.broken:
		return i.cause
	}
}

// recovering makes an error of a panic, and of a fault in mapped memory.
func recovering(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("scorch panicked: %v", p)
		}
	}()
	return do()
}

// callback is the name by which scorch finds whom to tell when its own goroutines
// fail: they would try the same again without end, or are gone. It tells only the
// folder.
const callback = "weir/search"

// running holds the open indexes by scorch's folder.
var running sync.Map

func init() {
	scorch.RegistryAsyncErrorCallbacks[callback] = func(err error, files string) {
		// Old files that cannot be removed now are removed later.
		if errors.Is(err, scorch.ErrCleanup) {
			return
		}
		if i, ok := running.Load(files); ok {
			i.(*Index).breakBy(err)
		}
	}
}

package search

import (
	"context"
	"encoding/binary"
	"path/filepath"
	"time"

	"github.com/blevesearch/bleve/v2/document"
	"github.com/blevesearch/bleve/v2/index/scorch"
	"github.com/blevesearch/bleve/v2/index/scorch/mergeplan"
	bleve "github.com/blevesearch/bleve_index_api"
	segment "github.com/blevesearch/scorch_segment_api/v2"
)

// Purge returns when no file in the index's folder holds anything of entries that
// Apply removed or replaced before. Removing alone marks entries in segments, which
// stay as they are until scorch merges them for its own reasons. Purge writes each
// segment that has such entries anew without them, and waits until the old files are
// gone. It takes the time and room of these segments, up to that of the index once
// more; Apply waits meanwhile.
//
// Files are unlinked. What the disk keeps of them is not the index's to say.
//
// What is left when the context ends, or the process, the next Purge does, so one is
// due after Open.
func (i *Index) Purge(ctx context.Context) error {
	if err := i.use(); err != nil {
		return err
	}
	defer i.using.RUnlock()
	i.writing.Lock()
	defer i.writing.Unlock()
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		left, err := i.leftovers()
		if err != nil {
			return i.fail(err)
		}
		if left.segments == 0 && left.files == 0 {
			return nil
		}
		if err := i.purge(ctx, left); err != nil {
			return i.fail(err)
		}
		select {
		case <-time.After(wait):
		case <-i.broken:
			return i.refusal()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leftovers is what may still hold removed entries.
type leftovers struct {
	segments int // of the index, that have removed entries
	others   int // of the index, that have none
	files    int // that are of no segment
}

func (i *Index) leftovers() (leftovers, error) {
	reader, err := i.scorch.Reader()
	if err != nil {
		return leftovers{}, err
	}
	defer func() { _ = reader.Close() }()
	var left leftovers
	used := make(map[string]bool)
	for _, s := range reader.(*scorch.IndexSnapshot).Segments() {
		onDisk, ok := s.Segment().(segment.PersistedSegment)
		if ok {
			used[filepath.Base(onDisk.Path())] = true
		}
		if s.LiveSize() < s.FullSize() {
			left.segments++
		} else {
			left.others++
		}
	}
	files, err := segmentFiles(i.files)
	for _, file := range files {
		if !used[file] {
			left.files++
		}
	}
	return left, err
}

// expunge plans a merge of each segment that has removed entries with itself, and
// leaves the others alone.
var expunge = mergeplan.MergePlanOptions{
	MaxSegmentSize:       mergeplan.MaxSegmentSizeLimit,
	SegmentsPerMergeTask: 1,
	CalcBudget:           func(int64, int64, *mergeplan.MergePlanOptions) int { return 0 },
}

// purge takes the next step. Each write makes scorch put down what its segments are
// now and remove the files that are of none.
func (i *Index) purge(ctx context.Context, left leftovers) error {
	batch := bleve.NewBatch()
	batch.SetInternal(sequenceKey, binary.BigEndian.AppendUint64(nil, i.sequence.Load()))
	if left.segments == 1 && left.others == 0 {
		// Scorch never plans anything for a single segment, so there is another one.
		batch.Update(document.NewDocument(companion))
	}
	if err := i.write(batch); err != nil {
		return err
	}
	if left.segments == 0 {
		return nil
	}
	return i.await(func() error { return i.scorch.ForceMerge(ctx, &expunge) })
}

// companion is the name of an entry of nothing, of no tenant.
const companion = "companion"

package window

import (
	"context"
	"fmt"

	conversationv1 "weir/gen/conversation/v1"
)

const (
	// firstBatch is small, as many windows are. Batches double up to maxBatch, so
	// that no more is read in vain than was of use.
	firstBatch = 16
	maxBatch   = 512
)

// reader gives messages one by one, going backwards, and reads them in batches.
type reader struct {
	source Source
	batch  int64
	// held are the messages of the last batch, by position.
	held []*conversationv1.Message
}

// at gives the message at a position. If it has to read, it reads nothing below
// floor.
func (r *reader) at(ctx context.Context, position, floor int64) (*conversationv1.Message, error) {
	if len(r.held) > 0 {
		if i := position - r.held[0].GetPosition(); i >= 0 && i < int64(len(r.held)) {
			return r.held[i], nil
		}
	}
	first := max(floor, position-r.batch+1)
	r.batch = min(2*r.batch, maxBatch)
	got, err := r.source(ctx, first, position)
	if err != nil {
		return nil, err
	}
	if n := int64(len(got)); n == 0 || n > position-first+1 {
		return nil, fmt.Errorf("asked for messages %d to %d, got %d of them", first, position, n)
	}
	for i, m := range got {
		if want := position - int64(len(got)-1-i); m.GetPosition() != want {
			return nil, fmt.Errorf("asked for messages %d to %d, got %d where %d belongs", first, position, m.GetPosition(), want)
		}
	}
	r.held = got
	return got[len(got)-1], nil
}

// Package window chooses what of a conversation a model needs to go on: pinned
// messages, then the newest ones that fit a budget. It reads only by the Source
// it is given, and the same messages and request give the same window.
//
// # What a window is
//
// In front stand the pinned messages at or below Head, by position, wherever in
// the conversation they were said. Behind them stands a run: everything from
// Start to Head, by position. What stands in front is not repeated in the run.
// The run is the longest that keeps these rules and fits the budget.
//
// Summaries. The walk goes from Head backwards. At a position that summaries
// stand for, it takes the newest of them, that is the one said last, and goes on
// below the first position of its range; so of ranges that nest, the one that is
// met first from above stands for what it covers, and of ranges that overlap, the
// next one stands for the rest. A summary stands where its range was, and then
// not at its own position; where the window does not reach back to its range, or
// another summary stands for the whole of it, it stands at its own position. It
// is counted once. Ranges are taken whole: no window begins inside of one.
//
// Calls. A result belongs to the nearest call of its id before it; invocation
// ids and call ids are two name spaces. A run never begins between a call and a
// result of it. What is between them counts, so where the call is too far back
// for the budget, the run begins behind the result. A call that has no result up
// to Head is open, and may be there.
//
// Erased messages keep their places and count what a message without parts
// counts. One of them may have held a result or a call, and nobody can tell. So a
// result whose call is not in the run is let in where an erased message is in the
// run before it, or where the run begins at position 1. Such a result, a second
// result of a call behind an erased message, and a call without a result before
// an erased message are left out of their message: the one thing that a window
// changes in what was said. The message still has its place. It is counted as it
// was said when the window is chosen, and as it is shown in Used.
//
// What can't be used as what it is, is an ordinary message at its own position:
// a pinned message or a summary that was erased, or that holds calls or results;
// these have their order among the others. The range of such a summary is there
// message by message.
//
// That no call in a range has a result outside of it, or the other way round, is
// checked when a summary is appended: here it can't be seen without reading the
// range. If it were not so, a result whose call the range hides would still be in
// no window, by the rules above; a call whose result it hides would look open.
package window

import (
	"context"
	"fmt"

	conversationv1 "weir/gen/conversation/v1"
)

const (
	// MaxMessages bounds a window, with what stands in front.
	MaxMessages = 10_000
	// MaxBudget is the largest budget that a request can have. What is needed is
	// not searched any further.
	MaxBudget = 2 << 20
)

// Request says which window of a conversation to choose.
type Request struct {
	// Head is the last position that is looked at; 0 gives an empty window.
	Head     int64
	Budget   int64
	Estimate Estimate
	// Pinned are the positions of pinned messages, each once and in any order.
	// Those past Head are not looked at.
	Pinned []int64
	// Summaries are all of the conversation, in any order. Those past Head are
	// not looked at.
	Summaries []Summary
}

// Summary says that the message at Position stands for those from First to
// Last, which were said before it.
type Summary struct{ Position, First, Last int64 }

// Source gives the messages from first to last, by position. Where these are too
// much to hold at once, it gives the newest of them, at least one.
type Source func(ctx context.Context, first, last int64) ([]*conversationv1.Message, error)

// Window is what was chosen.
type Window struct {
	// Messages are those in front, then the run.
	Messages []*conversationv1.Message
	// Start is the position from which on everything is there, by itself, by a
	// summary, or in front; Head + 1 where all that is there is in front.
	Start int64
	// Used is the sum of the estimates of Messages.
	Used int64
}

// TooSmallError says that what stands in front and the shortest run do not fit.
type TooSmallError struct {
	// Needed is what they take.
	Needed int64
	// Beyond is set where they are more than any window may hold, whatever its
	// budget. Needed is then what was counted until that was clear.
	Beyond bool
}

func (e *TooSmallError) Error() string {
	if e.Beyond {
		return fmt.Sprintf("the pinned messages and the newest ones need more than a window may hold: %d and more", e.Needed)
	}
	return fmt.Sprintf("the pinned messages and the newest ones need %d", e.Needed)
}

// Build chooses the window. It reads the pinned messages, each summary that it
// uses and, in batches, the run: besides these at most as many messages as it
// has walked over, and 16. Past the budget it walks only to find what is needed,
// and no further than any window may go. It fails with what Source fails with, with a
// TooSmallError, or where Source does not give what it was asked for.
func Build(ctx context.Context, r Request, source Source) (Window, error) {
	w, err := begin(ctx, r, source)
	if err != nil {
		return Window{}, err
	}
	// All that is walked over fits as long as it is no more than the budget; once
	// it is, it stays so. Then the last edge that was whole is the beginning, and
	// if there was none yet, the next one tells what is needed.
	var best *edge
	for w.at >= 1 {
		if err := w.step(ctx); err != nil {
			return Window{}, err
		}
		over := w.used > r.Budget || w.count > MaxMessages
		if over && best != nil {
			break
		}
		if beyond := w.used > max(MaxBudget, r.Budget) || w.count > MaxMessages; over && (beyond || w.whole()) {
			return Window{}, &TooSmallError{Needed: w.used, Beyond: beyond}
		}
		if w.whole() {
			best = &edge{taken: len(w.taken), start: w.at + 1}
		}
	}
	if best == nil {
		return Window{Start: r.Head + 1}, nil
	}
	return w.window(*best), nil
}

package window

import (
	"context"
	"slices"

	conversationv1 "weir/gen/conversation/v1"
)

// walk goes through a conversation from its head backwards. It keeps what a run
// that began where the walk is would hold, and what that would take.
type walk struct {
	estimate  Estimate
	back      reader
	aside     reader
	summaries summaries
	// front are the pinned messages that stand in front, by position.
	front []*conversationv1.Message
	// own has an entry for each summary, nil until the walk meets it at its own
	// position.
	own map[int64]*conversationv1.Message

	head int64
	// at is the next position to look at: all above is walked over.
	at    int64
	taken []taken
	unmet unmet
	// used and count are of what stands in front and of what was taken, each
	// message once.
	used  int64
	count int
}

// taken is one message of the run. A summary that was met at its own position
// and then at its range is taken twice, and stands at its range.
type taken struct {
	message *conversationv1.Message
	stands  bool
}

// edge is where a run can begin.
type edge struct {
	taken int
	start int64
}

func begin(ctx context.Context, r Request, source Source) (*walk, error) {
	w := &walk{
		estimate:  r.Estimate,
		back:      reader{source: source, batch: firstBatch},
		aside:     reader{source: source, batch: firstBatch},
		summaries: newSummaries(r.Summaries, r.Head),
		own:       map[int64]*conversationv1.Message{},
		head:      r.Head,
		at:        r.Head,
		unmet:     unmet{},
	}
	for _, s := range w.summaries.ahead {
		w.own[s.Position] = nil
	}
	pinned := slices.DeleteFunc(slices.Clone(r.Pinned), func(p int64) bool { return p > r.Head })
	slices.Sort(pinned)
	for i, p := range slices.Backward(pinned) {
		floor := p
		for i > 0 && pinned[i-1] == floor-1 {
			floor, i = floor-1, i-1
		}
		m, err := w.aside.at(ctx, p, floor)
		if err != nil {
			return nil, err
		}
		if !erased(m) && !holdsHalves(m) {
			w.front = append(w.front, m)
			w.charge(m)
		}
	}
	slices.Reverse(w.front)
	return w, nil
}

func (w *walk) charge(m *conversationv1.Message) {
	w.used += w.estimate(m)
	w.count++
}

// inFront gives the message at a position if it stands in front, else nil.
func (w *walk) inFront(position int64) *conversationv1.Message {
	i, ok := slices.BinarySearchFunc(w.front, position, func(m *conversationv1.Message, p int64) int {
		return int(m.GetPosition() - p)
	})
	if !ok {
		return nil
	}
	return w.front[i]
}

// step goes over one position, or over a range that a summary stands for.
func (w *walk) step(ctx context.Context) error {
	for {
		s, ok := w.summaries.at(w.at)
		if !ok {
			return w.message(ctx)
		}
		used, err := w.summary(ctx, s)
		if used || err != nil {
			return err
		}
		w.summaries.drop(s)
	}
}

func (w *walk) message(ctx context.Context) error {
	defer func() { w.at-- }()
	if w.inFront(w.at) != nil {
		return nil
	}
	m, err := w.back.at(ctx, w.at, w.summaries.floor())
	if err != nil {
		return err
	}
	w.unmet.meet(m)
	if _, summary := w.own[w.at]; summary {
		w.own[w.at] = m
	}
	w.taken = append(w.taken, taken{message: m})
	w.charge(m)
	return nil
}

// summary goes over the range of a summary, unless the message can't stand for it.
func (w *walk) summary(ctx context.Context, s Summary) (used bool, err error) {
	if w.inFront(s.Position) != nil {
		w.at = s.First - 1
		return true, nil
	}
	m := w.own[s.Position]
	met := m != nil
	if !met {
		if m, err = w.aside.at(ctx, s.Position, s.Position); err != nil {
			return false, err
		}
	}
	if erased(m) || holdsHalves(m) {
		return false, nil
	}
	if !met {
		w.charge(m)
	}
	w.taken = append(w.taken, taken{message: m, stands: true})
	w.at = s.First - 1
	return true, nil
}

// whole says whether a run can begin where the walk is. At the beginning it can:
// a call that was not met by then is nowhere.
func (w *walk) whole() bool { return len(w.unmet) == 0 || w.at < 1 }

// window is what the walk gives when the run begins at an edge of it.
func (w *walk) window(e edge) Window {
	took := w.taken[:e.taken]
	moved := map[int64]bool{}
	for _, t := range took {
		if t.stands {
			moved[t.message.GetPosition()] = true
		}
	}
	var run []taken
	for _, t := range slices.Backward(took) {
		if t.stands || !moved[t.message.GetPosition()] {
			run = append(run, t)
		}
	}
	chosen := Window{Messages: append(w.front, withoutSingles(run)...), Start: e.start}
	if len(run) == 0 {
		chosen.Start = w.head + 1
	}
	for _, m := range chosen.Messages {
		chosen.Used += w.estimate(m)
	}
	return chosen
}

package window_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	conversationv1 "weir/gen/conversation/v1"
	"weir/services/conversation/window"
)

// The window is the best of all that there are, found by trying every start.
func TestNoOtherStartIsBetter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := generate(t, options{reuse: true, erase: true})
		before := cloned(g.messages)
		r := g.draw(t)
		s := &source{messages: g.messages, most: rapid.Int64Range(0, 4).Draw(t, "most")}
		w, err := window.Build(t.Context(), r, s.read)
		got := shown(g.conversation, w, err)
		if want := best(g.conversation, r); got != want {
			t.Fatalf("budget %d head %d of\n%s\ngot  %swant %s", r.Budget, r.Head, g, got, want)
		}
		for i, m := range g.messages {
			if !proto.Equal(m, before[i]) {
				t.Fatalf("message %d was changed", m.GetPosition())
			}
		}

		// Neither how much is read at once nor the order of what is known matters.
		random := rand.New(rand.NewPCG(1, 2))
		random.Shuffle(len(r.Pinned), func(i, j int) { r.Pinned[i], r.Pinned[j] = r.Pinned[j], r.Pinned[i] })
		random.Shuffle(len(r.Summaries), func(i, j int) { r.Summaries[i], r.Summaries[j] = r.Summaries[j], r.Summaries[i] })
		w, err = window.Build(t.Context(), r, (&source{messages: g.messages}).read)
		if again := shown(g.conversation, w, err); again != got {
			t.Fatalf("once %sand then %s", got, again)
		}
	})
}

// best is what a window is by the package's comment, without regard to cost.
func best(c conversation, r window.Request) string {
	var front []*conversationv1.Message
	for _, m := range c.messages[:r.Head] {
		if goesInFront(m) {
			front = append(front, m)
		}
	}
	if r.Head == 0 {
		return shown(c, window.Window{Start: 1}, nil)
	}
	needed := int64(-1)
	for start := int64(1); start <= r.Head; start++ {
		run, ok := runFrom(c, r, start)
		if !ok || !mayBegin(run, start) {
			continue
		}
		needed = 0
		for _, m := range front {
			needed += r.Estimate(m)
		}
		for _, p := range run {
			needed += r.Estimate(p.said)
		}
		if needed > r.Budget {
			continue
		}
		w := window.Window{Start: start, Messages: slices.Clone(front)}
		for _, p := range run {
			w.Messages = append(w.Messages, p.shown(run))
		}
		if len(run) == 0 {
			w.Start = r.Head + 1
		}
		for _, m := range w.Messages {
			w.Used += r.Estimate(m)
		}
		return shown(c, w, nil)
	}
	return shown(c, window.Window{}, &window.TooSmallError{Needed: needed})
}

// placed is a message in a run.
type placed struct {
	said   *conversationv1.Message
	index  int
	stands bool
}

// runFrom is the run from start to the head; not ok where start is inside of a
// range that a summary stands for.
func runFrom(c conversation, r window.Request, start int64) (run []placed, ok bool) {
	stand := map[int64]bool{}
	at := r.Head
	for at >= start {
		var newest window.Summary
		for _, s := range r.Summaries {
			usable := s.First <= at && at <= s.Last && s.Position <= r.Head
			if usable && s.Position > newest.Position {
				if m := c.messages[s.Position-1]; m.GetErasure() == 0 && len(halves(m)) == 0 {
					newest = s
				}
			}
		}
		if newest.Position == 0 {
			run = append(run, placed{said: c.messages[at-1]})
			at--
			continue
		}
		stand[newest.Position] = true
		run = append(run, placed{said: c.messages[newest.Position-1], stands: true})
		at = newest.First - 1
	}
	slices.Reverse(run)
	run = slices.DeleteFunc(run, func(p placed) bool {
		return goesInFront(p.said) || stand[p.said.GetPosition()] && !p.stands
	})
	for i := range run {
		run[i].index = i
	}
	return run, at == start-1
}

// mayBegin says whether every result has its call, or may do without.
func mayBegin(run []placed, start int64) bool {
	for _, p := range run {
		for i, h := range halves(p.said) {
			id, result := strings.CutPrefix(h, "result ")
			excused := start == 1 || slices.ContainsFunc(run[:p.index], isErased)
			if result && !excused && nearest(run, p.index, i, "call "+id) == nil {
				return false
			}
		}
	}
	return true
}

func isErased(p placed) bool { return p.said.GetErasure() != 0 }

// spot is a call or a result in a run: the message and which of its halves.
type spot struct{ index, half int }

// nearest is the last of what is named before a spot.
func nearest(run []placed, index, half int, name string) *spot {
	for i := index; i >= 0; i-- {
		hs := halves(run[i].said)
		if i == index {
			hs = hs[:half]
		}
		if h := lastIndex(hs, name); h >= 0 {
			return &spot{i, h}
		}
	}
	return nil
}

func lastIndex(all []string, s string) int {
	for i, a := range slices.Backward(all) {
		if a == s {
			return i
		}
	}
	return -1
}

// shown is the message without what may have no other half.
func (p placed) shown(run []placed) *conversationv1.Message {
	m := proto.CloneOf(p.said)
	m.Parts = nil
	half := 0
	for _, part := range p.said.GetParts() {
		if part.GetCall() == nil && part.GetResult() == nil {
			m.Parts = append(m.Parts, part)
			continue
		}
		if p.hasOther(run, half) {
			m.Parts = append(m.Parts, part)
		}
		half++
	}
	return m
}

func (p placed) hasOther(run []placed, half int) bool {
	kind, id, _ := strings.Cut(halves(p.said)[half], " ")
	if kind == "result" {
		call := nearest(run, p.index, half, "call "+id)
		if call == nil {
			return false
		}
		// The results that are shown before this one, of the same call.
		earlier := -1
		for i := call.index; i <= p.index; i++ {
			for h, name := range halves(run[i].said) {
				s := spot{i, h}
				if name == "result "+id && after(s, *call) && after(spot{p.index, half}, s) && run[i].hasOther(run, h) {
					earlier = i
				}
			}
		}
		return earlier < 0 || !slices.ContainsFunc(run[earlier+1:p.index], func(o placed) bool { return isErased(o) || o.stands })
	}
	// A call: what comes first behind it, of its id?
	for i := p.index; i < len(run); i++ {
		for h, name := range halves(run[i].said) {
			if after(spot{i, h}, spot{p.index, half}) {
				switch name {
				case "result " + id:
					return true
				case "call " + id:
					return false
				}
			}
		}
	}
	return !slices.ContainsFunc(run[p.index+1:], isErased)
}

func after(a, b spot) bool { return a.index > b.index || a.index == b.index && a.half > b.half }

func cloned(all []*conversationv1.Message) []*conversationv1.Message {
	var c []*conversationv1.Message
	for _, m := range all {
		c = append(c, proto.CloneOf(m))
	}
	return c
}

// By who called what for certain, known from before anything was erased: what a
// window shows of a pair, it shows both of.
func TestPairsStayPairs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		erase := rapid.Bool().Draw(t, "erase")
		// Where a call and a result of one id are erased, what is left of two pairs
		// looks like one.
		g := generate(t, options{reuse: !erase, erase: erase})
		r := g.draw(t)
		w, err := window.Build(t.Context(), r, (&source{messages: g.messages}).read)
		if err != nil {
			return
		}
		there := map[string]bool{}
		for _, m := range w.Messages {
			for _, h := range halves(m) {
				there[fmt.Sprintf("%d %s", m.GetPosition(), h)] = true
			}
		}
		for _, p := range g.pairs {
			call, result := there[fmt.Sprintf("%d call %s", p.call, p.id)], there[fmt.Sprintf("%d result %s", p.result, p.id)]
			if p.result > r.Head || p.result == 0 {
				continue
			}
			if call != result {
				t.Fatalf("of %s, called at %d and done at %d: call %v result %v, budget %d head %d of\n%s\n%s",
					p.id, p.call, p.result, call, result, r.Budget, r.Head, g, shown(g.conversation, w, nil))
			}
		}
	})
}

// With summaries of any range, results still have calls, and nothing is over the
// budget or out of order.
func TestSummariesThatPartPairsPutNoResultAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := generate(t, options{reuse: true, erase: true, anyRange: true})
		r := g.draw(t)
		w, err := window.Build(t.Context(), r, (&source{messages: g.messages}).read)
		if err != nil {
			return
		}
		if w.Used > r.Budget {
			t.Fatalf("used %d of %d", w.Used, r.Budget)
		}
		calls, once := map[string]bool{}, map[int64]bool{}
		for _, m := range w.Messages {
			if once[m.GetPosition()] {
				t.Fatalf("%d is there twice", m.GetPosition())
			}
			once[m.GetPosition()] = true
			for _, h := range halves(m) {
				if id, call := strings.CutPrefix(h, "call "); call {
					calls[id] = true
				} else if id, _ := strings.CutPrefix(h, "result "); !calls[id] {
					t.Fatalf("%d has a result of %s, which was not called", m.GetPosition(), id)
				}
			}
		}
	})
}

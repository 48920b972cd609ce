package window_test

import (
	"fmt"
	"strings"

	"pgregory.net/rapid"

	conversationv1 "weir/gen/conversation/v1"
	"weir/services/conversation/window"
)

// options of the conversations to generate.
type options struct {
	// reuse: an id may be called again when its call has a result.
	reuse bool
	// erase: some messages are erased in the end.
	erase bool
	// anyRange: summaries may part a call from its result, which the service
	// refuses.
	anyRange bool
}

// pair is a call and where its result is, 0 if it has none.
type pair struct {
	id           string
	call, result int64
}

// generated is a conversation, and what was called for certain.
type generated struct {
	conversation
	pairs []*pair
}

var ids = []string{"a", "b", "@a", "@b"}

func generate(t *rapid.T, o options) *generated {
	g := &generated{}
	open := map[string]*pair{}
	used := map[string]bool{}
	length := rapid.Int64Range(1, 30).Draw(t, "length")
	for position := int64(1); position <= length; position++ {
		m := &conversationv1.Message{Pinned: oneIn(t, 8, "pinned")}
		in := map[string]bool{}
		for range rapid.IntRange(1, 3).Draw(t, "parts") {
			id := rapid.SampledFrom(ids).Draw(t, "id")
			size := rapid.IntRange(1, 9).Draw(t, "size")
			p := open[id]
			switch rapid.SampledFrom([]string{"text", "call", "result"}).Draw(t, "part") {
			case "call":
				if p == nil && !in["call "+id] && (o.reuse || !used[id]) {
					m.Parts = append(m.Parts, call(id, size))
					open[id] = &pair{id: id, call: position}
					g.pairs = append(g.pairs, open[id])
					used[id], in["call "+id] = true, true
				}
			case "result":
				if p != nil && !in["result "+id] {
					m.Parts = append(m.Parts, result(id, size))
					p.result = position
					delete(open, id)
					in["result "+id] = true
				}
			case "text":
				m.Parts = append(m.Parts, text(size))
			}
		}
		if len(m.Parts) == 0 {
			m.Parts = append(m.Parts, text(1))
		}
		if position > 1 && oneIn(t, 4, "summarizes") {
			first := rapid.Int64Range(1, position-1).Draw(t, "first")
			last := rapid.Int64Range(first, position-1).Draw(t, "last")
			if o.anyRange || !g.parts(first, last) {
				m.Summarizes = &conversationv1.Range{First: first, Last: last}
			}
		}
		g.say(m)
	}
	if o.erase {
		for _, m := range g.messages {
			if oneIn(t, 8, "erased") {
				m.Parts, m.Erasure = nil, conversationv1.Erasure_ERASURE_REDACTED
			}
		}
	}
	return g
}

// parts says whether a call and its result, now or later, are not on one side of
// a range.
func (g *generated) parts(first, last int64) bool {
	within := func(p int64) bool { return first <= p && p <= last }
	for _, p := range g.pairs {
		if within(p.call) != within(p.result) {
			return true
		}
	}
	return false
}

// draw draws a request.
func (g *generated) draw(t *rapid.T) window.Request {
	r := g.request()
	if oneIn(t, 4, "older") {
		r.Head = rapid.Int64Range(0, r.Head).Draw(t, "head")
	}
	if rapid.Bool().Draw(t, "tokens") {
		r.Estimate = window.Tokens(&conversationv1.TokenBudget{BytesPerToken: 2, TokensPerMessage: 1})
	}
	total := int64(1)
	for _, m := range g.messages {
		total += r.Estimate(m)
	}
	r.Budget = rapid.Int64Range(0, total).Draw(t, "budget")
	return r
}

func oneIn(t *rapid.T, n int, label string) bool { return rapid.IntRange(1, n).Draw(t, label) == n }

// String is the conversation as scripts write it.
func (g *generated) String() string {
	var b strings.Builder
	for _, m := range g.messages {
		fmt.Fprintf(&b, "%d:", m.GetPosition())
		if m.GetPinned() {
			b.WriteString(" pinned")
		}
		if m.GetErasure() != 0 {
			b.WriteString(" erased")
		}
		if s := m.GetSummarizes(); s != nil {
			fmt.Fprintf(&b, " sum %d-%d", s.GetFirst(), s.GetLast())
		}
		fmt.Fprintf(&b, " %s (%d bytes)\n", strings.Join(halves(m), " "), window.Bytes(m))
	}
	return b.String()
}

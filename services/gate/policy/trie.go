package policy

import "strings"

// trie finds what stands under the patterns that match a name, in a time that
// depends on the name and on how many patterns match it, not on how many there
// are: literal segments are looked up, and only segments with a `*` are tried
// one by one.
type trie[T any] struct{ root node[T] }

type node[T any] struct {
	literal map[string]*node[T]
	wild    []wildEdge[T]
	here    *T // what stands under patterns that end here
	rest    *T // what stands under patterns that end in ** here
}

type wildEdge[T any] struct {
	segment string
	next    *node[T]
}

// at gives the place of a pattern, made where there was none.
func (t *trie[T]) at(p pattern) *T {
	n := &t.root
	for _, segment := range p.segments {
		n = n.step(segment)
	}
	place := &n.here
	if p.rest {
		place = &n.rest
	}
	if *place == nil {
		*place = new(T)
	}
	return *place
}

func (n *node[T]) step(segment string) *node[T] {
	if !strings.Contains(segment, "*") {
		if n.literal == nil {
			n.literal = make(map[string]*node[T])
		}
		if n.literal[segment] == nil {
			n.literal[segment] = &node[T]{}
		}
		return n.literal[segment]
	}
	for _, edge := range n.wild {
		if edge.segment == segment {
			return edge.next
		}
	}
	next := &node[T]{}
	n.wild = append(n.wild, wildEdge[T]{segment, next})
	return next
}

// hits are the places under the patterns that match a name. The first few are
// held without an allocation.
type hits[T any] struct {
	few  [8]*T
	n    int
	more []*T
}

func (h *hits[T]) add(place *T) {
	if h.n < len(h.few) {
		h.few[h.n] = place
	} else {
		h.more = append(h.more, place)
	}
	h.n++
}

func (h *hits[T]) at(i int) *T {
	if i < len(h.few) {
		return h.few[i]
	}
	return h.more[i-len(h.few)]
}

// find collects what stands under all patterns that match a name. The name has
// no empty segment.
func (t *trie[T]) find(name string, h *hits[T]) { t.root.find(name, h) }

func (n *node[T]) find(name string, h *hits[T]) {
	if n.rest != nil {
		h.add(n.rest)
	}
	head, tail, more := strings.Cut(name, "/")
	if next := n.literal[head]; next != nil {
		next.follow(tail, more, h)
	}
	for _, edge := range n.wild {
		if matchSegment(edge.segment, head) {
			edge.next.follow(tail, more, h)
		}
	}
}

func (n *node[T]) follow(tail string, more bool, h *hits[T]) {
	if more {
		n.find(tail, h)
	} else if n.here != nil {
		h.add(n.here)
	}
}

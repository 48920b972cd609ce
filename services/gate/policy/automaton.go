package policy

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"strings"
)

// Whether every name that a pattern matches is matched by others too is decided
// here, over all operation names there could ever be.
//
// A segment's pattern has no wildcard for a single character, so the longest
// part of the pattern that a text has matched says all that is to be known about
// the text: one pattern is a deterministic automaton of at most as many states
// as it has characters. Many together are a product of these, built only as far
// as a search reaches it. That product is what can become large.

// maxNameLength is the longest name an operation may have, in bytes.
const maxNameLength = 200

// symbols are what names are made of, in the order of bytes, so that a search
// which tries them in this order finds the smallest name of a length first.
const symbols = "-/0123456789_abcdefghijklmnopqrstuvwxyz"

// A symbolSet has the bit i for symbols[i].
type symbolSet uint64

const (
	slashSymbol             = 1
	slashSet      symbolSet = 1 << slashSymbol
	everySymbol   symbolSet = 1<<len(symbols) - 1
	underscoreSet symbolSet = 1 << 12
	hyphenSet     symbolSet = 1
	alphanumerics           = everySymbol &^ (slashSet | underscoreSet | hyphenSet)
)

// symbolOf is used with the characters of compiled patterns only.
func symbolOf(c byte) uint8 { return uint8(strings.IndexByte(symbols, c)) }

// mayFollow gives the symbols that may come next: a segment begins with a letter
// or digit. Nothing else is to be known of the name that has been read, since
// every pattern has two segments or more.
func mayFollow(atSegment bool) symbolSet {
	if atSegment {
		return alphanumerics
	}
	return everySymbol
}

// A residual is what is left of a pattern when the beginning of a name has been
// matched. Those of different patterns that mean the same are the same one.
type residual struct {
	residualKey
	accepts bool // nothing more is needed

	// After is the number of the pattern's text after the current segment, and
	// open says that anything may stand before it.
	after int32
	open  bool

	// Which residual follows is worked out when it is first asked for. Special
	// symbols have an edge each, all others of a segment lead to the same.
	followed bool
	special  symbolSet
	edges    []residualEdge
	other    int32
	slash    int32
}

// A residualKey is the pattern's text from the last wildcard of the current
// segment, with how many of the literals after that wildcard the latest
// characters match; or, before any wildcard, simply the text that is left.
type residualKey struct {
	text    string
	matched int
}

type residualEdge struct {
	symbol uint8
	to     int32
}

const (
	noResidual int32 = -1
	// anyResidual accepts all that may follow in a name: a `**` has been reached.
	anyResidual int32 = 0
	// The texts after a segment that need to be told apart from all others.
	afterNothing, afterRest int32 = 0, 1
)

// residuals holds those of all patterns of a verification.
type residuals struct {
	list   []residual
	ids    map[residualKey]int32
	afters map[string]int32

	// Opened has, for each text after a segment, the last union in which
	// anything could stand before it.
	opened []int
	unions int
}

func newResiduals() *residuals {
	return &residuals{
		list:   []residual{{residualKey: residualKey{text: "**"}, accepts: true, followed: true}},
		ids:    map[residualKey]int32{},
		afters: map[string]int32{"": afterNothing, "/**": afterRest},
		opened: make([]int, 2),
	}
}

// of gives the residual of a pattern's text at the beginning of a segment.
func (r *residuals) of(text string) int32 {
	if text == "**" {
		return anyResidual
	}
	return r.intern(residualKey{text: text})
}

func (r *residuals) intern(key residualKey) int32 {
	literals, rest := key.split()
	if key.anchored() && key.matched == len(literals) && strings.HasPrefix(rest, "*") {
		// The leftmost match is as good as any: what a later one could still
		// match, the wildcard behind this one matches too.
		key = residualKey{text: rest}
		literals, rest = key.split()
	}
	if id, ok := r.ids[key]; ok {
		return id
	}
	segment, after := key.text, ""
	if i := strings.IndexByte(key.text, '/'); i >= 0 {
		segment, after = key.text[:i], key.text[i:]
	}
	afterID, ok := r.afters[after]
	if !ok {
		afterID = int32(len(r.afters))
		r.afters[after] = afterID
		r.opened = append(r.opened, 0)
	}
	id := int32(len(r.list))
	r.ids[key] = id
	r.list = append(r.list, residual{
		residualKey: key,
		accepts:     rest == "" && key.matched == len(literals),
		after:       afterID,
		open:        segment == "*",
	})
	return id
}

func (k residualKey) anchored() bool { return strings.HasPrefix(k.text, "*") }

// split gives the literals that come next in the segment, behind the wildcard
// for an anchored one, and the text behind these. Where no wildcard came before,
// literals are read one by one, so none are matched together.
func (k residualKey) split() (literals, rest string) {
	text := k.text
	if !k.anchored() {
		return "", text
	}
	text = text[1:]
	if i := strings.IndexAny(text, "*/"); i >= 0 {
		return text[:i], text[i:]
	}
	return text, ""
}

// next gives the residual when a symbol has been read, or noResidual.
func (r *residuals) next(id int32, symbol uint8) int32 {
	r.follow(id)
	from := &r.list[id]
	switch {
	case symbol == slashSymbol:
		return from.slash
	case from.special&(1<<symbol) == 0:
		return from.other
	}
	for _, edge := range from.edges {
		if edge.symbol == symbol {
			return edge.to
		}
	}
	return noResidual
}

func (r *residuals) follow(id int32) {
	if r.list[id].followed {
		return
	}
	from := r.list[id] // a copy: interning moves the list
	from.followed, from.other, from.slash = true, noResidual, noResidual
	edge := func(c byte, to residualKey) {
		symbol := symbolOf(c)
		if from.special&(1<<symbol) == 0 {
			from.special |= 1 << symbol
			from.edges = append(from.edges, residualEdge{symbol: symbol, to: r.intern(to)})
		}
	}
	literals, rest := from.split()
	switch {
	case from.anchored():
		from.other = r.intern(residualKey{text: from.text})
		borders := bordersOf(literals)
		for n := from.matched; ; n = borders[n] {
			if n < len(literals) {
				edge(literals[n], residualKey{text: from.text, matched: n + 1})
			}
			if n == 0 {
				break
			}
		}
	case rest != "" && rest[0] != '/':
		edge(rest[0], residualKey{text: rest[1:]})
	}
	if from.matched == len(literals) && strings.HasPrefix(rest, "/") {
		from.slash = r.of(rest[1:])
	}
	r.list[id] = from
}

// bordersOf gives, for each length of a beginning of the text, the length of its
// longest proper beginning that it also ends with.
func bordersOf(text string) []int {
	borders := make([]int, len(text)+1)
	for i, n := 1, 0; i < len(text); i++ {
		for n > 0 && text[i] != text[n] {
			n = borders[n]
		}
		if text[i] == text[n] {
			n++
		}
		borders[i+1] = n
	}
	return borders
}

// union brings residuals, whose languages are joined, into one form: sorted,
// each once, and without those that another one plainly includes. It keeps
// a search among hundreds of exact names behind a wildcard small.
func (r *residuals) union(set []int32) []int32 {
	if len(set) < 2 {
		return set
	}
	slices.Sort(set)
	set = slices.Compact(set)
	r.unions++
	some := false
	for _, id := range set {
		if of := &r.list[id]; of.open {
			r.opened[of.after], some = r.unions, true
		}
	}
	if !some {
		return set
	}
	anyRest := r.opened[afterRest] == r.unions
	return slices.DeleteFunc(set, func(id int32) bool {
		of := &r.list[id]
		if anyRest && of.after != afterNothing && of.after != afterRest {
			return true
		}
		return !of.open && r.opened[of.after] == r.unions
	})
}

// A proofBudget bounds what searches may cost. Steps are counted, not time, so
// that a policy which is accepted once is always accepted.
type proofBudget struct {
	steps int
}

// spend says whether the budget sufficed.
func (b *proofBudget) spend(steps int) bool {
	b.steps -= steps
	return b.steps >= 0
}

func (b *proofBudget) spent() bool { return b.steps < 0 }

// Bounds on one search. A step follows one pattern by one symbol.
const (
	maxSearchStates = 200_000
	maxSearchSteps  = 2_000_000
)

// A searchResult is what a search for a name ended with.
type searchResult int

const (
	foundNone searchResult = iota
	foundName
	gaveUp
)

// A nameSearch goes through what can be read of names, shortest first and
// then in the order of bytes. Every state has been reached by the first of all
// names that reach it.
type nameSearch struct {
	*residuals
	states  []searchState
	cells   []int32 // the covers of all states
	visited map[string]struct{}
	key     []byte
}

type searchState struct {
	atSegment  bool  // none of the segment's characters has been read
	symbol     uint8 // that led here
	parent     int32
	pattern    int32 // the residual of what is searched
	start, end int   // of its covers in cells
}

// firstUncovered gives the first name, by length and then by bytes, that
// a pattern matches and none of the covers does. All are texts of patterns that
// compile.
func (r *residuals) firstUncovered(text string, covers []string, budget *proofBudget) (string, searchResult) {
	s := nameSearch{residuals: r, visited: map[string]struct{}{}}
	set := make([]int32, 0, len(covers))
	for _, cover := range covers {
		set = append(set, r.of(cover))
	}
	budget.spend(len(covers))
	s.visit(searchState{atSegment: true, pattern: r.of(text)}, r.union(set))
	local := proofBudget{steps: maxSearchSteps}
	var next []int32
	for i, length, level := 0, 0, 1; i < len(s.states); i++ {
		if i == level {
			length, level = length+1, len(s.states)
		}
		if length == maxNameLength {
			break
		}
		from := s.states[i]
		for letters := s.letters(from); letters != 0; letters &= letters - 1 {
			symbol := uint8(bits.TrailingZeros64(uint64(letters)))
			steps := 1 + from.end - from.start
			if !local.spend(steps) || !budget.spend(steps) || len(s.states) >= maxSearchStates {
				return "", gaveUp
			}
			to := searchState{atSegment: symbol == slashSymbol, symbol: symbol, parent: int32(i)}
			if to.pattern = r.next(from.pattern, symbol); to.pattern == noResidual {
				continue
			}
			var accepted, all bool
			if next, accepted, all = s.advance(next[:0], from, symbol); all {
				continue
			}
			fresh := s.visit(to, r.union(next))
			if fresh && !to.atSegment && r.list[to.pattern].accepts && !accepted {
				return s.text(len(s.states) - 1), foundName
			}
		}
	}
	return "", foundNone
}

// letters gives one symbol of each kind that can be told apart here, the first
// of its kind.
func (s *nameSearch) letters(from searchState) symbolSet {
	s.follow(from.pattern)
	special := s.list[from.pattern].special
	for _, cover := range s.cells[from.start:from.end] {
		s.follow(cover)
		special |= s.list[cover].special
	}
	possible := mayFollow(from.atSegment)
	others := possible &^ (special | slashSet)
	return possible&(special|slashSet) | others&-others
}

// advance reads a symbol in all covers of a state. It says whether one of them
// accepts there, and whether one accepts all that could follow.
func (s *nameSearch) advance(next []int32, from searchState, symbol uint8) (_ []int32, accepted, all bool) {
	for _, cover := range s.cells[from.start:from.end] {
		switch to := s.next(cover, symbol); to {
		case noResidual:
		case anyResidual:
			return next, true, true
		default:
			accepted = accepted || s.list[to].accepts
			next = append(next, to)
		}
	}
	return next, accepted, false
}

// visit adds a state unless it is known.
func (s *nameSearch) visit(state searchState, covers []int32) bool {
	s.key = append(s.key[:0], 0)
	if state.atSegment {
		s.key[0] = 1
	}
	s.key = binary.LittleEndian.AppendUint32(s.key, uint32(state.pattern))
	for _, cover := range covers {
		s.key = binary.LittleEndian.AppendUint32(s.key, uint32(cover))
	}
	if _, ok := s.visited[string(s.key)]; ok {
		return false
	}
	s.visited[string(s.key)] = struct{}{}
	state.start = len(s.cells)
	s.cells = append(s.cells, covers...)
	state.end = len(s.cells)
	s.states = append(s.states, state)
	return true
}

func (s *nameSearch) text(state int) string {
	var text []byte
	for ; state != 0; state = int(s.states[state].parent) {
		text = append(text, symbols[s.states[state].symbol])
	}
	slices.Reverse(text)
	return string(text)
}

// shortest gives the length of the shortest name that a pattern matches, more
// than maxNameLength if it matches none.
func (p pattern) shortest() int {
	length := len(p.segments) - 1
	if p.rest {
		length += len("/a")
	}
	for _, segment := range p.segments {
		literals := strings.ReplaceAll(segment, "*", "")
		length += len(literals)
		if literals == "" || strings.Contains("-_", literals[:1]) {
			if segment[0] != '*' {
				return maxNameLength + 1
			}
			length++ // a segment begins with a letter or digit
		}
	}
	return length
}

// includes says that whatever the other pattern matches this one does too. It
// finds the plain cases only: where each wildcard of the other falls into one
// of this.
func (p pattern) includes(other pattern) bool {
	switch n := len(other.segments) - len(p.segments); {
	case n < 0, n > 0 && !p.rest, n == 0 && p.rest != other.rest:
		return false
	}
	for i, segment := range p.segments {
		if !matchSegment(segment, other.segments[i]) {
			return false
		}
	}
	return true
}

// meets says whether both patterns match a text, though it might be no name.
func (p pattern) meets(other pattern) bool {
	short, long := p, other
	if len(short.segments) > len(long.segments) {
		short, long = other, p
	}
	if len(short.segments) < len(long.segments) && !short.rest || len(short.segments) == len(long.segments) && short.rest != long.rest {
		return false
	}
	for i, segment := range short.segments {
		if !segmentsMeet(segment, long.segments[i]) {
			return false
		}
	}
	return true
}

// segmentsMeet has two wildcards to put everything into that the other segment
// wants in its middle, so only beginnings and ends must agree.
func segmentsMeet(a, b string) bool {
	firstA, firstB := strings.IndexByte(a, '*'), strings.IndexByte(b, '*')
	switch {
	case firstA < 0:
		return matchSegment(b, a)
	case firstB < 0:
		return matchSegment(a, b)
	}
	n := min(firstA, firstB)
	m := min(len(a)-strings.LastIndexByte(a, '*'), len(b)-strings.LastIndexByte(b, '*')) - 1
	return a[:n] == b[:n] && a[len(a)-m:] == b[len(b)-m:]
}

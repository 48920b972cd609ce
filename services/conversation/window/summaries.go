package window

import (
	"cmp"
	"slices"
)

// summaries are those that may be used, seen from a position that only goes down.
type summaries struct {
	// ahead are those whose ranges lie below the position, the nearest first.
	ahead []Summary
	// reached are those whose ranges hold the position, or held one above it.
	reached []Summary
}

func newSummaries(all []Summary, head int64) summaries {
	var usable []Summary
	for _, s := range all {
		if 1 <= s.First && s.Last < s.Position && s.Position <= head {
			usable = append(usable, s)
		}
	}
	slices.SortFunc(usable, func(a, b Summary) int { return cmp.Compare(b.Last, a.Last) })
	return summaries{ahead: usable}
}

// at gives the newest summary whose range holds a position.
func (s *summaries) at(position int64) (Summary, bool) {
	for len(s.ahead) > 0 && s.ahead[0].Last >= position {
		s.reached = append(s.reached, s.ahead[0])
		s.ahead = s.ahead[1:]
	}
	s.reached = slices.DeleteFunc(s.reached, func(r Summary) bool { return r.First > position })
	if len(s.reached) == 0 {
		return Summary{}, false
	}
	return slices.MaxFunc(s.reached, func(a, b Summary) int { return cmp.Compare(a.Position, b.Position) }), true
}

// drop takes out a summary that turned out to be of no use.
func (s *summaries) drop(useless Summary) {
	s.reached = slices.DeleteFunc(s.reached, func(r Summary) bool { return r == useless })
}

// floor is the lowest position, below one that no summary stands for, that is
// worth reading: from the next range on a summary stands for what is there.
func (s *summaries) floor() int64 {
	if len(s.ahead) == 0 {
		return 1
	}
	return s.ahead[0].Last + 1
}

// Package policy is what the gate decides by: patterns, grants, and the rules of
// layered policies. It is pure: no I/O, no clock; the same question to the same
// Book always has the same answer.
package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Patterns match operation names, whole and case-sensitive. Segments split at
// `/`. Within a segment, `*` stands for any run of characters; a last segment
// `**` stands for one or more whole segments. All else is literal.

// patternText is what a pattern may be made of: the characters of operation
// names, and the wildcard. A pattern with any other character could never
// match, and a typo in an allow-list must not look like a grant.
var patternText = regexp.MustCompile(`^[a-z0-9_*-]+(/[a-z0-9_*-]+)+$`)

// pattern is a compiled pattern. The zero pattern matches nothing.
type pattern struct {
	segments []string
	rest     bool // a `**` follows the segments
}

// exact says that the pattern is a name: it matches nothing else.
func (p pattern) exact() bool {
	return !p.rest && !slices.ContainsFunc(p.segments, func(s string) bool { return strings.Contains(s, "*") })
}

func compilePattern(text string) (pattern, error) {
	if !patternText.MatchString(text) {
		return pattern{}, fmt.Errorf("%q must be two or more segments of [a-z0-9_-] and *, split by single slashes", text)
	}
	segments := strings.Split(text, "/")
	last := len(segments) - 1
	p := pattern{segments: segments}
	if segments[last] == "**" {
		p = pattern{segments: segments[:last], rest: true}
	}
	for _, segment := range p.segments {
		if strings.Contains(segment, "**") {
			return pattern{}, fmt.Errorf("%q has ** elsewhere than as its last segment", text)
		}
	}
	return p, nil
}

// match never matches a name with an empty segment: none is an operation.
func (p pattern) match(name string) bool {
	for i, segment := range p.segments {
		head, tail, more := strings.Cut(name, "/")
		if head == "" || !matchSegment(segment, head) {
			return false
		}
		if i == len(p.segments)-1 {
			return more == p.rest && (!more || wholeSegments(tail))
		}
		if !more {
			return false
		}
		name = tail
	}
	return p.rest && wholeSegments(name)
}

// wholeSegments says that no segment is empty.
func wholeSegments(name string) bool {
	return name != "" && name[0] != '/' && name[len(name)-1] != '/' && !strings.Contains(name, "//")
}

// matchSegment matches `*` by going back to the last one seen, which bounds the
// work to the product of both lengths.
func matchSegment(pattern, text string) bool {
	p, t, star, mark := 0, 0, -1, 0
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, t
			p++
		case p < len(pattern) && pattern[p] == text[t]:
			p++
			t++
		case star >= 0:
			mark++
			p, t = star+1, mark
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// isName says whether an operation could have this name; no grant is for another.
func isName(name string) bool {
	letters, slashes := 0, 0 // letters of the segment so far
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', letters > 0 && (c == '_' || c == '-'):
			letters++
		case letters > 0 && c == '/':
			letters, slashes = 0, slashes+1
		default:
			return false
		}
	}
	return letters > 0 && slashes > 0 && len(name) <= maxNameLength
}

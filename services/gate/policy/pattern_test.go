package policy

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestPatterns(t *testing.T) {
	for _, tc := range []struct {
		pattern string
		match   string
		not     string
	}{
		{"conversation/say", "conversation/say", "conversation/say/x conversation/sa conversation/Say conversation conversation/say/ conversation//say conversation/sаy"},
		{"conversation/*", "conversation/say conversation/read", "conversation conversation/ conversation/say/x other/say Conversation/say"},
		{"conversation/**", "conversation/say conversation/say/x", "conversation conversation/ other/say conversation/say/ conversation//say"},
		{"a*c/b*", "ac/b abc/bbb axxc/b1", "ab/b abcd/b"},
		{"*/say", "conversation/say x/say", "say x/y/say"},
		{"a/**", "a/b/c/d", "a b/a"},
	} {
		p, err := compilePattern(tc.pattern)
		if err != nil {
			t.Fatalf("%s: %v", tc.pattern, err)
		}
		for _, name := range strings.Fields(tc.match) {
			if !p.match(name) {
				t.Errorf("%s does not match %s", tc.pattern, name)
			}
		}
		for _, name := range strings.Fields(tc.not) {
			if p.match(name) {
				t.Errorf("%s matches %s", tc.pattern, name)
			}
		}
	}
	for _, text := range []string{
		"", "a", "a/", "/a", "a//b", "A/b", "a/../b", "a/%2f", "a/b\x00", "a/b ", "**", "a/**/b", "a/x**", "a/ｂ", "a/b\n",
	} {
		if _, err := compilePattern(text); err == nil {
			t.Errorf("%q compiles: it can match no operation", text)
		}
	}
}

// matchSegment against an evaluator that is too plain to be wrong.
func TestSegmentsMatchAsAPlainEvaluatorSays(t *testing.T) {
	var plainly func(p, s string) bool
	plainly = func(p, s string) bool {
		switch {
		case p == "":
			return s == ""
		case p[0] == '*':
			return plainly(p[1:], s) || s != "" && plainly(p, s[1:])
		default:
			return s != "" && p[0] == s[0] && plainly(p[1:], s[1:])
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.StringOfN(rapid.RuneFrom([]rune("ab*")), 0, 8, -1).Draw(t, "pattern")
		s := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 0, 8, -1).Draw(t, "text")
		if got, want := matchSegment(p, s), plainly(p, s); got != want {
			t.Fatalf("%q on %q: %v, want %v", p, s, got, want)
		}
	})
}

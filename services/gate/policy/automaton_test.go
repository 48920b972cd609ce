package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
)

// What these tests compare with is written from the description of patterns
// only, and shares nothing with the code.

var nameText = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*)+$`)

// shortNames are all operation names of up to 6 characters over a small
// alphabet, shortest first and then by bytes. The patterns here mention a, b and
// _ only, so `0` and `-` stand for all other characters.
var shortNames = func() []string {
	var names []string
	texts := []string{""}
	for range shortNameLength {
		var longer []string
		for _, text := range texts {
			for _, c := range []string{"-", "/", "0", "_", "a", "b"} {
				longer = append(longer, text+c)
			}
		}
		texts = longer
		for _, text := range texts {
			if nameText.MatchString(text) {
				names = append(names, text)
			}
		}
	}
	return names
}()

const shortNameLength = 6

func plainMatch(pattern, name string) bool {
	want, got := strings.Split(pattern, "/"), strings.Split(name, "/")
	for i, segment := range want {
		if segment == "**" {
			return i == len(want)-1 && len(got) > i
		}
		if i >= len(got) || !plainSegment(segment, got[i]) {
			return false
		}
	}
	return len(want) == len(got)
}

func plainSegment(pattern, text string) bool {
	if pattern == "" {
		return text == ""
	}
	if pattern[0] == '*' {
		return plainSegment(pattern[1:], text) || text != "" && plainSegment(pattern, text[1:])
	}
	return text != "" && pattern[0] == text[0] && plainSegment(pattern[1:], text[1:])
}

// plainMatches remembers which of the short names a pattern matches.
var plainMatches = map[string][]bool{}

func matchesShort(pattern string) []bool {
	matches, ok := plainMatches[pattern]
	if !ok {
		for _, name := range shortNames {
			matches = append(matches, plainMatch(pattern, name))
		}
		plainMatches[pattern] = matches
	}
	return matches
}

var someSegment = rapid.OneOf(
	rapid.SampledFrom([]string{"*", "*", "*", "a", "b", "a*", "*a", "*b*", "a*b", "_a", "*_a", "*aab"}),
	rapid.StringMatching(`[ab_]{1,2}|\*?[ab_](\*[ab_]{1,2}){0,2}\*?`),
)

var somePattern = rapid.Custom(func(t *rapid.T) string {
	segments := rapid.SliceOfN(someSegment, 1, 3).Draw(t, "segments")
	if len(segments) == 1 || rapid.IntRange(0, 3).Draw(t, "rest") == 0 {
		segments = append(segments, "**")
	}
	return strings.Join(segments, "/")
})

// enumerated evaluates one policy name by name.
type enumerated struct{ policy *gatev1.Policy }

func matchesEffect(r *gatev1.Rule, e registryv1.Effect) bool {
	return len(r.GetEffects()) == 0 || slices.Contains(r.GetEffects(), e)
}

// stricter says that a rule of one of the verdicts is sure to match.
func (m enumerated) stricter(name string, e registryv1.Effect, verdicts ...gatev1.Verdict) bool {
	return slices.ContainsFunc(m.policy.GetRules(), func(r *gatev1.Rule) bool {
		return slices.Contains(verdicts, r.GetVerdict()) && r.GetWhen() == "" && matchesEffect(r, e) &&
			slices.ContainsFunc(r.GetOperations(), func(p string) bool { return plainMatch(p, name) })
	})
}

// opens says that a rule, which matches the name, lets it run with this effect.
func (m enumerated) opens(r *gatev1.Rule, name string, e registryv1.Effect) bool {
	return r.GetVerdict() == allow && r.GetWhen() != "false" && e != read && matchesEffect(r, e) &&
		!(r.GetAllowWrites() && slices.Contains(r.GetOperations(), name)) && !m.stricter(name, e, ask, deny)
}

// firstOpened gives the first short name that a pattern of a rule opens.
func (m enumerated) firstOpened(r *gatev1.Rule, pattern string) (string, registryv1.Effect) {
	for _, e := range []registryv1.Effect{write, admin} {
		for i, name := range shortNames {
			if matchesShort(pattern)[i] && m.opens(r, name, e) {
				return name, e
			}
		}
	}
	return "", 0
}

// says gives whether a rule matches any short name, and whether there is one
// that no stricter rule decides.
func (m enumerated) says(r *gatev1.Rule) (matches, decides bool) {
	stricter := []gatev1.Verdict{deny}
	if r.GetVerdict() == allow {
		stricter = append(stricter, ask)
	}
	for i, name := range shortNames {
		if r.GetWhen() == "false" || !slices.ContainsFunc(r.GetOperations(), func(p string) bool { return matchesShort(p)[i] }) {
			continue
		}
		matches = true
		for _, e := range []registryv1.Effect{read, write, admin} {
			if matchesEffect(r, e) && !m.stricter(name, e, stricter...) {
				return true, true
			}
		}
	}
	return matches, false
}

// aPolicy has rules that often overlap: patterns of later ones are widened from
// those of earlier ones, or are the two that together match all names.
var aPolicy = rapid.Custom(func(t *rapid.T) *gatev1.Policy {
	p := &gatev1.Policy{PolicyId: "p", Layer: gatev1.Layer_LAYER_TENANT}
	var used []string
	for i := range rapid.IntRange(2, 6).Draw(t, "rules") {
		r := &gatev1.Rule{RuleId: fmt.Sprintf("r%d", i), Verdict: rapid.SampledFrom([]gatev1.Verdict{allow, ask, ask, deny, deny}).Draw(t, "verdict")}
		if i == 0 {
			r.Verdict = allow
		}
		for range rapid.IntRange(1, 3).Draw(t, "patterns") {
			var pattern string
			switch rapid.IntRange(0, 5).Draw(t, "shape") {
			case 0:
				r.Operations = append(r.Operations, "*/*")
				pattern = "*/*/**"
			case 1, 2:
				if len(used) > 0 {
					pattern = widened(t, rapid.SampledFrom(used).Draw(t, "widen"))
					break
				}
				fallthrough
			default:
				pattern = somePattern.Draw(t, "pattern")
			}
			r.Operations = append(r.Operations, pattern)
			used = append(used, pattern)
		}
		r.Effects = rapid.SampledFrom([][]registryv1.Effect{
			nil, nil, nil, {read}, {write, admin}, {admin}, {read, write},
		}).Draw(t, "effects")
		r.When = rapid.SampledFrom([]string{"", "", "", "", "maybe", "false"}).Draw(t, "when")
		r.AllowWrites = r.GetVerdict() == allow && rapid.Bool().Draw(t, "allow_writes")
		p.Rules = append(p.Rules, r)
	}
	return p
})

func widened(t *rapid.T, pattern string) string {
	segments := strings.Split(pattern, "/")
	i := rapid.IntRange(0, len(segments)-1).Draw(t, "segment")
	if i > 0 && rapid.Bool().Draw(t, "rest") {
		return strings.Join(append(segments[:i:i], "**"), "/")
	}
	if segments[i] != "**" {
		segments[i] = "*"
	}
	return strings.Join(segments, "/")
}

func mustCompile(t interface{ Fatal(...any) }, text string) pattern {
	p, err := compilePattern(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestResidualsAcceptWhatThePatternMatches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := somePattern.Draw(t, "pattern")
		r := newResiduals()
		for i, want := range matchesShort(text) {
			id := r.of(text)
			for _, c := range []byte(shortNames[i]) {
				if id != noResidual {
					id = r.next(id, symbolOf(c))
				}
			}
			if got := id != noResidual && r.list[id].accepts; got != want {
				t.Fatalf("%s on %s: %v", text, shortNames[i], got)
			}
		}
	})
}

func TestBordersAreTheLongest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`(ab|a|aab){0,6}`).Draw(t, "text")
		for n, got := range bordersOf(text) {
			want := max(0, n-1)
			for ; want > 0 && !strings.HasSuffix(text[:n], text[:want]); want-- {
			}
			if got != want {
				t.Fatalf("%q has %d, not %d", text[:n], got, want)
			}
		}
	})
}

func TestAPatternHasNoMoreResidualsThanCharacters(t *testing.T) {
	for _, text := range []string{"a/**", "*ab*aab*/*abab/**", strings.Repeat("*ab", 80) + "/*a"} {
		r := newResiduals()
		r.of(text)
		for id := 0; id < len(r.list); id++ {
			r.follow(int32(id))
		}
		// One more is the shared residual of `**`.
		if len(r.list) > len(text)+1 {
			t.Errorf("%s has %d residuals", text, len(r.list))
		}
	}
}

func TestShortestIsTheLengthOfTheFirstNameFound(t *testing.T) {
	unlimited := proofBudget{steps: 1 << 40}
	check := func(t interface {
		Fatal(...any)
		Fatalf(string, ...any)
	}, text string,
	) {
		length := mustCompile(t, text).shortest()
		switch name, result := newResiduals().firstUncovered(text, nil, &unlimited); {
		case result == foundName && (len(name) != length || !plainMatch(text, name) || !nameText.MatchString(name)):
			t.Fatalf("%s: %d, but found %s", text, length, name)
		case result == foundNone && length <= maxNameLength:
			t.Fatalf("%s: %d, but found nothing", text, length)
		case result == gaveUp:
			t.Fatalf("%s: gave up", text)
		}
	}
	rapid.Check(t, func(t *rapid.T) { check(t, somePattern.Draw(t, "pattern")) })
	for _, text := range []string{
		"a/" + strings.Repeat("b", 198), "a/" + strings.Repeat("b", 199),
		"a/" + strings.Repeat("b", 196) + "/**", "a/" + strings.Repeat("b", 197) + "/**",
		"*_a/" + strings.Repeat("b", 196), "*_a/" + strings.Repeat("b", 197),
		strings.Repeat("*/", 99) + "*", strings.Repeat("*/", 99) + "**", strings.Repeat("*/", 100) + "*",
	} {
		check(t, text)
	}
}

func TestTheFirstUncoveredNameIsWhatEnumerationFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := somePattern.Draw(t, "pattern")
		similar := rapid.Custom(func(t *rapid.T) string { return widened(t, text) })
		covers := rapid.SliceOfN(rapid.OneOf(somePattern, similar, rapid.SampledFrom([]string{text, "*/*", "*/*/**"})), 0, 6).Draw(t, "covers")
		unlimited := proofBudget{steps: 1 << 40}
		got, result := newResiduals().firstUncovered(text, covers, &unlimited)
		want := slices.IndexFunc(indexes(shortNames), func(i int) bool {
			return matchesShort(text)[i] && !slices.ContainsFunc(covers, func(c string) bool { return matchesShort(c)[i] })
		})
		switch {
		case want >= 0 && (result != foundName || got != shortNames[want]):
			t.Fatalf("found %q, and enumeration %q", got, shortNames[want])
		case want < 0 && result == foundName:
			if len(got) <= shortNameLength || !nameText.MatchString(got) || !plainMatch(text, got) ||
				slices.ContainsFunc(covers, func(c string) bool { return plainMatch(c, got) }) {
				t.Fatalf("found %q, which is none", got)
			}
		case result == gaveUp:
			t.Fatal("gave up")
		}
	})
}

func indexes[E any](s []E) []int {
	all := make([]int, len(s))
	for i := range s {
		all[i] = i
	}
	return all
}

func TestWhatIncludesMatchesAllAndWhatMeetsNotNever(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := somePattern.Draw(t, "a"), somePattern.Draw(t, "b")
		includes := mustCompile(t, a).includes(mustCompile(t, b))
		meets := mustCompile(t, a).meets(mustCompile(t, b))
		for i := range shortNames {
			inA, inB := matchesShort(a)[i], matchesShort(b)[i]
			if includes && inB && !inA || inA && inB && !meets {
				t.Fatalf("%s: includes %v, meets %v", shortNames[i], includes, meets)
			}
		}
	})
}

func TestPlainInclusionsAreSeen(t *testing.T) {
	for _, c := range []struct {
		a, b            string
		includes, meets bool
	}{
		{"crm/**", "crm/*", true, true},
		{"crm/**", "crm/get/**", true, true},
		{"crm/*", "crm/**", false, true},
		{"crm/*/**", "crm/**", false, true},
		{"*/**", "crm/get", true, true},
		{"crm/*get*", "crm/*get", true, true},
		{"crm/get", "crm/put", false, false},
		{"crm/a*", "crm/b*", false, false},
		{"crm/*a", "crm/*b", false, false},
		{"crm/a*b", "crm/ab", true, true},
		{"crm/ab*b", "crm/a*", false, true},
		{"crm/*", "crm/*/*", false, false},
		{"crm/**", "git/**", false, false},
		{"crm/*/**", "crm/*", false, false},
	} {
		a, b := mustCompile(t, c.a), mustCompile(t, c.b)
		if got := a.includes(b); got != c.includes {
			t.Errorf("%s includes %s: %v", c.a, c.b, got)
		}
		if got := a.meets(b); got != c.meets || b.meets(a) != got {
			t.Errorf("%s meets %s: %v", c.a, c.b, got)
		}
	}
}

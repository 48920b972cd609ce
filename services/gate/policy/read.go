package policy

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Reading of the parts that a file is made of. All report what is wrong and go on, with
// the zero value.

// fields are the keys that a mapping may have, and who reads them.
type fields map[string]func(n *yamlNode, at string)

func (r *fileReader) mapping(n *yamlNode, at string, known fields, required ...string) {
	if !r.is(n, at, yamlMap) {
		return
	}
	for _, key := range n.keys {
		read, ok := known[key.name]
		if !ok {
			names := strings.Join(slices.Sorted(maps.Keys(known)), ", ")
			r.fail(&yamlNode{line: key.line, column: key.column}, join(at, key.name), "there is no such key; known are %s", names)
			continue
		}
		read(key.value, join(at, key.name))
	}
	for _, name := range required {
		if !n.has(name) {
			r.fail(n, at, "%s is missing", name)
		}
	}
}

func (n *yamlNode) has(name string) bool {
	return slices.ContainsFunc(n.keys, func(k yamlKey) bool { return k.name == name })
}

// oneOf is for keys of which there must be exactly one, each with those that mean nothing
// beside it.
func (r *fileReader) oneOf(n *yamlNode, at string, without map[string][]string) {
	if n.kind != yamlMap {
		return
	}
	names := slices.Sorted(maps.Keys(without))
	there := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !n.has(name) })
	if len(there) != 1 {
		r.fail(n, at, "exactly one of %s must be there", strings.Join(names, ", "))
		return
	}
	for _, key := range n.keys {
		if slices.Contains(without[there[0]], key.name) {
			r.fail(&yamlNode{line: key.line, column: key.column}, join(at, key.name), "this cannot stand beside %s", there[0])
		}
	}
}

func (r *fileReader) list(n *yamlNode, at string, least, most int, read func(n *yamlNode, at string)) {
	if !r.is(n, at, yamlList) {
		return
	}
	if len(n.items) < least || len(n.items) > most {
		r.fail(n, at, "there must be %d to %d, and there are %d", least, most, len(n.items))
		return
	}
	for i, item := range n.items {
		read(item, index(at, i))
	}
}

func (r *fileReader) texts(n *yamlNode, at string, least, most int, shape textShape, distinct bool) []string {
	var texts []string
	seen := unique{}
	r.list(n, at, least, most, func(n *yamlNode, at string) {
		text := r.text(n, at, shape)
		if distinct {
			r.once(seen, n, at, text)
		}
		texts = append(texts, text)
	})
	return texts
}

func (r *fileReader) is(n *yamlNode, at string, kind yamlKind) bool {
	if n.kind == kind {
		return true
	}
	switch {
	case n.kind == yamlNull:
		r.fail(n, at, "this is empty, and should be %s; or leave it out", kind)
	case kind == yamlString && (n.kind == yamlNumber || n.kind == yamlBool):
		r.fail(n, at, "this should be text; put %s in quotes", n.text)
	default:
		r.fail(n, at, "this should be %s, and is %s", kind, n.kind)
	}
	return false
}

func (r *fileReader) flag(n *yamlNode, at string) bool {
	return r.is(n, at, yamlBool) && n.text == "true"
}

// whole takes 2.0 for 2, as JSON Schema does.
func (r *fileReader) whole(n *yamlNode, at string, least, most int32) int32 {
	if !r.is(n, at, yamlNumber) {
		return 0
	}
	value, err := strconv.ParseFloat(n.text, 64)
	if err != nil || value != float64(int32(value)) || value < float64(least) || value > float64(most) {
		r.fail(n, at, "%s: must be a whole number, %d to %d", n.text, least, most)
		return 0
	}
	return int32(value)
}

// choice is the value whose name stands there.
func choice[T any](r *fileReader, n *yamlNode, at string, names []string, values ...T) T {
	var none T
	if !r.is(n, at, yamlString) {
		return none
	}
	if i := slices.Index(names, n.text); i >= 0 {
		return values[i]
	}
	r.fail(n, at, "%q: must be %s", short(n.text), strings.Join(names, ", "))
	return none
}

// unique are names that were seen, and on which line.
type unique map[string]int

func (r *fileReader) once(seen unique, n *yamlNode, at, name string) {
	if first, twice := seen[name]; twice && name != "" {
		r.fail(n, at, "%q stands twice, first on line %d", short(name), first)
		return
	}
	seen[name] = n.line
}

// textShape is what a text must be. It is 1 character at least, and max at most.
type textShape struct {
	max   int
	shape *regexp.Regexp
	what  string
}

const (
	idShape        = `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`
	operationShape = `[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*)+`
	// A segment of a pattern has no two stars in a row.
	segmentShape = `(\*|\*?[a-z0-9_-]+(\*[a-z0-9_-]+)*\*?)`
)

// These are as in the .proto files and in policy.schema.json; tests compare them.
var (
	idText        = textShape{64, regexp.MustCompile(`^` + idShape + `$`), "letters, digits, and . _ - after the first"}
	subjectText   = textShape{72, regexp.MustCompile(`^(human|agent|service):` + idShape + `$`), "human:, agent: or service: and a name"}
	agentText     = textShape{70, agentSubject, "agent: and a name"}
	sessionText   = textShape{128, sessionID, "a session's id: printable characters without spaces"}
	personText    = textShape{70, regexp.MustCompile(`^human:` + idShape + `$`), "human: and a name"}
	operationText = textShape{200, regexp.MustCompile(`^` + operationShape + `$`), "an operation's whole name, such as crm/notes/add"}
	patternShape  = textShape{
		256, regexp.MustCompile(`^` + segmentShape + `(/` + segmentShape + `)*/(` + segmentShape + `|\*\*)$`),
		"a pattern of two segments at least: lower-case letters, digits, _ - and * in a segment, ** as the last one",
	}
	scopeText    = textShape{128, regexp.MustCompile(`^approval\.decide(\.[a-z0-9][a-z0-9_-]*)*$`), "approval.decide, or a group such as approval.decide.finance"}
	durationText = textShape{40, regexp.MustCompile(`^` + periodShape + `$`), "a length of time such as 90s, 10m, 1h30m or 7d"}
	rulePathText = textShape{129, regexp.MustCompile(`^` + idShape + `/` + idShape + `$`), "a policy's and a rule's id, such as base/payments"}
	reasonText   = textShape{64, regexp.MustCompile(`^[A-Z][A-Z_]*$`), "a reason such as NOT_GRANTED"}
	momentText   = textShape{
		40, regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$`),
		"a time such as 2026-01-02T03:04:05Z",
	}
	windowText = textShape{50, regexp.MustCompile(`^[1-9][0-9]{0,5}/` + periodShape + `$`), "writes in a length of time, such as 60/1m"}
)

func (r *fileReader) text(n *yamlNode, at string, shape textShape) string {
	if !r.is(n, at, yamlString) {
		return ""
	}
	length := utf8.RuneCountInString(n.text)
	switch {
	case length == 0:
		r.fail(n, at, "this is empty; leave it out")
	case length > shape.max:
		r.fail(n, at, "this is at most %d characters, and has %d", shape.max, length)
	case shape.shape != nil && !shape.shape.MatchString(n.text):
		r.fail(n, at, "%q must be %s", short(n.text), shape.what)
	default:
		return n.text
	}
	return ""
}

// short keeps a message readable, whatever the file says.
func short(text string) string {
	const most = 60
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}

// A period is 1d2h3m4.5s: days too, which Go's own form lacks. It begins with a digit, so
// it is never empty.
const (
	periodShape = `([0-9]{1,6}d([0-9]{1,6}h)?([0-9]{1,6}m)?` + secondShape + `?|[0-9]{1,6}h([0-9]{1,6}m)?` + secondShape +
		`?|[0-9]{1,6}m` + secondShape + `?|` + secondShape + `)`
	secondShape = `([0-9]{1,8}(\.[0-9]{1,9})?s)`
)

func parsePeriod(text string) (time.Duration, error) {
	days, rest, ok := strings.Cut(text, "d")
	if !ok {
		return time.ParseDuration(text)
	}
	n, err := strconv.Atoi(days)
	if err != nil || n > 365 {
		return 0, fmt.Errorf("%q days are too many", days)
	}
	d := time.Duration(n) * 24 * time.Hour
	if rest == "" {
		return d, nil
	}
	more, err := time.ParseDuration(rest)
	return d + more, err
}

// formatPeriod is parsePeriod backwards, in as few parts as there are.
func formatPeriod(d time.Duration) string {
	var b strings.Builder
	for _, unit := range []struct {
		name string
		size time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}} {
		if many := d / unit.size; many > 0 {
			fmt.Fprintf(&b, "%d%s", many, unit.name)
			d -= many * unit.size
		}
	}
	if d > 0 || b.Len() == 0 {
		b.WriteString(strconv.FormatInt(int64(d/time.Second), 10))
		if nanos := d % time.Second; nanos > 0 {
			b.WriteString(strings.TrimRight(fmt.Sprintf(".%09d", nanos), "0"))
		}
		b.WriteString("s")
	}
	return b.String()
}

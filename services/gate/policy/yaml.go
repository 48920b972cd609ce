package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

const (
	// maxFileBytes is the largest file that is read.
	maxFileBytes = 2 << 20
	// maxFileNodes bounds what aliases can make of it: `&a [*b, *b]` doubles.
	maxFileNodes = 200_000
	// maxFileDepth is how deep a file may nest.
	maxFileDepth = 64
)

// yamlNode is a value of a file and where it stands. YAML's many ways to write it are
// gone: what is left has a value of JSON each.
type yamlNode struct {
	kind         yamlKind
	text         string // of a string; of a number as it was written
	keys         []yamlKey
	items        []*yamlNode
	line, column int
	size         int // with all that is in it
}

type yamlKey struct {
	name         string
	value        *yamlNode
	line, column int
}

type yamlKind string

// These name the kinds in messages.
const (
	yamlNull   yamlKind = "nothing"
	yamlBool   yamlKind = "true or false"
	yamlNumber yamlKind = "a number"
	yamlString yamlKind = "text"
	yamlList   yamlKind = "a list"
	yamlMap    yamlKind = "a mapping"
)

// readYAML reads the one document of a file. It reports as many problems as it can find
// before it has to give up.
func (r *fileReader) readYAML(data []byte) *yamlNode {
	whole := &yamlNode{line: 1, column: 1}
	switch {
	case len(data) > maxFileBytes:
		r.fail(whole, "", "a file is at most %d bytes, and this has %d", maxFileBytes, len(data))
		return nil
	case !utf8.Valid(data):
		r.fail(whole, "", "the file is not UTF-8")
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	document := r.next(decoder)
	switch {
	case len(r.problems) > 0:
		return nil
	case document == nil:
		r.fail(whole, "", "there is nothing in this file; `{}` says so on purpose")
		return nil
	}
	if another := r.next(decoder); another != nil {
		r.fail(placeOf(another), "", "a file is one document; `---` begins another")
		return nil
	}
	c := converter{r: r, known: make(map[*yaml.Node]*yamlNode)}
	root := c.convert(document.Content[0], "", 0)
	if len(r.problems) > 0 {
		return nil
	}
	return root
}

// parserError is how the parser of YAML says where.
var parserError = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?(.*)$`)

// next gives nil where there is no further document, and where it reported that what is
// there can't be read. The parser is somebody else's: a text that makes it panic is one
// that can't be read either.
func (r *fileReader) next(decoder *yaml.Decoder) (document *yaml.Node) {
	place, what := &yamlNode{line: 1, column: 1}, ""
	defer func() {
		if recover() != nil {
			what = "the parser gave up"
		}
		if what != "" {
			r.fail(place, "", "this is not YAML: %s", what)
			document = nil
		}
	}()
	document = new(yaml.Node)
	err := decoder.Decode(document)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		parts := parserError.FindStringSubmatch(err.Error())
		if parts == nil {
			what = err.Error()
			break
		}
		what = parts[2]
		if line, err := strconv.Atoi(parts[1]); err == nil {
			place.line = line
		}
	}
	return document
}

func placeOf(n *yaml.Node) *yamlNode { return &yamlNode{line: n.Line, column: n.Column} }

// converter makes yamlNodes of the parser's tree.
type converter struct {
	r     *fileReader
	known map[*yaml.Node]*yamlNode // those with an anchor, once they are whole
	total int
}

// convert never gives nil, so that reading goes on after a problem.
func (c *converter) convert(n *yaml.Node, at string, depth int) *yamlNode {
	out := placeOf(n)
	out.kind, out.size = yamlNull, 1
	switch {
	case depth > maxFileDepth:
		c.r.fail(out, at, "this is nested deeper than %d", maxFileDepth)
		return out
	case n.Style&yaml.TaggedStyle != 0:
		c.r.fail(out, at, "there are no tags here; put text in quotes")
		return out
	}
	switch n.Kind {
	case yaml.MappingNode:
		out.kind = yamlMap
		c.keys(out, n.Content, at, depth)
	case yaml.SequenceNode:
		out.kind = yamlList
		for i, value := range n.Content {
			item := c.convert(value, index(at, i), depth+1)
			out.items = append(out.items, item)
			out.size += item.size
		}
	case yaml.AliasNode:
		meant := c.known[n.Alias]
		if meant == nil {
			c.r.fail(out, at, "&%s holds itself", n.Value)
			return out
		}
		out = meant
		c.total += meant.size - 1
	default:
		c.scalar(out, n, at)
	}
	if n.Anchor != "" {
		c.known[n] = out
	}
	if c.total++; c.total > maxFileNodes {
		c.r.fail(out, at, "the file has more than %d values, with those that aliases repeat", maxFileNodes)
		c.total = math.MinInt // said once
	}
	return out
}

// keys reads keys and values, which stand in turns.
func (c *converter) keys(out *yamlNode, content []*yaml.Node, at string, depth int) {
	seen := make(map[string]int, len(content)/2)
	for i := 0; i+1 < len(content); i += 2 {
		key, place := content[i], placeOf(content[i])
		if key.Kind != yaml.ScalarNode || key.Tag != "!!str" || key.Style&yaml.TaggedStyle != 0 {
			c.r.fail(place, at, "a key must be text: numbers, true, false and null need quotes, and there is no `<<`")
			continue
		}
		if first, twice := seen[key.Value]; twice {
			c.r.fail(place, join(at, key.Value), "this key stands twice, first on line %d", first)
			continue
		}
		seen[key.Value] = place.line
		value := c.convert(content[i+1], join(at, key.Value), depth+1)
		out.keys = append(out.keys, yamlKey{name: key.Value, value: value, line: place.line, column: place.column})
		out.size += value.size
	}
}

// jsonNumber is how a number is written here, so that there is one way to understand it.
var (
	jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)
	// numberLike is what some reader of YAML takes for a number, and JSON does not.
	numberLike = regexp.MustCompile(`^[+-]?(\.?[0-9][0-9_]*(\.[0-9_]*)?([eE][+-]?[0-9]+)?|0[xob][0-9a-fA-F_]+|\.(inf|Inf|INF)|\.(nan|NaN|NAN))$`)
)

// scalar reads plain text by YAML's core schema itself, so that a number keeps its digits
// and every form that JSON lacks is an error rather than something else.
func (c *converter) scalar(out *yamlNode, n *yaml.Node, at string) {
	out.kind, out.text = yamlString, n.Value
	if n.Style&^yaml.FlowStyle != 0 {
		return // quoted, or a block
	}
	switch out.text {
	case "", "~", "null", "Null", "NULL":
		out.kind, out.text = yamlNull, ""
		return
	case "true", "True", "TRUE", "false", "False", "FALSE":
		out.kind, out.text = yamlBool, strings.ToLower(out.text)
		return
	}
	switch {
	case jsonNumber.MatchString(out.text):
		out.kind = yamlNumber
	case numberLike.MatchString(out.text):
		c.r.fail(out, at, "%q: write numbers as in JSON, and text that looks like one in quotes", out.text)
	}
}

func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

func index(at string, i int) string { return fmt.Sprintf("%s[%d]", at, i) }

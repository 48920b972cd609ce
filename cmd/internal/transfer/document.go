package transfer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"sort"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/strictjson"
	"weir/internal/visible"
)

// document is a file of JSON values, one after the other.
type document struct {
	text []byte
	ends []int // offsets of the line feeds
}

func newDocument(text []byte) *document {
	d := &document{text: text}
	for i, b := range text {
		if b == '\n' {
			d.ends = append(d.ends, i)
		}
	}
	return d
}

// line that an offset is in, counted from 1.
func (d *document) line(offset int) int { return sort.SearchInts(d.ends, offset) + 1 }

// values are the top-level values, until one is no JSON. Text that could be read in two
// ways, such as an object that has a key twice, is none.
func (d *document) values() iter.Seq2[node, error] {
	return func(yield func(node, error) bool) {
		decoder := jsontext.NewDecoder(bytes.NewBuffer(d.text))
		for {
			value, err := decoder.ReadValue()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(node{}, d.syntax(err))
				return
			}
			end := int(decoder.InputOffset())
			if !yield(node{d.text[end-len(value) : end], end - len(value)}, nil) {
				return
			}
		}
	}
}

func (d *document) syntax(err error) error {
	at := len(d.text)
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		at, err = min(int(e.ByteOffset), len(d.text)), e.Err
	}
	return fmt.Errorf("line %d: is not JSON: %s", d.line(at), visible.Text(err.Error()))
}

// node is a value in a document. The document was read as a whole before, so that
// reading further into it can't fail.
type node struct {
	raw jsontext.Value
	at  int // offset in the document
}

// fields are the members of an object by name; nil if it is no object.
func (n node) fields() map[string]node {
	if n.raw.Kind() != jsontext.KindBeginObject {
		return nil
	}
	fields := make(map[string]node)
	decoder := n.inside()
	for decoder.PeekKind() == jsontext.KindString {
		name, err := decoder.ReadToken()
		if err != nil {
			break
		}
		// The name's text is gone with the next read.
		key := name.String()
		fields[key] = n.next(decoder)
	}
	return fields
}

// elements are those of an array in order; nil if it is no array.
func (n node) elements() []node {
	if n.raw.Kind() != jsontext.KindBeginArray {
		return nil
	}
	var elements []node
	decoder := n.inside()
	for kind := decoder.PeekKind(); kind != jsontext.KindEndArray && kind != jsontext.KindInvalid; kind = decoder.PeekKind() {
		elements = append(elements, n.next(decoder))
	}
	return elements
}

// inside is a decoder behind the bracket that opens the value.
func (n node) inside() *jsontext.Decoder {
	decoder := jsontext.NewDecoder(bytes.NewBuffer(n.raw))
	_, _ = decoder.ReadToken()
	return decoder
}

func (n node) next(decoder *jsontext.Decoder) node {
	value, _ := decoder.ReadValue()
	end := int(decoder.InputOffset())
	return node{n.raw[end-len(value) : end], n.at + end - len(value)}
}

// text of a string; "" for anything else.
func (n node) text() string {
	if !n.isText() {
		return ""
	}
	text, _ := jsontext.AppendUnquote(nil, n.raw)
	return string(text)
}

func (n node) isText() bool { return n.raw.Kind() == jsontext.KindString }

// empty says that a value, or its absence, tells nothing.
func (n node) empty() bool {
	switch n.raw.Kind() {
	case jsontext.KindInvalid, jsontext.KindNull, jsontext.KindFalse:
		return true
	case jsontext.KindString:
		return len(n.raw) == len(`""`)
	case jsontext.KindBeginObject:
		return len(n.fields()) == 0
	case jsontext.KindBeginArray:
		return len(n.elements()) == 0
	}
	return false
}

// json is the value as strict JSON. What is none, such as a number that is more exact than a
// double, is kept as a string of its text: another value would be a loss.
func (n node) json() string {
	value := n.raw.Clone()
	if err := value.Compact(); err != nil {
		return quote(string(n.raw))
	}
	if _, err := strictjson.Canonical(string(value)); err != nil {
		return quote(string(value))
	}
	return string(value)
}

// structured is the JSON that a text is: an object or array as it is, anything else as a
// string. So no two texts give the same JSON.
func structured(text string) string {
	if kind := jsontext.Value(text).Kind(); kind == jsontext.KindBeginObject || kind == jsontext.KindBeginArray {
		if _, err := strictjson.Canonical(text); err == nil {
			return text
		}
	}
	return quote(text)
}

// quote is a text, which is UTF-8, as a JSON string.
func quote(text string) string {
	quoted, _ := jsontext.AppendQuote(nil, text)
	return string(quoted)
}

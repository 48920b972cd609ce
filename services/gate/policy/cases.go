package policy

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
	"weir/internal/strictjson"
)

// maxInputBytes is the most that the gate takes.
const maxInputBytes = 512 << 10

func (r *fileReader) testCase(n *yamlNode, at string) *gatev1.Case {
	check := &gatev1.DryRun{}
	c := &gatev1.Case{Check: check}
	r.mapping(n, at, fields{
		"name":         func(n *yamlNode, at string) { c.Name = r.text(n, at, textShape{max: 200}) },
		"caller":       func(n *yamlNode, at string) { check.Caller = r.caller(n, at) },
		"operation":    func(n *yamlNode, at string) { check.Operation = r.text(n, at, operationText) },
		"effect":       func(n *yamlNode, at string) { check.Effect = r.effect(n, at) },
		"input":        func(n *yamlNode, at string) { check.InputJson = r.input(n, at) },
		"conversation": func(n *yamlNode, at string) { check.ConversationId = r.text(n, at, idText) },
		"target":       func(n *yamlNode, at string) { check.TargetConversationId = r.text(n, at, idText) },
		"now":          func(n *yamlNode, at string) { check.Now = r.moment(n, at) },
		"expect":       func(n *yamlNode, at string) { r.expect(n, at, c) },
	}, "name", "caller", "operation", "expect")
	return c
}

// caller is a subject, or a mapping that says more of it.
func (r *fileReader) caller(n *yamlNode, at string) *gatev1.Caller {
	c := &gatev1.Caller{}
	if n.kind == yamlString {
		c.Subject = r.text(n, at, subjectText)
		return c
	}
	r.mapping(n, at, fields{
		"subject":      func(n *yamlNode, at string) { c.Subject = r.text(n, at, subjectText) },
		"session":      func(n *yamlNode, at string) { c.Session = r.text(n, at, textShape{max: 128}) },
		"confined":     func(n *yamlNode, at string) { c.Confined = r.flag(n, at) },
		"on_behalf_of": func(n *yamlNode, at string) { c.OnBehalfOf = r.texts(n, at, 0, 16, subjectText, false) },
	}, "subject")
	return c
}

var verdictNames = []string{"allow", "ask", "deny"}

// expect is a verdict, or a mapping that says more of the answer.
func (r *fileReader) expect(n *yamlNode, at string, c *gatev1.Case) {
	verdict := func(n *yamlNode, at string) {
		c.Verdict = choice(r, n, at, verdictNames, gatev1.Verdict_VERDICT_ALLOW, gatev1.Verdict_VERDICT_ASK, gatev1.Verdict_VERDICT_DENY)
	}
	if n.kind == yamlString {
		verdict(n, at)
		return
	}
	r.mapping(n, at, fields{
		"verdict": verdict,
		"rule":    func(n *yamlNode, at string) { c.Rule = r.text(n, at, rulePathText) },
		"reason":  func(n *yamlNode, at string) { c.Reason = r.text(n, at, reasonText) },
	}, "verdict")
}

// moment is a time of RFC 3339, as in JSON.
func (r *fileReader) moment(n *yamlNode, at string) *timestamppb.Timestamp {
	text := r.text(n, at, momentText)
	if text == "" {
		return nil
	}
	moment, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		r.fail(n, at, "%s: there is no such time", text)
		return nil
	}
	return timestamppb.New(moment)
}

// input is any value, as strict JSON with its numbers as they were written. `null` is an
// input; there is none only where the key is missing.
func (r *fileReader) input(n *yamlNode, at string) *string {
	var b strings.Builder
	writeJSON(&b, n)
	if b.Len() > maxInputBytes {
		r.fail(n, at, "an input is at most %d bytes of JSON, and this has %d", maxInputBytes, b.Len())
		return nil
	}
	// The gate would refuse a number that a double does not hold.
	if _, err := strictjson.Canonical(b.String()); err != nil {
		r.fail(n, at, "%s", fault.From(err).Message())
		return nil
	}
	return proto.String(b.String())
}

func writeJSON(b *strings.Builder, n *yamlNode) {
	switch n.kind {
	case yamlNull:
		b.WriteString("null")
	case yamlBool, yamlNumber:
		b.WriteString(n.text)
	case yamlString:
		b.WriteString(jsonString(n.text))
	case yamlList:
		b.WriteByte('[')
		for i, item := range n.items {
			if i > 0 {
				b.WriteByte(',')
			}
			writeJSON(b, item)
		}
		b.WriteByte(']')
	case yamlMap:
		b.WriteByte('{')
		for i, key := range n.keys {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(jsonString(key.name))
			b.WriteByte(':')
			writeJSON(b, key.value)
		}
		b.WriteByte('}')
	}
}

func jsonString(text string) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // text always can be
	return strings.TrimSuffix(b.String(), "\n")
}

// yamlFromJSON is JSON on one line that YAML reads as the same value. The text is JSON
// already; only its strings are written in other words.
func yamlFromJSON(text string) string {
	decoder := jsontext.NewDecoder(strings.NewReader(text))
	var b strings.Builder
	for {
		kind, length := decoder.StackIndex(decoder.StackDepth())
		token, err := decoder.ReadToken()
		if err != nil {
			return quoted(text) // no JSON: nothing that ParseFile gave
		}
		closes := token.Kind() == jsontext.KindEndObject || token.Kind() == jsontext.KindEndArray
		switch {
		case closes || length == 0:
		case kind == jsontext.KindBeginObject && length%2 == 1:
			b.WriteString(": ")
		case kind != 0:
			b.WriteString(", ")
		}
		if token.Kind() == jsontext.KindString {
			b.WriteString(quoted(token.String()))
		} else {
			b.WriteString(token.String())
		}
		if decoder.StackDepth() == 0 {
			return b.String()
		}
	}
}

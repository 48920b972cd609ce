package transfer

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
)

// Content of chat messages is much the same in all formats: text, or a list of texts and
// of objects that have a type.

func textPart(text string) *conversationv1.Part {
	return &conversationv1.Part{Part: &conversationv1.Part_Text{Text: text}}
}

func dataPart(mediaType, json string) *conversationv1.Part {
	return &conversationv1.Part{Part: &conversationv1.Part_Data{Data: &conversationv1.Data{MediaType: mediaType, Json: json}}}
}

// fieldPart keeps a field of a message as what it would be among its content.
func fieldPart(mediaType, name string, value node) *conversationv1.Part {
	member := fmt.Sprintf(`{"type":%s,%[1]s:%s}`, quote(name), value.json())
	return dataPart(mediaType, node{raw: jsontext.Value(member)}.json())
}

// list is what content consists of; texts that are empty are not in it.
func list(content node) ([]node, error) {
	var all []node
	switch content.raw.Kind() {
	case jsontext.KindInvalid, jsontext.KindNull:
	case jsontext.KindString:
		all = []node{content}
	case jsontext.KindBeginArray:
		all = content.elements()
	default:
		return nil, errors.New("its content is neither text nor a list")
	}
	return slices.DeleteFunc(all, func(n node) bool {
		text, isText := plain(n)
		return isText && text == ""
	}), nil
}

// plain is the text of content that is nothing else.
func plain(n node) (string, bool) {
	if n.isText() {
		return n.text(), true
	}
	fields := n.fields()
	if fields["type"].text() != "text" || !fields["text"].isText() {
		return "", false
	}
	return fields["text"].text(), true
}

// part of content: text, or else data that is kept as it is.
func (f *Foreign) part(n node, mediaType string) *conversationv1.Part {
	text, isText := plain(n)
	if !isText {
		return dataPart(mediaType, n.json())
	}
	fields := n.fields()
	delete(fields, "type")
	delete(fields, "text")
	f.leaveFields("content.", fields)
	return textPart(text)
}

const maxOperation = 200 // characters

// call reads a call of a tool in any of the forms that are in use: with the function, or the
// custom tool, in an object of its own, or flat.
func call(n node) (foreignCall, error) {
	fields := n.fields()
	inner := fields
	for _, kind := range []string{"function", "custom"} {
		if nested := fields[kind].fields(); nested != nil {
			inner = nested
		}
	}
	key := callKey{name: fields["id"].text()}
	if id := fields["call_id"].text(); id != "" {
		key.name = id
	}
	part := &conversationv1.Call{Operation: inner["name"].text()}
	switch length := utf8.RuneCountInString(part.GetOperation()); {
	case length == 0:
		return foreignCall{}, errors.New("it calls something that has no name")
	case length > maxOperation:
		return foreignCall{}, fmt.Errorf("it calls something with a name of %d characters; there are at most %d", length, maxOperation)
	}
	for _, name := range []string{"arguments", "args", "input"} {
		if input := inner[name]; input.isText() && input.text() != "" {
			part.InputJson = proto.String(structured(input.text()))
		} else if !input.isText() && input.raw.Kind() != jsontext.KindInvalid && input.raw.Kind() != jsontext.KindNull {
			part.InputJson = proto.String(input.json())
		}
	}
	return foreignCall{key, part}, nil
}

// add appends a call to what was said.
func (s *said) add(c foreignCall) {
	s.calls = append(s.calls, c)
	s.parts = append(s.parts, &conversationv1.Part{Part: &conversationv1.Part_Call{Call: c.part}})
}

// answer makes what was said the result of a call. Text that is one object or array is
// that; the text of a failure is its message.
func (s *said) answer(key callKey, content node, failed bool) {
	s.role = tool
	result := &conversationv1.Result{State: "SUCCEEDED"}
	if failed {
		result.State = "FAILED"
	}
	text, isText := plain(content)
	if elements := content.elements(); len(elements) == 1 {
		text, isText = plain(elements[0])
	}
	switch {
	case isText && failed:
		result.Message = text
	case isText:
		result.OutputJson = proto.String(structured(text))
	case content.raw.Kind() != jsontext.KindInvalid && content.raw.Kind() != jsontext.KindNull:
		result.OutputJson = proto.String(content.json())
	}
	s.result = &foreignResult{key, result}
	s.parts = []*conversationv1.Part{{Part: &conversationv1.Part_Result{Result: result}}}
}

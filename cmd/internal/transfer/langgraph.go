package transfer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// langChainBlock is the media type of content that weir has no part for.
const langChainBlock = "application/vnd.langchain.block+json"

// LangGraph reads messages of LangChain in each of the forms that its programs write: as
// dicts, as their models dump them, and as serialised constructors. They are a list, or
// stand in the state or checkpoint of a graph; several of these may follow each other.
func LangGraph(text []byte, o Options) (*Foreign, error) {
	f := &Foreign{}
	return f.convert(text, o, langGraph{f})
}

type langGraph struct{ *Foreign }

func (f langGraph) messages(conversation node) (node, error) {
	holder, prefix := conversation, ""
	for holder.raw.Kind() != jsontext.KindBeginArray {
		// A state holds its values, a checkpoint those of its channels.
		fields, inner := holder.fields(), ""
		switch {
		case fields["messages"].raw.Kind() == jsontext.KindBeginArray:
			inner = "messages"
		case fields["values"].fields() != nil:
			inner = "values"
		case fields["channel_values"].fields() != nil:
			inner = "channel_values"
		default:
			return node{}, errors.New("is neither a list of messages nor a state with one")
		}
		holder = fields[inner]
		delete(fields, inner)
		f.leaveFields(prefix, fields)
		prefix += inner + "."
	}
	return holder, nil
}

// kinds are the roles of types of messages. A message of chat says its role itself.
var kinds = map[string]role{
	"human": user, "user": user, "ai": assistant, "assistant": assistant,
	"system": system, "developer": system, "tool": tool, "function": tool,
}

// unwrap gives the fields of a message and what type it has, in whatever it is wrapped.
func unwrap(n node) (fields map[string]node, kind string, err error) {
	fields = n.fields()
	if fields == nil {
		return nil, "", errors.New("is no object")
	}
	kind = fields["type"].text()
	switch path := fields["id"].elements(); {
	case fields["lc"].raw != nil && len(path) > 0 && kind == "constructor":
		kind = path[len(path)-1].text()
		fields = fields["kwargs"].fields()
	case fields["data"].fields() != nil:
		fields = fields["data"].fields()
	}
	// AIMessageChunk, AIMessage and ai are the same.
	kind = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(kind, "Chunk"), "Message"))
	if kind == "" || kind == "chat" || kind == "generic" {
		kind = strings.ToLower(fields["role"].text())
	}
	for _, name := range []string{"type", "role", "example"} {
		delete(fields, name)
	}
	return fields, kind, nil
}

func (f langGraph) message(n node) (said, error) {
	fields, kind, err := unwrap(n)
	if err != nil {
		return said{}, err
	}
	m := said{id: fields["id"].text(), name: fields["name"].text(), role: kinds[kind]}
	content, more := fields["content"], fields["additional_kwargs"].fields()
	taken := []string{"id", "name", "content", "additional_kwargs"}
	switch {
	case kind == "tool":
		m.answer(callKey{name: fields["tool_call_id"].text()}, content, fields["status"].text() == "error")
		taken = append(taken, "tool_call_id", "status")
	case kind == "function":
		m.answer(callKey{legacy: true, name: m.name}, content, false)
	case m.role == assistant:
		if err := f.speak(&m, content, fields, more); err != nil {
			return said{}, err
		}
		taken = append(taken, "tool_calls", "invalid_tool_calls", "tool_call_chunks")
	case m.role != "":
		elements, err := list(content)
		if err != nil {
			return said{}, err
		}
		for _, element := range elements {
			m.parts = append(m.parts, f.part(element, langChainBlock))
		}
	default:
		return said{}, fmt.Errorf("its type is %q, none of human, ai, system, tool, function and chat", kind)
	}
	for _, name := range taken {
		delete(fields, name)
	}
	f.leaveFields("", fields)
	f.leaveFields("additional_kwargs.", more)
	return m, nil
}

// speak reads what a model said and called. What it takes of more is gone from there.
func (f langGraph) speak(m *said, content node, fields, more map[string]node) error {
	var calls said
	for _, element := range fields["tool_calls"].elements() {
		c, err := call(element)
		if err != nil {
			return err
		}
		calls.add(c)
	}
	// A call that the model got wrong may lack anything, also a name.
	for _, element := range fields["invalid_tool_calls"].elements() {
		if c, err := call(element); err == nil {
			calls.add(c)
		} else {
			calls.parts = append(calls.parts, dataPart(langChainBlock, element.json()))
		}
	}
	// Messages of providers' own programs have the calls there; of LangChain's they are
	// there too.
	if len(calls.calls) == 0 {
		if err := calls.addOpenAICalls(more["tool_calls"], more["function_call"]); err != nil {
			return err
		}
	}
	delete(more, "tool_calls")
	delete(more, "function_call")

	elements, err := list(content)
	if err != nil {
		return err
	}
	for _, element := range elements {
		// Some models' content has the calls a second time, in forms of their own. Those of
		// programs that knew no other place have them there alone.
		if c, err := call(element); err == nil && callBlocks[element.fields()["type"].text()] {
			if !slices.ContainsFunc(calls.calls, func(other foreignCall) bool { return other.key == c.key }) {
				m.add(c)
			}
			continue
		}
		m.parts = append(m.parts, f.part(element, langChainBlock))
	}
	for _, name := range []string{"refusal", "reasoning_content"} {
		if value := more[name]; !value.empty() {
			m.parts = append(m.parts, fieldPart(langChainBlock, name, value))
			delete(more, name)
		}
	}
	m.parts, m.calls = append(m.parts, calls.parts...), append(m.calls, calls.calls...)
	return nil
}

// callBlocks are the types of content that are calls.
var callBlocks = map[string]bool{"tool_use": true, "tool_call": true, "function_call": true, "invalid_tool_call": true}

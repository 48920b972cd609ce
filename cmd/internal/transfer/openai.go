package transfer

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	conversationv1 "weir/gen/conversation/v1"
)

// openAIPart is the media type of content that weir has no part for.
const openAIPart = "application/vnd.openai.part+json"

// OpenAI reads messages of OpenAI's chat completions, which many others write too: a list
// of messages, an object with such a list, or several of these one after the other, as
// in files for fine-tuning.
func OpenAI(text []byte, o Options) (*Foreign, error) {
	f := &Foreign{}
	return f.convert(text, o, openAI{f})
}

type openAI struct{ *Foreign }

func (f openAI) messages(conversation node) (node, error) {
	if conversation.raw.Kind() == jsontext.KindBeginArray {
		return conversation, nil
	}
	fields := conversation.fields()
	list := fields["messages"]
	if list.raw.Kind() != jsontext.KindBeginArray {
		return node{}, errors.New("is neither a list of messages nor an object with one")
	}
	delete(fields, "messages")
	f.leaveFields("", fields)
	return list, nil
}

func (f openAI) message(n node) (said, error) {
	fields := n.fields()
	if fields == nil {
		return said{}, errors.New("is no object")
	}
	take := func(name string) node {
		value := fields[name]
		delete(fields, name)
		return value
	}
	m := said{id: take("id").text(), name: take("name").text()}
	content, callID := take("content"), take("tool_call_id")
	switch name := take("role").text(); name {
	case "user":
		m.role = user
	case "assistant":
		m.role = assistant
	case "system", "developer":
		m.role = system
	case "tool":
		m.answer(callKey{name: callID.text()}, content, false)
	case "function":
		m.answer(callKey{legacy: true, name: m.name}, content, false)
	default:
		return said{}, fmt.Errorf("its role is %q, none of system, developer, user, assistant, tool and function", name)
	}
	if m.role != tool {
		parts, err := f.contents(content)
		if err != nil {
			return said{}, err
		}
		m.parts = parts
	}
	if m.role == assistant {
		// What a model says beside its content is content all the same.
		for _, name := range []string{"refusal", "reasoning_content", "reasoning", "audio", "annotations"} {
			if value := take(name); !value.empty() {
				m.parts = append(m.parts, fieldPart(openAIPart, name, value))
			}
		}
		if err := m.addOpenAICalls(take("tool_calls"), take("function_call")); err != nil {
			return said{}, err
		}
	}
	f.leaveFields("", fields)
	return m, nil
}

func (f openAI) contents(content node) ([]*conversationv1.Part, error) {
	elements, err := list(content)
	if err != nil {
		return nil, err
	}
	var parts []*conversationv1.Part
	for _, element := range elements {
		parts = append(parts, f.part(element, openAIPart))
	}
	return parts, nil
}

// addOpenAICalls adds the calls of a message, and the one of messages from before calls had
// ids.
func (s *said) addOpenAICalls(calls, legacy node) error {
	for _, element := range calls.elements() {
		c, err := call(element)
		if err != nil {
			return err
		}
		s.add(c)
	}
	if legacy.empty() {
		return nil
	}
	c, err := call(legacy)
	if err != nil {
		return err
	}
	c.key = callKey{legacy: true, name: c.part.GetOperation()}
	s.add(c)
	return nil
}

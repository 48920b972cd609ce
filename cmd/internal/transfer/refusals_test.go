package transfer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"weir/cmd/internal/golden"
)

func chat(messages ...string) string { return "[\n" + strings.Join(messages, ",\n") + "\n]" }

func says(text string) string { return fmt.Sprintf(`{"role":"user","content":%q}`, text) }

func calls(ids ...string) string {
	var all []string
	for _, id := range ids {
		all = append(all, fmt.Sprintf(`{"id":%q,"type":"function","function":{"name":"f","arguments":"{}"}}`, id))
	}
	return `{"role":"assistant","tool_calls":[` + strings.Join(all, ",") + `]}`
}

func answers(id string) string {
	return fmt.Sprintf(`{"role":"tool","tool_call_id":%q,"content":"done"}`, id)
}

// What can't be imported as it is, is refused whole, with its place.
func TestRefusals(t *testing.T) {
	parts := `{"role":"user","content":[` + strings.Repeat(`"a",`, maxParts) + `"a"]}`
	names := make([]string, maxParticipants+2)
	for i := range names {
		names[i] = fmt.Sprintf(`{"role":"assistant","name":"a%d","content":"hi"}`, i)
	}
	var b strings.Builder
	for _, c := range []struct {
		what, format, text string
		options            Options
	}{
		{what: "nothing", text: ""},
		{what: "no messages", text: `[]`},
		{what: "nobody says anything", text: chat(says(""), `{"role":"assistant","content":null}`)},
		{what: "no JSON", text: "[\n" + says("hi") + ",\n{\"role\":}\n]"},
		{what: "cut off", text: "[\n" + says("hi") + ",\n"},
		{what: "a key twice", text: "[\n" + `{"role":"user","role":"system","content":"hi"}]`},
		{what: "half a character", text: "[\n" + `{"role":"user","content":"\ud83d"}]`},
		{what: "a message alone", text: says("hi")},
		{what: "a list of text", text: chat(`"hi"`)},
		{what: "no role", text: chat(`{"content":"hi"}`)},
		{what: "another role", text: chat(says("hi"), `{"role":"ipython","content":"hi"}`)},
		{what: "content of another kind", text: chat(`{"role":"user","content":{"text":"hi"}}`)},
		{what: "a call without a name", text: chat(`{"role":"assistant","tool_calls":[{"id":"a","function":{"arguments":"{}"}}]}`)},
		{what: "a call with a long name", text: chat(`{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"` + strings.Repeat("n", maxOperation+1) + `"}}]}`)},
		{what: "a result without a call", text: chat(says("hi"), answers("a"))},
		{what: "a result before its call", text: chat(answers("a"), calls("a"))},
		{what: "a result twice", text: chat(calls("a", "b"), answers("a"), answers("b"), answers("a"))},
		{what: "a result without an id", text: chat(calls("a"), `{"role":"tool","content":"done"}`)},
		{what: "a function's result for a tool's call", text: chat(calls("f"), `{"role":"function","name":"f","content":"done"}`)},
		{what: "too many parts", text: chat(says("hi"), parts)},
		{what: "too large", text: chat(says("hi"), says(strings.Repeat("a", maxMessageBytes+1)))},
		{what: "too many participants", text: chat(names...)},
		{what: "two of one id", text: chat(says("hi")) + chat(says("ho")), options: Options{ID: "one"}},
		{what: "an id that is none", text: chat(says("hi")), options: Options{ID: "a/b"}},
		{what: "a long title", text: chat(says("hi")), options: Options{Title: strings.Repeat("ö", maxTitle+1)}},
		{what: "another role's subject", text: chat(says("hi")), options: Options{As: map[string]string{"developer": "human:ann"}}},
		{what: "no subject", text: chat(says("hi")), options: Options{As: map[string]string{"user": "ann"}}},
		{what: "another type", format: "langgraph", text: chat(`{"type":"remove","content":"","id":"m1"}`)},
		{what: "no state", format: "langgraph", text: `{"values":{"todo":[]}}`},
		{what: "a chat without a role", format: "langgraph", text: chat(`{"type":"chat","content":"hi"}`)},
		{what: "a tool's result without a call", format: "langgraph", text: chat(`{"type":"tool","content":"4","tool_call_id":"x"}`)},
	} {
		if c.format == "" {
			c.format = "openai"
		}
		_, err := Formats[c.format]([]byte(c.text), c.options)
		if err == nil {
			t.Errorf("%s is taken", c.what)
		}
		fmt.Fprintf(&b, "%s\n  %v\n", c.what, err)
	}
	golden.Match(t, "refusals", b.String())

	for what, text := range map[string]string{
		"as many parts":        strings.Replace(chat(parts), `"a",`, "", 1),
		"as large":             chat(says(strings.Repeat("a", maxMessageBytes))),
		"as many participants": chat(names[:maxParticipants]...),
		"as many pinned":       chat(slices.Repeat([]string{`{"role":"system","content":"hi"}`}, maxPinned)...),
	} {
		f, err := OpenAI([]byte(text), Options{})
		if err != nil {
			t.Errorf("%s as there can be: %v", what, err)
			continue
		}
		if len(f.Notes()) > 0 {
			t.Errorf("%s as there can be: %s", what, f.Notes())
		}
		accepted(t, f)
	}
}

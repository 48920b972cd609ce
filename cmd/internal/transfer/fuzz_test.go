package transfer

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Whatever a file holds is refused, or gives records that a mesh takes.
func take(t testing.TB, text []byte) (taken bool) {
	t.Helper()
	for _, read := range Formats {
		f, err := read(text, Options{})
		if err == nil {
			taken = true
			accepted(t, f)
		}
	}
	return taken
}

func FuzzForeign(f *testing.F) {
	for _, text := range samples(f) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) { take(t, text) })
}

// Samples with pieces of them cut, doubled, moved and changed.
func TestDamagedFiles(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var all [][]byte
	for _, text := range samples(t) {
		all = append(all, text)
	}
	slices.SortFunc(all, slices.Compare)
	taken := 0
	for range 1000 {
		text := slices.Clone(all[random.IntN(len(all))])
		for range 1 + random.IntN(4) {
			at := random.IntN(len(text))
			end := min(at+random.IntN(20), len(text))
			switch random.IntN(4) {
			case 0:
				text[at] = byte(random.IntN(256))
			case 1:
				text = slices.Delete(text, at, end)
			case 2:
				text = slices.Insert(text, at, text[at:end]...)
			case 3:
				other := all[random.IntN(len(all))]
				from := random.IntN(len(other))
				text = slices.Replace(text, at, end, other[from:min(from+20, len(other))]...)
			}
			if len(text) == 0 {
				text = []byte(" ")
			}
		}
		if take(t, text) {
			taken++
		}
		if t.Failed() {
			t.Fatalf("%s", text)
		}
	}
	if taken < 20 {
		t.Errorf("only %d damaged files could be read, so this tells little", taken)
	}
}

// Conversations of messages in any form, and calls and results in any order.
func TestAnyConversation(t *testing.T) {
	taken := 0
	rapid.Check(t, func(rt *rapid.T) {
		text, err := json.Marshal(rapid.SliceOfN(message, 1, 12).Draw(rt, "messages"))
		if err != nil {
			rt.Fatal(err)
		}
		for format, read := range Formats {
			f, err := read(text, Options{})
			if err != nil {
				continue
			}
			taken++
			accepted(t, f)
			if t.Failed() {
				rt.Fatalf("%s: %s", format, text)
			}
		}
	})
	if taken == 0 {
		t.Error("no conversation could be read")
	}
}

var (
	ids     = rapid.SampledFrom([]any{"a", "b", "", "no id", "weir.x", nil, 7})
	block   = rapid.SampledFrom([]any{"hi", "", map[string]any{"type": "text", "text": "hi", "index": 1}, map[string]any{"type": "tool_use", "id": "a", "name": "f", "input": map[string]any{}}, 5, nil, []any{}})
	content = rapid.OneOf(rapid.SampledFrom([]any{"hi", "", nil, `{"a":1}`}), rapid.Map(rapid.SliceOfN(block, 0, 3), func(blocks []any) any { return blocks }))
	args    = rapid.SampledFrom([]any{"{}", "", "{", map[string]any{"n": json.Number("12345678901234567890")}, nil, []any{1}})
	calling = rapid.Custom(func(t *rapid.T) any {
		if rapid.Bool().Draw(t, "nested") {
			return map[string]any{"id": ids.Draw(t, "id"), "type": "function", "function": map[string]any{"name": "f", "arguments": args.Draw(t, "arguments")}}
		}
		return map[string]any{"id": ids.Draw(t, "id"), "name": "f", "args": args.Draw(t, "args")}
	})
	message = rapid.Custom(func(t *rapid.T) any {
		m := map[string]any{"content": content.Draw(t, "content"), "id": ids.Draw(t, "id"), "name": rapid.SampledFrom([]any{"ann", "f", "", nil, "a b"}).Draw(t, "name")}
		kinds := rapid.SampledFrom([][2]string{{"user", "human"}, {"assistant", "ai"}, {"system", "system"}, {"tool", "tool"}, {"function", "function"}}).Draw(t, "kind")
		m["role"], m["type"] = kinds[0], kinds[1]
		switch kinds[0] {
		case "assistant":
			m["tool_calls"] = rapid.SliceOfN(calling, 0, 3).Draw(t, "calls")
			if rapid.Bool().Draw(t, "legacy") {
				m["function_call"] = map[string]any{"name": "f", "arguments": args.Draw(t, "arguments")}
				m["additional_kwargs"] = map[string]any{"function_call": m["function_call"]}
			}
		case "tool":
			m["tool_call_id"], m["status"] = ids.Draw(t, "call"), rapid.SampledFrom([]any{"error", "success", nil}).Draw(t, "status")
		}
		return m
	})
)

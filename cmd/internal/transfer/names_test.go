package transfer

import (
	"slices"
	"strings"
	"testing"

	conversationv1 "weir/gen/conversation/v1"
)

// read gives the conversation and the messages of a file that holds one.
func read(t testing.TB, text string, o Options) (*conversationv1.Conversation, []*conversationv1.Message, *Foreign) {
	t.Helper()
	f, err := OpenAI([]byte(text), o)
	if err != nil {
		t.Fatal(err)
	}
	accepted(t, f)
	var messages []*conversationv1.Message
	for _, line := range f.conversations[0][1:] {
		messages = append(messages, line.Record.GetMessage())
	}
	return f.conversations[0][0].Record.GetConversation(), messages, f
}

func textOf(t testing.TB, f *Foreign) string {
	t.Helper()
	var b strings.Builder
	for line := range f.Lines() {
		b.WriteString(line.Text + "\n")
	}
	return b.String()
}

const hello = `[{"role":"system","content":"Be kind."},{"role":"user","name":"ann","content":"Hi"},{"role":"assistant","content":"Hello"},{"role":"user","content":"Bye"}]`

// The same content has the same ids, however the file is laid out, and other content
// others. Who speaks is part of it; the title is not.
func TestIDsAreThoseOfTheContent(t *testing.T) {
	first, messages, f := read(t, hello, Options{})
	laidOut := strings.NewReplacer(",", " ,\n", ":", ": ").Replace(hello)
	if _, _, again := read(t, laidOut, Options{}); textOf(t, again) != textOf(t, f) {
		t.Errorf("laid out otherwise it is\n%s", textOf(t, again))
	}
	if titled, _, _ := read(t, hello, Options{Title: "Greetings"}); titled.GetConversationId() != first.GetConversationId() || titled.GetTitle() != "Greetings" {
		t.Errorf("with a title it is %v", titled)
	}
	if named, _, _ := read(t, hello, Options{ID: "hello-1"}); named.GetConversationId() != "hello-1" {
		t.Errorf("with an id it is %v", named)
	}
	for _, other := range []string{
		strings.Replace(hello, "Bye", "bye", 1),
		strings.Replace(hello, "ann", "bob", 1),
		strings.Replace(hello, `{"role":"user","content":"Bye"}`, `{"role":"user","content":["By","e"]}`, 1),
	} {
		if c, _, _ := read(t, other, Options{}); c.GetConversationId() == first.GetConversationId() {
			t.Errorf("%s has the id of\n%s", other, hello)
		}
	}
	_, moved, _ := read(t, strings.Replace(hello, `[{"role":"system","content":"Be kind."},`, "[", 1), Options{})
	if moved[0].GetMessageId() == messages[1].GetMessageId() {
		t.Error("the same words in another place have the same id")
	}
}

func TestAuthors(t *testing.T) {
	for _, c := range []struct {
		what    string
		as      map[string]string
		authors string
		owner   string
		left    int
	}{
		{"as they are", nil, "service:system human:ann agent:assistant human:user", "human:ann", 0},
		{"as somebody else", map[string]string{"assistant": "agent:coder", "system": "human:omar"}, "human:omar human:ann agent:coder human:user", "human:ann", 0},
		{"whatever the name", map[string]string{"user": "human:bob"}, "service:system human:bob agent:assistant human:bob", "human:bob", 1},
	} {
		conversation, messages, f := read(t, hello, Options{As: c.as})
		var authors []string
		for _, m := range messages {
			authors = append(authors, m.GetAuthor())
		}
		if got := strings.Join(authors, " "); got != c.authors || conversation.GetOwner() != c.owner || f.Left["name"] != c.left {
			t.Errorf("%s: %s, of %s, %d names left out", c.what, got, conversation.GetOwner(), f.Left["name"])
		}
		var members []string
		for _, author := range authors {
			if author != c.owner && !slices.Contains(members, author) {
				members = append(members, author)
			}
		}
		if !slices.Equal(members, conversation.GetParticipants()) {
			t.Errorf("%s: participants are %v", c.what, conversation.GetParticipants())
		}
	}
	if conversation, _, _ := read(t, `[{"role":"assistant","content":"Anybody?"}]`, Options{}); conversation.GetOwner() != "human:user" {
		t.Errorf("where no user speaks, %s owns it", conversation.GetOwner())
	}
}

// Ids that are none, that are weir's own or that stand twice give way; nothing that is made
// takes one that a later message brings.
func TestMessageIDsAreKeptWhereTheyCanBe(t *testing.T) {
	_, made, _ := read(t, chat(says("hi"), says("ho")), Options{})
	id := func(id string) string { return `{"role":"user","content":"hi","id":"` + id + `"}` }
	_, messages, _ := read(t, chat(says("hi"), id("a"), id("a"), id("weir.1"), id("a b"), id(made[0].GetMessageId())), Options{})
	for i, want := range []string{"", "a", "", "", "", made[0].GetMessageId()} {
		if got := messages[i].GetMessageId(); want != "" && got != want || want == "" && !strings.HasPrefix(got, "msg-") {
			t.Errorf("message %d has id %s, want %s", i, got, want)
		}
	}
}

// A result belongs to the latest message that made such a call; there to the first that
// is open.
func TestResultsFindTheirCalls(t *testing.T) {
	for _, c := range []struct {
		what     string
		messages []string
		// pairs are the indexes of the calls, over all messages, that the results are of.
		pairs []int
	}{
		{"in any order", []string{calls("a", "b"), answers("b"), answers("a")}, []int{1, 0}},
		{"some stay open", []string{calls("a", "b"), answers("b"), says("never mind")}, []int{1}},
		{"ids used again", []string{calls("a"), answers("a"), calls("a"), answers("a")}, []int{0, 1}},
		{"ids used again while open", []string{calls("a"), calls("a"), answers("a"), answers("a")}, []int{1, 0}},
		{"one id for all", []string{calls("", "", ""), answers(""), answers(""), answers("")}, []int{0, 1, 2}},
		{"one id for all, twice", []string{calls("", ""), calls("", ""), answers(""), answers(""), answers("")}, []int{2, 3, 0}},
	} {
		t.Run(c.what, func(t *testing.T) {
			_, messages, _ := read(t, chat(c.messages...), Options{})
			var made []string
			var pairs []int
			for _, m := range messages {
				for _, part := range m.GetParts() {
					if call := part.GetCall(); call != nil {
						made = append(made, call.GetCallId())
					}
					if result := part.GetResult(); result != nil {
						pairs = append(pairs, slices.Index(made, result.GetCallId()))
					}
				}
			}
			if !slices.Equal(pairs, c.pairs) {
				t.Errorf("results are of calls %v, want %v", pairs, c.pairs)
			}
		})
	}
	// A call's own id is kept for it, also from an earlier one that needs another.
	_, first, _ := read(t, chat(calls("")), Options{})
	taken := first[0].GetParts()[0].GetCall().GetCallId()
	_, messages, _ := read(t, chat(calls(""), calls(taken)), Options{})
	if got := messages[1].GetParts()[0].GetCall().GetCallId(); got != taken {
		t.Errorf("the call with id %s has id %s", taken, got)
	}
}

// No two texts become the same JSON.
func TestTextsStayApart(t *testing.T) {
	texts := []string{`{"a":1}`, `"{\"a\":1}"`, `hello`, `"hello"`, `4`, `"4"`, `null`, ``, `{`, `[1]`, `[1`, `{"a":1,"a":2}`, `[9007199254740993]`}
	seen := make(map[string]string)
	for _, text := range texts {
		json := structured(text)
		if other, taken := seen[json]; taken {
			t.Errorf("%s and %s are both %s", text, other, json)
		}
		seen[json] = text
	}
}

func TestInstructionsBeyondTheLimitAreNotPinned(t *testing.T) {
	_, messages, f := read(t, chat(slices.Repeat([]string{`{"role":"system","content":"Be kind."}`}, maxPinned+2)...), Options{})
	pinned := 0
	for _, m := range messages {
		if m.GetPinned() {
			pinned++
		}
	}
	if pinned != maxPinned || f.Unpinned != 2 || len(f.Notes()) != 1 {
		t.Errorf("%d are pinned, %d are not, %q", pinned, f.Unpinned, f.Notes())
	}
}

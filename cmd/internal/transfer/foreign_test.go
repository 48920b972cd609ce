package transfer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"

	"weir/cmd/internal/golden"
	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/strictjson"
)

// samples are the files of testdata by the format that their names begin with.
func samples(t testing.TB) map[string][]byte {
	t.Helper()
	all := make(map[string][]byte)
	for _, pattern := range []string{"testdata/*.json", "testdata/*.jsonl"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal("no samples", err)
		}
		for _, file := range files {
			if all[filepath.Base(file)], err = os.ReadFile(file); err != nil {
				t.Fatal(err)
			}
		}
	}
	return all
}

func reader(file string) func([]byte, Options) (*Foreign, error) {
	format, _, _ := strings.Cut(file, "-")
	return Formats[format]
}

func TestSamplesBecomeTheseRecords(t *testing.T) {
	for file, text := range samples(t) {
		t.Run(file, func(t *testing.T) {
			f, err := reader(file)(text, Options{})
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			for line := range f.Lines() {
				b.WriteString(line.Place + "\n  " + line.Text + "\n")
			}
			for _, note := range f.Notes() {
				b.WriteString(note + "\n")
			}
			golden.Match(t, strings.TrimSuffix(file, filepath.Ext(file)), b.String())
			accepted(t, f)
		})
	}
}

// accepted holds records against what a mesh takes.
func accepted(t testing.TB, f *Foreign) {
	t.Helper()
	for _, lines := range f.conversations {
		conversation := lines[0].Record.GetConversation()
		if conversation == nil {
			t.Fatalf("%s: the first record is no conversation", lines[0].Place)
		}
		if int(conversation.GetHead()) != len(lines)-1 {
			t.Errorf("%s: the head is %d of %d messages", lines[0].Place, conversation.GetHead(), len(lines)-1)
		}
		members := append(conversation.GetParticipants(), conversation.GetOwner())
		valid(t, lines[0].Place, &conversationv1.CreateConversationRequest{
			ConversationId: conversation.GetConversationId(), Title: conversation.GetTitle(), Participants: conversation.GetParticipants(),
		})
		seen := make(map[string]bool)
		calls, results := make(map[string]bool), make(map[string]bool)
		for i, line := range lines[1:] {
			m := line.Record.GetMessage()
			valid(t, line.Place, line.Record)
			valid(t, line.Place, &conversationv1.NewMessage{MessageId: m.GetMessageId(), Parts: m.GetParts()})
			valid(t, line.Place, &conversationv1.ImportConversationRequest{Line: line.Text})
			switch {
			case m.GetPosition() != int64(i+1):
				t.Errorf("%s: position %d, want %d", line.Place, m.GetPosition(), i+1)
			case m.GetConversationId() != conversation.GetConversationId():
				t.Errorf("%s: is of conversation %s", line.Place, m.GetConversationId())
			case seen[m.GetMessageId()] || strings.HasPrefix(m.GetMessageId(), "weir."):
				t.Errorf("%s: id %s is taken", line.Place, m.GetMessageId())
			case !strings.Contains(" "+strings.Join(members, " ")+" ", " "+m.GetAuthor()+" "):
				t.Errorf("%s: %s takes no part", line.Place, m.GetAuthor())
			}
			seen[m.GetMessageId()] = true
			for _, part := range m.GetParts() {
				strict(t, line.Place, part)
				if call := part.GetCall(); call != nil {
					if calls[call.GetCallId()] || call.GetCallId() == "" {
						t.Errorf("%s: call id %q is taken", line.Place, call.GetCallId())
					}
					calls[call.GetCallId()] = true
				}
				if result := part.GetResult(); result != nil {
					if id := result.GetCallId(); !calls[id] || results[id] {
						t.Errorf("%s: result of %q, which was called: %v, which has a result: %v", line.Place, id, calls[id], results[id])
					}
					results[result.GetCallId()] = true
				}
			}
		}
	}
}

func valid(t testing.TB, place string, m proto.Message) {
	t.Helper()
	if err := protovalidate.Validate(m); err != nil {
		t.Errorf("%s: %v", place, err)
	}
}

func strict(t testing.TB, place string, part *conversationv1.Part) {
	t.Helper()
	var texts []string
	switch p := part.GetPart().(type) {
	case *conversationv1.Part_Text:
		if p.Text == "" {
			t.Errorf("%s: a text is empty", place)
		}
	case *conversationv1.Part_Data:
		texts = append(texts, p.Data.GetJson())
	case *conversationv1.Part_Call:
		if p.Call.InputJson != nil {
			texts = append(texts, p.Call.GetInputJson())
		}
	case *conversationv1.Part_Result:
		if p.Result.OutputJson != nil {
			texts = append(texts, p.Result.GetOutputJson())
		}
	}
	for _, text := range texts {
		if _, err := strictjson.Canonical(text); err != nil {
			t.Errorf("%s: %s: %v", place, text, err)
		}
	}
}

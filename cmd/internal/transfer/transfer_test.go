package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	"weir/cmd/internal/console"
	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/meshtest"
)

// mesh keeps the lines of conversations as they came, and gives them back.
type mesh struct {
	conversationv1.UnimplementedRetentionServiceServer

	mu    sync.Mutex
	lines map[string][]string
	calls int // of ImportConversation
	open  atomic.Int64
	// refuse the line of this number in an import, and say so.
	refuse int
	silent bool // about which line it was
}

func (m *mesh) serve(t *testing.T) conversationv1.RetentionServiceClient {
	t.Helper()
	server := grpc.NewServer()
	conversationv1.RegisterRetentionServiceServer(server, m)
	return conversationv1.NewRetentionServiceClient(meshtest.Loopback(t, server))
}

func (m *mesh) ExportConversation(r *conversationv1.ExportConversationRequest, stream grpc.ServerStreamingServer[conversationv1.ExportConversationResponse]) error {
	m.mu.Lock()
	lines, there := m.lines[r.GetConversationId()]
	m.mu.Unlock()
	if !there {
		return fault.New(fault.ConversationNotFound, "there is no such conversation").GRPCStatus().Err()
	}
	for _, line := range lines {
		if err := stream.Send(&conversationv1.ExportConversationResponse{Line: line}); err != nil {
			return err
		}
	}
	return nil
}

func (m *mesh) ImportConversation(stream grpc.ClientStreamingServer[conversationv1.ImportConversationRequest, conversationv1.ImportConversationResponse]) error {
	m.open.Add(1)
	defer m.open.Add(-1)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	var conversation *conversationv1.Conversation
	var imported int64
	for number := 1; ; number++ {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&conversationv1.ImportConversationResponse{Conversation: conversation, Imported: imported})
		}
		if err != nil {
			return err
		}
		if number == m.refuse {
			refusal := fault.New(fault.TooLarge, "the parts are too large").Field("message.parts", "hold too much")
			if !m.silent {
				refusal = refusal.With("line", strconv.Itoa(number))
			}
			return refusal.GRPCStatus().Err()
		}
		record, err := parse(request.GetLine())
		if err != nil {
			return err
		}
		if record.GetConversation() != nil {
			conversation = record.GetConversation()
		}
		id := conversation.GetConversationId()
		if number <= len(m.lines[id]) {
			continue // is there
		}
		m.lines[id] = append(m.lines[id], request.GetLine())
		if number > 1 {
			imported++
		}
	}
}

// shown is what a command shows.
func shown(command func(*console.Terminal) error) (string, error) {
	var out strings.Builder
	err := command(&console.Terminal{Out: &out})
	return out.String(), err
}

func imports(t *testing.T, client conversationv1.RetentionServiceClient, lines iter.Seq2[Line, error]) (string, error) {
	t.Helper()
	return shown(func(terminal *console.Terminal) error {
		return Import(t.Context(), terminal, client, "chat.jsonl", lines)
	})
}

func lineOf(id string, parent string, at int) string {
	if parent == "" {
		return fmt.Sprintf(`{"conversation":{"conversation_id":%q,"owner":"human:ann","head":"2"}}`, id)
	}
	return fmt.Sprintf(`{"conversation":{"conversation_id":%q,"owner":"human:ann","head":"%d","parent":{"conversation_id":%q,"position":"%d"}}}`, id, at+2, parent, at)
}

// family is a conversation, a fork of it and a fork of that: two messages each.
func family() *mesh {
	m := &mesh{lines: make(map[string][]string)}
	for i, id := range []string{"root", "fork", "twig"} {
		parent := []string{"", "root", "fork"}[i]
		m.lines[id] = []string{lineOf(id, parent, 2*i)}
		for position := 2*i + 1; position <= 2*i+2; position++ {
			m.lines[id] = append(m.lines[id], fmt.Sprintf(`{"message":{"conversation_id":%q,"message_id":"m%d","position":"%d","author":"human:ann","parts":[{"text":"%s"}]}}`,
				id, position, position, "a\u202eb"))
		}
	}
	return m
}

func text(m *mesh, ids ...string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for _, id := range ids {
		all = append(all, m.lines[id]...)
	}
	return strings.Join(all, "\n") + "\n"
}

func TestExport(t *testing.T) {
	m := family()
	client := m.serve(t)
	for _, c := range []struct {
		what      string
		ids       []string
		ancestors bool
		want      []string
	}{
		{"one", []string{"root"}, false, []string{"root"}},
		{"as asked", []string{"twig", "root"}, false, []string{"twig", "root"}},
		{"each once", []string{"root", "root"}, false, []string{"root"}},
		{"with ancestors", []string{"twig"}, true, []string{"root", "fork", "twig"}},
		{"with ancestors that are there already", []string{"fork", "twig", "root"}, true, []string{"root", "fork", "twig"}},
	} {
		file := filepath.Join(t.TempDir(), "out.jsonl")
		said, err := shown(func(terminal *console.Terminal) error {
			return Export(t.Context(), terminal, client, c.ids, file, c.ancestors)
		})
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		kept, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(kept) != text(m, c.want...) {
			t.Errorf("%s: kept\n%s", c.what, kept)
		}
		if want := fmt.Sprintf("%d conversations with %d messages, kept in %s\n", len(c.want), 2*len(c.want), file); said != want {
			t.Errorf("%s: said %q, want %q", c.what, said, want)
		}
		// On a terminal, nothing is hidden, and it is the same JSON.
		said, err = shown(func(terminal *console.Terminal) error {
			return Export(t.Context(), terminal, client, c.ids, "", c.ancestors)
		})
		if want := strings.ReplaceAll(text(m, c.want...), "\u202e", `\u202e`); err != nil || said != want {
			t.Errorf("%s: shown %s %v", c.what, said, err)
		}
	}
}

func TestExportsThatFail(t *testing.T) {
	m := family()
	client := m.serve(t)
	delete(m.lines, "root")
	folder := t.TempDir()
	old := filepath.Join(folder, "old.jsonl")
	if err := os.WriteFile(old, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ids       []string
		file      string
		ancestors bool
		want      string
	}{
		{[]string{"root"}, "new.jsonl", false, "root: CONVERSATION_NOT_FOUND"},
		{[]string{"twig", "root"}, "new.jsonl", false, "root: CONVERSATION_NOT_FOUND"},
		{[]string{"twig"}, "new.jsonl", true, "root, of which twig is a fork: CONVERSATION_NOT_FOUND"},
		{[]string{"twig"}, "old.jsonl", false, "--output: " + old + " is there already"},
	} {
		_, err := shown(func(terminal *console.Terminal) error {
			return Export(t.Context(), terminal, client, c.ids, filepath.Join(folder, c.file), c.ancestors)
		})
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v: %v, want %s", c.ids, err, c.want)
		}
	}
	if kept, err := os.ReadFile(old); string(kept) != "precious" {
		t.Error("the old file is overwritten", err)
	}
	if _, err := os.Stat(filepath.Join(folder, "new.jsonl")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a part of an export is left")
	}
	// What forks itself has no end.
	m.lines["twig"] = []string{lineOf("twig", "fork", 4)}
	m.lines["fork"] = []string{lineOf("fork", "twig", 2)}
	if err := Export(t.Context(), &console.Terminal{Out: io.Discard}, client, []string{"twig"}, "", true); err == nil || !strings.Contains(err.Error(), "ancestors") {
		t.Errorf("a circle: %v", err)
	}
}

// What was exported is imported line by line as it was, each conversation by a call of its
// own, and again without a change.
func TestWhatWasExportedIsImported(t *testing.T) {
	from, to := family(), &mesh{lines: make(map[string][]string)}
	client := to.serve(t)
	// Blank lines and line ends of other systems don't matter.
	exported := strings.ReplaceAll(text(from, "root", "fork"), "\n", "\r\n\r\n")
	for _, want := range []string{
		"root: 2 messages imported, 0 were there\nfork: 2 messages imported, 0 were there\n",
		"root: 0 messages imported, 2 were there\nfork: 0 messages imported, 2 were there\n",
	} {
		said, err := imports(t, client, Exported(strings.NewReader(exported)))
		if err != nil || said != want {
			t.Errorf("said %q %v, want %q", said, err, want)
		}
		if got := text(to, "root", "fork"); got != text(from, "root", "fork") {
			t.Errorf("it has\n%s", got)
		}
	}
	if to.calls != 4 {
		t.Errorf("%d calls, want one for each conversation", to.calls)
	}
}

func TestForeignConversationsAreImported(t *testing.T) {
	to := &mesh{lines: make(map[string][]string)}
	client := to.serve(t)
	for file, sample := range samples(t) {
		format, _, _ := strings.Cut(file, "-")
		f, err := Formats[format](sample, Options{})
		if err != nil {
			t.Fatal(err)
		}
		said, err := shown(func(terminal *console.Terminal) error {
			return ImportForeign(t.Context(), terminal, client, filepath.Join("testdata", file), format, Options{})
		})
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		var notes strings.Builder
		for _, note := range f.Notes() {
			fmt.Fprintf(&notes, "testdata/%s: %s\n", file, note)
		}
		if !strings.HasSuffix(said, " were there\n"+notes.String()) || strings.Count(said, "\n") != len(f.conversations)+len(f.Notes()) {
			t.Errorf("%s: said %s", file, said)
		}
		for _, lines := range f.conversations {
			kept := to.lines[lines[0].Record.GetConversation().GetConversationId()]
			if len(kept) != len(lines) {
				t.Fatalf("%s: %d records came, want %d", file, len(kept), len(lines))
			}
			for i, line := range lines {
				if kept[i] != line.Text {
					t.Errorf("%s: %s came", file, kept[i])
				}
			}
		}
	}
}

// Of a file in which anything can't be imported, nothing is.
func TestForeignFilesAreImportedWholeOrNot(t *testing.T) {
	to := &mesh{lines: make(map[string][]string)}
	client := to.serve(t)
	path := filepath.Join(t.TempDir(), "chats.jsonl")
	if err := os.WriteFile(path, []byte(chat(says("hi"))+"\n"+chat(says("ho"), answers("a"))), 0o600); err != nil {
		t.Fatal(err)
	}
	said, err := shown(func(terminal *console.Terminal) error {
		return ImportForeign(t.Context(), terminal, client, path, "openai", Options{})
	})
	if err == nil || !strings.HasPrefix(err.Error(), path+": line 6, message 2: no call") || said != "" || to.calls != 0 {
		t.Errorf("said %s %v, after %d calls", said, err, to.calls)
	}
	if err := os.Truncate(path, maxForeignBytes+1); err != nil {
		t.Fatal(err)
	}
	if err := ImportForeign(t.Context(), &console.Terminal{Out: io.Discard}, client, path, "openai", Options{}); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a file that is too large: %v", err)
	}
}

// A file that was read in camelCase is one, as protojson writes it without being asked.
func TestEitherSpellingIsRead(t *testing.T) {
	for line, err := range Exported(strings.NewReader(`{"conversation":{"conversationId":"c","updateTime":"2026-11-30T10:00:00Z","ofTomorrow":1}}`)) {
		if err != nil || line.Record.GetConversation().GetConversationId() != "c" || line.Record.GetConversation().GetUpdateTime() == nil {
			t.Errorf("%v %v", line.Record, err)
		}
	}
}

func TestImportsThatFail(t *testing.T) {
	whole := text(family(), "root", "fork")
	lines := strings.SplitAfter(whole, "\n")
	for _, c := range []struct {
		what, text string
		refuse     int
		silent     bool
		want       string
	}{
		{what: "nothing", text: "\n\n", want: "chat.jsonl: holds no conversation"},
		{what: "no JSON", text: lines[0] + "\nhi\n", want: "chat.jsonl: line 3: is no record of an export: "},
		{what: "no record", text: lines[0] + "{}\n", want: "chat.jsonl: line 2: is no record of an export: it is neither"},
		{what: "no conversation", text: lines[1], want: "chat.jsonl: line 1: is a message, and no conversation comes before it"},
		{what: "a long line", text: lines[0] + strings.Repeat("a", maxLineBytes+3), want: "chat.jsonl: line 2: is longer than the"},
		{what: "cut off", text: lines[0] + lines[1], want: "chat.jsonl: line 2: conversation root has messages up to position 2, and the file only up to 1"},
		{what: "cut off before the next", text: lines[0] + lines[1] + lines[3], want: "chat.jsonl: line 2: conversation root has messages up to position 2"},
		{what: "refused", text: "\n" + whole, refuse: 3, want: "chat.jsonl: line 4: TOO_LARGE: the parts are too large\n  message.parts: hold too much"},
		{what: "refused, who knows where", text: "\n" + whole, refuse: 1, silent: true, want: "chat.jsonl: line 2 to line 4: TOO_LARGE: "},
	} {
		to := &mesh{lines: make(map[string][]string), refuse: c.refuse, silent: c.silent}
		client := to.serve(t)
		said, err := imports(t, client, Exported(strings.NewReader(c.text)))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.what, err, c.want)
		}
		if said != "" {
			t.Errorf("%s: said %s", c.what, said)
		}
		if c.refuse == 0 {
			continue
		}
		// Run again, it goes on behind what is there.
		to.mu.Lock()
		to.refuse = 0
		to.mu.Unlock()
		if _, err := imports(t, client, Exported(strings.NewReader(c.text))); err != nil || text(to, "root", "fork") != whole {
			t.Errorf("%s, then again: %v\n%s", c.what, err, text(to, "root", "fork"))
		}
	}
}

// beginning gives the first line, and is back once the mesh has begun to import it.
func (m *mesh) beginning(t *testing.T, then func(yield func(Line, error) bool)) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		for line, err := range Exported(strings.NewReader(text(family(), "root"))) {
			if !yield(line, err) {
				t.Error("the first line is not taken", err)
				return
			}
			meshtest.Eventually(t, "the import begins", func() bool { return m.open.Load() == 1 })
			then(yield)
			return
		}
	}
}

// An import that can't go on leaves no call behind.
func TestImportsThatFailEndTheirCall(t *testing.T) {
	to := &mesh{lines: make(map[string][]string)}
	client := to.serve(t)
	broken := errors.New("the disk is gone")
	_, err := imports(t, client, to.beginning(t, func(yield func(Line, error) bool) { yield(Line{}, broken) }))
	if !errors.Is(err, broken) {
		t.Error(err)
	}
	meshtest.Eventually(t, "the call ends", func() bool { return to.open.Load() == 0 })
}

// An import that is told to stop stops.
func TestImportEndsWithItsContext(t *testing.T) {
	to := &mesh{lines: make(map[string][]string)}
	client := to.serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	record := &conversationv1.Record{Record: &conversationv1.Record_Message{Message: &conversationv1.Message{Position: 1}}}
	endless := to.beginning(t, func(yield func(Line, error) bool) {
		cancel()
		for range 1_000_000 {
			if !yield(Line{Text: "{}", Record: record, Place: "line 2"}, nil) {
				return
			}
		}
	})
	if err := Import(ctx, &console.Terminal{Out: io.Discard}, client, "chat.jsonl", endless); !strings.Contains(fmt.Sprint(err), "CANCELLED") {
		t.Errorf("it ended with %v", err)
	}
}

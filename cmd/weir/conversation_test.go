package main

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	conversationv1 "weir/gen/conversation/v1"
)

// retention takes in every import and gives one line as every export.
type retention struct {
	conversationv1.UnimplementedRetentionServiceServer
	lines chan string
}

func (r retention) ExportConversation(_ *conversationv1.ExportConversationRequest, stream grpc.ServerStreamingServer[conversationv1.ExportConversationResponse]) error {
	return stream.Send(&conversationv1.ExportConversationResponse{Line: `{"conversation":{"conversation_id":"c1"}}`})
}

func (r retention) ImportConversation(stream grpc.ClientStreamingServer[conversationv1.ImportConversationRequest, conversationv1.ImportConversationResponse]) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&conversationv1.ImportConversationResponse{
				Conversation: &conversationv1.Conversation{ConversationId: "c1"}, Imported: 1,
			})
		}
		if err != nil {
			return err
		}
		r.lines <- request.GetLine()
	}
}

func TestConversationsAreExportedAndImported(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := retention{lines: make(chan string, 10)}
	server := grpc.NewServer()
	conversationv1.RegisterRetentionServiceServer(server, r)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	folder := t.TempDir()
	token, chat, exported := filepath.Join(folder, "token"), filepath.Join(folder, "chat.json"), filepath.Join(folder, "c1.jsonl")
	for path, content := range map[string]string{token: "secret", chat: `[{"role":"user","content":"Hi"}]`} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	conversation := func(args ...string) (stdout, stderr string, code int) {
		t.Helper()
		return run(t, 20*time.Second, append([]string{"conversation"}, append(args, "--addr", listener.Addr().String(), "--token", token)...)...)
	}
	if stdout, stderr, code := conversation("export", "c1", "--with-ancestors", "--output", exported); code != 0 || !strings.HasPrefix(stdout, "1 conversations with 0 messages") {
		t.Fatal(stdout, stderr)
	}
	if stdout, stderr, code := conversation("import", exported); code != 0 || <-r.lines != `{"conversation":{"conversation_id":"c1"}}` {
		t.Fatal(stdout, stderr)
	}
	stdout, stderr, code := conversation("import", chat, "--format", "openai", "--id", "c1", "--title", "Hi", "--as", "user=human:ann", "--as", "assistant=agent:bob")
	if code != 0 || stdout != "c1: 1 messages imported, 0 were there\n" {
		t.Fatal(stdout, stderr)
	}
	want := `{"conversation":{"conversation_id":"c1","title":"Hi","owner":"human:ann","state":"CONVERSATION_STATE_ACTIVE","head":"1"}}`
	if got := <-r.lines; got != want {
		t.Errorf("%s came, want %s", got, want)
	}
	for message, args := range map[string][]string{
		"--id, --title and --as: not for exports": {exported, "--title", "Hi"},
		"--id: names one conversation":            {chat, chat, "--format", "openai", "--id", "c2"},
		"--as teacher=human:ann: want one of":     {chat, "--format", "openai", "--as", "teacher=human:ann"},
		"no such file":                            {filepath.Join(folder, "none")},
	} {
		if _, stderr, code := conversation(append([]string{"import"}, args...)...); code != 1 || !strings.Contains(stderr, message) {
			t.Errorf("%v: code %d, %s", args, code, stderr)
		}
	}
}

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	inboxv1 "weir/gen/inbox/v1"
)

// The groups of commands call different services.
func TestWhichServiceACommandCalls(t *testing.T) {
	for command, want := range map[string]string{
		"policy export": "127.0.0.1:7001", "approvals list": "127.0.0.1:7001", "audit list": "127.0.0.1:7001",
		"conversation export": "127.0.0.1:7003", "inbox list": "127.0.0.1:7004", "dispatch list": "127.0.0.1:7004",
	} {
		stdout, stderr, code := run(t, 20*time.Second, append(strings.Fields(command), "--help")...)
		if code != 0 || !strings.Contains(stdout, `--addr="`+want+`"`) {
			t.Errorf("%s: %s%s", command, stdout, stderr)
		}
	}
}

// told serves both services of the inbox by an interceptor, which hands each request on
// as text and answers with an empty response.
func told(t *testing.T) (addr string, requests chan string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	requests = make(chan string, 10)
	server := grpc.NewServer(grpc.UnaryInterceptor(func(_ context.Context, in any, call *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
		text, err := protojson.Marshal(in.(proto.Message))
		requests <- strings.ReplaceAll(fmt.Sprintf("%s %s", filepath.Base(call.FullMethod), text), `, "`, `,"`)
		return &inboxv1.GetInboxResponse{}, err // whatever was asked for: an empty message is one of every type
	}))
	inboxv1.RegisterInboxServiceServer(server, inboxv1.UnimplementedInboxServiceServer{})
	inboxv1.RegisterDispatchServiceServer(server, inboxv1.UnimplementedDispatchServiceServer{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String(), requests
}

// Each command sends what its flags say.
func TestInboxAndDispatchCommandsSendWhatTheirFlagsSay(t *testing.T) {
	addr, requests := told(t)
	folder := t.TempDir()
	token, state := filepath.Join(folder, "token"), filepath.Join(folder, "state.json")
	for path, text := range map[string]string{token: "secret", state: `{"goal":"bob"}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"inbox", "list"}, `ListInboxes {"pageSize":1000}`},
		{[]string{"inbox", "status", "bob"}, `GetInbox {"goal":"bob"}`},
		{[]string{"inbox", "peek", "bob"}, `Peek {"goal":"bob","pageSize":100}`},
		{[]string{"inbox", "dead", "bob"}, `ListDead {"goal":"bob","pageSize":100}`},
		{[]string{"inbox", "redrive", "bob", "a", "b"}, `Redrive {"goal":"bob","messageIds":["a","b"]}`},
		{[]string{"inbox", "redrive", "bob", "--all"}, `ListDead {"goal":"bob","pageSize":100}`},
		{[]string{"inbox", "discard", "bob", "a", "--yes"}, `DiscardDead {"goal":"bob","messageIds":["a"]}`},
		{[]string{"inbox", "pause", "bob", "--note", "why"}, `PauseInbox {"goal":"bob","note":"why"}`},
		{[]string{"inbox", "resume", "bob"}, `ResumeInbox {"goal":"bob"}`},
		{[]string{"inbox", "import", state}, `ImportGoal {"goal":"bob","stateJson":"{\"goal\":\"bob\"}"}`},
		{
			[]string{"inbox", "send", "bob", "hi, all", "--id", "m1", "--priority=-5", "--correlation", "c", "--busy", "replace", "--key", "k"},
			`Enqueue {"goal":"bob","messageId":"m1","body":"hi, all","priority":-5,"correlationId":"c","busyPolicy":"BUSY_POLICY_REPLACE","busyKey":"k"}`,
		},
		{[]string{"dispatch", "list", "--goal", "g", "--state", "done,blocked", "--worker", "w"}, `ListDispatches {"goal":"g","states":["DISPATCH_STATE_DONE","DISPATCH_STATE_BLOCKED"],"worker":"w","pageSize":1000}`},
		{[]string{"dispatch", "list"}, `ListDispatches {"pageSize":1000}`},
		{[]string{"dispatch", "show", "g", "issue 7"}, `GetDispatch {"goal":"g","item":"issue 7"}`},
		{[]string{"dispatch", "status", "g"}, `GetGoal {"goal":"g"}`},
		{
			[]string{"dispatch", "start", "g", "issue 7", "--worker", "bob", "--seed", "do it", "--request-id", "r1", "--title", "T", "--waits-for", "a,b", "--waits-for", "c"},
			`Dispatch {"goal":"g","item":"issue 7","requestId":"r1","worker":"bob","seed":"do it","title":"T","waitsFor":["a,b","c"]}`,
		},
		{[]string{"dispatch", "accept", "g", "i", "--note", "fine"}, `Accept {"goal":"g","item":"i","note":"fine"}`},
		{[]string{"dispatch", "reject", "g", "i", "--note", "no"}, `Reject {"goal":"g","item":"i","note":"no"}`},
		{[]string{"dispatch", "abandon", "g", "i"}, `Abandon {"goal":"g","item":"i"}`},
	} {
		_, stderr, code := run(t, 20*time.Second, append(c.args, "--addr", addr, "--token", token)...)
		select {
		case got := <-requests:
			if got != c.want || code != 0 {
				t.Errorf("%v: %s, want %s\n%s", c.args, got, c.want, stderr)
			}
		default:
			t.Errorf("%v: nothing was called\n%s", c.args, stderr)
		}
	}
	for want, args := range map[string]string{
		"ids or --all: want one of both": "inbox redrive bob", "--delay: must not be negative": "inbox send bob hi --delay=-1s",
		"--busy must be one of": "inbox send bob hi --busy no", "missing flags: --note": "dispatch reject g i", "--state must be one of": "dispatch list --state no",
		"no such file": "dispatch start g i --worker w --seed @" + folder + "/none",
	} {
		if _, stderr, code := run(t, 20*time.Second, append(strings.Fields(args), "--addr", addr, "--token", token)...); code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("%s: %s", args, stderr)
		}
	}
}

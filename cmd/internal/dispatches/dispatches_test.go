package dispatches

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"weir/cmd/internal/console"
	"weir/cmd/internal/golden"
	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
	"weir/internal/meshtest"
	"weir/internal/visible"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// bad commands the terminal, should it reach it.
const bad = "\x1b]0;x\a\x1b[2J\u202e\u200b\u009b"

func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }

// all is a dispatch of each kind; the texts of the first are the worst.
func all() []*inboxv1.Dispatch {
	return []*inboxv1.Dispatch{
		{
			DispatchId: "01K5" + bad, Goal: "build" + bad, Item: "issue 7" + bad, State: inboxv1.DispatchState_DISPATCH_STATE_DONE, Attempts: 2,
			ConversationId: "talk" + bad, Owner: "agent:alice" + bad, CreateTime: ago(26 * time.Hour), UpdateTime: ago(4 * time.Minute), Worker: "bob" + bad,
			Report: &inboxv1.DispatchReport{
				Kind: inboxv1.ReportKind_REPORT_KIND_DONE, Text: "two\nlines" + bad, Reporter: "agent:bob" + bad, ReportTime: ago(4 * time.Minute),
				Evidence: []*inboxv1.Evidence{{Uri: "https://example.com/" + bad, Title: "the patch" + bad}, {Uri: "https://example.com/log"}},
			},
			VerdictNote: "first\nnote" + bad, Failure: "PEER_UNAVAILABLE" + bad, WaitsFor: []string{"issue 6" + bad, "issue 5"},
		},
		{DispatchId: "01K6", Goal: "build", Item: "issue 8", State: inboxv1.DispatchState_DISPATCH_STATE_SENT, Owner: "human:omar", UpdateTime: ago(time.Hour), Unbegun: true},
		{DispatchId: "01K7", Goal: "build", Item: "issue 9", State: inboxv1.DispatchState_DISPATCH_STATE_REJECTED, Attempts: 1, Owner: "human:omar", Worker: "eve", UpdateTime: ago(time.Second)},
		{DispatchId: "01K8", Goal: "build", Item: "issue 10", State: inboxv1.DispatchState_DISPATCH_STATE_BEGUN, Attempts: 1, Owner: "human:omar", Worker: "eve", UpdateTime: ago(0), WaitsFor: []string{"issue 9"}},
	}
}

func TestWhatIsShown(t *testing.T) {
	for name, colour := range map[string]bool{"plain": false, "colours": true} {
		var out strings.Builder
		terminal := &console.Terminal{Out: &out, Colour: colour}
		rows := []console.Row{head(terminal)}
		for _, d := range all() {
			rows = append(rows, row(terminal, d, now))
		}
		terminal.Printf("%s\n", strings.Join(console.Table(rows), "\n"))
		for _, d := range all() {
			terminal.Printf("\n")
			Show(terminal, d, now)
		}
		if !colour {
			for _, r := range out.String() {
				if r != '\n' && visible.Text(string(r)) != string(r) {
					t.Errorf("%U reaches the terminal", r)
				}
			}
		}
		golden.Match(t, name, strings.ReplaceAll(out.String(), "\x1b", "^"))
	}
}

// record is a DispatchService that answers with one dispatch.
type record struct {
	inboxv1.UnimplementedDispatchServiceServer
	dispatch *inboxv1.Dispatch

	mu     sync.Mutex
	called []string
	tokens []string
	watch  func(attempt int, stream grpc.ServerStreamingServer[inboxv1.WatchDispatchesResponse]) error
}

func (r *record) serve(t *testing.T) inboxv1.DispatchServiceClient {
	t.Helper()
	server := grpc.NewServer()
	inboxv1.RegisterDispatchServiceServer(server, r)
	return inboxv1.NewDispatchServiceClient(meshtest.Loopback(t, server))
}

func (r *record) note(format string, args ...any) {
	r.called = append(r.called, fmt.Sprintf(format, args...))
}

func (r *record) ListDispatches(_ context.Context, in *inboxv1.ListDispatchesRequest) (*inboxv1.ListDispatchesResponse, error) {
	r.note("list %s %v %s %d", in.GetGoal(), in.GetStates(), in.GetWorker(), in.GetPageSize())
	if r.dispatch == nil {
		return &inboxv1.ListDispatchesResponse{}, nil
	}
	return &inboxv1.ListDispatchesResponse{Dispatches: []*inboxv1.Dispatch{r.dispatch}, NextPageToken: "more"}, nil
}

func (r *record) GetGoal(_ context.Context, in *inboxv1.GetGoalRequest) (*inboxv1.GetGoalResponse, error) {
	return &inboxv1.GetGoalResponse{Goal: &inboxv1.Goal{Goal: in.GetGoal(), Open: 3, Limit: 1000, Counts: []*inboxv1.DispatchCount{
		{State: inboxv1.DispatchState_DISPATCH_STATE_SENT, Count: 2}, {State: inboxv1.DispatchState_DISPATCH_STATE_DONE, Count: 1},
	}}}, nil
}

func (r *record) Dispatch(_ context.Context, in *inboxv1.DispatchRequest) (*inboxv1.DispatchResponse, error) {
	r.note("dispatch %s", in.GetRequestId())
	return &inboxv1.DispatchResponse{Dispatch: r.dispatch, Replay: in.GetRequestId() == "again"}, nil
}

func (r *record) Accept(_ context.Context, in *inboxv1.AcceptRequest) (*inboxv1.AcceptResponse, error) {
	r.note("accept %s: %s", in.GetItem(), in.GetNote())
	return &inboxv1.AcceptResponse{Dispatch: r.dispatch}, nil
}

func (r *record) Reject(_ context.Context, in *inboxv1.RejectRequest) (*inboxv1.RejectResponse, error) {
	r.note("reject %s: %s", in.GetItem(), in.GetNote())
	return &inboxv1.RejectResponse{Dispatch: r.dispatch}, nil
}

func (r *record) Abandon(_ context.Context, in *inboxv1.AbandonRequest) (*inboxv1.AbandonResponse, error) {
	r.note("abandon %s: %s", in.GetItem(), in.GetNote())
	return nil, fault.New(fault.NotOwner, "it is not yours")
}

func (r *record) WatchDispatches(in *inboxv1.WatchDispatchesRequest, stream grpc.ServerStreamingServer[inboxv1.WatchDispatchesResponse]) error {
	r.mu.Lock()
	r.tokens = append(r.tokens, in.GetResumeToken())
	attempt := len(r.tokens)
	r.mu.Unlock()
	return r.watch(attempt, stream)
}

func TestListsAndCounts(t *testing.T) {
	r := &record{dispatch: all()[2]}
	client := r.serve(t)
	var out strings.Builder
	terminal := &console.Terminal{Out: &out}
	which := &inboxv1.ListDispatchesRequest{Goal: "build", States: []inboxv1.DispatchState{States["begun"], States["done"]}, Worker: "bob"}
	if err := List(t.Context(), terminal, client, which); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(r.called); got != "[list build [DISPATCH_STATE_BEGUN DISPATCH_STATE_DONE] bob 1000]" {
		t.Errorf("asked was %s", got)
	}
	if !strings.HasSuffix(out.String(), "these are the newest 1; there are more\n") || !strings.Contains(out.String(), "issue 9  REJECTED  human:omar → eve") {
		t.Errorf("shown is\n%s", &out)
	}
	out.Reset()
	r.dispatch = nil
	_ = List(t.Context(), terminal, client, &inboxv1.ListDispatchesRequest{})
	if err := Status(t.Context(), terminal, client, "build"); err != nil {
		t.Fatal(err)
	}
	if want := "there are none\nbuild  3 of 1000 open\n     2 SENT\n     1 DONE\n"; out.String() != want {
		t.Errorf("shown is\n%s", &out)
	}
}

func TestVerdicts(t *testing.T) {
	r := &record{dispatch: all()[2]}
	client := r.serve(t)
	var out strings.Builder
	terminal := &console.Terminal{Out: &out}
	if err := Accept(t.Context(), terminal, client, "build", "issue 9", "fine"); err != nil {
		t.Error(err)
	}
	if err := Reject(t.Context(), terminal, client, "build", "issue 9", "no tests"); err != nil {
		t.Error(err)
	}
	if err := Abandon(t.Context(), terminal, client, "build", "issue 9", "late"); !fault.Is(err, fault.NotOwner) {
		t.Error(err)
	}
	if got := fmt.Sprint(r.called); got != "[accept issue 9: fine reject issue 9: no tests abandon issue 9: late]" {
		t.Errorf("called was %s", got)
	}
	if line := "build  issue 9  REJECTED\n"; out.String() != line+line {
		t.Errorf("shown is\n%s", &out)
	}
}

// Who starts work is told the request id whatever happens, since the same again starts
// nothing twice.
func TestStartingSaysUnderWhichRequest(t *testing.T) {
	r := &record{dispatch: all()[1]}
	client := r.serve(t)
	var out strings.Builder
	if err := Start(t.Context(), &console.Terminal{Out: &out}, client, &inboxv1.DispatchRequest{RequestId: "again"}); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), "request again\nit was asked for before\nitem     issue 8  SENT\n") {
		t.Errorf("shown is\n%s", &out)
	}
}

func TestASeedMayStandInAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seed")
	if err := os.WriteFile(path, []byte("do it\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"do it": "do it", "@" + path: "do it\n", "": ""} {
		if got, err := Seed(text); got != want || err != nil {
			t.Errorf("%q is %q, %v", text, got, err)
		}
	}
	if err := os.WriteFile(path, make([]byte, maxSeed+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"@" + path: "at most 65536 bytes", "@" + path + "x": "no such file"} {
		if _, err := Seed(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q gave %v", text, err)
		}
	}
}

// Watching goes on from the newest token, and anew where the inbox never gave that one.
func TestWatchingGoesOn(t *testing.T) {
	r := &record{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	change := func(token, name string) *inboxv1.WatchDispatchesResponse {
		return &inboxv1.WatchDispatchesResponse{ResumeToken: token, Change: name, Actor: "agent:bob" + bad, ChangeTime: timestamppb.New(now), Dispatch: all()[0]}
	}
	r.watch = func(attempt int, stream grpc.ServerStreamingServer[inboxv1.WatchDispatchesResponse]) error {
		switch attempt {
		case 1:
			_ = stream.Send(&inboxv1.WatchDispatchesResponse{ResumeToken: "t1"})
			_ = stream.Send(change("t2", "DispatchSent"))
			return fault.New(fault.ShuttingDown, "the inbox is stopping")
		case 2:
			return fault.New(fault.CursorUnavailable, "no such token")
		}
		_ = stream.Send(change("u1", "DispatchReported"))
		<-stream.Context().Done()
		return nil
	}
	out := &output{until: "DispatchReported", reached: cancel}
	if err := Watch(ctx, &console.Terminal{Out: out}, r.serve(t), "build"); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%q", r.tokens); got != `["" "t2" ""]` {
		t.Errorf("it went on from %s", got)
	}
	at, safe := now.Local().Format(time.TimeOnly), visible.Text(bad)
	line := func(change string) string {
		return at + "  " + change + " by agent:bob" + safe + "  build" + safe + "  issue 7" + safe + "  DONE  2 attempts, sending failed: PEER_UNAVAILABLE" + safe
	}
	want := []string{
		line("DispatchSent"), "the inbox is away; trying again until it is back",
		"the inbox does not know what was shown last; what happened meanwhile is left out", "the inbox is back", line("DispatchReported"), "",
	}
	if got := strings.Split(out.text.String(), "\n"); !slices.Equal(got, want) {
		t.Errorf("shown is\n%s", out.text.String())
	}
}

// output tells when a text was written.
type output struct {
	text    strings.Builder
	until   string
	reached func()
}

func (o *output) Write(p []byte) (int, error) {
	o.text.Write(p)
	if strings.Contains(string(p), o.until) {
		o.reached()
	}
	return len(p), nil
}

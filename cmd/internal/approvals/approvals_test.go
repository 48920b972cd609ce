package approvals

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"weir/cmd/internal/console"
	"weir/cmd/internal/golden"
	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/fault"
	"weir/internal/meshtest"
	"weir/internal/visible"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// evil is an approval all of whose texts command the terminal, should they reach it.
func evil() *gatev1.Approval {
	const bad = "\x1b]0;x\a\x1b[2J\u202e\u200b\u009b"
	return &gatev1.Approval{
		ApprovalId: "01K5" + bad, State: gatev1.ApprovalState_APPROVAL_STATE_PENDING, Operation: "pay/send" + bad, Effect: registryv1.Effect_EFFECT_WRITE,
		InputJson: proto.String(`{"amount":250.10,"note":"` + bad + `\u202e","to":["a","b"]}`), InputDigest: strings.Repeat("ab", 32),
		Requester: "agent:alice" + bad, OnBehalfOf: []string{"agent:lead" + bad, "human:boss"}, Session: "s1" + bad, ConversationId: "talk" + bad,
		Rules: []string{"base/payments" + bad}, Why: []string{"money leaves the house" + bad + "\nDENY"},
		Terms: &gatev1.Terms{
			Approvers: []*gatev1.Approver{{Scope: "approval.decide.finance" + bad, Count: 2}, {Scope: "approval.decide", People: []string{"human:carol" + bad}}},
			Ttl:       durationpb.New(30 * time.Minute), OnTimeout: gatev1.OnTimeout_ON_TIMEOUT_ALLOW, NoteRequired: true,
		},
		Flags: []*gatev1.Flag{{Kind: gatev1.FlagKind_FLAG_KIND_ALLOWS_ON_TIMEOUT}, {Kind: gatev1.FlagKind_FLAG_KIND_CREDENTIAL, Detail: "/note" + bad}, {Kind: 99}},
		Votes: []*gatev1.Vote{{
			Decider: "human:fred" + bad, Decision: gatev1.Decision_DECISION_APPROVE, Note: "fine\r" + bad, CreateTime: timestamppb.New(now.Add(-2 * time.Minute)),
			Remember: &gatev1.Remember{Scope: gatev1.RememberScope_REMEMBER_SCOPE_INPUT, Ttl: durationpb.New(time.Hour)},
		}},
		Missing:    []*gatev1.Approver{{Scope: "approval.decide.finance" + bad}},
		ExpireTime: timestamppb.New(now.Add(9*time.Minute + 12*time.Second)),
		AmendedBy:  "human:fred" + bad, AskedInputJson: proto.String(`{"amount":300,"note":"","to":["a","b"]}`), AskedInputDigest: "cd" + bad,
		TrustId: bad, SupersededBy: bad,
	}
}

func TestAnApprovalAsItIsShown(t *testing.T) {
	var out strings.Builder
	Show(&console.Terminal{Out: &out, Width: 100, Height: 60}, evil(), now, false)
	for _, r := range out.String() {
		if r != '\n' && visible.Text(string(r)) != string(r) {
			t.Errorf("%U reaches the terminal", r)
		}
	}
	golden.Match(t, "evil", out.String())

	out.Reset()
	plain := &gatev1.Approval{ApprovalId: "01K6", State: gatev1.ApprovalState_APPROVAL_STATE_APPROVED, Operation: "crm/purge", Effect: registryv1.Effect_EFFECT_ADMIN, Requester: "human:omar", InputDigest: strings.Repeat("00", 32)}
	Show(&console.Terminal{Out: &out, Colour: true}, plain, now, false)
	golden.Match(t, "plain", strings.ReplaceAll(out.String(), "\x1b", "^"))
}

// What does not fit on the screen is left out, said so, and counted; --full leaves out
// nothing.
func TestAnInputThatIsTooLong(t *testing.T) {
	a := &gatev1.Approval{ApprovalId: "01K5", InputJson: proto.String(`{"list":[` + strings.Repeat("1,", 199) + `2],"long":"` + strings.Repeat("x", 500) + `"}`)}
	for _, c := range []struct {
		terminal       console.Terminal
		full           bool
		hidden, atMost int
	}{
		{console.Terminal{Width: 80, Height: 40}, false, 176, 40},
		{console.Terminal{Width: 80, Height: 5}, false, 205 - least, 20},
		{console.Terminal{Width: 80, Height: 300}, false, 1, 300}, // the long line alone is cut
		{console.Terminal{Width: 80, Height: 40}, true, 0, 220},
		{console.Terminal{}, false, 0, 220}, // a file, or a pipe
	} {
		var out strings.Builder
		c.terminal.Out = &out
		hidden := Show(&c.terminal, a, now, c.full)
		lines := strings.Count(out.String(), "\n")
		if hidden != c.hidden || lines > c.atMost || (hidden > 0) != strings.Contains(out.String(), "show 01K5 --full") {
			t.Errorf("%+v: %d hidden on %d lines\n%s", c, hidden, lines, &out)
		}
	}
}

func TestNoInputNullAndNothingInIt(t *testing.T) {
	for want, text := range map[string]*string{"input    none\n": nil, "input    1 line\n  null\n": proto.String("null"), "input    1 line\n  {}\n": proto.String("{}")} {
		var out strings.Builder
		Show(&console.Terminal{Out: &out}, &gatev1.Approval{InputJson: text}, now, false)
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
}

// gate is an ApprovalService that a test scripts.
type gate struct {
	gatev1.UnimplementedApprovalServiceServer
	approval *gatev1.Approval

	mu      sync.Mutex
	decided []*gatev1.DecideApprovalRequest
	tokens  []string
	watch   func(attempt int, token string, stream grpc.ServerStreamingServer[gatev1.WatchApprovalsResponse]) error
}

func (g *gate) GetApproval(context.Context, *gatev1.GetApprovalRequest) (*gatev1.GetApprovalResponse, error) {
	return &gatev1.GetApprovalResponse{Approval: g.approval}, nil
}

func (g *gate) ListApprovals(_ context.Context, r *gatev1.ListApprovalsRequest) (*gatev1.ListApprovalsResponse, error) {
	if r.GetState() != gatev1.ApprovalState_APPROVAL_STATE_PENDING {
		return nil, fault.New(fault.FieldInvalid, "asked for %v", r.GetState())
	}
	return &gatev1.ListApprovalsResponse{Approvals: []*gatev1.Approval{g.approval}}, nil
}

func (g *gate) DecideApproval(_ context.Context, r *gatev1.DecideApprovalRequest) (*gatev1.DecideApprovalResponse, error) {
	g.decided = append(g.decided, r)
	if r.GetInputDigest() != g.approval.GetInputDigest() {
		return nil, fault.New(fault.DigestMismatch, "it was changed")
	}
	after := proto.CloneOf(g.approval)
	after.State = gatev1.ApprovalState_APPROVAL_STATE_APPROVED
	return &gatev1.DecideApprovalResponse{Approval: after}, nil
}

func (g *gate) WatchApprovals(r *gatev1.WatchApprovalsRequest, stream grpc.ServerStreamingServer[gatev1.WatchApprovalsResponse]) error {
	g.mu.Lock()
	g.tokens = append(g.tokens, r.GetResumeToken())
	attempt := len(g.tokens)
	g.mu.Unlock()
	return g.watch(attempt, r.GetResumeToken(), stream)
}

func (g *gate) serve(t *testing.T) gatev1.ApprovalServiceClient {
	t.Helper()
	server := grpc.NewServer()
	gatev1.RegisterApprovalServiceServer(server, g)
	conn := meshtest.Loopback(t, server)
	return gatev1.NewApprovalServiceClient(conn)
}

func pending() *gatev1.Approval {
	return &gatev1.Approval{
		ApprovalId: "01K5", State: gatev1.ApprovalState_APPROVAL_STATE_PENDING, Operation: "pay/send", Requester: "agent:alice",
		InputJson: proto.String(`{"amount":250}`), InputDigest: strings.Repeat("ab", 32),
	}
}

func TestTheDigestThatWasShownIsSent(t *testing.T) {
	g := &gate{approval: pending()}
	client := g.serve(t)
	var out strings.Builder
	answer := Answer{
		Decision: gatev1.Decision_DECISION_APPROVE, Note: "fine", Amend: proto.String(`{"amount": 200}`),
		Remember: &gatev1.Remember{Scope: gatev1.RememberScope_REMEMBER_SCOPE_OPERATION, Ttl: durationpb.New(time.Hour)},
	}
	terminal := &console.Terminal{Out: &out, In: strings.NewReader("yes\n"), Asks: true}
	if err := Decide(t.Context(), terminal, client, "01K5", answer); err != nil {
		t.Fatal(err)
	}
	if len(g.decided) != 1 {
		t.Fatalf("decided were %v", g.decided)
	}
	got := g.decided[0]
	if got.GetInputDigest() != pending().GetInputDigest() || got.GetApprovalId() != "01K5" || got.GetDecision() != answer.Decision ||
		got.GetNote() != "fine" || got.GetAmendedInputJson() != *answer.Amend || !proto.Equal(got.GetRemember(), answer.Remember) || got.GetRequestId() == "" {
		t.Errorf("sent was %v", got)
	}
	for _, says := range []string{
		"-   \"amount\": 250\n", "+   \"amount\": 200\n", strings.Repeat("ab", 32),
		"Approve it, amended, and the same again: this operation for 1h? [y/N] ", "01K5 APPROVED\n",
	} {
		if !strings.Contains(out.String(), says) {
			t.Errorf("%q is not in\n%s", says, &out)
		}
	}
}

func TestNothingIsSentThatWasNotConfirmed(t *testing.T) {
	g := &gate{approval: pending()}
	client := g.serve(t)
	deny := Answer{Decision: gatev1.Decision_DECISION_DENY, Note: "no"}
	err := Decide(t.Context(), &console.Terminal{Out: &strings.Builder{}, In: strings.NewReader("\n"), Asks: true}, client, "01K5", deny)
	if !errors.Is(err, console.Failed) {
		t.Errorf("no gave %v", err)
	}
	err = Decide(t.Context(), &console.Terminal{Out: &strings.Builder{}}, client, "01K5", deny)
	if !errors.Is(err, console.ErrNobodyToAsk) {
		t.Errorf("without a terminal it gave %v", err)
	}
	if len(g.decided) > 0 {
		t.Errorf("decided were %v", g.decided)
	}
	deny.Yes = true
	if err := Decide(t.Context(), &console.Terminal{Out: &strings.Builder{}}, client, "01K5", deny); err != nil || len(g.decided) != 1 {
		t.Errorf("with --yes: %v, %v", err, g.decided)
	}
}

func TestAQuestionSaysWhatWasNotShown(t *testing.T) {
	if got := question(Answer{Decision: gatev1.Decision_DECISION_APPROVE}, 12); got != "Approve it, with 12 lines of the input not fully shown?" {
		t.Errorf("asked is %q", got)
	}
}

func TestAmendmentsAreStrictJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "input.json")
	for text, good := range map[string]bool{`{"a": 1}`: true, `null`: true, ``: false, `{"a": 1, "a": 2}`: false, `{a: 1}`: false, `9007199254740993`: false} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadAmendment(path)
		if (err == nil) != good || good && *got != text {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if err := os.WriteFile(path, make([]byte, maxAmendment+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadAmendment(path); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a huge one gave %v", err)
	}
}

// Watching goes on from the newest token, however the stream ended, and begins anew where
// the gate never gave that token. The list is shown after the first answer.
func TestWatchingGoesOn(t *testing.T) {
	g := &gate{approval: pending()}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	change := func(token, name string) *gatev1.WatchApprovalsResponse {
		return &gatev1.WatchApprovalsResponse{ResumeToken: token, Change: name, Actor: "human:carol\x1b", ChangeTime: timestamppb.Now(), Approval: g.approval}
	}
	g.watch = func(attempt int, token string, stream grpc.ServerStreamingServer[gatev1.WatchApprovalsResponse]) error {
		switch attempt {
		case 1:
			_ = stream.Send(&gatev1.WatchApprovalsResponse{ResumeToken: "t1"})
			_ = stream.Send(change("t2", "ApprovalAsked"))
			return fault.New(fault.ShuttingDown, "the gate is stopping")
		case 2:
			return fault.New(fault.IndexRebuilding, "not yet")
		case 3:
			_ = stream.Send(change("t3", "ApprovalDecided"))
			return nil // and the stream just ends
		case 4:
			return fault.New(fault.CursorUnavailable, "no such token")
		case 5:
			_ = stream.Send(&gatev1.WatchApprovalsResponse{ResumeToken: "u1"})
			_ = stream.Send(change("u2", "ApprovalExpired"))
			<-stream.Context().Done()
			return nil
		}
		return fmt.Errorf("attempt %d with %q", attempt, token)
	}
	out := &output{until: "ApprovalExpired", reached: cancel}
	if err := Watch(ctx, &console.Terminal{Out: out}, g.serve(t)); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(g.tokens); got != "[ t2 t2 t3 ]" {
		t.Errorf("it went on from %s", got)
	}
	var shown []string
	for line := range strings.SplitSeq(strings.TrimSpace(out.text.String()), "\n") {
		for _, word := range []string{"ApprovalAsked by human:carol\\u001b", "ApprovalDecided", "ApprovalExpired", "the gate is away", "the gate is back", "does not know", "01K5  PENDING"} {
			if strings.Contains(line, word) {
				shown = append(shown, word)
				break
			}
		}
	}
	want := []string{
		"01K5  PENDING", "ApprovalAsked by human:carol\\u001b", "the gate is away", "the gate is back", "ApprovalDecided", "the gate is away", "does not know",
		"the gate is back", "01K5  PENDING", "ApprovalExpired",
	}
	if fmt.Sprint(shown) != fmt.Sprint(want) {
		t.Errorf("shown is\n%s", out.text.String())
	}
}

func TestWatchingEndsWithWhatStaysWrong(t *testing.T) {
	g := &gate{approval: pending()}
	g.watch = func(int, string, grpc.ServerStreamingServer[gatev1.WatchApprovalsResponse]) error {
		return fault.New(fault.ScopeMissing, "needs approval.read")
	}
	if err := Watch(t.Context(), &console.Terminal{Out: &strings.Builder{}}, g.serve(t)); !fault.Is(err, fault.ScopeMissing) {
		t.Errorf("it gave %v", err)
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

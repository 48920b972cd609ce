package inboxes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

func inboxesOfAllKinds() []*inboxv1.Inbox {
	return []*inboxv1.Inbox{
		{Goal: "bob", State: inboxv1.InboxState_INBOX_STATE_OPEN, Depth: 3, Limit: 200, Pending: 2, Claimed: 1, UpdateTime: ago(3 * time.Second), OldestPendingTime: ago(4 * time.Minute)},
		{Goal: "eve" + bad, State: inboxv1.InboxState_INBOX_STATE_PAUSED, StateNote: "see ticket\n7" + bad, Depth: 200, Limit: 200, Pending: 190, Delayed: 10, Dead: 7, UpdateTime: ago(26 * time.Hour), OldestPendingTime: ago(50 * time.Hour)},
		{Goal: "build.linux", State: inboxv1.InboxState_INBOX_STATE_DRAINING, Limit: 200, UpdateTime: ago(0)},
	}
}

func messagesOfAllKinds() []*inboxv1.Message {
	return []*inboxv1.Message{
		{MessageId: "m1", State: inboxv1.MessageState_MESSAGE_STATE_PENDING, Sender: "human:omar", Body: "hello", EnqueueTime: ago(4 * time.Minute)},
		{
			MessageId: "m2" + bad, State: inboxv1.MessageState_MESSAGE_STATE_CLAIMED, Sender: "agent:eve" + bad, Body: "two\nlines" + bad, Priority: 5,
			EnqueueTime: ago(90 * time.Minute), Deliveries: 2, Reclaimed: true, Claimant: "agent:bob" + bad, LeaseExpireTime: timestamppb.New(now.Add(200 * time.Second)),
			BusyPolicy: inboxv1.BusyPolicy_BUSY_POLICY_INTERRUPT, OnBehalfOf: []string{"agent:lead" + bad, "human:boss"}, Operation: "inbox/send" + bad,
		},
		{
			MessageId: "m3", State: inboxv1.MessageState_MESSAGE_STATE_PENDING, Sender: "service:x", Body: strings.Repeat("ö", 500), EnqueueTime: ago(time.Second), Deliveries: 1,
			NotBefore: timestamppb.New(now.Add(time.Hour)), ExpireTime: timestamppb.New(now.Add(2 * time.Hour)),
		},
		{
			MessageId: "m4", State: inboxv1.MessageState_MESSAGE_STATE_PENDING, Sender: "agent:mallory", EnqueueTime: ago(time.Hour),
			Refusal: &inboxv1.Refusal{Reason: inboxv1.RefusalReason_REFUSAL_REASON_SENDER_DISABLED},
		},
		{MessageId: "m5", State: inboxv1.MessageState_MESSAGE_STATE_PENDING, Sender: "agent:eve", Body: strings.Repeat("\x1b", 500), EnqueueTime: ago(0)},
	}
}

func deadLetter() *inboxv1.DeadMessage {
	d := &inboxv1.DeadMessage{Message: messagesOfAllKinds()[1], DeathTime: ago(time.Minute)}
	d.Message.State = inboxv1.MessageState_MESSAGE_STATE_DEAD
	for i, end := range []inboxv1.DeliveryEnd{inboxv1.DeliveryEnd_DELIVERY_END_LEASE_ENDED, inboxv1.DeliveryEnd_DELIVERY_END_RELEASED} {
		from := now.Add(time.Duration(i-3) * time.Minute)
		d.Deliveries = append(d.Deliveries, &inboxv1.Delivery{
			Claimant: "agent:bob" + bad, ClaimTime: timestamppb.New(from), EndTime: timestamppb.New(from.Add(10 * time.Second)), End: end,
		})
	}
	return d
}

// Everything that is shown, with the worst that others may have written.
func TestWhatIsShown(t *testing.T) {
	for name, colour := range map[string]bool{"plain": false, "colours": true} {
		var out strings.Builder
		terminal := &console.Terminal{Out: &out, Colour: colour}
		rows := []console.Row{terminal.Heads(heads...)}
		for _, in := range inboxesOfAllKinds() {
			rows = append(rows, inboxRow(terminal, in, now))
		}
		terminal.Printf("%s\n\n", strings.Join(console.Table(rows), "\n"))
		for _, in := range inboxesOfAllKinds() {
			status(terminal, in, now)
			brief(terminal, in)
		}
		rows = nil
		for _, m := range messagesOfAllKinds() {
			rows = append(rows, messageRow(terminal, m, now))
		}
		terminal.Printf("\n%s\n\n", strings.Join(console.Table(rows), "\n"))
		deadMessage(terminal, deadLetter(), now)
		if !colour {
			harmless(t, out.String())
		}
		golden.Match(t, name, strings.ReplaceAll(out.String(), "\x1b", "^"))
	}
}

func harmless(t *testing.T, shown string) {
	t.Helper()
	for _, r := range shown {
		if r != '\n' && visible.Text(string(r)) != string(r) {
			t.Errorf("%U reaches the terminal", r)
		}
	}
}

// inbox is an InboxService with one inbox, that a test steers.
type inbox struct {
	inboxv1.UnimplementedInboxServiceServer
	mu       sync.Mutex
	called   []string
	now      *inboxv1.Inbox
	messages []*inboxv1.Message
	dead     int
	// looked is called at each look, with the lock held; an error is the answer.
	looked func(looks int) error
	looks  int
}

func (s *inbox) serve(t *testing.T) inboxv1.InboxServiceClient {
	t.Helper()
	server := grpc.NewServer()
	inboxv1.RegisterInboxServiceServer(server, s)
	return inboxv1.NewInboxServiceClient(meshtest.Loopback(t, server))
}

// direct calls the service without a network, for tests in which time is not real.
type direct struct {
	inboxv1.InboxServiceClient
	service *inbox
}

func (d direct) Peek(ctx context.Context, r *inboxv1.PeekRequest, _ ...grpc.CallOption) (*inboxv1.PeekResponse, error) {
	return d.service.Peek(ctx, r)
}

func (d direct) GetInbox(ctx context.Context, r *inboxv1.GetInboxRequest, _ ...grpc.CallOption) (*inboxv1.GetInboxResponse, error) {
	return d.service.GetInbox(ctx, r)
}

func (d direct) DrainInbox(ctx context.Context, r *inboxv1.DrainInboxRequest, _ ...grpc.CallOption) (*inboxv1.DrainInboxResponse, error) {
	return d.service.DrainInbox(ctx, r)
}

func (s *inbox) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.called = append(s.called, fmt.Sprintf(format, args...))
}

func (s *inbox) look() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	if s.looked == nil {
		return nil
	}
	return s.looked(s.looks)
}

func (s *inbox) ListInboxes(context.Context, *inboxv1.ListInboxesRequest) (*inboxv1.ListInboxesResponse, error) {
	if err := s.look(); err != nil {
		return nil, err
	}
	if s.now == nil {
		return &inboxv1.ListInboxesResponse{}, nil
	}
	return &inboxv1.ListInboxesResponse{Inboxes: []*inboxv1.Inbox{s.now}, NextPageToken: "more"}, nil
}

func (s *inbox) GetInbox(_ context.Context, r *inboxv1.GetInboxRequest) (*inboxv1.GetInboxResponse, error) {
	if err := s.look(); err != nil {
		return nil, err
	}
	return &inboxv1.GetInboxResponse{Inbox: s.now}, nil
}

// Peek gives pages of two.
func (s *inbox) Peek(_ context.Context, r *inboxv1.PeekRequest) (*inboxv1.PeekResponse, error) {
	if err := s.look(); err != nil {
		return nil, err
	}
	from := len(r.GetPageToken())
	page := &inboxv1.PeekResponse{Messages: s.messages[from:min(from+2, len(s.messages))]}
	if from+2 < len(s.messages) {
		page.NextPageToken = strings.Repeat("x", from+2)
	}
	return page, nil
}

// ListDead gives as many messages as a page holds.
func (s *inbox) ListDead(_ context.Context, r *inboxv1.ListDeadRequest) (*inboxv1.ListDeadResponse, error) {
	page := &inboxv1.ListDeadResponse{}
	from := len(r.GetPageToken())
	for i := from; i < min(from+int(r.GetPageSize()), s.dead); i++ {
		page.Messages = append(page.Messages, &inboxv1.DeadMessage{Message: &inboxv1.Message{MessageId: fmt.Sprintf("d%d", i)}})
	}
	if to := from + int(r.GetPageSize()); to < s.dead {
		page.NextPageToken = strings.Repeat("x", to)
	}
	return page, nil
}

func (s *inbox) Redrive(_ context.Context, r *inboxv1.RedriveRequest) (*inboxv1.RedriveResponse, error) {
	s.note("redrive %d from %s", len(r.GetMessageIds()), r.GetMessageIds()[0])
	if slices.Contains(r.GetMessageIds(), "d200") {
		return nil, fault.New(fault.InboxFull, "the inbox is full")
	}
	return &inboxv1.RedriveResponse{Inbox: s.now}, nil
}

func (s *inbox) DiscardDead(_ context.Context, r *inboxv1.DiscardDeadRequest) (*inboxv1.DiscardDeadResponse, error) {
	s.note("discard %v", r.GetMessageIds())
	return &inboxv1.DiscardDeadResponse{Inbox: s.now}, nil
}

func (s *inbox) DrainInbox(_ context.Context, r *inboxv1.DrainInboxRequest) (*inboxv1.DrainInboxResponse, error) {
	s.note("drain: %s", r.GetNote())
	return &inboxv1.DrainInboxResponse{Inbox: s.now}, nil
}

func (s *inbox) Enqueue(_ context.Context, r *inboxv1.EnqueueRequest) (*inboxv1.EnqueueResponse, error) {
	s.note("enqueue %s", r.GetMessageId())
	return &inboxv1.EnqueueResponse{State: inboxv1.MessageState_MESSAGE_STATE_PENDING, Depth: 1, ReplacedMessageId: "old" + bad}, nil
}

func (s *inbox) ImportGoal(_ context.Context, r *inboxv1.ImportGoalRequest) (*inboxv1.ImportGoalResponse, error) {
	s.note("import %s of %s", r.GetStateJson(), r.GetGoal())
	if strings.Contains(r.GetStateJson(), `"version":2`) {
		return nil, fault.New(fault.FieldInvalid, "the state file is wrong at version: must be 1").Field("version", "must be 1")
	}
	return &inboxv1.ImportGoalResponse{Messages: 1, Items: 2}, nil
}

func TestPagesAreReadToTheEnd(t *testing.T) {
	s := &inbox{messages: messagesOfAllKinds(), now: inboxesOfAllKinds()[0], dead: 250}
	client := s.serve(t)
	var out strings.Builder
	terminal := &console.Terminal{Out: &out}
	for _, show := range []func() error{
		func() error { return Peek(t.Context(), terminal, client, "bob", false) },
		func() error { return List(t.Context(), terminal, client, false) },
		func() error { return Dead(t.Context(), terminal, client, "bob") },
	} {
		if err := show(); err != nil {
			t.Fatal(err)
		}
	}
	for _, says := range []string{"\nm5  ", "these are the first 1; there are more", "d249  DEAD"} {
		if !strings.Contains(out.String(), says) {
			t.Errorf("%q is not in\n%s", says, &out)
		}
	}
	out.Reset()
	s.dead, s.messages, s.now = 0, nil, nil
	_ = Peek(t.Context(), terminal, client, "bob", false)
	_ = List(t.Context(), terminal, client, false)
	_ = Dead(t.Context(), terminal, client, "bob")
	if out.String() != "there are none\nthere are none\nthere are none\n" {
		t.Errorf("nothing is shown as\n%s", &out)
	}
}

// All that are dead are redriven in calls of a hundred, and an error says how far it came.
func TestRedrivingAll(t *testing.T) {
	s := &inbox{dead: 150, now: inboxesOfAllKinds()[0]}
	client := s.serve(t)
	var out strings.Builder
	if err := Redrive(t.Context(), &console.Terminal{Out: &out}, client, "bob", nil); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(s.called); got != "[redrive 100 from d0 redrive 50 from d100]" {
		t.Errorf("called were %s", got)
	}
	if want := "redriven: 150 messages\nbob  OPEN  2 pending, 0 delayed, 1 claimed\n"; out.String() != want {
		t.Errorf("shown is\n%swant\n%s", &out, want)
	}
	out.Reset()
	s.dead = 250
	err := Redrive(t.Context(), &console.Terminal{Out: &out}, client, "bob", nil)
	if !fault.Is(err, fault.InboxFull) || out.String() != "redriven: 200 messages, and then no more\n" {
		t.Errorf("%v after\n%s", err, &out)
	}
	out.Reset()
	s.dead = 0
	if err := Redrive(t.Context(), &console.Terminal{Out: &out}, client, "bob", nil); err != nil || out.String() != "redriven: 0 messages\n" {
		t.Errorf("%v after\n%s", err, &out)
	}
}

func TestNothingIsDiscardedThatWasNotConfirmed(t *testing.T) {
	s := &inbox{now: inboxesOfAllKinds()[0]}
	client := s.serve(t)
	var out strings.Builder
	err := Discard(t.Context(), &console.Terminal{Out: &out, In: strings.NewReader("\n"), Asks: true}, client, "bob", []string{"a", "b"}, false)
	if !errors.Is(err, console.Failed) || out.String() != "Discard 2 messages of bob for good? [y/N] nothing was discarded\n" {
		t.Errorf("no gave %v\n%s", err, &out)
	}
	if err := Discard(t.Context(), &console.Terminal{Out: &out}, client, "bob", []string{"a"}, false); !errors.Is(err, console.ErrNobodyToAsk) {
		t.Errorf("without a terminal it gave %v", err)
	}
	if len(s.called) > 0 {
		t.Errorf("called were %v", s.called)
	}
	if err := Discard(t.Context(), &console.Terminal{Out: &out}, client, "bob", []string{"a"}, true); err != nil || fmt.Sprint(s.called) != "[discard [a]]" {
		t.Errorf("with --yes: %v, %v", err, s.called)
	}
}

func draining(depth int32) *inboxv1.Inbox {
	return &inboxv1.Inbox{Goal: "bob", State: inboxv1.InboxState_INBOX_STATE_DRAINING, Depth: depth, Pending: depth}
}

// A drain waits until the inbox is empty, also while the inbox is away for a moment.
func TestDraining(t *testing.T) { synctest.Test(t, testDraining) }

func testDraining(t *testing.T) {
	s := &inbox{now: draining(2)}
	s.looked = func(looks int) error {
		switch looks {
		case 1:
			return fault.New(fault.ShuttingDown, "the inbox is stopping")
		case 2:
			s.now = draining(1)
		case 3:
			s.now = draining(0)
			s.now.Dead = 1
		}
		return nil
	}
	var out strings.Builder
	if err := Drain(t.Context(), &console.Terminal{Out: &out}, direct{service: s}, "bob", "closing"); err != nil {
		t.Fatal(err)
	}
	want := `draining: 2 pending, 0 delayed, 0 claimed
the inbox is away; trying again until it is back
draining: 2 pending, 0 delayed, 0 claimed
the inbox is back
draining: 1 pending, 0 delayed, 0 claimed
bob is empty, and takes nothing until ` + "`weir inbox resume bob`\n"
	if out.String() != want || s.called[0] != "drain: closing" {
		t.Errorf("%v, shown is\n%s", s.called, &out)
	}
}

// Who ends the waiting is told that it stays draining; and who waits, that somebody else
// has opened it again.
func TestDrainingThatIsNotWaitedFor(t *testing.T) { synctest.Test(t, testNotWaitedFor) }

func testNotWaitedFor(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &inbox{now: draining(2)}
	client := direct{service: s}
	out := &output{until: "draining:", reached: cancel}
	err := Drain(ctx, &console.Terminal{Out: out}, client, "bob", "")
	if says := "bob stays draining, with 2 pending, 0 delayed, 0 claimed; `weir inbox resume bob` makes it take messages again\n"; !errors.Is(err, console.Failed) || !strings.HasSuffix(out.text.String(), says) {
		t.Errorf("interrupted it gave %v\n%s", err, out.text.String())
	}
	s.looked = func(int) error { s.now = inboxesOfAllKinds()[0]; return nil }
	var shown strings.Builder
	err = Drain(t.Context(), &console.Terminal{Out: &shown}, client, "bob", "")
	if !errors.Is(err, console.Failed) || !strings.Contains(shown.String(), "somebody else changed it: bob  OPEN") {
		t.Errorf("opened it gave %v\n%s", err, &shown)
	}
}

func TestSendingSaysUnderWhichID(t *testing.T) {
	s := &inbox{}
	var out strings.Builder
	if err := Send(t.Context(), &console.Terminal{Out: &out}, s.serve(t), &inboxv1.EnqueueRequest{Goal: "bob", MessageId: "m1", Body: "hi"}); err != nil {
		t.Fatal(err)
	}
	if want := "message m1\nPENDING in bob, which holds 1 message\nit takes the place of old" + visible.Text(bad) + "\n"; out.String() != want {
		t.Errorf("shown is\n%s", &out)
	}
}

// A state file is handed over as it is and only read; one that is refused, here or there,
// has the bytes that it had.
func TestImportingReadsOnly(t *testing.T) {
	s := &inbox{}
	client := s.serve(t)
	path := filepath.Join(t.TempDir(), "state.json")
	for text, want := range map[string]string{
		`{"version":1, "goal":"bob"}`:             "",
		`{"version":2,"goal":"bob"}`:              "FIELD_INVALID: the state file is wrong at version: must be 1\n  version: must be 1",
		`{"version":1,"goal":"bob","goal":"eve"}`: "import: " + path + ": a key stands twice in one object (line 1, column 27, at \"/goal\")",
		`{"version":1,"goal":"bo`:                 "import: " + path + ": the text ends inside of the value (line 1, column 24, at \"/goal\")",
		"\xff\xfe{\x00}\x00":                      "import: " + path + ": the text is not UTF-8 (line 1, column 1)",
		`[]`:                                      "import: " + path + ": goal: must be there, and a string",
		`{"goal":7}`:                              "import: " + path + ": goal: must be there, and a string",
		`"` + strings.Repeat("x", maxFile) + `"`:  "import: " + path + ": a state file is at most 2097152 bytes",
	} {
		if err := os.WriteFile(path, []byte(text), 0o400); err != nil {
			t.Fatal(err)
		}
		before, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		err = console.Explain(Import(t.Context(), &console.Terminal{Out: &out}, client, path))
		switch {
		case want == "" && (err != nil || out.String() != "bob: 1 message and 2 items imported\n" || s.called[len(s.called)-1] != "import "+text+" of bob"):
			t.Errorf("%q: %v, %s, %v", text, err, &out, s.called)
		case want != "" && (err == nil || err.Error() != want):
			t.Errorf("%.60q: %v, want %s", text, err, want)
		}
		after, err := os.Stat(path)
		if err != nil || !after.ModTime().Equal(before.ModTime()) {
			t.Errorf("%.60q: the file was written to: %v", text, err)
		}
		if kept, err := os.ReadFile(path); err != nil || string(kept) != text {
			t.Errorf("%.60q: the file is another one: %v", text, err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := Import(t.Context(), &console.Terminal{Out: &strings.Builder{}}, client, path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there gave %v", err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) > 0 {
		t.Errorf("left behind are %v, %v", entries, err)
	}
}

// Where it is no terminal, a watch prints what is new, changed or gone, and not that time
// goes by.
func TestWatchingWithoutATerminal(t *testing.T) { synctest.Test(t, testWatching) }

func testWatching(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	all := messagesOfAllKinds()
	s := &inbox{messages: all[:2]}
	s.looked = func(looks int) error {
		switch looks {
		case 2: // nothing happens
		case 3:
			s.messages = []*inboxv1.Message{all[1], all[2]}
		case 4:
			return fault.New(fault.JournalUnavailable, "no journal")
		case 5:
			s.messages = []*inboxv1.Message{}
		}
		return nil
	}
	out := &output{until: "m3 is gone", reached: cancel}
	if err := Peek(ctx, &console.Terminal{Out: out}, direct{service: s}, "bob", true); err != nil {
		t.Fatal(err)
	}
	var shown []string
	for line := range strings.SplitSeq(strings.TrimSpace(out.text.String()), "\n") {
		if len(line) > 10 && line[2] == ':' {
			line = line[10:]
		}
		line, _, _ = strings.Cut(line, "  ")
		shown = append(shown, line)
	}
	m2 := "m2" + visible.Text(bad)
	want := []string{"m1", m2, "m3", "m1 is gone", "the inbox is away; trying again until it is back", "the inbox is back", m2 + " is gone", "m3 is gone"}
	if !slices.Equal(shown, want) {
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

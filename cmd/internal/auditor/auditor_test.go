package auditor

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"weir/cmd/internal/console"
	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/internal/meshtest"
	"weir/services/gate/audit"
)

var quiet = slog.New(slog.DiscardHandler)

// gate is an audit service over a real journal.
type gate struct {
	t       *testing.T
	journal *journal.Journal
	client  gatev1.AuditServiceClient
	events  int
}

func startGate(t *testing.T, signer note.Signer, verifier string) *gate {
	t.Helper()
	n := meshtest.StartNATS(t)
	nc := n.Connect()
	j, err := journal.Open(t.Context(), nc, "gate", 1, quiet)
	if err != nil {
		t.Fatal(err)
	}
	records, err := journal.NewConsumer(nc, "gate", "audit", quiet, "weir.gate.>")
	if err != nil {
		t.Fatal(err)
	}
	log := audit.NewLog(records, j, quiet)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = log.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })

	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		answer, err := handle(identity.NewContext(ctx, identity.Caller{Tenant: "demo", Subject: "human:audrey"}), r)
		if err != nil {
			return nil, fault.From(err).GRPCStatus().Err()
		}
		return answer, nil
	}))
	gatev1.RegisterAuditServiceServer(server, audit.NewServer(log, signer, verifier))
	conn := meshtest.Loopback(t, server)
	meshtest.Eventually(t, "the log is built", func() bool { return log.Ready() == nil })
	return &gate{t: t, journal: j, client: gatev1.NewAuditServiceClient(conn)}
}

// deny appends a refusal, with the words as its reason.
func (g *gate) deny(reason string) {
	g.t.Helper()
	data, err := proto.Marshal(&gatev1.Event{Actor: "agent:alice", Event: &gatev1.Event_CheckDenied{CheckDenied: &gatev1.CheckDenied{
		Request: &gatev1.CheckedRequest{Operation: "files/write"}, Reason: reason,
	}}})
	if err != nil {
		g.t.Fatal(err)
	}
	id := fmt.Sprint("c", g.events)
	g.events++
	_, err = g.journal.Append(g.t.Context(), journal.Event{
		ID: id, Type: "weir.gate.v1.CheckDenied", Key: journal.Key{Tenant: "demo", Kind: "check", ID: id}, Data: data,
		Time: time.Date(2026, 11, 30, 12, 0, g.events, 0, time.UTC),
	}, 0)
	if err != nil {
		g.t.Fatal(err)
	}
}

func newKey(t *testing.T) (signer note.Signer, verifier string) {
	t.Helper()
	private, verifier, err := note.GenerateKey(rand.Reader, "weir/gate")
	if err != nil {
		t.Fatal(err)
	}
	if signer, err = note.NewSigner(private); err != nil {
		t.Fatal(err)
	}
	return signer, verifier
}

// shown runs a command and gives what it showed.
func shown(command func(*console.Terminal) error) (string, error) {
	var out strings.Builder
	err := command(&console.Terminal{Out: &out})
	return out.String(), err
}

func want(t *testing.T, got string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains(got, line) {
			t.Errorf("%q is not in\n%s", line, got)
		}
	}
}

func TestWhatWasKeptIsVerifiedLater(t *testing.T) {
	signer, key := newKey(t)
	g := startGate(t, signer, key)
	g.deny("NOT_GRANTED")
	g.deny("NOT_GRANTED")
	folder := t.TempDir()
	file, newer := filepath.Join(folder, "kept"), filepath.Join(folder, "newer")
	out, err := shown(func(t0 *console.Terminal) error { return Checkpoint(t.Context(), t0, g.client, file) })
	if err != nil || out != "2 records, kept in "+file+"\n" {
		t.Fatalf("got %q, %v", out, err)
	}
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	printed, err := shown(func(t0 *console.Terminal) error { return Checkpoint(t.Context(), t0, g.client, "") })
	if err != nil || printed != string(kept) {
		t.Errorf("got %q, %v, want %q", printed, err, kept)
	}
	if err := Checkpoint(t.Context(), &console.Terminal{Out: &strings.Builder{}}, g.client, file); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("got %v", err)
	}

	g.deny("NOT_GRANTED")
	out, err = shown(func(t0 *console.Terminal) error { return Verify(t.Context(), t0, g.client, string(kept), key, newer) })
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want(t, out, "kept:     weir/gate/demo, 2 records", "now:      weir/gate/demo, 3 records",
		"the first 2 records are those of the kept checkpoint, and 1 came after them", "3 records were read", "\nverified\n")
	next, err := os.ReadFile(newer)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := audit.OpenCheckpoint(string(next), key); err != nil || c.Size != 3 {
		t.Errorf("kept %+v, %v", c, err)
	}
}

func TestAnotherHistoryIsNotVerified(t *testing.T) {
	signer, key := newKey(t)
	g, other := startGate(t, signer, key), startGate(t, signer, key)
	for i := range 5 {
		g.deny("NOT_GRANTED")
		other.deny(map[bool]string{true: "NOT_GRANTED", false: "POLICY"}[i != 2])
	}
	kept, err := shown(func(t0 *console.Terminal) error { return Checkpoint(t.Context(), t0, g.client, "") })
	if err != nil {
		t.Fatal(err)
	}
	other.deny("NOT_GRANTED")
	newer := filepath.Join(t.TempDir(), "newer")
	out, err := shown(func(t0 *console.Terminal) error { return Verify(t.Context(), t0, other.client, kept, key, newer) })
	if err != console.Failed {
		t.Errorf("got %v", err)
	}
	want(t, out, "kept:     weir/gate/demo, 5 records", "now:      weir/gate/demo, 6 records",
		"NOT VERIFIED: the tree of 5 records is not the beginning of the tree of 6", "one of the records 0 to 4 was changed")
	if strings.Contains(out, "\nverified") {
		t.Errorf("got %s", out)
	}
	if _, err := os.Stat(newer); err == nil {
		t.Error("a checkpoint that is not proved was kept")
	}
}

func TestWhatCannotBeFoundOutIsNoFinding(t *testing.T) {
	signer, key := newKey(t)
	_, otherKey := newKey(t)
	g, keyless := startGate(t, signer, key), startGate(t, nil, "")
	g.deny("NOT_GRANTED")
	kept, err := shown(func(t0 *console.Terminal) error { return Checkpoint(t.Context(), t0, g.client, "") })
	if err != nil {
		t.Fatal(err)
	}
	for want, verify := range map[string]func(*console.Terminal) error{
		"the kept checkpoint: the checkpoint is not signed by the key": func(t0 *console.Terminal) error { return Verify(t.Context(), t0, g.client, kept, otherKey, "") },
		"the kept checkpoint: not a signed checkpoint":                 func(t0 *console.Terminal) error { return Verify(t.Context(), t0, g.client, "x", key, "") },
		"AUDIT_KEY_MISSING: this gate has no key":                      func(t0 *console.Terminal) error { return Verify(t.Context(), t0, keyless.client, kept, key, "") },
	} {
		out, err := shown(verify)
		if err == nil || err == console.Failed || !strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("got %v and %q, want %q", err, out, want)
		}
	}
	if err := Checkpoint(t.Context(), &console.Terminal{Out: &strings.Builder{}}, keyless.client, ""); !fault.Is(err, fault.AuditKeyMissing) {
		t.Errorf("got %v", err)
	}
}

func TestRecordsAreLines(t *testing.T) {
	signer, key := newKey(t)
	g := startGate(t, signer, key)
	g.deny("NOT_GRANTED")
	g.deny("RULE \x1b[2J")
	out, err := shown(func(t0 *console.Terminal) error { return List(t.Context(), t0, g.client, 0) })
	const lines = "     0  2026-11-30T12:00:01Z  agent:alice  CheckDenied  files/write  DENY  NOT_GRANTED\n" +
		"     1  2026-11-30T12:00:02Z  agent:alice  CheckDenied  files/write  DENY  RULE \\u001b[2J\n"
	if err != nil || out != lines {
		t.Errorf("got\n%s%v, want\n%s", out, err, lines)
	}
	out, err = shown(func(t0 *console.Terminal) error { return List(t.Context(), t0, g.client, 1) })
	if _, second, _ := strings.Cut(lines, "\n"); err != nil || out != second {
		t.Errorf("got\n%s%v", out, err)
	}
	if _, err = shown(func(t0 *console.Terminal) error { return List(t.Context(), t0, g.client, 3) }); !fault.Is(err, fault.CursorUnavailable) {
		t.Errorf("got %v", err)
	}
	bare := line(&console.Terminal{}, &gatev1.Record{Index: 7, Subject: "weir.gate.demo.policy.p"})
	if bare != "     7  -  -  -  policy.p  -" {
		t.Errorf("got %q", bare)
	}
}

func TestAKeyComesAsItIsOrFromAFile(t *testing.T) {
	_, key := newKey(t)
	folder := t.TempDir()
	good, bad := filepath.Join(folder, "good"), filepath.Join(folder, "bad")
	for path, content := range map[string]string{good: key + "\n", bad: "x"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, from := range []string{key, good} {
		if got, err := Key(from); err != nil || got != key {
			t.Errorf("%s: got %q, %v", from, got, err)
		}
	}
	for from, want := range map[string]string{bad: "does not hold a verifier key", filepath.Join(folder, "none"): "neither a verifier key nor a file"} {
		if _, err := Key(from); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", from, err)
		}
	}
}

// Package auditor is what an auditor does with a gate's audit log: keep a checkpoint,
// verify later that the log is still its continuation, and read it.
package auditor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	"weir/cmd/internal/console"
	gatev1 "weir/gen/gate/v1"
	"weir/internal/visible"
	"weir/services/gate/audit"
)

// Checkpoint shows the log's signed checkpoint as it is now, or puts it into a new file.
// It is what to keep, out of reach of whoever runs the mesh.
func Checkpoint(ctx context.Context, t *console.Terminal, gate gatev1.AuditServiceClient, out string) error {
	answer, err := gate.GetCheckpoint(ctx, &gatev1.GetCheckpointRequest{})
	if err != nil {
		return console.Explain(err)
	}
	if out == "" {
		// A checkpoint is text that must stay as it is to be verified, so it can't be
		// escaped. What is no checkpoint isn't shown at all.
		if _, err := audit.OpenCheckpoint(answer.GetCheckpoint(), answer.GetVerifierKey()); err != nil {
			return fmt.Errorf("the gate's answer: %w", err)
		}
		if visible.Lines(answer.GetCheckpoint()) != answer.GetCheckpoint() {
			return errors.New("the gate's answer holds characters that no checkpoint has; --out FILE keeps it as it is")
		}
		t.Printf("%s", answer.GetCheckpoint())
		return nil
	}
	if err := keep(out, answer.GetCheckpoint()); err != nil {
		return err
	}
	t.Printf("%d records, kept in %s\n", answer.GetTreeSize(), out)
	return nil
}

// keep never overwrites: an old checkpoint proves more than a new one.
func keep(path, checkpoint string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("--out: %s is there already, and an old checkpoint proves more than a new one", path)
	}
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	_, err = f.WriteString(checkpoint)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	return nil
}

// Key reads a verifier key: the key itself, or a file that holds it.
func Key(keyOrFile string) (string, error) {
	if _, err := note.NewVerifier(keyOrFile); err == nil {
		return keyOrFile, nil
	}
	content, err := os.ReadFile(keyOrFile)
	if err != nil {
		return "", fmt.Errorf("--key: neither a verifier key nor a file that holds one: %w", err)
	}
	key := strings.TrimSpace(string(content))
	if _, err := note.NewVerifier(key); err != nil {
		return "", fmt.Errorf("--key: %s does not hold a verifier key", keyOrFile)
	}
	return key, nil
}

// Verify shows whether the gate's log is a continuation of a kept checkpoint. It is
// console.Failed where it is not; any other error says that this could not be found out.
// With out, the newer checkpoint is kept there, once it is proved.
func Verify(ctx context.Context, t *console.Terminal, gate gatev1.AuditServiceClient, kept, key, out string) error {
	r, err := audit.Audit(ctx, gate, kept, key)
	if _, found := errors.AsType[audit.Difference](err); err != nil && !found {
		return console.Explain(err)
	}
	if err != nil {
		t.Printf("kept:     %s\n", describe(r.Kept))
		if r.Now.Tenant != "" {
			t.Printf("now:      %s\n", describe(r.Now))
		}
		t.Printf("%s %s\n", t.Alarm("NOT VERIFIED:"), visible.Text(err.Error()))
		return console.Failed
	}
	t.Printf("kept:     %s\n", describe(r.Kept))
	t.Printf("now:      %s\n", describe(r.Now))
	t.Printf("proved:   the first %d records are those of the kept checkpoint, and %d came after them\n", r.Kept.Size, r.Now.Size-r.Kept.Size)
	t.Printf("counted:  %d records were read and give both root hashes\n", r.Records)
	t.Printf("%s\n", t.Green("verified"))
	if out != "" {
		return keep(out, r.Signed)
	}
	return nil
}

func describe(c audit.Checkpoint) string {
	return fmt.Sprintf("%s, %d records, root %s", visible.Text(c.Origin()), c.Size, c.Root)
}

// List shows the records from an index on, one a line.
func List(ctx context.Context, t *console.Terminal, gate gatev1.AuditServiceClient, from int64) error {
	err := audit.Records(ctx, gate, from, math.MaxInt64, func(r *gatev1.Record) error {
		t.Printf("%s\n", line(t, r))
		return nil
	})
	return console.Explain(err)
}

func line(t *console.Terminal, r *gatev1.Record) string {
	at := "-"
	if r.GetEventTime() != nil {
		at = r.GetEventTime().AsTime().Format(time.RFC3339)
	}
	verdict := or(r.GetVerdict())
	switch r.GetVerdict() {
	case "DENY":
		verdict = t.Red(verdict)
	case "ASK":
		verdict = t.Yellow(verdict)
	case "ALLOW", "APPROVE":
		verdict = t.Green(verdict)
	}
	parts := []string{
		fmt.Sprintf("%6d", r.GetIndex()), at, or(r.GetActor()),
		or(strings.TrimPrefix(r.GetType(), "weir.gate.v1.")), about(r), verdict,
	}
	if r.GetReason() != "" {
		parts = append(parts, t.Dim(visible.Text(r.GetReason())))
	}
	return strings.Join(parts, "  ")
}

// about is the operation, or else what the event lies on: kind and id.
func about(r *gatev1.Record) string {
	if r.GetOperation() != "" {
		return visible.Text(r.GetOperation())
	}
	if parts := strings.SplitN(r.GetSubject(), ".", 4); len(parts) == 4 {
		return visible.Text(parts[3])
	}
	return or(r.GetSubject())
}

func or(text string) string {
	if text == "" {
		return "-"
	}
	return visible.Text(text)
}

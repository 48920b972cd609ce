package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weir/internal/meshtest"
)

// The lines that `weir up` prints work as they are printed, in their order, and each of
// them again.
func TestThePrintedLinesWork(t *testing.T) {
	bin := t.TempDir()
	// From the module whose tools `make tools` builds.
	build := exec.Command("go", "build", "-o", bin+"/", "github.com/fullstorydev/grpcurl/cmd/grpcurl")
	build.Dir = "../../tools"
	build.Env = append(os.Environ(), "GOWORK=off")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building grpcurl: %v\n%s", err, said)
	}
	u := startUp(t)
	answers := []string{
		`"SERVING"`,
		"weir.registry.v1.OperationService",
		`"owner": "human:omar"`,
		"INVOCATION_STATE_AWAITING_APPROVAL",
		"Hello, Bob",
		"APPROVAL_STATE_APPROVED",
		"INVOCATION_STATE_SUCCEEDED",
		`\"conversation_id\":\"talk-`,
		"Hello, Bob",
	}
	lines := printedLines(u.out.String())
	if len(lines) != len(answers) {
		t.Fatalf("%d lines are printed, want %d:\n%s", len(lines), len(answers), &u.out)
	}
	for i, line := range lines {
		var said []byte
		// The registry and the inbox take a moment to hear of a decision, as a person
		// takes one to paste the next line.
		meshtest.Eventually(t, "this works: "+line, func() bool {
			shell := exec.Command("bash", "-euo", "pipefail", "-c", line)
			shell.Dir = t.TempDir()
			shell.Env = append(os.Environ(), "PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
			var err error
			said, err = shell.CombinedOutput()
			return err == nil && bytes.Contains(said, []byte(answers[i]))
		})
	}
	if !strings.Contains(u.out.String(), "`make tools`") {
		t.Error("where grpcurl isn't built yet, it must say how")
	}
}

// printedLines are the commands below the comments, but for the last, which follows events.
func printedLines(out string) []string {
	var commands []string
	lines := strings.Split(out, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "# ") && !strings.Contains(lines[i+1], "weir events") {
			commands = append(commands, lines[i+1])
		}
	}
	return commands
}

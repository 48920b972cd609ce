package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An auditor keeps a checkpoint of a mesh, which is stopped, started again and used
// meanwhile, and proves that what happened before is what is in its log.
func TestAnAuditOverARestart(t *testing.T) {
	u := startUp(t)
	kept := filepath.Join(t.TempDir(), "kept")
	audit := func(args ...string) (string, string, int) {
		t.Helper()
		return run(t, 20*time.Second, append([]string{"audit"}, append(args, "--addr", u.addresses.Gate, "--data", string(u.data))...)...)
	}
	if _, stderr, code := audit("checkpoint", "--out", kept); code != 0 {
		t.Fatal(stderr)
	}
	stdout, stderr, code := audit("list")
	if code != 0 || !strings.Contains(stdout, "human:ann  GrantPut  grant.first-bob  PUT  to agent:bob") {
		t.Errorf("%s%s", stdout, stderr)
	}
	u.stop(syscall.SIGTERM)
	u.start()
	stdout, stderr, code = audit("verify", kept)
	if code != 0 || !strings.Contains(stdout, "\nverified\n") {
		t.Errorf("%s%s", stdout, stderr)
	}

	text, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	altered := filepath.Join(t.TempDir(), "altered")
	if err := os.WriteFile(altered, []byte(strings.Replace(string(text), "\n", "x\n", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for says, args := range map[string][]string{
		"its text was altered":      {"verify", altered},
		"no such file":              {"verify", filepath.Join(t.TempDir(), "none")},
		"--key":                     {"verify", kept, "--key", altered},
		"is there already":          {"checkpoint", "--out", kept},
		"--from":                    {"list", "--from=-1"},
		"CURSOR_UNAVAILABLE":        {"list", "--from", "1000000"},
		"expected \"<checkpoint>\"": {"verify"},
	} {
		stdout, stderr, code := audit(args...)
		if code != 1 || stdout != "" || !strings.Contains(stderr, says) {
			t.Errorf("%v: code %d, %q, want %q: %s", args, code, stdout, says, stderr)
		}
	}
}

package main

import (
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"weir/cmd/internal/home"
	"weir/internal/identity"
)

// What `weir keys` makes signs what `weir token` prints, and the services believe it.
func TestTokenRoundTrip(t *testing.T) {
	data := home.Folder(filepath.Join(t.TempDir(), "secrets"))
	if _, stderr, code := run(t, 20*time.Second, "keys", string(data)); code != 0 {
		t.Fatal(stderr)
	}
	token, stderr, code := run(t, 20*time.Second, "token", "--data", string(data), "--subject", "agent:erin", "--tenant", "acme",
		"--scope", "inbox.claim,operation.read", "--scope", "operation.invoke", "--session", "s-1", "--confined", "--ttl", "1h")
	if code != 0 {
		t.Fatal(stderr)
	}
	keys, err := identity.FileKeys(data.JWKS(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	got, err := identity.NewVerifier(keys, home.Audience).Verify(t.Context(), strings.TrimSpace(token))
	if err != nil {
		t.Fatal(err)
	}
	want := identity.Caller{
		Tenant: "acme", Subject: "agent:erin", Session: "s-1", Confined: true,
		Scopes: []string{"inbox.claim", "operation.invoke", "operation.read"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the token proves %+v, want %+v", got, want)
	}
}

func TestTokensThatCannotBe(t *testing.T) {
	data := filepath.Join(t.TempDir(), "secrets")
	if _, stderr, code := run(t, 20*time.Second, "keys", data); code != 0 {
		t.Fatal(stderr)
	}
	for says, args := range map[string][]string{
		"no signing key": {"--data", t.TempDir(), "--subject", "agent:x", "--tenant", "demo"},
		"subject":        {"--data", data, "--subject", "x", "--tenant", "demo"},
		"tenant":         {"--data", data, "--subject", "agent:x", "--tenant", "De Mo"},
		"--ttl":          {"--data", data, "--subject", "agent:x", "--tenant", "demo", "--ttl", "-1h"},
		"--tenant":       {"--data", data, "--subject", "agent:x"},
	} {
		stdout, stderr, code := run(t, 20*time.Second, append([]string{"token"}, args...)...)
		if code != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, says) {
			t.Errorf("%v: code %d, %q, %q", args, code, stdout, stderr)
		}
	}
}

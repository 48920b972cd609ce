package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// A mesh begins with its first grants. They come as JSON lines to whoever asks for the
// past, decoded and by subject.
func TestEventsAreLinesOfJSON(t *testing.T) {
	u := startUp(t)
	nats := "nats://" + u.addresses.NATS
	stdout, stderr, code := run(t, 20*time.Second, "events", "--nats", nats, "--from-start", "--count", "2", "--subject", "weir.gate.demo.grant.*")
	if code != 0 {
		t.Fatal(stderr)
	}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if len(lines) != 2 {
		t.Fatalf("two events, please: %s", stdout)
	}
	stdout, stderr, code = run(t, 20*time.Second, "events", "--nats", nats, "--from-start", "--count", "1",
		"--subject", "weir.*.demo.grant.first-bob")
	if code != 0 {
		t.Fatal(stderr)
	}
	if strings.TrimSpace(stdout) != lines[1] {
		t.Errorf("by subject: %s, want %s", stdout, lines[1])
	}
	var line struct {
		Sequence                  uint64
		Stream, Subject, Type, ID string
		Time                      time.Time
		Event                     struct {
			Actor    string
			GrantPut struct {
				Subject    string
				Operations []string
			} `json:"grant_put"`
		}
	}
	if err := json.Unmarshal([]byte(lines[1]), &line); err != nil {
		t.Fatal(err)
	}
	if line.Sequence < 2 || line.Stream != "WEIR_GATE" || line.Subject != "weir.gate.demo.grant.first-bob" ||
		line.Type != "weir.gate.v1.GrantPut" || line.ID == "" || time.Since(line.Time) > time.Hour ||
		line.Event.Actor != "human:ann" || line.Event.GrantPut.Subject != "agent:bob" {
		t.Errorf("the line says %+v", line)
	}
}

func TestEventsThatCannotBeRead(t *testing.T) {
	u := startUp(t)
	for says, args := range map[string][]string{
		"--nats":      {"--nats", "nats://" + freeAddresses(t, 1)[0]},
		"acme.orders": {"--nats", "nats://" + u.addresses.NATS, "--subject", "acme.orders"},
	} {
		stdout, stderr, code := run(t, 20*time.Second, append([]string{"events"}, args...)...)
		if code != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, says) {
			t.Errorf("%v: code %d, %q, %q", args, code, stdout, stderr)
		}
	}
}

package main

import (
	"strings"
	"testing"
	"time"
)

// The story, with a mesh that is killed and whose Redis is flushed between its steps.
func TestTheStory(t *testing.T) {
	tellStory(t, 3*time.Minute, "~~ weir killed")
}

// The same with every service, NATS and Redis as a process of its own, each of them killed.
func TestTheStoryApart(t *testing.T) {
	tellStory(t, 12*time.Minute, "~~ nats-server killed", "--apart")
}

// On a mesh that runs already, found by its gate's address, as often as one likes.
func TestTheStoryOnARunningMesh(t *testing.T) {
	u := startUp(t)
	for range 2 {
		tellStory(t, 2*time.Minute, "nothing is killed", "--addr", u.addresses.Gate, "--data", string(u.data))
	}
}

func tellStory(t *testing.T, limit time.Duration, shows string, args ...string) {
	t.Helper()
	stdout, stderr, code := run(t, limit, append([]string{"demo"}, args...)...)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if closing := lines[len(lines)-1]; code != 0 || !strings.HasSuffix(closing, " passed, 0 failed") || !strings.Contains(stdout, shows) {
		t.Errorf("code %d\n%s\n%s", code, stdout, stderr)
	}
}

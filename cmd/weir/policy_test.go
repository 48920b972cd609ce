package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/serve"
)

const policyFile = `policies:
  - id: base
    layer: tenant
    rules:
      - {id: talk, %s: [conversation/say]}
grants:
  - {id: carl, subject: agent:carl, operations: [conversation/say]}
cases:
  - {name: carl talks, caller: agent:carl, operation: conversation/say, expect: %s}
`

func writePolicies(t *testing.T, verdict, expected string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, policyFile, verdict, expected), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// What files say is known without a mesh, and the exit code says whether it is well.
func TestPolicyFilesWithoutAMesh(t *testing.T) {
	good, open, wrong := writePolicies(t, "deny", "deny"), writePolicies(t, "allow", "allow"), writePolicies(t, "ask", "deny")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"verify", good}, 0, "1 policy, 1 grant: 0 errors, 0 warnings"},
		{[]string{"verify", open}, 1, "policies.yaml:5: error: base/talk: OPENS_WRITE"},
		{[]string{"test", good}, 0, "ok\t1 case"},
		{[]string{"test", wrong}, 1, "--- FAIL: carl talks\n    got  ask, reason RULE, rule base/talk\n    want deny\n"},
		{[]string{"explain", good, "--subject", "agent:carl", "--operation", "conversation/say"}, 0, "DENY  RULE by base/talk"},
		{[]string{"schema"}, 0, `"title": "weir policies, grants and test cases"`},
		{[]string{"apply", good, "--data", t.TempDir()}, 1, "weir up"},
		{[]string{"verify"}, 1, "want one of both"},
	} {
		stdout, stderr, code := run(t, 20*time.Second, append([]string{"policy"}, c.args...)...)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) {
			t.Errorf("%v: code %d\n%s%s", c.args, code, stdout, stderr)
		}
	}
}

// Files are planned, applied, and then in force; what is exported changes nothing.
func TestPoliciesAreApplied(t *testing.T) {
	u := startUp(t)
	weir := func(want int, says string, args ...string) string {
		t.Helper()
		stdout, stderr, code := run(t, 30*time.Second, append(args, "--addr", u.addresses.Gate, "--data", string(u.data))...)
		if code != want || !strings.Contains(stdout+stderr, says) {
			t.Errorf("%v: code %d, want %d and %q\n%s%s", args, code, want, says, stdout, stderr)
		}
		return stdout
	}
	file := writePolicies(t, "deny", "deny")
	weir(2, "2 to create, 0 to change, 0 to delete, 0 unchanged", "policy", "apply", file)
	weir(0, "applied", "policy", "apply", file, "--yes")
	weir(0, "0 to create, 0 to change, 0 to delete, 2 unchanged", "policy", "apply", file)
	weir(0, "DENY  RULE by base/talk", "policy", "explain", "--subject", "agent:carl", "--operation", "conversation/say")
	weir(0, "1 policy, 1 revision: 0 errors", "policy", "verify", "--stored")

	exported := filepath.Join(t.TempDir(), "exported.yaml")
	if err := os.WriteFile(exported, []byte(weir(0, "grants:", "policy", "export")), 0o600); err != nil {
		t.Fatal(err)
	}
	weir(0, "0 to create, 0 to change, 0 to delete", "policy", "apply", exported, "--prune")
}

// A person sees what waits and approves it, and it runs.
func TestApprovalsOnTheCommandLine(t *testing.T) {
	u := startUp(t)
	weir := func(want int, args ...string) string {
		t.Helper()
		stdout, stderr, code := run(t, 30*time.Second, append(append([]string{"approvals"}, args...), "--addr", u.addresses.Gate, "--data", string(u.data))...)
		if code != want {
			t.Fatalf("%v: code %d\n%s%s", args, code, stdout, stderr)
		}
		return stdout
	}
	operator, err := serve.Dial(u.addresses.Conversation, serve.DialConfig{TokenFile: u.data.Token("operator")})
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	_, err = conversationv1.NewConversationServiceClient(operator).CreateConversation(t.Context(), &conversationv1.CreateConversationRequest{
		ConversationId: "talk", Participants: []string{"agent:alice", "agent:bob"},
	})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := serve.Dial(u.addresses.Registry, serve.DialConfig{TokenFile: u.data.Token("agent")})
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	asked, err := registryv1.NewOperationServiceClient(agent).Invoke(t.Context(), &registryv1.InvokeRequest{
		InvocationId: "say", Operation: "conversation/say",
		InputJson: proto.String(`{"conversation_id": "talk", "to": ["agent:bob"], "parts": [{"text": "Hello\u202e"}]}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	id := asked.GetInvocation().GetApprovalId()

	if listed := weir(0, "list"); !strings.Contains(listed, id+"  PENDING  conversation/say  WRITE  agent:alice") {
		t.Errorf("listed are\n%s", listed)
	}
	if shown := weir(0, "show", id); !strings.Contains(shown, `"text": "Hello\u202e"`) || !strings.Contains(shown, "missing  1 holder of approval.decide") {
		t.Errorf("shown is\n%s", shown)
	}
	weir(1, "approve", id) // nobody confirms
	if decided := weir(0, "approve", id, "--yes"); !strings.HasSuffix(decided, id+" APPROVED\n") {
		t.Errorf("decided is\n%s", decided)
	}
	weir(1, "deny", id, "--note", "too late", "--yes")
}

// The example that the documentation points to is one that holds.
func TestTheExamplePolicyHolds(t *testing.T) {
	for _, verb := range []string{"verify", "test"} {
		if stdout, stderr, code := run(t, 20*time.Second, "policy", verb, "../../docs/examples/policy.yaml"); code != 0 {
			t.Errorf("policy %s: code %d, %s%s", verb, code, stdout, stderr)
		}
	}
}

package main

import (
	"fmt"
	"io"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"weir/cmd/internal/home"
	"weir/cmd/internal/mesh"
)

// welcome says where everything is, and what to type to see an operation go through all
// four services.
func welcome(w io.Writer, data home.Folder, at mesh.Addresses, redis string) {
	hot := "in this process"
	if u, err := url.Parse(redis); err == nil && redis != "" {
		hot = u.Redacted()
	}
	fmt.Fprintf(w, `weir is up

  gate          %-16s  who may run what, and who is asked
  registry      %-16s  which operations exist, and running them
  conversation  %-16s  what was said
  inbox         %-16s  messages that wait for an agent
  events        nats://%s
  metrics       http://%s/metrics, and health at /healthz
  hot state     %s
  data          %s, with tokens for agent, worker, approver, admin, auditor, operator and archivist in tokens/

`, at.Gate, at.Registry, at.Conversation, at.Inbox, at.NATS, at.HTTP, hot, data)

	grpcurl := "grpcurl"
	if _, err := os.Stat(".tools/grpcurl"); err == nil {
		grpcurl = ".tools/grpcurl"
	} else {
		fmt.Fprint(w, "grpcurl is what the lines below need: `make tools` builds .tools/grpcurl.\n\n")
	}
	for _, line := range tour(grpcurl, data, at, time.Now()) {
		fmt.Fprintf(w, "# %s\n%s\n\n", line.says, line.types)
	}
	fmt.Fprintf(w, "# everything that happens, as it does\ngo run ./cmd/weir events --nats nats://%s\n", at.NATS)
}

// line is something to type into a shell, and what for.
type line struct{ says, types string }

// tour is the way of one operation from asking to done. Its ids are of the moment, so that
// they are new ones at every start; each line can be typed again and changes nothing more.
func tour(grpcurl string, data home.Folder, at mesh.Addresses, now time.Time) []line {
	id := now.Format("0102-150405")
	call := func(address, as, method, body string) string {
		words := []string{grpcurl, "-plaintext"}
		if as != "" {
			words = append(words, fmt.Sprintf(`-H "authorization: Bearer $(cat %s)"`, quote(data.Token(as))))
		}
		if body != "" {
			words = append(words, "-d "+quote(body))
		}
		return strings.Join(append(words, address, method), " ")
	}
	waiting := call(at.Gate, "approver", "weir.gate.v1.ApprovalService/ListApprovals",
		`{"state": "APPROVAL_STATE_PENDING", "page_size": 1}`)
	return []line{
		{"is it healthy? nobody needs a token to ask", call(at.Gate, "", "grpc.health.v1.Health/Check", "")},
		{"what can be called", call(at.Registry, "", "list", "")},
		{"the operator starts a conversation between two agents", call(at.Conversation, "operator",
			"weir.conversation.v1.ConversationService/CreateConversation",
			fmt.Sprintf(`{"conversation_id": "talk-%s", "title": "A first talk", "participants": ["agent:alice", "agent:bob"]}`, id))},
		{"the agent wants to say something in it, and is told to wait for a person", call(at.Registry, "agent",
			"weir.registry.v1.OperationService/Invoke",
			fmt.Sprintf(`{"invocation_id": "say-%[1]s", "operation": "conversation/say", `+
				`"input_json": "{\"conversation_id\": \"talk-%[1]s\", \"to\": [\"agent:bob\"], \"parts\": [{\"text\": \"Hello, Bob\"}]}"}`, id))},
		{"the approver looks at what waits", waiting},
		{"and approves the newest, by the digest of what was shown", waiting +
			` | awk -F'"' '$2 == "approvalId" {id = $4} $2 == "inputDigest" {printf ` +
			fmt.Sprintf(`"{\"approval_id\": \"%%s\", \"input_digest\": \"%%s\", \"decision\": \"DECISION_APPROVE\", \"request_id\": \"yes-%s\"}", id, $4}'`, id) +
			" | " + call(at.Gate, "approver", "weir.gate.v1.ApprovalService/DecideApproval", "@")},
		{"the operation ran by itself: see its output", call(at.Registry, "agent",
			"weir.registry.v1.OperationService/GetInvocation", fmt.Sprintf(`{"invocation_id": "say-%s"}`, id))},
		{"the other agent finds the message in its inbox, and claims it", call(at.Inbox, "worker",
			"weir.inbox.v1.InboxService/Claim", fmt.Sprintf(`{"goal": "bob", "request_id": "claim-%s"}`, id))},
		{"… which says where it is: there it reads what was said", call(at.Conversation, "worker",
			"weir.conversation.v1.MessageService/GetContext",
			fmt.Sprintf(`{"conversation_id": "talk-%s", "max_tokens": {"tokens": 1000}}`, id))},
	}
}

// quote makes one word of a text for the shell.
func quote(text string) string {
	if plain.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_./-]+$`)

package mesh

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"weir/cmd/internal/home"
	conversationv1 "weir/gen/conversation/v1"
	gatev1 "weir/gen/gate/v1"
	inboxv1 "weir/gen/inbox/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/backend"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/meshtest"
	"weir/internal/serve"
	"weir/services/conversation"
	"weir/services/gate"
	"weir/services/inbox"
	"weir/services/registry"
)

// Over the real four: agents send by the registry, a person speaks in a conversation, and
// before bob looks at his mail each of them, but one, is stopped in another way. Bob
// finds a notice in each one's place, and the auditor who, why and what.
func TestMailOfWhoWasStoppedIsANoticeAndAnAuditRecord(t *testing.T) {
	t.Parallel()
	issuer := meshtest.NewIssuer(t)
	nats, redis := meshtest.StartNATS(t), meshtest.StartRedis(t)
	stores := backend.Config{NATS: nats.URL(), Redis: redis.URL(), Replicas: 1}
	disabled := filepath.Join(t.TempDir(), "standing.json")
	disable := func(list string) {
		if err := os.WriteFile(disabled, []byte(`{"disabled": [`+list+`]}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	disable("")
	theGate := issuer.Serve(func(ctx context.Context, c serve.Config) error {
		c.Standing = disabled
		return gate.Run(ctx, gate.Config{Serve: c, Stores: stores})
	}, home.Services["service-gate"])
	talks := issuer.Serve(func(ctx context.Context, c serve.Config) error {
		return conversation.Run(ctx, conversation.Config{Serve: c, Stores: stores, Index: t.TempDir()})
	}, home.Services["service-conversation"])
	mail := issuer.Serve(func(ctx context.Context, c serve.Config) error {
		return inbox.Run(ctx, inbox.Config{Serve: c, Stores: stores, Gate: theGate.Addr, Conversation: talks.Addr})
	}, home.Services["service-inbox"])
	operations := issuer.Serve(func(ctx context.Context, c serve.Config) error {
		return registry.Run(ctx, registry.Config{Serve: c, Stores: stores, Gate: theGate.Addr, Conversation: talks.Addr, Inbox: mail.Addr})
	}, home.Services["service-registry"])

	// Four agents may send without asking anybody.
	admin := gatev1.NewPolicyServiceClient(issuer.Dial(theGate.Addr, home.People["admin"]))
	put := func(p *gatev1.Policy) {
		t.Helper()
		if _, err := admin.PutPolicy(t.Context(), &gatev1.PutPolicyRequest{Policy: p}); err != nil {
			t.Fatal(err)
		}
	}
	put(&gatev1.Policy{PolicyId: "mail", Layer: gatev1.Layer_LAYER_TENANT, Rules: []*gatev1.Rule{{
		RuleId: "send", Verdict: gatev1.Verdict_VERDICT_ALLOW, Operations: []string{"inbox/send"}, AllowWrites: true,
	}}})
	bobs := inboxv1.NewInboxServiceClient(issuer.Dial(mail.Addr, home.People["worker"]))
	depth := func() int32 {
		out, err := bobs.GetInbox(t.Context(), &inboxv1.GetInboxRequest{Goal: "bob"})
		if err != nil && !fault.Is(err, fault.InboxNotFound) {
			t.Fatal(err)
		}
		return out.GetInbox().GetDepth()
	}
	for i, name := range []string{"well", "disabled", "confined", "ungranted"} {
		_, err := admin.PutGrant(t.Context(), &gatev1.PutGrantRequest{Grant: &gatev1.Grant{
			GrantId: name, Subject: "agent:" + name, Operations: []string{"inbox/send"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		as := identity.Caller{Tenant: home.Tenant, Subject: "agent:" + name, Scopes: home.AgentScopes}
		agent, input := registryv1.NewOperationServiceClient(issuer.Dial(operations.Addr, as)), `{"goal":"bob","body":"hello"}`
		// While the gate's lists are made anew it counts no budgets, and allows nothing.
		meshtest.Eventually(t, name+" sends", func() bool {
			out, err := agent.Invoke(t.Context(), &registryv1.InvokeRequest{InvocationId: "from-" + name, Operation: "inbox/send", InputJson: &input})
			if err != nil && fault.From(err).Kind() != fault.KindUnavailable {
				t.Fatal(err)
			}
			return out.GetInvocation().GetState() == registryv1.InvocationState_INVOCATION_STATE_SUCCEEDED
		})
		if depth() != int32(i+1) {
			t.Fatalf("after %s sent, bob's inbox holds %d", name, depth())
		}
	}
	archivist := issuer.Dial(talks.Addr, home.People["archivist"])
	if _, err := conversationv1.NewConversationServiceClient(archivist).CreateConversation(t.Context(), &conversationv1.CreateConversationRequest{
		ConversationId: "plans", Participants: []string{"agent:bob"},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := conversationv1.NewMessageServiceClient(archivist).AppendMessage(t.Context(), &conversationv1.AppendMessageRequest{
		ConversationId: "plans", MessageId: "m", To: []string{"agent:bob"},
		Parts: []*conversationv1.Part{{Part: &conversationv1.Part_Text{Text: "hello"}}},
	}); err != nil {
		t.Fatal(err)
	}
	meshtest.Eventually(t, "what was said is in bob's inbox", func() bool { return depth() == 5 })

	disable(fmt.Sprintf(`{"tenant": %q, "subject": "agent:disabled"}`, home.Tenant))
	put(&gatev1.Policy{PolicyId: "confine", Layer: gatev1.Layer_LAYER_AGENT, Target: "agent:confined", Confined: true})
	if _, err := admin.DeleteGrant(t.Context(), &gatev1.DeleteGrantRequest{GrantId: "ungranted"}); err != nil {
		t.Fatal(err)
	}
	if _, err := conversationv1.NewRetentionServiceClient(archivist).DeleteConversation(t.Context(), &conversationv1.DeleteConversationRequest{
		ConversationId: "plans",
	}); err != nil {
		t.Fatal(err)
	}
	asked := gatev1.NewGateServiceClient(issuer.Dial(theGate.Addr, home.Services["service-inbox"]))
	meshtest.Eventually(t, "the gate knows who is disabled", func() bool {
		ctx := identity.ActFor(t.Context(), identity.Caller{Tenant: home.Tenant, Subject: "agent:disabled"})
		_, err := asked.CheckStanding(ctx, &gatev1.CheckStandingRequest{})
		return fault.Is(err, fault.CallerDisabled)
	})

	want := []struct{ sender, reason string }{
		{"agent:well", ""},
		{"agent:disabled", "SENDER_DISABLED"},
		{"agent:confined", "SENDER_CONFINED"},
		{"agent:ungranted", "SENDER_NOT_GRANTED"},
		{home.People["archivist"].Subject, "CONVERSATION_GONE"},
	}
	claimed, err := bobs.Claim(t.Context(), &inboxv1.ClaimRequest{Goal: "bob", RequestId: "1", Max: 10, Lease: durationpb.New(time.Minute)})
	if err != nil || len(claimed.GetMessages()) != len(want) {
		t.Fatalf("bob claimed %v, %v", claimed, err)
	}
	peeked, err := bobs.Peek(t.Context(), &inboxv1.PeekRequest{Goal: "bob"})
	if err != nil || len(peeked.GetMessages()) != len(want) {
		t.Fatalf("bob sees %v, %v", peeked, err)
	}
	for i, w := range want {
		for _, m := range []*inboxv1.Message{claimed.GetMessages()[i], peeked.GetMessages()[i]} {
			reason := ""
			if m.GetRefusal() != nil {
				reason = strings.TrimPrefix(m.GetRefusal().GetReason().String(), "REFUSAL_REASON_")
			}
			if m.GetSender() != w.sender || reason != w.reason || (m.GetBody() == "") != (w.reason != "") {
				t.Errorf("place %d has %v, want %v", i, m, w)
			}
		}
	}

	auditor := gatev1.NewAuditServiceClient(issuer.Dial(theGate.Addr, home.People["auditor"]))
	var records []*gatev1.Record
	meshtest.Eventually(t, "all of them are audited", func() bool {
		out, err := auditor.ListRecords(t.Context(), &gatev1.ListRecordsRequest{PageSize: 1000})
		records = nil
		for _, r := range out.GetRecords() {
			if r.GetVerdict() == "REFUSED" {
				records = append(records, r)
			}
		}
		return err == nil && len(records) >= len(want)-1
	})
	if len(records) != len(want)-1 {
		t.Fatalf("audited are %v", records)
	}
	for i, r := range records {
		w, m := want[i+1], claimed.GetMessages()[i+1]
		if r.GetActor() != w.sender || r.GetEventTime() == nil ||
			!strings.HasPrefix(r.GetReason(), w.reason+": message "+m.GetMessageId()+" of goal bob, to agent:bob at ") {
			t.Errorf("audited is %v, want %v of %s", r, w, m.GetMessageId())
		}
	}
}

package conversation

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/backend"
	"weir/internal/identity"
	"weir/internal/meshtest"
	"weir/internal/serve"
)

// mesh is real servers, and an issuer whose tokens the service believes.
type mesh struct {
	t      testing.TB
	nats   *meshtest.NATS
	redis  *meshtest.Redis
	signer *identity.Signer
	jwks   string
	// tokens are by tenant, subject and scopes.
	tokens sync.Map
}

func newMesh(t testing.TB) *mesh {
	t.Helper()
	m := &mesh{t: t, nats: meshtest.StartNATS(t), redis: meshtest.StartRedis(t)}
	m.signer, m.jwks = newIssuer(t)
	return m
}

func newIssuer(t testing.TB) (*identity.Signer, string) {
	t.Helper()
	signer, err := identity.NewSigner()
	if err != nil {
		t.Fatal(err)
	}
	jwks := filepath.Join(t.TempDir(), "jwks.json")
	if err := signer.WriteJWKS(jwks); err != nil {
		t.Fatal(err)
	}
	return signer, jwks
}

func (m *mesh) stores() backend.Config {
	return backend.Config{NATS: m.nats.URL(), Redis: m.redis.URL(), Replicas: 1}
}

// replica is one running instance of the service, and clients of it.
type replica struct {
	conversations conversationv1.ConversationServiceClient
	messages      conversationv1.MessageServiceClient
	groups        conversationv1.GroupServiceClient
	retention     conversationv1.RetentionServiceClient
	// stop ends it in order, before the test does.
	stop func()
}

// start runs the service as its command does, until the test ends.
func (m *mesh) start(change ...func(*Config)) replica {
	m.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		m.t.Fatal(err)
	}
	cfg := Config{
		Serve:  serve.Config{Listener: listener, JWKS: m.jwks, Logger: slog.New(slog.DiscardHandler), ShutdownGrace: 2 * time.Second},
		Stores: m.stores(),
	}
	for _, c := range change {
		c(&cfg)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, cfg) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		m.t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		_ = conn.Close()
		stop()
		if err := <-ended; err != nil {
			m.t.Errorf("the service ended with: %v", err)
		}
	})
	m.t.Cleanup(end)
	return replica{
		conversations: conversationv1.NewConversationServiceClient(conn),
		messages:      conversationv1.NewMessageServiceClient(conn),
		groups:        conversationv1.NewGroupServiceClient(conn),
		retention:     conversationv1.NewRetentionServiceClient(conn),
		stop:          end,
	}
}

// as is the context of calls that a subject of the tenant acme makes.
func (m *mesh) as(subject string) context.Context { return m.asIn("acme", subject) }

func (m *mesh) asIn(tenant, subject string) context.Context {
	return m.holding(tenant, subject, scopeRead, "conversation.write")
}

// admin and eraser are people with one more scope than others.
func (m *mesh) admin() context.Context { return m.holding("acme", "human:ada", scopeAdmin) }

func (m *mesh) eraser() context.Context {
	return m.holding("acme", "human:era", scopeErase, "conversation.write")
}

// holding is the context of calls by a subject with some scopes.
func (m *mesh) holding(tenant, subject string, scopes ...string) context.Context {
	m.t.Helper()
	name := fmt.Sprint(tenant, subject, scopes)
	header, known := m.tokens.Load(name)
	if !known {
		token, err := m.signer.Issue(identity.Caller{Tenant: tenant, Subject: subject, Scopes: scopes}, "weir", time.Hour)
		if err != nil {
			m.t.Fatal(err)
		}
		header = "Bearer " + token
		m.tokens.Store(name, header)
	}
	return metadata.AppendToOutgoingContext(m.t.Context(), "authorization", fmt.Sprint(header))
}

// The people of these tests: ann owns conversations, bob takes part in them,
// and eve is in the same tenant.
const (
	ann = "human:ann"
	bob = "agent:bob"
	eve = "human:eve"
)

// carol decides approvals, or takes part in few conversations.
const carol = "human:carol"

// create makes a conversation of ann and bob.
func (m *mesh) create(r replica, id string) *conversationv1.Conversation {
	m.t.Helper()
	resp, err := r.conversations.CreateConversation(m.as(ann), &conversationv1.CreateConversationRequest{
		ConversationId: id, Title: "plans", Participants: []string{bob},
	})
	if err != nil {
		m.t.Fatalf("create %s: %v", id, err)
	}
	return resp.GetConversation()
}

func (m *mesh) get(r replica, id string) *conversationv1.Conversation {
	m.t.Helper()
	resp, err := r.conversations.GetConversation(m.as(ann), &conversationv1.GetConversationRequest{ConversationId: id})
	if err != nil {
		m.t.Fatalf("get %s: %v", id, err)
	}
	return resp.GetConversation()
}

// say appends a message of ann's.
func (m *mesh) say(r replica, conversation, id, words string) *conversationv1.Message {
	m.t.Helper()
	said, err := m.trySay(r, conversation, id, words)
	if err != nil {
		m.t.Fatalf("say %s in %s: %v", id, conversation, err)
	}
	return said
}

func (m *mesh) trySay(r replica, conversation, id, words string) (*conversationv1.Message, error) {
	resp, err := r.messages.AppendMessage(m.as(ann), &conversationv1.AppendMessageRequest{
		ConversationId: conversation, MessageId: id, Parts: text(words),
	})
	return resp.GetMessage(), err
}

// page lists messages as ann.
func (m *mesh) page(r replica, req *conversationv1.ListMessagesRequest) ([]*conversationv1.Message, int64, error) {
	resp, err := r.messages.ListMessages(m.as(ann), req)
	return resp.GetMessages(), resp.GetNext(), err
}

// all lists a whole conversation, page by page.
func (m *mesh) all(r replica, conversation string, size int32, order conversationv1.Order) []*conversationv1.Message {
	m.t.Helper()
	var all []*conversationv1.Message
	req := &conversationv1.ListMessagesRequest{ConversationId: conversation, PageSize: size, Order: order}
	for {
		messages, next, err := m.page(r, req)
		if err != nil {
			m.t.Fatalf("list %v: %v", req, err)
		}
		if len(messages) > int(size) {
			m.t.Fatalf("a page of %d has %d messages", size, len(messages))
		}
		all = append(all, messages...)
		if next == 0 {
			return all
		}
		req.From = &next
	}
}

// ids lists the message ids of a conversation in order.
func (m *mesh) ids(r replica, conversation string) []string {
	m.t.Helper()
	var ids []string
	for _, said := range m.all(r, conversation, 1000, conversationv1.Order_ORDER_UNSPECIFIED) {
		ids = append(ids, said.GetMessageId())
	}
	return ids
}

func positions(messages []*conversationv1.Message) []int64 {
	all := make([]int64, len(messages))
	for i, m := range messages {
		all[i] = m.GetPosition()
	}
	return all
}

func wantEqual[M proto.Message](t testing.TB, what string, got, want M) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Fatalf("%s is\n%v, want\n%v", what, got, want)
	}
}

// refusal is all that a client gets to see of an error.
func refusal(err error) string { return fmt.Sprint(status.Convert(err).Proto()) }

package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/emptypb"

	conversationv1 "weir/gen/conversation/v1"
	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/identity"
	"weir/internal/serve"
	"weir/services/conversation"
	"weir/services/gate"
)

// agent is who talks, and whom checks are about.
const agent = "agent:bench"

// everyCaller makes the same call for all callers.
func everyCaller(do call) workload {
	return func(callers int) ([]call, error) {
		calls := make([]call, callers)
		for i := range calls {
			calls[i] = do
		}
		return calls, nil
	}
}

// emptyMethod answers nothing to nothing.
const emptyMethod = "/bench.Empty/Call"

var emptyService = grpc.ServiceDesc{
	ServiceName: "bench.Empty",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Call",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			if err := decode(&emptypb.Empty{}); err != nil {
				return nil, err
			}
			return &emptypb.Empty{}, nil
		},
	}},
}

// openEmptyRPC is what gRPC can do at best: a bare server, nothing sent and
// nothing answered.
func openEmptyRPC(m *mesh) (workload, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	server.RegisterService(&emptyService, struct{}{})
	m.background("empty server", func(ctx context.Context) error {
		context.AfterFunc(ctx, server.Stop)
		return server.Serve(listener)
	})
	conn, err := m.dial(listener.Addr().String())
	if err != nil {
		return nil, err
	}
	return everyCaller(func(ctx context.Context) error {
		return conn.Invoke(ctx, emptyMethod, &emptypb.Empty{}, &emptypb.Empty{})
	}), nil
}

func (m *mesh) gate(caller identity.Caller) (*grpc.ClientConn, error) {
	return m.service("gate", caller, func(ctx context.Context, c serve.Config) error {
		return gate.Run(ctx, gate.Config{Serve: c, Stores: m.stores()})
	})
}

// openHealthRPC is what the interceptors that every call passes cost, without
// identity: grpc's own health method on the gate's server.
func openHealthRPC(m *mesh) (workload, error) {
	conn, err := m.gate(identity.Caller{})
	if err != nil {
		return nil, err
	}
	health := healthpb.NewHealthClient(conn)
	return everyCaller(func(ctx context.Context) error {
		_, err := health.Check(ctx, &healthpb.HealthCheckRequest{})
		return err
	}), nil
}

// openCheck asks as the registry does, for an agent that holds a grant.
func openCheck(m *mesh) (workload, error) {
	admin, err := m.gate(identity.Caller{Tenant: tenant, Subject: "human:admin", Scopes: []string{"policy.admin"}})
	if err != nil {
		return nil, err
	}
	_, err = gatev1.NewPolicyServiceClient(admin).PutGrant(m.ctx, &gatev1.PutGrantRequest{Grant: &gatev1.Grant{
		GrantId: "bench", Subject: agent, Operations: []string{"conversation/*", "files/read"},
	}})
	if err != nil {
		return nil, err
	}
	conn, err := m.gate(identity.Caller{Tenant: identity.AnyTenant, Subject: "service:registry", Scopes: []string{"gate.check"}})
	if err != nil {
		return nil, err
	}
	service := gatev1.NewGateServiceClient(conn)
	input := `{"path":"notes/today.md"}`
	request := &gatev1.CheckRequest{
		RequestId: "01K5BENCH", Operation: "files/read", Effect: registryv1.Effect_EFFECT_READ,
		SpecDigest: strings.Repeat("a", 64), InputJson: &input, InputDigest: strings.Repeat("b", 64),
	}
	asked := identity.Caller{Tenant: tenant, Subject: agent}
	return func(callers int) ([]call, error) {
		return everyCaller(func(ctx context.Context) error {
			answer, err := service.Check(identity.ActFor(ctx, asked), request)
			if err == nil && answer.GetVerdict() != gatev1.Verdict_VERDICT_ALLOW {
				err = fmt.Errorf("the gate answered %v", answer)
			}
			return err
		})(callers)
	}, nil
}

// talks is many conversations of one agent.
type talks struct {
	conversations conversationv1.ConversationServiceClient
	messages      conversationv1.MessageServiceClient
	said          []int // in each
}

func talkID(n int) string { return fmt.Sprintf("talk-%04d", n) }

// talker is a connection on which the agent talks.
func (m *mesh) talker() (*grpc.ClientConn, error) {
	return m.service("conversation", identity.Caller{
		Tenant: tenant, Subject: agent, Scopes: []string{"conversation.read", "conversation.write"},
	}, func(ctx context.Context, c serve.Config) error {
		return conversation.Run(ctx, conversation.Config{Serve: c, Stores: m.stores(), Index: filepath.Join(m.dir, "index")})
	})
}

func (m *mesh) openTalks() (*talks, error) {
	if m.talks != nil {
		return m.talks, nil
	}
	conn, err := m.talker()
	if err != nil {
		return nil, err
	}
	t := newTalks(conn, m.many)
	err = m.each(func(ctx context.Context, n int) error { return t.begin(ctx, talkID(n)) })
	m.talks = t
	return t, err
}

func newTalks(conn *grpc.ClientConn, n int) *talks {
	return &talks{
		conversations: conversationv1.NewConversationServiceClient(conn),
		messages:      conversationv1.NewMessageServiceClient(conn),
		said:          make([]int, n),
	}
}

// begin starts a conversation.
func (t *talks) begin(ctx context.Context, id string) error {
	_, err := t.conversations.CreateConversation(ctx, &conversationv1.CreateConversationRequest{
		ConversationId: id, Title: "bench", Participants: []string{"human:ann"},
	})
	return err
}

// say appends a message to a conversation.
func (t *talks) say(ctx context.Context, id, messageID string) error {
	_, err := t.messages.AppendMessage(ctx, &conversationv1.AppendMessageRequest{
		ConversationId: id, MessageId: messageID, Parts: said(),
	})
	return err
}

// openRead reads the documents of many conversations.
func openRead(m *mesh) (workload, error) {
	t, err := m.openTalks()
	if err != nil {
		return nil, err
	}
	return func(callers int) ([]call, error) {
		calls := make([]call, callers)
		for i, mine := range shares(callers, m.many) {
			calls[i] = func(ctx context.Context) error {
				_, err := t.conversations.GetConversation(ctx, &conversationv1.GetConversationRequest{ConversationId: talkID(mine.next())})
				return err
			}
		}
		return calls, nil
	}, nil
}

// openAppendMessage says something in many conversations.
func openAppendMessage(m *mesh) (workload, error) {
	t, err := m.openTalks()
	if err != nil {
		return nil, err
	}
	return func(callers int) ([]call, error) {
		calls := make([]call, callers)
		for i, mine := range shares(callers, m.many) {
			calls[i] = func(ctx context.Context) error {
				n := mine.next()
				t.said[n]++
				return t.say(ctx, talkID(n), fmt.Sprintf("m%d", t.said[n]))
			}
		}
		return calls, nil
	}, nil
}

// openAppendMessageOne says something in one conversation, a new one for each slice
// so that none gets full; callers wait for each other.
func openAppendMessageOne(m *mesh) (workload, error) {
	t, err := m.openTalks()
	if err != nil {
		return nil, err
	}
	series := 0
	return func(callers int) ([]call, error) {
		series++
		id := fmt.Sprintf("one-%d", series)
		if err := t.begin(m.ctx, id); err != nil {
			return nil, err
		}
		calls := make([]call, callers)
		for i := range calls {
			n := 0
			calls[i] = func(ctx context.Context) error {
				n++
				return t.say(ctx, id, fmt.Sprintf("m%d-%d", i, n))
			}
		}
		return calls, nil
	}, nil
}

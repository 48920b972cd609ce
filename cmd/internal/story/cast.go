package story

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	conversationv1 "weir/gen/conversation/v1"
	gatev1 "weir/gen/gate/v1"
	inboxv1 "weir/gen/inbox/v1"
	registryv1 "weir/gen/registry/v1"

	"weir/cmd/internal/home"
	"weir/internal/identity"
)

// cast is who takes part, each by their token, and the services they call.
type cast struct {
	ann, omar, carol grpc.CallOption // administrator, operator, approver
	alice, bob       grpc.CallOption // agents
	aliceDeciding    grpc.CallOption // Alice, were she given an approver's scope
	bobDeciding      grpc.CallOption
	dave             grpc.CallOption // an agent in a session, on behalf of Omar
	omarDeciding     grpc.CallOption
	fay, sam         grpc.CallOption // approvers, of finance and of security
	ida              grpc.CallOption // auditor
	bobsHandler      grpc.CallOption // the program that runs Bob, and writes what he says
	aliceVisiting    grpc.CallOption // Alice, in a session of hers
	rita             grpc.CallOption // archivist

	audits        auditor
	approvals     gatev1.ApprovalServiceClient
	policies      gatev1.PolicyServiceClient
	operations    registryv1.OperationServiceClient
	conversations conversationv1.ConversationServiceClient
	messages      conversationv1.MessageServiceClient
	retention     conversationv1.RetentionServiceClient
	inboxes       inboxv1.InboxServiceClient
	dispatches    inboxv1.DispatchServiceClient

	conns []*grpc.ClientConn
}

func (c *cast) assemble(stage Stage, tenant string) error {
	deciding := slices.Concat(home.AgentScopes, home.ApproverScopes)
	group := func(name string) []string {
		return slices.Concat(home.ApproverScopes, []string{"approval.decide." + name})
	}
	for _, one := range []struct {
		as *grpc.CallOption
		identity.Caller
	}{
		{&c.ann, identity.Caller{Subject: "human:ann", Scopes: home.AdminScopes}},
		{&c.omar, identity.Caller{Subject: "human:omar", Scopes: home.OperatorScopes}},
		{&c.carol, identity.Caller{Subject: "human:carol", Scopes: home.ApproverScopes}},
		{&c.alice, identity.Caller{Subject: "agent:alice", Scopes: home.AgentScopes}},
		{&c.bob, identity.Caller{Subject: "agent:bob", Scopes: home.AgentScopes}},
		{&c.aliceDeciding, identity.Caller{Subject: "agent:alice", Scopes: deciding}},
		{&c.bobDeciding, identity.Caller{Subject: "agent:bob", Scopes: deciding}},
		{&c.dave, identity.Caller{Subject: "agent:dave", Scopes: home.AgentScopes, Session: "run-1", OnBehalfOf: []string{"human:omar"}}},
		{&c.omarDeciding, identity.Caller{Subject: "human:omar", Scopes: home.ApproverScopes}},
		{&c.fay, identity.Caller{Subject: "human:fay", Scopes: group("finance")}},
		{&c.sam, identity.Caller{Subject: "human:sam", Scopes: group("security")}},
		{&c.bobsHandler, identity.Caller{Subject: "agent:bob", Scopes: home.OperatorScopes}},
		{&c.aliceVisiting, identity.Caller{Subject: "agent:alice", Scopes: home.AgentScopes, Session: "visiting"}},
		{&c.rita, identity.Caller{Subject: "human:rita", Scopes: home.ArchivistScopes}},
		{&c.ida, identity.Caller{Subject: "human:ida", Scopes: home.AuditorScopes}},
	} {
		one.Tenant = tenant
		token, err := stage.Token(one.Caller)
		if err != nil {
			return err
		}
		*one.as = grpc.PerRPCCredentials(bearer(token))
	}

	at := stage.Addresses()
	dial := func(address string) (conn *grpc.ClientConn, err error) {
		conn, err = grpc.NewClient(address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithUnaryInterceptor(patiently),
			// A service that was killed is back within a second or two.
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second},
				MinConnectTimeout: time.Second,
			}))
		if err == nil {
			c.conns = append(c.conns, conn)
		}
		return conn, err
	}
	gate, err := dial(at.Gate)
	if err != nil {
		return err
	}
	registry, err := dial(at.Registry)
	if err != nil {
		return err
	}
	conversation, err := dial(at.Conversation)
	if err != nil {
		return err
	}
	inbox, err := dial(at.Inbox)
	if err != nil {
		return err
	}
	c.approvals, c.policies = gatev1.NewApprovalServiceClient(gate), gatev1.NewPolicyServiceClient(gate)
	c.audits = auditor{gatev1.NewAuditServiceClient(gate), c.ida}
	c.operations = registryv1.NewOperationServiceClient(registry)
	c.conversations = conversationv1.NewConversationServiceClient(conversation)
	c.messages = conversationv1.NewMessageServiceClient(conversation)
	c.retention = conversationv1.NewRetentionServiceClient(conversation)
	c.inboxes, c.dispatches = inboxv1.NewInboxServiceClient(inbox), inboxv1.NewDispatchServiceClient(inbox)
	return nil
}

func (c *cast) dismiss() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

// patiently calls again while weir says that it can't now. Every call of weir's can be
// repeated and converges on the first one's result, so that is all a client needs to
// live through a restart.
func patiently(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if code := status.Code(err); code != codes.Unavailable && code != codes.Aborted {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// bearer is a token as gRPC sends it.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity is false: the story's meshes are on this machine.
func (b bearer) RequireTransportSecurity() bool { return false }

// auditor calls as one auditor.
type auditor struct {
	gatev1.AuditServiceClient
	as grpc.CallOption
}

func (a auditor) GetCheckpoint(ctx context.Context, in *gatev1.GetCheckpointRequest, _ ...grpc.CallOption) (*gatev1.GetCheckpointResponse, error) {
	return a.AuditServiceClient.GetCheckpoint(ctx, in, a.as)
}

func (a auditor) ListRecords(ctx context.Context, in *gatev1.ListRecordsRequest, _ ...grpc.CallOption) (*gatev1.ListRecordsResponse, error) {
	return a.AuditServiceClient.ListRecords(ctx, in, a.as)
}

func (a auditor) ProveConsistency(ctx context.Context, in *gatev1.ProveConsistencyRequest, _ ...grpc.CallOption) (*gatev1.ProveConsistencyResponse, error) {
	return a.AuditServiceClient.ProveConsistency(ctx, in, a.as)
}

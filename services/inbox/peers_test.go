package inbox

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"

	conversationv1 "weir/gen/conversation/v1"
	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/meshtest"
	"weir/internal/serve"
)

// peers are a gate and a conversation service behind the interceptors of the real
// ones, which know what the test tells them: everybody is in good standing, and every
// conversation is there, but for what is listed.
type peers struct {
	gatev1.UnimplementedGateServiceServer
	conversationv1.UnimplementedConversationServiceServer
	*meshtest.Service

	mu        sync.Mutex
	disabled  []string // subjects
	confined  []string // subjects and sessions
	ungranted []string // subject, space, operation
	gone      []string // conversations
	// gateDown and conversationDown are what each answers to everything.
	gateDown, conversationDown error
	// before runs before the gate answers.
	before func()
	// gateAsked and conversationAsked are who was asked about, in order.
	gateAsked, conversationAsked []string
}

func startPeers(issuer *meshtest.Issuer) *peers {
	p := &peers{}
	p.Service = issuer.Serve(func(ctx context.Context, c serve.Config) error {
		return serve.Run(ctx, c, serve.Service{
			Name: "peers",
			Register: func(s *grpc.Server) {
				gatev1.RegisterGateServiceServer(s, p)
				conversationv1.RegisterConversationServiceServer(s, p)
			},
			Healthy: func(context.Context) error { return nil },
		})
	}, identity.Caller{})
	return p
}

// tell changes what the peers know.
func (p *peers) tell(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// asked gives how often each was asked.
func (p *peers) asked() (gate, conversation int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.gateAsked), len(p.conversationAsked)
}

// stands refuses the disabled, as the real interceptor does.
func (p *peers) stands(c identity.Caller) error {
	for _, subject := range append([]string{c.Subject}, c.OnBehalfOf...) {
		if slices.Contains(p.disabled, subject) {
			return fault.New(fault.CallerDisabled, "disabled").With("subject", subject)
		}
	}
	return nil
}

func (p *peers) CheckStanding(ctx context.Context, in *gatev1.CheckStandingRequest) (*gatev1.CheckStandingResponse, error) {
	c, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gateAsked = append(p.gateAsked, c.Subject)
	if p.before != nil {
		p.before()
	}
	if p.gateDown != nil {
		return nil, p.gateDown
	}
	if err := p.stands(c); err != nil {
		return nil, err
	}
	named := append([]string{c.Subject, c.Session}, c.OnBehalfOf...)
	return &gatev1.CheckStandingResponse{
		Confined: slices.ContainsFunc(p.confined, func(s string) bool { return slices.Contains(named, s) }),
		Granted:  !slices.Contains(p.ungranted, c.Subject+" "+in.GetOperation()),
	}, nil
}

func (p *peers) GetConversation(ctx context.Context, in *conversationv1.GetConversationRequest) (*conversationv1.GetConversationResponse, error) {
	c, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conversationAsked = append(p.conversationAsked, c.Subject+" "+in.GetConversationId())
	if p.conversationDown != nil {
		return nil, p.conversationDown
	}
	if err := p.stands(c); err != nil {
		return nil, err
	}
	if slices.Contains(p.gone, in.GetConversationId()) {
		return nil, fault.New(fault.ConversationNotFound, "there is no such conversation")
	}
	return &conversationv1.GetConversationResponse{Conversation: &conversationv1.Conversation{ConversationId: in.GetConversationId()}}, nil
}

package inbox

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/meshtest"
	"weir/internal/serve"
)

// conversations stands for the conversation service: by the same table of who may
// call what, and with its rules of who owns an id and what a retry is.
type conversations struct {
	conversationv1.UnimplementedConversationServiceServer
	conversationv1.UnimplementedMessageServiceServer
	addr string

	mu      sync.Mutex
	talks   map[string]*talk
	created int // by any call
	// refuse, if set, is asked first.
	refuse func(method string, caller identity.Caller) error
}

// talk is one conversation.
type talk struct {
	creation string
	members  []string
	messages []utterance
}

type utterance struct {
	id, author, text string
	to               []string
	caller           identity.Caller
}

func startConversations(t *testing.T, issuer *meshtest.Issuer) *conversations {
	t.Helper()
	c := &conversations{talks: map[string]*talk{}}
	c.addr = issuer.Serve(func(ctx context.Context, config serve.Config) error {
		return serve.Run(ctx, config, serve.Service{
			Name: "conversation",
			Register: func(s *grpc.Server) {
				conversationv1.RegisterConversationServiceServer(s, c)
				conversationv1.RegisterMessageServiceServer(s, c)
			},
			Healthy: func(context.Context) error { return nil },
		})
	}, identity.Caller{}).Addr
	return c
}

// enter gives who calls, with the lock held until leave.
func (c *conversations) enter(ctx context.Context, method string) (caller identity.Caller, leave func(), err error) {
	if caller, err = identity.Must(ctx); err != nil {
		return caller, nil, err
	}
	c.mu.Lock()
	if c.refuse != nil {
		if err := c.refuse(method, caller); err != nil {
			c.mu.Unlock()
			return caller, nil, err
		}
	}
	return caller, c.mu.Unlock, nil
}

func (c *conversations) CreateConversation(ctx context.Context, in *conversationv1.CreateConversationRequest) (*conversationv1.CreateConversationResponse, error) {
	caller, leave, err := c.enter(ctx, "create")
	if err != nil {
		return nil, err
	}
	defer leave()
	key := caller.Tenant + "/" + in.GetConversationId()
	creation := fmt.Sprintf("%q %q %q", caller.Subject, in.GetTitle(), in.GetParticipants())
	if there := c.talks[key]; there == nil {
		c.talks[key] = &talk{creation: creation, members: append([]string{caller.Subject}, in.GetParticipants()...)}
		c.created++
	} else if there.creation != creation {
		return nil, fault.New(fault.IdempotencyMismatch, "the conversation id is taken by other content")
	}
	return &conversationv1.CreateConversationResponse{}, nil
}

func (c *conversations) GetConversation(ctx context.Context, in *conversationv1.GetConversationRequest) (*conversationv1.GetConversationResponse, error) {
	caller, leave, err := c.enter(ctx, "get")
	if err != nil {
		return nil, err
	}
	defer leave()
	if there := c.talks[caller.Tenant+"/"+in.GetConversationId()]; there == nil || !slices.Contains(there.members, caller.Subject) {
		return nil, fault.New(fault.ConversationNotFound, "there is no such conversation")
	}
	return &conversationv1.GetConversationResponse{}, nil
}

func (c *conversations) AppendMessage(ctx context.Context, in *conversationv1.AppendMessageRequest) (*conversationv1.AppendMessageResponse, error) {
	caller, leave, err := c.enter(ctx, "append")
	if err != nil {
		return nil, err
	}
	defer leave()
	there := c.talks[caller.Tenant+"/"+in.GetConversationId()]
	if there == nil || !slices.Contains(there.members, caller.Subject) {
		return nil, fault.New(fault.ConversationNotFound, "there is no such conversation")
	}
	m := utterance{in.GetMessageId(), caller.Subject, in.GetParts()[0].GetText(), in.GetTo(), caller}
	for _, before := range there.messages {
		if before.id != m.id {
			continue
		}
		if before.author != m.author || before.text != m.text {
			return nil, fault.New(fault.IdempotencyMismatch, "the message id is taken by other content")
		}
		return &conversationv1.AppendMessageResponse{}, nil
	}
	there.messages = append(there.messages, m)
	return &conversationv1.AppendMessageResponse{}, nil
}

// refusing sets what is refused from now on, nil for nothing.
func (c *conversations) refusing(refuse func(method string, caller identity.Caller) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = refuse
}

// said gives how many conversations there are, and all that was said in one.
func (c *conversations) said(tenant, id string) (created int, messages []utterance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if there := c.talks[tenant+"/"+id]; there != nil {
		messages = slices.Clone(there.messages)
	}
	return c.created, messages
}

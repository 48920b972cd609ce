// Package conversation keeps conversations: who takes part, what was said in
// which order, and which operations were called along the way.
package conversation

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/backend"
	"weir/internal/serve"
)

const serviceName = "conversation"

// Config is what the service can be told.
type Config struct {
	Serve  serve.Config   `embed:""`
	Stores backend.Config `embed:""`
}

// Validate reports the first setting that can't work, by its flag.
func (c *Config) Validate() error {
	if err := c.Serve.Validate(); err != nil {
		return err
	}
	return c.Stores.Validate()
}

// Run serves until ctx ends or something fails that it can't mend.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Serve.Listener != nil {
		defer cfg.Serve.Listener.Close()
	}
	stores, err := open(ctx, cfg)
	if err != nil {
		return backend.Interrupted(ctx, fmt.Errorf("%s: %w", serviceName, err))
	}
	defer stores.Close()

	loop := aggregate.New(kind(), stores.Journal, stores.Hot, stores.Log)
	history := &history{loop: loop, journal: stores.Journal}
	calls, err := newCalls(stores, loop)
	if err != nil {
		return fmt.Errorf("%s: %w", serviceName, err)
	}
	return serve.Run(ctx, cfg.Serve, serve.Service{
		Name:     serviceName,
		Register: func(s *grpc.Server) { register(s, history) },
		Healthy:  stores.Journal.Healthy,
		Workers:  []func(context.Context) error{stores.Projector(loop).Run, calls.run},
	})
}

// open refuses a bad setting before it waits for anything.
func open(ctx context.Context, cfg Config) (*backend.Backend, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return backend.Open(ctx, serviceName, cfg.Stores, cfg.Serve.Log())
}

func register(s *grpc.Server, h *history) {
	conversationv1.RegisterConversationServiceServer(s, &conversationServer{history: h})
	conversationv1.RegisterMessageServiceServer(s, &messageServer{history: h})
}

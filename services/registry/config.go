// Package registry knows which operations exist, and runs them.
package registry

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/aggregate"
	"weir/internal/backend"
	"weir/internal/serve"
)

// Config is what the registry can be told.
type Config struct {
	Serve        serve.Config   `embed:""`
	Stores       backend.Config `embed:""`
	Gate         string         `help:"Address of the gate." default:"dns:///127.0.0.1:7001" placeholder:"TARGET"`
	Conversation string         `help:"Address of the conversation service." default:"dns:///127.0.0.1:7003" placeholder:"TARGET"`
	Inbox        string         `help:"Address of the inbox." default:"dns:///127.0.0.1:7004" placeholder:"TARGET"`
}

// Validate reports the first setting that can't work, by its flag.
func (c *Config) Validate() error {
	switch {
	case c.Gate == "":
		return errors.New("--gate: must be set")
	case c.Conversation == "":
		return errors.New("--conversation: must be set")
	case c.Inbox == "":
		return errors.New("--inbox: must be set")
	}
	return nil
}

// Run serves the registry until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	operations, err := loadCatalogue(ownCatalogue)
	if err != nil {
		return err
	}
	b, err := backend.Open(ctx, "registry", cfg.Stores, cfg.Serve.Log())
	if err != nil {
		return backend.Interrupted(ctx, err)
	}
	defer b.Close()
	b.Log.Info("catalogue loaded", "operations", len(operations.names), "digest", operations.digest)

	gate, err := serve.Dial(cfg.Gate, cfg.Serve.Peer)
	if err != nil {
		return fmt.Errorf("--gate: %w", err)
	}
	defer b.Closing(gate)
	conversation, err := serve.Dial(cfg.Conversation, cfg.Serve.Peer)
	if err != nil {
		return fmt.Errorf("--conversation: %w", err)
	}
	defer b.Closing(conversation)
	inbox, err := serve.Dial(cfg.Inbox, cfg.Serve.Peer)
	if err != nil {
		return fmt.Errorf("--inbox: %w", err)
	}
	defer b.Closing(inbox)

	invocations := aggregate.New(invocationKind(), b.Journal, b.Hot, b.Log)
	env := core{operations}
	d := &driver{
		env:         env,
		gate:        gatev1.NewGateServiceClient(gate),
		peers:       peers{"conversation": conversation, "inbox": inbox},
		invocations: invocations,
		log:         b.Log,
	}
	approvals, err := b.Consumer("gate", "registry-approvals", "weir.gate.*.approval.*")
	if err != nil {
		return err
	}
	return serve.Run(ctx, cfg.Serve, serve.Service{
		Name: "registry",
		Register: func(s *grpc.Server) {
			registryv1.RegisterOperationServiceServer(s, &server{env: env, gate: d.gate, driver: d, invocations: invocations})
		},
		Healthy: b.Journal.Healthy,
		Workers: []func(context.Context) error{
			b.Projector(invocations).Run,
			func(ctx context.Context) error { return approvals.Run(ctx, d.hear) },
			func(ctx context.Context) error { return invocations.Sweep(ctx, d.wake) },
			d.announce(operations),
			d.drain,
		},
	})
}

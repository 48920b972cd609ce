// Package gate decides who may run what, and asks a person where one must be
// asked.
package gate

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/backend"
	"weir/internal/journal"
	"weir/internal/serve"
)

// Config is what the gate can be told.
type Config struct {
	Serve       serve.Config   `embed:""`
	Stores      backend.Config `embed:""`
	ApprovalTTL time.Duration  `help:"How long a person has to answer." default:"10m"`
}

const defaultApprovalTTL = 10 * time.Minute

// Validate reports the first setting that can't work, by its flag.
func (c *Config) Validate() error {
	if c.ApprovalTTL < 0 {
		return errors.New("--approval-ttl: must be positive")
	}
	return nil
}

// Run serves the gate until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if cfg.ApprovalTTL == 0 {
		cfg.ApprovalTTL = defaultApprovalTTL
	}
	b, err := backend.Open(ctx, "gate", cfg.Stores, cfg.Serve.Log())
	if err != nil {
		return backend.Interrupted(ctx, err)
	}
	defer b.Close()

	approvals := aggregate.New(approvalKind(), b.Journal, b.Hot, b.Log)
	grants := aggregate.New(grantKind(), b.Journal, b.Hot, b.Log)
	consumer, err := b.Consumer("gate", "grant-view", "weir.gate.*."+grantKindName+".*")
	if err != nil {
		return err
	}
	view := newGrantView(consumer, b.Log)

	return serve.Run(ctx, cfg.Serve, serve.Service{
		Name: "gate",
		Register: func(s *grpc.Server) {
			gatev1.RegisterGateServiceServer(s, &gateServer{
				grants: view, asker: &asker{approvals}, approvals: approvals, ttl: cfg.ApprovalTTL,
			})
			gatev1.RegisterApprovalServiceServer(s, &approvalServer{approvals: approvals})
			gatev1.RegisterPolicyServiceServer(s, &policyServer{loop: grants, view: view})
		},
		Healthy: b.Journal.Healthy,
		Workers: []func(context.Context) error{
			b.Projector(approvals, grants).Run,
			view.run,
			func(ctx context.Context) error {
				return approvals.Sweep(ctx, func(ctx context.Context, key journal.Key) (time.Duration, error) {
					_, err := approvals.Do(ctx, key, decideExpiry)
					return 0, err
				})
			},
		},
	})
}

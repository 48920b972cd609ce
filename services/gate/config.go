// Package gate decides who may run what, and asks a person where one must be
// asked.
package gate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/backend"
	"weir/internal/journal"
	"weir/internal/serve"
	"weir/services/gate/audit"
)

// Config is what the gate can be told.
type Config struct {
	Serve       serve.Config   `embed:""`
	Stores      backend.Config `embed:""`
	ApprovalTTL time.Duration  `help:"How long a person has to answer, and an approval to be used, where no rule says." default:"10m"`
	AuditKey    string         `help:"File of the Ed25519 note key that signs checkpoints of the audit log." placeholder:"FILE"`
}

const defaultApprovalTTL = 10 * time.Minute

// Validate reports the first setting that can't work, by its flag.
func (c *Config) Validate() error {
	if c.ApprovalTTL < 0 {
		return errors.New("--approval-ttl: must not be negative; 0 is 10 minutes")
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
	// Without a key the log is kept, but no checkpoint is given.
	signer, verifier, err := audit.LoadSigner(cfg.AuditKey)
	if err != nil {
		return fmt.Errorf("--audit-key: %w", err)
	}
	b, err := backend.Open(ctx, "gate", cfg.Stores, cfg.Serve.Log())
	if err != nil {
		return backend.Interrupted(ctx, err)
	}
	defer b.Close()

	var (
		approvals = aggregate.New(approvalKind(), b.Journal, b.Hot, b.Log)
		trusts    = aggregate.New(trustKind(), b.Journal, b.Hot, b.Log)
		checks    = aggregate.New(checkKind(), b.Journal, b.Hot, b.Log)
		grants    = aggregate.New(grantKind(), b.Journal, b.Hot, b.Log)
		policies  = aggregate.New(policyKind(), b.Journal, b.Hot, b.Log)
		catalogue = aggregate.New(catalogueKind(), b.Journal, b.Hot, b.Log)
		// deliveries are written by what is heard of the inbox alone.
		deliveries = aggregate.New(deliveryKind(), b.Journal, b.Hot, b.Log)
	)
	books, err := b.Consumer("gate", "book-view", bookSubjects...)
	if err != nil {
		return err
	}
	decisions, err := b.Consumer("gate", "trusts", "weir.gate.*."+approvalKindName+".*")
	if err != nil {
		return err
	}
	refusals, err := b.Consumer("inbox", "gate-deliveries", "weir.inbox.*.inbox.*")
	if err != nil {
		return err
	}
	records, err := b.Consumer("gate", "audit", "weir.gate.>")
	if err != nil {
		return err
	}
	view := newBookView(books, b.Log)
	asker := &asker{approvals: approvals, checks: checks, ttl: cfg.ApprovalTTL}
	auditLog := audit.NewLog(records, b.Journal, b.Log)

	return serve.Run(ctx, cfg.Serve, serve.Service{
		Name: "gate",
		Register: func(s *grpc.Server) {
			gatev1.RegisterGateServiceServer(s, &gateServer{
				view: view, asker: asker, approvals: approvals, checks: checks, trusts: trusts, catalogue: catalogue, hot: b.Hot,
			})
			gatev1.RegisterApprovalServiceServer(s, &approvalServer{
				approvals: approvals, trusts: trusts, view: view, asker: asker, backend: b,
			})
			gatev1.RegisterPolicyServiceServer(s, &policyServer{grants: grants, policies: policies, view: view})
			gatev1.RegisterAuditServiceServer(s, audit.NewServer(auditLog, signer, verifier))
		},
		Healthy: func(ctx context.Context) error {
			err := b.Journal.Healthy(ctx)
			if err == nil {
				view.confirm()
			}
			return err
		},
		Workers: []func(context.Context) error{
			b.Projector(approvals, trusts, checks, grants, policies, catalogue, deliveries).Run,
			view.run,
			auditLog.Run,
			func(ctx context.Context) error { return decisions.Run(ctx, hearDecisions(trusts)) },
			func(ctx context.Context) error { return refusals.Run(ctx, hearDeliveries(deliveries)) },
			sweep(approvals, decideExpiry),
			sweep(trusts, decideTrustExpiry),
		},
	})
}

// sweep records deadlines that have passed.
func sweep[S any](loop *aggregate.Loop[S, *gatev1.Event], decide aggregate.Decide[S, *gatev1.Event]) func(context.Context) error {
	return func(ctx context.Context) error {
		return loop.Sweep(ctx, func(ctx context.Context, key journal.Key) (time.Duration, error) {
			_, err := loop.Do(ctx, key, decide)
			return 0, err
		})
	}
}

package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/reflection"

	"weir/internal/identity"
)

// Service is what one of weir's services adds to the server.
type Service struct {
	Name     string             // "gate": in logs, and the label of its metrics
	Register func(*grpc.Server) // adds its gRPC services

	// Healthy is asked every second; while it errs, load balancers are told to go
	// elsewhere. Nil: always.
	Healthy func(context.Context) error

	// Workers run beside the server until their context ends, which is after the last
	// call ended. One that returns an error ends the service: workers retry what may
	// pass, so an error is something they can't mend. A process that starts again is
	// seen by whoever runs it, and one that answers calls while, say, its projector is
	// dead is not.
	Workers []func(context.Context) error

	// Metrics are the service's own, beside those of its calls.
	Metrics []prometheus.Collector

	methods identity.Table // nil: identity.Methods; another in tests
}

// Run serves until ctx ends or a part fails, and then ends in order: load balancers are
// told, streams are cut, unary calls get ShutdownGrace to finish, then workers stop.
// It returns nil when it was ctx that ended it.
func Run(ctx context.Context, cfg Config, s Service) error {
	if err := run(ctx, cfg, s); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return nil
}

func run(ctx context.Context, cfg Config, s Service) error {
	if cfg.Listener != nil {
		defer cfg.Listener.Close()
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	cfg = cfg.withDefaults()
	log := cfg.Logger.With("service", s.Name)
	if s.methods == nil {
		s.methods = identity.Methods
	}
	guard, err := cfg.guard(ctx, s.methods)
	if err != nil {
		return err
	}
	transport, err := cfg.serverTLS()
	if err != nil {
		return err
	}
	listener := cfg.Listener
	if listener == nil {
		if listener, err = net.Listen("tcp", cfg.Listen); err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		defer listener.Close()
	}

	// Services that share a process share a registry, and the label keeps them apart.
	// Their metrics leave it again, so that one can be started anew.
	registry := prometheus.WrapRegistererWith(prometheus.Labels{"service": s.Name}, cfg.Registry)
	metrics := newMetrics()
	for _, collector := range append([]prometheus.Collector{metrics}, s.Metrics...) {
		if err := registry.Register(collector); err != nil {
			return err
		}
		defer registry.Unregister(collector)
	}

	drain, beginDrain := context.WithCancel(context.WithoutCancel(ctx))
	defer beginDrain()
	server := newServer(log, transport, metrics, guard, drain)
	s.Register(server)
	health := newState(server, s.Healthy, log)
	reflection.Register(server)
	metrics.InitializeMetrics(server)

	// failed ends when ctx does or a part fails, whichever is first.
	failed, fail := context.WithCancelCause(ctx)
	defer fail(nil)

	addresses := []any{"listen", listener.Addr().String()}
	if cfg.HTTP != "" {
		web, err := startWeb(cfg.HTTP, cfg.Registry, health, fail)
		if err != nil {
			return fmt.Errorf("--http: %w", err)
		}
		defer web.Close()
		addresses = append(addresses, "http", web.Addr)
	}

	working, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	var workers sync.WaitGroup
	workers.Go(func() { health.watch(working) })
	for i, work := range s.Workers {
		workers.Go(func() {
			if err := work(working); err != nil && working.Err() == nil {
				fail(fmt.Errorf("worker %d: %w", i, err))
			}
		})
	}
	go func() {
		if err := server.Serve(listener); err != nil {
			fail(err)
		}
	}()
	log.Info("serving", addresses...)
	if cfg.TLSCert == "" && !loopback(listener.Addr().String()) {
		log.Warn("tokens come in unencrypted unless the network encrypts: --tls-cert is not set")
	}

	<-failed.Done()
	log.Info("stopping", "cause", context.Cause(failed))
	health.stop()
	beginDrain()
	finish(server, cfg.ShutdownGrace, log)
	stopWork()
	if !within(cfg.ShutdownGrace, workers.Wait) {
		return errors.Join(cause(ctx, failed), errors.New("a worker did not stop"))
	}
	return cause(ctx, failed)
}

// finish lets the calls under way end, and ends those that take longer.
func finish(server *grpc.Server, grace time.Duration, log *slog.Logger) {
	if !within(grace, server.GracefulStop) {
		log.Warn("cutting calls that outlast the shutdown grace", "grace", grace)
		server.Stop()
	}
}

// within reports whether do returned in time. If not, it is left to itself.
func within(limit time.Duration, do func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// cause is why the service ended, nil if it was told to.
func cause(told, failed context.Context) error {
	if err := context.Cause(failed); err != context.Cause(told) {
		return err
	}
	return nil
}

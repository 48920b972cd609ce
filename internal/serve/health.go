package serve

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

const probeEvery = time.Second

var (
	errStarting = errors.New("starting")
	errStopping = errors.New("stopping")
)

// state is whether the service can do its work now, as load balancers are told it.
type state struct {
	probe  func(context.Context) error
	health *health.Server
	names  []string // the gRPC services, and "" for the whole server
	log    *slog.Logger

	mu   sync.Mutex
	down error // why it can't; nil while it can
}

// newState starts out as down: nobody is sent here before the first probe succeeded.
func newState(server *grpc.Server, probe func(context.Context) error, log *slog.Logger) *state {
	s := &state{probe: probe, health: health.NewServer(), log: log, names: []string{""}, down: errStarting}
	for name := range server.GetServiceInfo() {
		s.names = append(s.names, name)
	}
	for _, name := range s.names {
		s.health.SetServingStatus(name, healthpb.HealthCheckResponse_NOT_SERVING)
	}
	healthpb.RegisterHealthServer(server, s.health)
	return s
}

// watch probes until ctx ends.
func (s *state) watch(ctx context.Context) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		s.once(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *state) once(ctx context.Context) {
	if s.probe == nil {
		s.set(nil)
		return
	}
	// A probe that hangs is a probe that failed.
	ctx, cancel := context.WithTimeout(ctx, 2*probeEvery)
	defer cancel()
	s.set(s.probe(ctx))
}

func (s *state) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.down
	if was == errStopping {
		return // a late probe doesn't undo stop
	}
	s.down = err
	status := healthpb.HealthCheckResponse_SERVING
	if err != nil {
		status = healthpb.HealthCheckResponse_NOT_SERVING
	}
	for _, name := range s.names {
		s.health.SetServingStatus(name, status)
	}
	switch {
	case err == nil && was != nil:
		s.log.Info("healthy")
	case err != nil && (was == nil || was == errStarting):
		s.log.Warn("unhealthy", "error", err)
	}
}

// stop says NOT_SERVING for good.
func (s *state) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = errStopping
	s.health.Shutdown()
}

// up is nil while the service can do its work.
func (s *state) up() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down
}

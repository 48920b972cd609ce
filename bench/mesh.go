package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"weir/internal/backend"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/internal/serve"
)

const (
	// tenant owns everything that is measured.
	tenant   = "acme"
	audience = "weir"
	tokenTTL = 24 * time.Hour
	// seeders is how many aggregates are made at once.
	seeders = 64
)

// mesh is real servers, and those of weir's services that the rows ask for, in
// this process.
type mesh struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	dir    string
	many   int  // aggregates of each kind
	long   int  // messages of the long conversation
	synced bool // every write is on disk before it is acknowledged
	nats   *process
	redis  *process
	nc     *nats.Conn
	js     jetstream.JetStream
	signer *identity.Signer
	log    *slog.Logger

	running  sync.WaitGroup
	services map[string]string // name → address
	conns    []*grpc.ClientConn
	closers  []func()
	resting  []func() error // when the slice is over

	// What several rows work on.
	ledgers  *ledgers
	inboxes  *inboxes
	depths   map[int]*depths
	talks    *talks
	pages    *talks // a short and a long one
	marks    *marks
	streams  *streams
	postgres *postgres
}

func startMesh(ctx context.Context, o options, sync bool) (*mesh, error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Dir, "bench-")
	if err != nil {
		return nil, err
	}
	m := &mesh{dir: dir, many: o.Aggregates, long: o.Long, synced: sync, services: make(map[string]string), depths: make(map[int]*depths)}
	m.ctx, m.cancel = context.WithCancelCause(ctx)
	if err := m.start(); err != nil {
		m.stop()
		return nil, err
	}
	return m, nil
}

func (m *mesh) start() error {
	var err error
	if m.redis, err = startRedis(m.ctx, filepath.Join(m.dir, "redis"), "--appendonly", "no"); err != nil {
		return err
	}
	if m.nats, err = startNATS(m.ctx, filepath.Join(m.dir, "nats"), m.synced); err != nil {
		return err
	}
	if m.nc, err = journal.Connect(m.nats.url, "bench"); err != nil {
		return err
	}
	if m.js, err = jetstream.New(m.nc); err != nil {
		return err
	}
	if m.signer, err = identity.NewSigner(); err != nil {
		return err
	}
	if err := m.signer.WriteJWKS(m.keys()); err != nil {
		return err
	}
	// The services log as they do in production, a line for every call.
	log, err := os.Create(filepath.Join(m.dir, "weir.log"))
	if err != nil {
		return err
	}
	m.closers = append(m.closers, func() { _ = log.Close() })
	m.log = slog.New(slog.NewJSONHandler(log, nil))
	return nil
}

func (m *mesh) keys() string { return filepath.Join(m.dir, "jwks.json") }

func (m *mesh) stores() backend.Config {
	return backend.Config{NATS: m.nats.url, Redis: m.redis.url, Replicas: 1}
}

// stop ends everything and removes its data.
func (m *mesh) stop() {
	_ = m.rest() // of a slice that was interrupted
	for _, conn := range m.conns {
		_ = conn.Close()
	}
	m.cancel(nil)
	m.running.Wait()
	for _, closer := range m.closers {
		closer()
	}
	if m.nc != nil {
		m.nc.Close()
	}
	for _, p := range m.servers() {
		p.stop()
	}
	_ = os.RemoveAll(m.dir)
}

// explain puts the failure of a service in the place of what it led to.
func (m *mesh) explain(err error) error {
	if cause := context.Cause(m.ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// each does something for every aggregate of a kind, many at once.
func (m *mesh) each(do func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(m.ctx)
	group.SetLimit(seeders)
	for n := range m.many {
		group.Go(func() error { return do(ctx, n) })
	}
	return group.Wait()
}

// background runs something beside the measurements until the mesh stops.
func (m *mesh) background(what string, run func(context.Context) error) {
	m.running.Go(func() {
		if err := run(m.ctx); err != nil && m.ctx.Err() == nil {
			m.cancel(fmt.Errorf("%s: %w", what, err))
		}
	})
}

// service starts one of weir's services, unless it runs already, and gives a
// connection on which calls are made by caller, the zero one for nobody.
func (m *mesh) service(name string, caller identity.Caller, run func(context.Context, serve.Config) error) (*grpc.ClientConn, error) {
	address, ok := m.services[name]
	if !ok {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		address = listener.Addr().String()
		m.services[name] = address
		m.background(name, func(ctx context.Context) error {
			return run(ctx, serve.Config{Listener: listener, JWKS: m.keys(), Audience: audience, Logger: m.log})
		})
		if err := m.healthy(address); err != nil {
			return nil, m.explain(fmt.Errorf("%s: %w", name, err))
		}
	}
	if caller.Subject == "" {
		return m.dial(address)
	}
	token, err := m.signer.Issue(caller, audience, tokenTTL)
	if err != nil {
		return nil, err
	}
	return m.dial(address, grpc.WithPerRPCCredentials(bearer("Bearer "+token)))
}

// tokenFile writes the credential of the one service here that calls its peers.
func (m *mesh) tokenFile(caller identity.Caller) (string, error) {
	token, err := m.signer.Issue(caller, audience, tokenTTL)
	if err != nil {
		return "", err
	}
	path := filepath.Join(m.dir, "peer.jwt")
	return path, os.WriteFile(path, []byte(token), 0o600)
}

func (m *mesh) healthy(address string) error {
	conn, err := m.dial(address)
	if err != nil {
		return err
	}
	health := healthpb.NewHealthClient(conn)
	return eventually(m.ctx, "it is healthy", func() bool {
		answer, err := health.Check(m.ctx, &healthpb.HealthCheckRequest{})
		return err == nil && answer.GetStatus() == healthpb.HealthCheckResponse_SERVING
	})
}

// dial opens a connection with a plain client: it is the servers that are
// measured, and every RPC row pays for the same client.
func (m *mesh) dial(address string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(address, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return nil, err
	}
	m.conns = append(m.conns, conn)
	return conn, nil
}

// bearer sends the same token with every call.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return false }

// afterSlice has something done when the slice is over that is being prepared.
func (m *mesh) afterSlice(do func() error) { m.resting = append(m.resting, do) }

func (m *mesh) rest() error {
	var group errgroup.Group
	for _, do := range m.resting {
		group.Go(do)
	}
	m.resting = nil
	return group.Wait()
}

// batch is one: a call to a server takes long enough to be timed.
func (*mesh) batch() int { return 1 }

// cpu counts both redis-servers as one: no row uses both.
func (m *mesh) cpu() cpuTimes {
	times := cpuTimes{bench: cpuOf(os.Getpid()), nats: cpuOf(m.nats.pid()), redis: cpuOf(m.redis.pid())}
	if m.streams != nil {
		times.redis += cpuOf(m.streams.pid())
	}
	if m.postgres != nil {
		times.postgres = cpuOfAll(m.postgres.pid())
	}
	return times
}

// servers are the processes that run.
func (m *mesh) servers() []*process {
	running := []*process{m.nats, m.redis}
	if m.streams != nil {
		running = append(running, m.streams.process)
	}
	if m.postgres != nil {
		running = append(running, m.postgres.process)
	}
	return slices.DeleteFunc(running, func(p *process) bool { return p == nil })
}

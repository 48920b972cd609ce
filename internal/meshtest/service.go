package meshtest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"weir/internal/identity"
	"weir/internal/serve"
)

// Issuer signs the tokens of one test's mesh.
type Issuer struct {
	t      testing.TB
	dir    string
	signer *identity.Signer
}

// NewIssuer makes a key of its own.
func NewIssuer(t testing.TB) *Issuer {
	t.Helper()
	signer, err := identity.NewSigner()
	if err != nil {
		t.Fatal(err)
	}
	i := &Issuer{t: t, dir: t.TempDir(), signer: signer}
	if err := signer.WriteJWKS(i.JWKS()); err != nil {
		t.Fatal(err)
	}
	return i
}

// JWKS is the file of the keys that services believe.
func (i *Issuer) JWKS() string { return filepath.Join(i.dir, "jwks.json") }

// TokenFile writes a token for a caller and gives its file.
func (i *Issuer) TokenFile(c identity.Caller) string {
	i.t.Helper()
	token, err := i.signer.Issue(c, "weir", time.Hour)
	if err != nil {
		i.t.Fatal(err)
	}
	file, err := os.CreateTemp(i.dir, "token-")
	if err != nil {
		i.t.Fatal(err)
	}
	if _, err := file.WriteString(token); err != nil {
		i.t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		i.t.Fatal(err)
	}
	return file.Name()
}

// Dial connects to a service as a caller.
func (i *Issuer) Dial(target string, c identity.Caller) *grpc.ClientConn {
	i.t.Helper()
	conn, err := serve.Dial(target, serve.DialConfig{TokenFile: i.TokenFile(c)})
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Service is a service that runs in the test's process on a port of its own.
type Service struct {
	Addr string
	stop context.CancelFunc
	done chan error
}

// Serve starts a service through its own Run and waits until it is healthy. The
// service ends with the test, and must end without an error.
func (i *Issuer) Serve(run func(context.Context, serve.Config) error, peer identity.Caller) *Service {
	i.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		i.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Service{Addr: listener.Addr().String(), stop: stop, done: make(chan error, 1)}
	config := serve.Config{
		JWKS: i.JWKS(), Listener: listener, ShutdownGrace: 5 * time.Second,
		Logger: slog.New(slog.NewJSONHandler(io.Discard, nil)),
	}
	if peer.Subject != "" {
		config.Peer.TokenFile = i.TokenFile(peer)
	}
	go func() { s.done <- run(ctx, config) }()
	i.t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			i.t.Errorf("service: %v", err)
		}
	})
	i.healthy(s.Addr)
	return s
}

// ServeProcess starts a service in a process of its own, on an address that it is
// given, and waits until it is healthy. It may die by itself; if not, it is killed
// when the test ends.
func (i *Issuer) ServeProcess(command func(addr string) *exec.Cmd) *Service {
	i.t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(i.t))
	cmd := command(addr)
	dieWithParent(cmd)
	if err := cmd.Start(); err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	i.healthy(addr)
	return &Service{Addr: addr}
}

// healthy waits until a service says that it is.
func (i *Issuer) healthy(addr string) {
	i.t.Helper()
	conn, err := serve.Dial(addr, serve.DialConfig{})
	if err != nil {
		i.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	health := healthv1.NewHealthClient(conn)
	Eventually(i.t, "the service is healthy", func() bool {
		answer, err := health.Check(context.Background(), &healthv1.HealthCheckRequest{})
		return err == nil && answer.GetStatus() == healthv1.HealthCheckResponse_SERVING
	})
}

// Stop ends the service in order. Stopping it twice is fine.
func (s *Service) Stop() error {
	s.stop()
	err := <-s.done
	s.done <- nil
	return err
}

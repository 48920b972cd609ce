// Package meshtest gives tests a real nats-server and a real redis-server.
//
// A server that cannot be started fails the test: nothing is ever skipped.
package meshtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"weir/internal/journal"
)

// Patience is how long a test waits for a condition before it fails.
const Patience = 20 * time.Second

// NATS is a nats-server in this process with JetStream, which can be stopped
// and started again on the same port and data.
type NATS struct {
	t    testing.TB
	dir  string
	port int
	srv  *server.Server
}

// StartNATS starts a nats-server that lives as long as the test.
func StartNATS(t testing.TB) *NATS {
	t.Helper()
	n := &NATS{t: t, dir: t.TempDir(), port: -1}
	n.Start()
	t.Cleanup(n.Stop)
	return n
}

// Start starts the server, again where it was.
func (n *NATS) Start() {
	n.t.Helper()
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: n.port, JetStream: true, StoreDir: n.dir,
		NoSigs: true, NoLog: true, MaxPayload: 4 << 20,
	})
	if err != nil {
		n.t.Fatalf("nats-server: %v", err)
	}
	srv.Start()
	if !srv.ReadyForConnections(Patience) {
		n.t.Fatal("nats-server did not get ready")
	}
	addr, ok := srv.Addr().(*net.TCPAddr)
	if !ok {
		n.t.Fatalf("nats-server listens on %v", srv.Addr())
	}
	n.srv, n.port = srv, addr.Port
}

// Stop ends the server and keeps its data.
func (n *NATS) Stop() {
	n.srv.Shutdown()
	n.srv.WaitForShutdown()
}

// URL is where it listens, also while it is stopped.
func (n *NATS) URL() string { return fmt.Sprintf("nats://127.0.0.1:%d", n.port) }

// Addr is its host and port.
func (n *NATS) Addr() string { return fmt.Sprintf("127.0.0.1:%d", n.port) }

// Connect opens a connection as services do.
func (n *NATS) Connect() *nats.Conn {
	n.t.Helper()
	return Connect(n.t, n.URL())
}

// Connect opens a connection as services do, to any address, and waits for it.
func Connect(t testing.TB, url string) *nats.Conn {
	t.Helper()
	nc, err := journal.Connect(url, "test")
	if err != nil {
		t.Fatalf("connect to nats: %v", err)
	}
	t.Cleanup(nc.Close)
	Eventually(t, "nats is connected", nc.IsConnected)
	return nc
}

// Redis is a redis-server process that can be killed and started again on the
// same port and data.
type Redis struct {
	t    testing.TB
	dir  string
	port int
	cmd  *exec.Cmd
	exit chan error
}

// StartRedis starts a redis-server process that lives as long as the test.
func StartRedis(t testing.TB) *Redis {
	t.Helper()
	r := &Redis{t: t, dir: t.TempDir(), port: freePort(t)}
	r.Start()
	t.Cleanup(r.Kill)
	return r
}

// Start starts the server, again where it was.
func (r *Redis) Start() {
	r.t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		r.t.Fatal("redis-server is not installed; type: apt-get install -y redis-server")
	}
	log, err := os.Create(filepath.Join(r.dir, "redis.log"))
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	r.cmd = exec.Command(path, "--port", strconv.Itoa(r.port), "--bind", "127.0.0.1",
		"--dir", r.dir, "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction")
	r.cmd.Stdout, r.cmd.Stderr = log, log
	dieWithParent(r.cmd)
	if err := r.cmd.Start(); err != nil {
		r.t.Fatalf("redis-server: %v", err)
	}
	r.exit = make(chan error, 1)
	go func(cmd *exec.Cmd, exit chan<- error) { exit <- cmd.Wait() }(r.cmd, r.exit)
	client := r.Client()
	defer func() { _ = client.Close() }()
	Eventually(r.t, "redis-server answers", func() bool {
		return client.Ping(context.Background()).Err() == nil
	})
}

// Kill ends the server without warning. Killing it twice is fine.
func (r *Redis) Kill() {
	if r.cmd == nil {
		return
	}
	if err := r.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		r.t.Errorf("kill redis-server: %v", err)
	}
	<-r.exit
	r.cmd = nil
}

// URL is where it listens.
func (r *Redis) URL() string { return fmt.Sprintf("redis://127.0.0.1:%d", r.port) }

// Client opens a connection of the test's own.
func (r *Redis) Client() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", r.port), DialTimeout: time.Second})
}

// Flush empties the server.
func (r *Redis) Flush() {
	r.t.Helper()
	client := r.Client()
	defer func() { _ = client.Close() }()
	if err := client.FlushAll(context.Background()).Err(); err != nil {
		r.t.Fatalf("flush redis: %v", err)
	}
}

// Eventually waits for a condition, and fails the test when it does not come
// true in time.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain until %s", Patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// freePort gives a port that was free a moment ago.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("listening on %v", l.Addr())
	}
	return addr.Port
}

// Package meshtest gives tests a real nats-server and a real redis-server.
//
// A server that cannot be started fails the test: nothing is ever skipped.
package meshtest

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

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

// Dir is the folder of its data.
func (n *NATS) Dir() string { return n.dir }

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

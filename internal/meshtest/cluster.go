package meshtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Cluster is three nats-servers in this process, with JetStream.
type Cluster struct {
	t     testing.TB
	nodes []*server.Server
}

// StartCluster starts a cluster that lives as long as the test.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	const nodes = 3
	var routes []string
	ports := make([]int, nodes)
	for i := range ports {
		ports[i] = freePort(t)
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", ports[i]))
	}
	c := &Cluster{t: t, nodes: make([]*server.Server, nodes)}
	for i := range c.nodes {
		srv, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprintf("node-%d", i),
			Host:       "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(),
			Cluster: server.ClusterOpts{Name: "weir", Host: "127.0.0.1", Port: ports[i], PoolSize: -1},
			Routes:  server.RoutesFromStr(strings.Join(routes, ",")),
			NoSigs:  true, NoLog: true,
		})
		if err != nil {
			t.Fatalf("nats-server: %v", err)
		}
		srv.Start()
		t.Cleanup(func() {
			srv.Shutdown()
			srv.WaitForShutdown()
		})
		c.nodes[i] = srv
	}
	for _, srv := range c.nodes {
		if !srv.ReadyForConnections(Patience) {
			t.Fatal("a nats-server did not get ready")
		}
	}
	Eventually(t, "the cluster has a leader and all peers", func() bool {
		for _, srv := range c.nodes {
			if srv.JetStreamIsLeader() {
				return len(srv.JetStreamClusterPeers()) == nodes
			}
		}
		return false
	})
	return c
}

// URL is where all of them listen.
func (c *Cluster) URL() string {
	urls := make([]string, len(c.nodes))
	for i, srv := range c.nodes {
		urls[i] = srv.ClientURL()
	}
	return strings.Join(urls, ",")
}

// Addr is the host and port of one of them.
func (c *Cluster) Addr() string { return c.nodes[0].Addr().String() }

// Connect opens a connection as services do.
func (c *Cluster) Connect() *nats.Conn {
	c.t.Helper()
	return Connect(c.t, c.URL())
}

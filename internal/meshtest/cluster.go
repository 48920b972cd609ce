package meshtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// StartCluster starts three nats-servers in this process as a cluster with
// JetStream, and gives the addresses as one URL.
func StartCluster(t testing.TB) string {
	t.Helper()
	const nodes = 3
	var servers, routes []string
	ports := make([]int, nodes)
	for i := range ports {
		ports[i] = freePort(t)
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", ports[i]))
	}
	cluster := make([]*server.Server, nodes)
	for i := range cluster {
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
		cluster[i] = srv
	}
	for _, srv := range cluster {
		if !srv.ReadyForConnections(Patience) {
			t.Fatal("a nats-server did not get ready")
		}
		servers = append(servers, srv.ClientURL())
	}
	Eventually(t, "the cluster has a leader and all peers", func() bool {
		for _, srv := range cluster {
			if srv.JetStreamIsLeader() {
				return len(srv.JetStreamClusterPeers()) == nodes
			}
		}
		return false
	})
	return strings.Join(servers, ",")
}

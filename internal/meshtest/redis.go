package meshtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis is a redis-server process that can be killed and started again on the
// same port and data.
type Redis struct {
	t     testing.TB
	dir   string
	port  int
	flags []string
	cmd   *exec.Cmd
	exit  chan error
}

// StartRedis starts a redis-server process that lives as long as the test.
func StartRedis(t testing.TB) *Redis {
	t.Helper()
	r := &Redis{t: t, dir: t.TempDir(), port: freePort(t)}
	r.Start()
	t.Cleanup(r.Kill)
	return r
}

// StartRedisCluster starts a Redis Cluster of one node. It is slower to start, and
// refuses what would touch two hash slots at once as a large one does.
func StartRedisCluster(t testing.TB) *Redis {
	t.Helper()
	r := &Redis{t: t, dir: t.TempDir(), port: freePort(t)}
	r.flags = []string{"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(freePort(t))}
	r.Start()
	t.Cleanup(r.Kill)
	r.do(func(ctx context.Context, client *redis.Client) error {
		return client.ClusterAddSlotsRange(ctx, 0, 16383).Err()
	})
	client := r.Client()
	defer func() { _ = client.Close() }()
	Eventually(t, "the redis cluster is ready", func() bool {
		info, err := client.ClusterInfo(context.Background()).Result()
		return err == nil && strings.Contains(info, "cluster_state:ok")
	})
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
	r.cmd = exec.Command(path, append([]string{
		"--port", strconv.Itoa(r.port), "--bind", "127.0.0.1",
		"--dir", r.dir, "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction",
	}, r.flags...)...)
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
func (r *Redis) URL() string { return "redis://" + r.Addr() }

// Addr is its host and port.
func (r *Redis) Addr() string { return fmt.Sprintf("127.0.0.1:%d", r.port) }

// Client opens a connection of the test's own.
func (r *Redis) Client() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: r.Addr(), DialTimeout: time.Second})
}

// Flush empties the server.
func (r *Redis) Flush() {
	r.t.Helper()
	r.do(func(ctx context.Context, client *redis.Client) error { return client.FlushAll(ctx).Err() })
}

// Save takes a snapshot, with which the server comes back from then on.
func (r *Redis) Save() {
	r.t.Helper()
	r.do(func(ctx context.Context, client *redis.Client) error { return client.Save(ctx).Err() })
}

func (r *Redis) do(command func(context.Context, *redis.Client) error) {
	r.t.Helper()
	client := r.Client()
	defer func() { _ = client.Close() }()
	if err := command(context.Background(), client); err != nil {
		r.t.Fatalf("redis: %v", err)
	}
}

package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/backend"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/internal/meshtest"
	"weir/internal/serve"
)

// childMark is the setting by which this program knows that it is to be a server for
// the tests and not the tests.
const childMark = "WEIR_INBOX_CHILD"

// child is what such a server is told.
type child struct {
	// Data is the folder of a nats-server. Where it is empty, the child is an inbox.
	Data  string
	Port  int
	NATS  string
	Redis string
	JWKS  string
	Token string // file of its own credential
	Peers string // address of its gate
	Limit int
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childMark); text != "" {
		var c child
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			panic(err)
		}
		if err := c.run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// run is the server, until who started it ends.
func (c child) run() error {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if c.Data != "" {
		srv, err := server.NewServer(&server.Options{
			Host: "127.0.0.1", Port: c.Port, JetStream: true, StoreDir: c.Data, NoSigs: true, NoLog: true, MaxPayload: 4 << 20,
		})
		if err != nil {
			return err
		}
		srv.Start()
		<-ctx.Done()
		srv.Shutdown()
		return nil
	}
	return Run(ctx, Config{
		Serve: serve.Config{
			Listen: fmt.Sprintf("127.0.0.1:%d", c.Port), JWKS: c.JWKS,
			Peer: serve.DialConfig{TokenFile: c.Token}, LogLevel: slog.LevelWarn,
		},
		Stores: backend.Config{NATS: c.NATS, Redis: c.Redis, Replicas: 1},
		Limit:  c.Limit, Gate: c.Peers, Conversation: c.Peers,
	})
}

// process is a child that can be killed and started again.
type process struct {
	t    testing.TB
	what child
	log  string
	cmd  *exec.Cmd
	hold io.Closer
}

func startProcess(t testing.TB, what child) *process {
	t.Helper()
	p := &process{t: t, what: what, log: filepath.Join(t.TempDir(), "log")}
	p.start()
	t.Cleanup(func() {
		p.kill()
		if said, _ := os.ReadFile(p.log); strings.Contains(string(said), "DATA RACE") {
			t.Errorf("a race in a child: %s", said)
		}
	})
	return p
}

func (p *process) start() {
	p.t.Helper()
	text, err := json.Marshal(p.what)
	if err != nil {
		p.t.Fatal(err)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), childMark+"="+string(text))
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if p.hold, err = p.cmd.StdinPipe(); err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends it without warning.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	_ = p.hold.Close()
}

func (p *process) addr() string { return fmt.Sprintf("127.0.0.1:%d", p.what.Port) }

// unrest is two replicas of the service, a nats-server and a redis-server, all of
// them processes, and something that keeps disturbing them.
type unrest struct {
	t         *testing.T
	nats      *process
	redis     *meshtest.Redis
	toNATS    *meshtest.Proxy
	toRedis   *meshtest.Proxy
	inboxes   []*process
	conns     []*grpc.ClientConn // to each replica
	token     string
	progress  atomic.Int64 // calls that clients have made
	will      []disturbance
	disturbed map[string]int
}

// historyLimit is how many messages an inbox of a history holds: few enough to be
// full now and then.
const historyLimit = 12

func newUnrest(t *testing.T, will []disturbance) *unrest {
	t.Helper()
	u := &unrest{t: t, will: will, redis: meshtest.StartRedis(t), disturbed: make(map[string]int)}
	u.nats = startProcess(t, child{Data: t.TempDir(), Port: freePort(t)})
	u.toNATS = meshtest.StartProxy(t, u.nats.addr())
	u.toRedis = meshtest.StartProxy(t, u.redis.Addr())
	issuer := meshtest.NewIssuer(t)
	u.token = issuer.TokenFile(worker)
	peers, token := startPeers(issuer), issuer.TokenFile(inboxItself)
	answers(t, u.nats.addr())
	for range 2 {
		u.inboxes = append(u.inboxes, startProcess(t, child{
			Port: freePort(t), NATS: "nats://" + u.toNATS.Addr(), Redis: "redis://" + u.toRedis.Addr(), Limit: historyLimit,
			JWKS: issuer.JWKS(), Token: token, Peers: peers.Addr,
		}))
	}
	for _, p := range u.inboxes {
		u.healthy(p)
		u.conns = append(u.conns, u.dial(p))
	}
	return u
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// answers waits until somebody listens.
func answers(t testing.TB, addr string) {
	t.Helper()
	meshtest.Eventually(t, addr+" answers", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// dial connects without any retry: each call is made once, and says how it went.
func (u *unrest) dial(p *process) *grpc.ClientConn {
	u.t.Helper()
	conn, err := grpc.NewClient(p.addr(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(identity.TokenFile(u.token, false)),
		grpc.WithDisableRetry(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (u *unrest) healthy(p *process) {
	u.t.Helper()
	conn := u.dial(p)
	health, inboxes := healthv1.NewHealthClient(conn), inboxv1.NewInboxServiceClient(conn)
	meshtest.Eventually(u.t, "the inbox is healthy and its lists are there", func() bool {
		answer, err := health.Check(u.t.Context(), &healthv1.HealthCheckRequest{})
		if err != nil || answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			return false
		}
		_, err = inboxes.ListInboxes(u.t.Context(), &inboxv1.ListInboxesRequest{PageSize: 1})
		return err == nil
	})
	_ = conn.Close()
}

// disturbance is something that happens to the servers, as often as its weight.
type disturbance struct {
	name   string
	weight int
	do     func(*unrest)
}

var disturbancesOfRedis = []disturbance{
	{"redis flushed", 3, func(u *unrest) { u.redis.Flush() }},
	{"redis killed", 1, func(u *unrest) {
		u.redis.Kill()
		u.redis.Start()
	}},
	{"redis cut off", 2, func(u *unrest) { u.toRedis.Cut() }},
	{"redis slow", 1, func(u *unrest) { u.slow(u.toRedis) }},
}

var disturbances = append([]disturbance{
	{"nats killed", 1, func(u *unrest) {
		u.nats.kill()
		u.nats.start()
		answers(u.t, u.nats.addr())
	}},
	{"nats cut off", 3, func(u *unrest) { u.toNATS.Cut() }},
	{"nats slow", 1, func(u *unrest) { u.slow(u.toNATS) }},
	{"acknowledgements lost", 3, func(u *unrest) {
		u.toNATS.Swallow()
		_ = journal.Pause(u.t.Context(), 20*time.Millisecond)
		u.toNATS.Cut()
	}},
	{"a replica killed", 2, func(u *unrest) {
		p := u.inboxes[rand.N(len(u.inboxes))]
		p.kill()
		p.start()
	}},
}, disturbancesOfRedis...)

// slow holds up a connection for a while.
func (u *unrest) slow(p *meshtest.Proxy) {
	p.Delay(time.Duration(1+rand.N(20)) * time.Millisecond)
	_ = journal.Pause(u.t.Context(), 100*time.Millisecond)
	p.Delay(0)
}

// callsBetween is how many calls clients make, on the average, from one disturbance to
// the next: by the clock, a slow machine would see nothing else.
const callsBetween = 200

// disturb does one thing after the other until ctx ends.
func (u *unrest) disturb(ctx context.Context) {
	var all []int
	for i, d := range u.will {
		for range d.weight {
			all = append(all, i)
		}
	}
	next := int64(0)
	for journal.Pause(ctx, 10*time.Millisecond) == nil {
		if u.progress.Load() < next {
			continue
		}
		next = u.progress.Load() + callsBetween/2 + rand.N[int64](callsBetween)
		d := u.will[all[rand.N(len(all))]]
		d.do(u)
		u.disturbed[d.name]++
	}
}

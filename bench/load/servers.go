package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/redis/go-redis/v9"

	"weir/internal/backend"
	"weir/internal/serve"
	"weir/services/conversation"
)

const (
	startLimit = 20 * time.Second
	stopLimit  = 15 * time.Second
)

// roleMark is the setting by which a process of this program knows that it is to
// be a server; its arguments follow, each behind a newline. The servers run apart
// so that the service's memory is its own.
const roleMark = "WEIR_LOAD_ROLE"

// process is a server that this program started. It ends when hold is closed, and
// so with this program however that ends.
type process struct {
	cmd  *exec.Cmd
	addr string
	exit chan error
	hold io.Closer
}

// startRole starts this very program as a server, and waits for its address.
func startRole(ctx context.Context, role ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleMark+"="+strings.Join(role, "\n"))
	cmd.Stderr = os.Stderr
	answer, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p, err := startProcess(cmd)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = p.hold.Close() })()
	line, err := bufio.NewReader(answer).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s did not start: %w", role[0], err), p.stop())
	}
	p.addr = strings.TrimSpace(line)
	return p, nil
}

func startProcess(cmd *exec.Cmd) (*process, error) {
	dieWithParent(cmd)
	hold, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, exit: make(chan error, 1), hold: hold}
	go func() { p.exit <- cmd.Wait() }()
	return p, nil
}

func (p *process) stop() error {
	_ = p.hold.Close()
	select {
	case err := <-p.exit:
		return err
	case <-time.After(stopLimit):
		_ = p.cmd.Process.Kill()
		<-p.exit
		return fmt.Errorf("%s did not stop", p.cmd.Path)
	}
}

// startRedis starts a redis-server that keeps nothing, on a free port.
func startRedis(ctx context.Context, dir string) (*process, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errors.New("redis-server is not installed; type: apt-get install -y redis-server")
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := free.Addr().String()
	_ = free.Close()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	p, err := startProcess(exec.Command(path, "--port", port, "--bind", "127.0.0.1", "--dir", dir,
		"--save", "", "--appendonly", "no", "--logfile", filepath.Join(dir, "redis.log")))
	if err != nil {
		return nil, err
	}
	p.addr = addr
	// redis-server does not mind its input.
	p.hold = interrupt{p.cmd}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	if err := eventually(ctx, "redis-server answers", func() bool { return client.Ping(ctx).Err() == nil }); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

type interrupt struct{ cmd *exec.Cmd }

func (i interrupt) Close() error { return i.cmd.Process.Signal(os.Interrupt) }

// runRole is a server until its input ends, if this process is to be one.
func runRole(in io.Reader, out io.Writer) (isRole bool, err error) {
	role, isRole := os.LookupEnv(roleMark)
	if !isRole {
		return false, nil
	}
	switch args := strings.Split(role, "\n"); {
	case args[0] == "nats" && len(args) == 2:
		err = runNATS(args[1], in, out)
	case args[0] == "service" && len(args) == 4:
		err = runService(args[1], args[2], args[3], in, out)
	default:
		err = fmt.Errorf("%s=%q: there is no such role", roleMark, role)
	}
	return true, err
}

func runNATS(dir string, in io.Reader, out io.Writer) error {
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir,
		MaxPayload: 4 << 20, NoSigs: true, NoLog: true,
	})
	if err != nil {
		return err
	}
	srv.Start()
	if !srv.ReadyForConnections(startLimit) {
		return errors.New("nats-server did not get ready")
	}
	fmt.Fprintln(out, srv.ClientURL())
	_, err = io.Copy(io.Discard, in)
	srv.Shutdown()
	srv.WaitForShutdown()
	return err
}

func runService(nats, redisAddr, jwks string, in io.Reader, out io.Writer) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, in)
		stop()
	}()
	fmt.Fprintln(out, listener.Addr())
	return conversation.Run(ctx, conversation.Config{
		Serve: serve.Config{
			Listener: listener, JWKS: jwks, ShutdownGrace: stopLimit / 2,
			Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		},
		Stores: backend.Config{NATS: nats, Redis: "redis://" + redisAddr, Replicas: 1},
	})
}

// memory is what a process holds in memory, in bytes.
func (p *process) memory() (int64, error) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if kilobytes, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kilobytes), "kB")), 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("the process has no VmRSS")
}

// eventually waits for a condition.
func eventually(ctx context.Context, what string, condition func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for !condition() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain until %s: %w", what, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

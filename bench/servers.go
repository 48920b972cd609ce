package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/redis/go-redis/v9"
)

const (
	// startLimit is how long a server may take to get ready, stopLimit to end
	// before it is killed.
	startLimit = 10 * time.Second
	stopLimit  = 5 * time.Second
)

// process is a server that this program started, and ends by its id.
type process struct {
	cmd  *exec.Cmd
	url  string
	exit chan error
	hold io.Closer // nats-server ends when this is closed; nil for the others
	end  os.Signal // what ends the others
	log  string    // what it says, if it is asked
}

func start(cmd *exec.Cmd) (*process, error) {
	dieWithParent(cmd)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, exit: make(chan error, 1), end: os.Interrupt}
	go func() { p.exit <- cmd.Wait() }()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) stop() {
	if p.hold != nil {
		_ = p.hold.Close()
	} else {
		_ = p.cmd.Process.Signal(p.end)
	}
	select {
	case <-p.exit:
	case <-time.After(stopLimit):
		_ = p.cmd.Process.Kill()
		<-p.exit
	}
}

// startRedis starts a redis-server on a free port. What it keeps on disk, if the
// settings say so, goes to dir, which it makes.
func startRedis(ctx context.Context, dir string, settings ...string) (*process, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errors.New("redis-server is not installed; type: apt-get install -y redis-server")
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "redis.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(path, append([]string{
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--save", "",
	}, settings...)...)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := start(cmd)
	if err != nil {
		return nil, fmt.Errorf("redis-server: %w", err)
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	p.url = "redis://" + addr
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	err = eventually(ctx, "redis-server answers", func() bool { return client.Ping(ctx).Err() == nil })
	if err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// natsMark begins the setting by which a process knows that it is to be the
// nats-server; the rest is "sync:" or "nosync:" and the folder.
//
// The server runs apart, as in production: in this process it would share a
// scheduler and a garbage collector with its clients.
const natsMark = "WEIR_BENCH_NATS"

// startNATS starts this very program as a nats-server with file storage.
func startNATS(ctx context.Context, dir string, sync bool) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	mode := "nosync:"
	if sync {
		mode = "sync:"
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), natsMark+"="+mode+dir)
	cmd.Stderr = os.Stderr
	hold, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	answer, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p, err := start(cmd)
	if err != nil {
		return nil, fmt.Errorf("nats-server: %w", err)
	}
	p.hold = hold
	// It says where it listens, or ends.
	interrupted := context.AfterFunc(ctx, func() { _ = hold.Close() })
	defer interrupted()
	p.url, err = bufio.NewReader(answer).ReadString('\n')
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("nats-server did not start: %w", err)
	}
	p.url = strings.TrimSpace(p.url)
	return p, nil
}

// isNATS says whether this process was started by startNATS.
func isNATS() (dir string, sync, ok bool) {
	mode, dir, ok := strings.Cut(os.Getenv(natsMark), ":")
	return dir, mode == "sync", ok
}

// runNATS is a nats-server until in ends, which it does with whoever started
// this process, however that ends.
func runNATS(dir string, sync bool, in io.Reader, out io.Writer) error {
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, SyncAlways: sync,
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

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
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

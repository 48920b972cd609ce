package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/cmd/internal/home"
	"weir/cmd/internal/mesh"
	"weir/internal/meshtest"
)

// weir is the program, as it is shipped. It is built without the race detector, whatever
// the tests run with: the services' own tests run under it, and here a whole mesh
// shares two cores with the test.
var weir string

func TestMain(m *testing.M) {
	code, err := func() (int, error) {
		folder, err := os.MkdirTemp("", "weir-test-")
		if err != nil {
			return 1, err
		}
		defer os.RemoveAll(folder)
		weir = filepath.Join(folder, "weir")
		if said, err := exec.Command("go", "build", "-o", weir, ".").CombinedOutput(); err != nil {
			return 1, fmt.Errorf("go build: %w\n%s", err, said)
		}
		return m.Run(), nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// run runs weir to its end and gives what it wrote and its exit code.
func run(t *testing.T, limit time.Duration, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, weir, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	// First in order, so that it can end its own processes.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("weir %v did not end within %v\n%s%s", args, limit, &out, &errs)
	}
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// up is a mesh that runs in a process of its own.
type up struct {
	t         *testing.T
	data      home.Folder
	addresses mesh.Addresses

	cmd    *exec.Cmd
	out    output
	stderr output
}

// output is what a process wrote so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// startUp starts a mesh that lives as long as the test, and waits until it says that it
// is up.
func startUp(t *testing.T) *up {
	t.Helper()
	at := freeAddresses(t, 6)
	u := &up{
		t: t, data: home.Folder(filepath.Join(t.TempDir(), "data")),
		addresses: mesh.Addresses{Gate: at[0], Registry: at[1], Conversation: at[2], Inbox: at[3], NATS: at[4], HTTP: at[5]},
	}
	t.Cleanup(func() {
		if u.cmd != nil {
			_ = u.cmd.Process.Kill()
			_ = u.cmd.Wait()
		}
	})
	u.start()
	return u
}

func (u *up) args() []string {
	return []string{
		"up", "--data", string(u.data),
		"--gate", u.addresses.Gate, "--registry", u.addresses.Registry, "--conversation", u.addresses.Conversation,
		"--inbox", u.addresses.Inbox, "--nats", u.addresses.NATS, "--http", u.addresses.HTTP,
	}
}

func (u *up) start() {
	u.t.Helper()
	u.out, u.stderr = output{}, output{}
	u.cmd = exec.Command(weir, u.args()...)
	u.cmd.Dir = u.t.TempDir()
	u.cmd.Stdout, u.cmd.Stderr = &u.out, &u.stderr
	if err := u.cmd.Start(); err != nil {
		u.t.Fatal(err)
	}
	meshtest.Eventually(u.t, "weir is up", func() bool { return strings.Contains(u.out.String(), "events --nats") })
}

// stop sends a signal and gives the exit code, -1 for a process that was killed.
func (u *up) stop(signal os.Signal) int {
	u.t.Helper()
	if err := u.cmd.Process.Signal(signal); err != nil {
		u.t.Fatal(err)
	}
	err := u.cmd.Wait()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		u.t.Fatal(err)
	}
	code := u.cmd.ProcessState.ExitCode()
	u.cmd = nil
	return code
}

// freeAddresses are addresses on loopback in a row that nobody listens on, below the ports
// that the kernel gives to outgoing connections: a mesh that is started again finds
// them free.
func freeAddresses(t *testing.T, n int) []string {
	t.Helper()
	for range 100 {
		first := 10_000 + rand.IntN(20_000)
		var free []string
		for port := first; port < first+n; port++ {
			address := fmt.Sprintf("127.0.0.1:%d", port)
			listener, err := net.Listen("tcp", address)
			if err != nil {
				break
			}
			defer listener.Close()
			free = append(free, address)
		}
		if len(free) == n {
			return free
		}
	}
	t.Fatal("no free ports in a row")
	return nil
}

// get is what an HTTP path of the mesh answers.
func (u *up) get(path string) (int, string) {
	u.t.Helper()
	answer, err := http.Get("http://" + u.addresses.HTTP + path)
	if err != nil {
		u.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		u.t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

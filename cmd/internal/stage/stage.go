// Package stage gives the story a mesh to be played on: one in a process of its own, one
// with every part in a process of its own, or one that runs already. The first two
// are killed and flushed between the chapters.
package stage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"weir/cmd/internal/home"
	"weir/cmd/internal/mesh"
	"weir/internal/identity"
)

// Stage is a mesh of the story's own.
type Stage struct {
	folder    string // temporary; everything is in it
	addresses mesh.Addresses
	keys      home.Folder
	redis     string     // host and port; "" if there is none to flush
	processes []*process // in the order in which they start
	harms     []harm
	next      int // of the harms; the first is any one, so that runs differ in what happens where
}

// harm is something that must not matter: processes that are killed, and Redis flushed
// before they start again.
type harm struct {
	kills []*process
	flush bool
	// unnoticed is how long the services that outlive it may go on saying that they
	// are healthy: each asks itself once a second.
	unnoticed time.Duration
}

func newStage() (*Stage, error) {
	folder, err := os.MkdirTemp("", "weir-demo-")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(6)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	return &Stage{
		folder: folder,
		next:   rand.IntN(1000),
		addresses: mesh.Addresses{
			Gate: ports[0], Registry: ports[1], Conversation: ports[2], Inbox: ports[3], NATS: ports[4], HTTP: ports[5],
		},
	}, nil
}

// freePorts gives addresses on loopback that nobody listens on. They are below the range
// from which the kernel picks ports for outgoing connections: one of those could
// otherwise take the port of a process between its death and its next start.
func freePorts(n int) ([]string, error) {
	var free []string
	for range 1000 {
		if len(free) == n {
			return free, nil
		}
		address := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000))
		listener, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		defer listener.Close() // keeps it from being picked twice
		free = append(free, address)
	}
	return nil, errors.New("no free ports between 10000 and 30000")
}

// Addresses are where the mesh is reached.
func (s *Stage) Addresses() mesh.Addresses { return s.addresses }

// Token signs a token that the mesh believes.
func (s *Stage) Token(c identity.Caller) (string, error) { return token(s.keys, c) }

func token(keys home.Folder, c identity.Caller) (string, error) {
	signer, err := keys.Signer()
	if err != nil {
		return "", err
	}
	return signer.Issue(c, home.Audience, time.Hour)
}

func (s *Stage) add(name string, command ...string) *process {
	p := &process{name: name, command: command, log: filepath.Join(s.folder, name+".log")}
	s.processes = append(s.processes, p)
	return p
}

// addRedis adds a Redis that saves nothing, on a port of its own.
func (s *Stage) addRedis(server string) (*process, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	s.redis = ports[0]
	host, port, err := net.SplitHostPort(s.redis)
	if err != nil {
		return nil, err
	}
	return s.add("redis", server, "--bind", host, "--port", port, "--save", "", "--appendonly", "no",
		"--logfile", "/dev/stderr"), nil
}

// open starts every process and waits until the mesh serves.
func (s *Stage) open(ctx context.Context) error {
	for _, p := range s.processes {
		if err := p.start(); err != nil {
			return err
		}
	}
	return s.serving(ctx)
}

func (s *Stage) serving(ctx context.Context) error {
	return poll(ctx, s.processes, func(ctx context.Context) error { return mesh.Healthy(ctx, s.addresses) })
}

// Disturb does the next harm, and the first again after the last.
func (s *Stage) Disturb(ctx context.Context) (string, error) {
	h := s.harms[s.next%len(s.harms)]
	s.next++
	for _, p := range h.kills {
		p.kill()
	}
	if h.flush {
		if err := s.flush(ctx); err != nil {
			return "", err
		}
	}
	for _, p := range h.kills {
		if err := p.start(); err != nil {
			return "", err
		}
	}
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case <-time.After(h.unnoticed):
	}
	return h.String(), s.serving(ctx)
}

func (h harm) String() string {
	var names []string
	for _, p := range h.kills {
		names = append(names, p.name)
	}
	kills := strings.Join(names, ", ") + " killed with SIGKILL"
	switch {
	case !h.flush:
		return kills + " and started again"
	case len(names) == 0:
		return "redis flushed"
	default:
		return kills + ", redis flushed, and started again"
	}
}

func (s *Stage) flush(ctx context.Context) error {
	client := redis.NewClient(&redis.Options{Addr: s.redis})
	defer client.Close()
	if err := client.FlushAll(ctx).Err(); err != nil {
		return fmt.Errorf("flushing redis: %w", err)
	}
	return nil
}

// LastWords is the end of every process's log, for when the story went wrong.
func (s *Stage) LastWords() string {
	var all strings.Builder
	for _, p := range s.processes {
		fmt.Fprintf(&all, "--- %s\n%s\n", p.name, p.lastWords(20))
	}
	return all.String()
}

// Close ends the processes, those that others need last, and removes all traces.
func (s *Stage) Close() error {
	for i := len(s.processes) - 1; i >= 0; i-- {
		s.processes[i].stop()
	}
	return os.RemoveAll(s.folder)
}

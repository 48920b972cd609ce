package stage

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"

	"weir/cmd/internal/home"
)

// Together starts `weir up` in a process of its own, with a real Redis beside it where
// one is installed. Without, killing the mesh empties its hot store just as well.
func Together(ctx context.Context) (*Stage, error) {
	weir, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s, err := newStage()
	if err != nil {
		return nil, err
	}
	s.keys = home.Folder(filepath.Join(s.folder, "data"))
	up := []string{
		weir, "up", "--data", string(s.keys),
		"--gate", s.addresses.Gate, "--registry", s.addresses.Registry, "--conversation", s.addresses.Conversation,
		"--inbox", s.addresses.Inbox, "--nats", s.addresses.NATS, "--http", s.addresses.HTTP,
	}
	if server, err := exec.LookPath("redis-server"); err == nil {
		if _, err := s.addRedis(server); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		mesh := s.add("weir", append(up, "--redis", "redis://"+s.redis)...)
		s.harms = []harm{{kills: []*process{mesh}}, {flush: true}, {kills: []*process{mesh}, flush: true}}
	} else {
		s.harms = []harm{{kills: []*process{s.add("weir", up...)}}}
	}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Flushes says whether the stage has a Redis to flush.
func (s *Stage) Flushes() bool { return s.redis != "" }

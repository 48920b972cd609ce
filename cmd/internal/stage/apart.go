package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"weir/cmd/internal/home"
)

// programs are what a mesh consists of when nothing is in one process.
var programs = []string{
	"weir/services/gate/cmd/gate",
	"weir/services/registry/cmd/registry",
	"weir/services/conversation/cmd/conversation",
	"weir/services/inbox/cmd/inbox",
	"github.com/nats-io/nats-server/v2",
}

// Apart builds the services and nats-server, and starts each as a process of its own, as
// one would by hand, beside a redis-server.
func Apart(ctx context.Context) (*Stage, error) {
	server, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errors.New("--apart: redis-server is not installed; type: apt-get install -y redis-server")
	}
	s, err := newStage()
	if err != nil {
		return nil, err
	}
	if err := s.apart(ctx, server); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Stage) apart(ctx context.Context, server string) error {
	bin := filepath.Join(s.folder, "bin") + "/"
	build := exec.CommandContext(ctx, "go", append([]string{"build", "-o", bin}, programs...)...)
	if said, err := build.CombinedOutput(); err != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(string(said)), "\n")
		return fmt.Errorf("--apart: building the services, which takes Go and weir's sources: %w: %s", err, line)
	}
	s.keys = home.Folder(filepath.Join(s.folder, "keys"))
	unlock, err := s.keys.Open()
	if err != nil {
		return err
	}
	unlock()
	config := filepath.Join(s.folder, "nats.conf")
	if err := os.WriteFile(config, s.natsConfig(), 0o600); err != nil {
		return err
	}

	nats := s.add("nats-server", bin+"nats-server", "--config", config)
	redis, err := s.addRedis(server)
	if err != nil {
		return err
	}
	service := func(name, address string, more ...string) *process {
		return s.add(name, append([]string{
			bin + name, "--listen", address, "--jwks", s.keys.JWKS(),
			"--nats", "nats://" + s.addresses.NATS, "--redis", "redis://" + s.redis, "--log-level", "warn",
		}, more...)...)
	}
	gate := service("gate", s.addresses.Gate, "--audit-key", s.keys.AuditKey())
	conversation := service("conversation", s.addresses.Conversation)
	inbox := service("inbox", s.addresses.Inbox,
		"--gate", "dns:///"+s.addresses.Gate, "--conversation", "dns:///"+s.addresses.Conversation,
		"--peer-token-file", s.keys.Token("service-inbox"))
	registry := service("registry", s.addresses.Registry,
		"--gate", "dns:///"+s.addresses.Gate, "--conversation", "dns:///"+s.addresses.Conversation,
		"--inbox", "dns:///"+s.addresses.Inbox, "--peer-token-file", s.keys.Token("service-registry"))

	s.harms = []harm{
		{kills: []*process{gate}},
		{kills: []*process{registry}},
		{kills: []*process{nats}, unnoticed: 2 * time.Second},
		{flush: true},
		{kills: []*process{redis}},
		{kills: []*process{registry, gate}, flush: true},
		{kills: []*process{conversation}},
		{kills: []*process{inbox}},
		{kills: []*process{nats, gate, registry, conversation, inbox}},
	}
	return s.open(ctx)
}

// natsConfig is that of an embedded NATS, as the server reads it.
func (s *Stage) natsConfig() []byte {
	return fmt.Appendf(nil, `
server_name: weir
listen: %q
max_payload: 4MB
jetstream {
  store_dir: %q
  sync_interval: always
}
`, s.addresses.NATS, filepath.Join(s.folder, "journal"))
}

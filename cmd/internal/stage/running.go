package stage

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"weir/cmd/internal/home"
	"weir/cmd/internal/mesh"
	"weir/internal/identity"
)

// Running is a mesh that runs already. It belongs to somebody else, so nothing is done
// to it.
type Running struct {
	addresses mesh.Addresses
	keys      home.Folder
}

// NewRunning finds a mesh by the address of its gate. The others have the ports that
// follow, as `weir up` and docker-compose.yml give them.
func NewRunning(ctx context.Context, gate string, keys home.Folder) (*Running, error) {
	host, first, err := net.SplitHostPort(gate)
	if err != nil {
		return nil, fmt.Errorf("--addr: %w", err)
	}
	port, err := strconv.ParseUint(first, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("--addr %s: the port is not a number", gate)
	}
	next := func(n uint64) string { return net.JoinHostPort(host, strconv.FormatUint(port+n, 10)) }
	r := &Running{mesh.Addresses{Gate: gate, Registry: next(1), Conversation: next(2), Inbox: next(3), NATS: next(4)}, keys}
	if err := mesh.Healthy(ctx, r.addresses); err != nil {
		return nil, fmt.Errorf("--addr %s: %w", gate, err)
	}
	return r, nil
}

// Addresses are where the mesh is reached.
func (r *Running) Addresses() mesh.Addresses { return r.addresses }

// Token signs a token with the key of its data folder.
func (r *Running) Token(c identity.Caller) (string, error) { return token(r.keys, c) }

// Disturb does nothing.
func (r *Running) Disturb(context.Context) (string, error) { return "", nil }

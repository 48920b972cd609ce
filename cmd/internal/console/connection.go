// Package console is what the client commands share: how they reach a mesh, how they
// show what it says, and how they ask the person in front of it.
package console

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"google.golang.org/grpc"

	"weir/cmd/internal/home"
	"weir/internal/serve"
)

// Connection is how a client command reaches a service. Commands embed it, for flags of
// the same names everywhere. Where that service is by default, the group of the commands
// says, with kong's tag set:"addr=HOST:PORT".
type Connection struct {
	Addr      string      `help:"The service of the mesh that this calls, as host and port." default:"${addr}"`
	Data      home.Folder `help:"Data folder of the mesh, with the ready-made token to call with." default:".weir"`
	Token     string      `help:"File of a token to call with instead." placeholder:"FILE"`
	CA        string      `name:"ca" help:"Authorities that sign the service's certificate (PEM); the system's by default. On loopback there is no TLS without it." placeholder:"FILE"`
	Plaintext bool        `help:"Call without TLS, as is always done on loopback: for networks that encrypt by themselves."`
}

// Dial prepares a connection that calls with --token, or else with the ready-made token
// of that name in home.People. It doesn't wait for the service; calls fail while it is away.
func (c *Connection) Dial(role string) (*grpc.ClientConn, error) {
	if c.Plaintext && c.CA != "" {
		return nil, errors.New("--plaintext: not with --ca")
	}
	file := c.Token
	if file == "" {
		file = c.Data.Token(role)
	}
	// A missing file would come to light with the first call only, as if the service had
	// been unreachable.
	switch _, err := os.Stat(file); {
	case errors.Is(err, fs.ErrNotExist) && c.Token == "":
		return nil, fmt.Errorf("there is no token in %s: `weir up` and `weir keys` make one; else say where with --data or --token", file)
	case err != nil:
		return nil, fmt.Errorf("--token: %w", err)
	}
	conn, err := serve.Dial(c.Addr, serve.DialConfig{TokenFile: file, CA: c.CA, Plaintext: c.Plaintext})
	if err != nil {
		return nil, fmt.Errorf("--addr %s: %w", c.Addr, err)
	}
	return conn, nil
}

package mesh

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

// Addresses are where a mesh is reached, each a host and port. The tags are for kong.
type Addresses struct {
	Gate         string `help:"Where the gate serves gRPC." default:"127.0.0.1:7001"`
	Registry     string `help:"Where the registry serves gRPC." default:"127.0.0.1:7002"`
	Conversation string `help:"Where the conversation service serves gRPC." default:"127.0.0.1:7003"`
	Inbox        string `help:"Where the inbox serves gRPC." default:"127.0.0.1:7004"`
	NATS         string `name:"nats" help:"Where NATS serves events." default:"127.0.0.1:7005"`
	HTTP         string `name:"http" help:"Where /metrics and /healthz of all four are." default:"127.0.0.1:7006"`
}

// Services are the addresses of the gRPC services by name.
func (a Addresses) Services() map[string]string {
	return map[string]string{"gate": a.Gate, "registry": a.Registry, "conversation": a.Conversation, "inbox": a.Inbox}
}

// ports are the bound addresses of a mesh. All are bound before anything runs, so that
// a mesh that can't have one of them has done nothing yet.
type ports struct {
	gate, registry, conversation, inbox, http net.Listener
	// nats is an address and no listener: nats-server binds its port itself.
	nats *net.TCPAddr

	addresses Addresses // to reach each at
	bound     []net.Listener
}

func bind(a Addresses) (*ports, error) {
	p := &ports{}
	for _, b := range []struct {
		flag      string
		address   string
		listener  *net.Listener
		reachable *string
	}{
		{"--gate", a.Gate, &p.gate, &p.addresses.Gate},
		{"--registry", a.Registry, &p.registry, &p.addresses.Registry},
		{"--conversation", a.Conversation, &p.conversation, &p.addresses.Conversation},
		{"--inbox", a.Inbox, &p.inbox, &p.addresses.Inbox},
		{"--http", a.HTTP, &p.http, &p.addresses.HTTP},
		{"--nats", a.NATS, new(net.Listener), &p.addresses.NATS},
	} {
		listener, err := net.Listen("tcp", b.address)
		if err != nil {
			p.close()
			return nil, refusal(b.flag, b.address, err)
		}
		*b.listener, *b.reachable = listener, reachable(tcp(listener))
		p.bound = append(p.bound, listener)
	}
	last := len(p.bound) - 1
	p.nats = tcp(p.bound[last])
	return p, p.bound[last].Close()
}

func (p *ports) close() {
	for _, listener := range p.bound {
		_ = listener.Close() // whoever served on it has closed it
	}
}

func refusal(flag, address string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s %s: the port is in use; stop what listens there, or choose another", flag, address)
	}
	if cause, ok := errors.AsType[*net.OpError](err); ok {
		err = cause.Err // the rest repeats the address
	}
	return fmt.Errorf("%s %s: %w", flag, address, err)
}

func tcp(l net.Listener) *net.TCPAddr { return l.Addr().(*net.TCPAddr) }

// reachable turns the address of a listener into one to connect to: one that listens on
// every interface is reached on this machine's own.
func reachable(at *net.TCPAddr) string {
	if at.IP.IsUnspecified() {
		return fmt.Sprintf("127.0.0.1:%d", at.Port)
	}
	return at.String()
}

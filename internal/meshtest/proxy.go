package meshtest

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy stands between a client and a server, to lose what the server answers
// or to hold it up.
// It understands no protocol.
type Proxy struct {
	listener  net.Listener
	server    string
	swallowed atomic.Int64
	refused   atomic.Int64
	delay     atomic.Int64

	mu     sync.Mutex
	links  map[*link]struct{}
	closed bool
}

// link is one connection of a client through the proxy.
type link struct {
	client, server net.Conn
	deaf           atomic.Bool
}

// StartProxy starts a proxy to the server at a host and port.
func StartProxy(t testing.TB, server string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: listener, server: server, links: make(map[*link]struct{})}
	var done sync.WaitGroup
	done.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			done.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.Cut()
		done.Wait()
	})
	return p
}

// Addr is the host and port to connect to instead of the server's.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Swallow loses all that the server says on the connections there are, while
// what the client says still arrives. It ends with Cut, since nobody could make
// sense of a connection with a gap; connections made after it hear everything.
func (p *Proxy) Swallow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.deaf.Store(true)
	}
}

// Delay holds up all that is said, in both directions, by so much each time, until it
// is told otherwise.
func (p *Proxy) Delay(by time.Duration) { p.delay.Store(int64(by)) }

func (p *Proxy) holdUp() {
	if by := p.delay.Load(); by > 0 {
		time.Sleep(time.Duration(by))
	}
}

// Swallowed is how many bytes were lost.
func (p *Proxy) Swallowed() int64 { return p.swallowed.Load() }

// Refused is how many connections could not be made, the server being away.
func (p *Proxy) Refused() int64 { return p.refused.Load() }

// Cut ends the connections there are. New ones can be made.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		p.refused.Add(1)
		_ = client.Close()
		return
	}
	l := &link{client: client, server: server}
	p.mu.Lock()
	p.links[l] = struct{}{}
	if p.closed {
		l.close()
	}
	p.mu.Unlock()

	var up sync.WaitGroup
	up.Go(func() {
		p.carry(server, client)
		l.close()
	})
	buffer := make([]byte, 32<<10)
	for {
		n, err := server.Read(buffer)
		p.holdUp()
		if l.deaf.Load() {
			p.swallowed.Add(int64(n))
		} else if _, e := client.Write(buffer[:n]); e != nil {
			break
		}
		if err != nil {
			break
		}
	}
	l.close()
	up.Wait()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// carry is what the client says, until one side ends.
func (p *Proxy) carry(server io.Writer, client io.Reader) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := client.Read(buffer)
		p.holdUp()
		if _, e := server.Write(buffer[:n]); e != nil || err != nil {
			return
		}
	}
}

func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

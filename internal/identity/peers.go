package identity

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"weir/internal/identity/watched"
)

// Peers are the services that may come with a client certificate instead of a token.
// A nil Peers knows none.
type Peers struct {
	byID *watched.File[map[string]Caller]
}

// ReadPeers reads the scopes of each SPIFFE id from a JSON file, again whenever it
// changes:
//
//	{"spiffe://example.org/service/registry": ["weir.gate.check"]}
func ReadPeers(path string, log *slog.Logger) (*Peers, error) {
	file, err := watched.Open(path, log, time.Now, parsePeers)
	if err != nil {
		return nil, fmt.Errorf("reading peers: %w", err)
	}
	return &Peers{file}, nil
}

func parsePeers(data []byte) (map[string]Caller, error) {
	var scopes map[string][]string
	if err := strictJSON(data, &scopes); err != nil {
		return nil, err
	}
	peers := make(map[string]Caller, len(scopes))
	for id, list := range scopes {
		u, err := url.Parse(id)
		if err != nil {
			return nil, err
		}
		name, found := strings.CutPrefix(u.Path, "/service/")
		if !found || u.Host == "" || "spiffe://"+u.Host+u.Path != id {
			return nil, fmt.Errorf("%q is not spiffe://<trust domain>/service/<name>", id)
		}
		list = slices.Clone(list)
		slices.Sort(list)
		c := Caller{Tenant: AnyTenant, Subject: string(Service) + ":" + name, Scopes: slices.Compact(list)}
		if err := c.check(); err != nil {
			return nil, fmt.Errorf("%s: %w", id, err)
		}
		peers[id] = c
	}
	return peers, nil
}

// caller is the service at the other end of a mutually authenticated connection.
func (p *Peers) caller(ctx context.Context) (Caller, bool) {
	if p == nil {
		return Caller{}, false
	}
	other, _ := peer.FromContext(ctx)
	if other == nil {
		return Caller{}, false
	}
	info, ok := other.AuthInfo.(credentials.TLSInfo)
	// A certificate without a verified chain is only a claim.
	if !ok || info.SPIFFEID == nil || len(info.State.VerifiedChains) == 0 {
		return Caller{}, false
	}
	c, ok := p.byID.Get().Value[info.SPIFFEID.String()]
	return c, ok
}

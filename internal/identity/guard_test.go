package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"weir/internal/fault"
)

const (
	check     = "/weir.gate.v1.GateService/Check"
	describe  = "/weir.gate.v1.GateService/Describe"
	anybody   = "/grpc.health.v1.Health/Check"
	unlisted  = "/weir.gate.v1.GateService/New"
	scopeless = "/weir.gate.v1.GateService/Scopeless"
)

var methods = Table{
	check:     {Scopes: []string{"weir.admin", "weir.gate.check"}, ActsFor: []string{"service:registry"}},
	describe:  {Scopes: []string{"weir.gate.check"}, Tenantless: true},
	anybody:   {Public: true},
	scopeless: {},
}

// gate is a Guard with everything that can be set, in front of a handler that tells
// the caller it sees.
type gate struct {
	*issuer
	Guard
	standing string
}

func newGate(t *testing.T) *gate {
	i := newIssuer(t)
	g := &gate{issuer: i, standing: filepath.Join(t.TempDir(), "standing.json")}
	writeFile(t, g.standing, `{"disabled":[]}`)
	peers := filepath.Join(t.TempDir(), "peers.json")
	writeFile(t, peers, `{"spiffe://weir.example/service/registry": ["weir.gate.check"]}`)
	g.Guard = Guard{
		Verifier: i.verifier,
		Standing: must(readStanding(g.standing, quiet, i.clock.now))(t),
		Peers:    must(ReadPeers(peers, quiet))(t),
		Methods:  methods,
	}
	return g
}

func (g *gate) disable(t *testing.T, tenant, subject string) {
	t.Helper()
	writeJSON(t, g.standing, map[string]any{"disabled": []principal{{tenant, subject}}})
	g.clock.advance(lookAgain)
}

// call makes a call and returns the caller its handler sees.
func (g *gate) call(ctx context.Context, method string) (c Caller, err error) {
	_, err = g.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, func(ctx context.Context, _ any) (any, error) {
		c, _ = FromContext(ctx)
		return nil, nil
	})
	return c, err
}

// with is the context of an incoming call with metadata.
func with(pairs ...string) context.Context {
	return metadata.NewIncomingContext(context.Background(), metadata.Pairs(pairs...))
}

func bearer(token string) context.Context { return with("authorization", "Bearer "+token) }

// incoming is what the other end gets of an outgoing context.
func incoming(token string, ctx context.Context) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	return metadata.NewIncomingContext(context.Background(), metadata.Join(md, metadata.Pairs("authorization", "Bearer "+token)))
}

// overTLS adds a client certificate to an incoming call.
func overTLS(ctx context.Context, id string, verified bool) context.Context {
	u, _ := url.Parse(id)
	info := credentials.TLSInfo{SPIFFEID: u}
	if verified {
		info.State = tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{}}}
	}
	return peer.NewContext(ctx, &peer.Peer{AuthInfo: info})
}

func TestOnlyWhatARowOpensIsOpen(t *testing.T) {
	g := newGate(t)
	none := agent
	none.Scopes = nil
	other := agent
	other.Scopes = []string{"weir.gate.check.not", "weir.gate", "WEIR.GATE.CHECK"}

	for name, c := range map[string]struct {
		ctx    context.Context
		method string
		want   fault.Reason
	}{
		"a scope of the row":      {bearer(g.token(t, agent)), check, ""},
		"lower-case scheme":       {with("authorization", "bearer "+g.token(t, agent)), check, ""},
		"no scope":                {bearer(g.token(t, none)), check, fault.ScopeMissing},
		"similar scopes":          {bearer(g.token(t, other)), check, fault.ScopeMissing},
		"no row":                  {bearer(g.token(t, agent)), unlisted, fault.ScopeMissing},
		"row without scopes":      {bearer(g.token(t, agent)), scopeless, fault.ScopeMissing},
		"no token":                {with(), check, fault.TokenMissing},
		"no token, no row":        {with(), unlisted, fault.TokenMissing},
		"no metadata":             {context.Background(), check, fault.TokenMissing},
		"another scheme":          {with("authorization", "Basic "+g.token(t, agent)), check, fault.TokenInvalid},
		"no scheme":               {with("authorization", g.token(t, agent)), check, fault.TokenInvalid},
		"empty header":            {with("authorization", ""), check, fault.TokenInvalid},
		"two headers":             {with("authorization", "Bearer "+g.token(t, agent), "authorization", "Bearer x"), check, fault.TokenInvalid},
		"public":                  {with(), anybody, ""},
		"public with a bad token": {bearer("x"), anybody, ""},
		"tenantless service":      {bearer(g.token(t, registry)), describe, ""},
		"tenant-bound method":     {bearer(g.token(t, registry)), check, fault.ScopeMissing},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := g.call(c.ctx, c.method); fault.ReasonOf(err) != c.want {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestTheDisabledAreRefused(t *testing.T) {
	g := newGate(t)
	asAgent := bearer(g.token(t, agent))
	forAgent := incoming(g.token(t, registry), ActFor(context.Background(), agent))
	for _, c := range []struct {
		name, tenant, subject string
		asAgent, forAgent     fault.Reason
	}{
		{"the caller", "acme", "agent:coder", fault.CallerDisabled, fault.CallerDisabled},
		{"whom it acts for", "acme", "human:ann", fault.CallerDisabled, fault.CallerDisabled},
		{"the service", "*", "service:registry", "", fault.CallerDisabled},
		{"its namesake elsewhere", "beta", "agent:coder", "", ""},
		{"somebody else", "acme", "agent:coder2", "", ""},
	} {
		g.disable(t, c.tenant, c.subject)
		if _, err := g.call(asAgent, check); fault.ReasonOf(err) != c.asAgent {
			t.Errorf("%s disabled: %v", c.name, err)
		}
		if _, err := g.call(forAgent, check); fault.ReasonOf(err) != c.forAgent {
			t.Errorf("%s disabled, acted for: %v", c.name, err)
		}
	}

	// Disabled comes before any other refusal but a bad credential.
	g.disable(t, "acme", "agent:coder")
	if _, err := g.call(asAgent, unlisted); !fault.Is(err, fault.CallerDisabled) {
		t.Error(err)
	}
	// A list that can't be read lets nobody back in.
	for _, content := range []string{``, `{"disabeld":[]}`, `{"disabled":[{"tenant":"acme","subject":"coder"}]}`, `{"disabled":[]}{}`} {
		writeFile(t, g.standing, content)
		g.clock.advance(lookAgain)
		if _, err := g.call(asAgent, check); !fault.Is(err, fault.CallerDisabled) {
			t.Errorf("with the list %s: %v", content, err)
		}
	}
	writeFile(t, g.standing, `{"disabled":[]}`)
	g.clock.advance(lookAgain)
	if _, err := g.call(asAgent, check); err != nil {
		t.Error(err)
	}
}

func TestActingForACaller(t *testing.T) {
	g := newGate(t)
	want := agent
	want.Scopes, want.Via = registry.Scopes, registry.Subject
	ctx := ActFor(ActFor(context.Background(), Caller{Tenant: "acme", Subject: "human:bob"}), agent)
	got, err := g.call(incoming(g.token(t, registry), ctx), check)
	if err != nil || !equal(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	through := agent
	through.Operation, want.Operation = "inbox/send", "inbox/send"
	got, err = g.call(incoming(g.token(t, registry), ActFor(context.Background(), through)), check)
	if err != nil || !equal(got, want) {
		t.Errorf("through an operation: got %+v, %v; want %+v", got, err, want)
	}
}

// Through which operation somebody acts is what grants are asked for, so only who acts
// for them is believed.
func TestNoTokenSaysAnOperation(t *testing.T) {
	g := newGate(t)
	got, err := g.call(bearer(g.sign(t, g.goodClaims(jwt.MapClaims{"operation": "inbox/send"}))), check)
	if err != nil || got.Operation != "" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestARefusalNamesTheDisabled(t *testing.T) {
	g := newGate(t)
	forAgent := incoming(g.token(t, registry), ActFor(context.Background(), agent))
	for subject, tenant := range map[string]string{"agent:coder": "acme", "human:ann": "acme", "service:registry": "*"} {
		g.disable(t, tenant, subject)
		if _, err := g.call(forAgent, check); fault.From(err).Metadata("subject") != subject {
			t.Errorf("%s disabled: the refusal names %q", subject, fault.From(err).Metadata("subject"))
		}
	}
}

func TestWordsThatAreNotBelieved(t *testing.T) {
	g := newGate(t)
	ofAcme, other, weak := registry, registry, registry
	ofAcme.Tenant = "acme"
	other.Subject = "service:inbox"
	weak.Scopes = []string{"weir.other"}
	impostor := agent
	impostor.Subject = "agent:registry"
	state := func(c Caller) context.Context { return ActFor(context.Background(), c) }
	raw := func(values ...string) context.Context {
		md := metadata.MD{}
		md.Append(actsForKey, values...)
		return metadata.NewOutgoingContext(context.Background(), md)
	}
	beta := agent
	beta.Tenant = "beta"

	for name, c := range map[string]struct {
		holder Caller
		stated context.Context
		method string
		want   fault.Reason
	}{
		"a service that may":         {registry, state(agent), check, ""},
		"in its own tenant":          {ofAcme, state(agent), check, ""},
		"in another's tenant":        {ofAcme, state(beta), check, fault.ScopeMissing},
		"a service that may not":     {other, state(agent), check, fault.ScopeMissing},
		"an agent":                   {agent, state(agent), check, fault.ScopeMissing},
		"an agent of that name":      {impostor, state(beta), check, fault.ScopeMissing},
		"another method":             {registry, state(agent), describe, fault.ScopeMissing},
		"without the scope":          {weak, state(agent), check, fault.ScopeMissing},
		"for a service of no tenant": {registry, state(registry), check, fault.ScopeMissing},
		"for nobody":                 {registry, state(Caller{}), check, fault.FieldInvalid},
		"for a malformed subject":    {registry, state(Caller{Tenant: "acme", Subject: "root"}), check, fault.FieldInvalid},
		"twice":                      {registry, raw("{}", "{}"), check, fault.FieldInvalid},
		"empty":                      {registry, raw(""), check, fault.FieldInvalid},
		"with scopes":                {registry, raw(`{"tenant":"acme","subject":"agent:a","scopes":["weir.admin"]}`), check, fault.FieldInvalid},
		"by a malformed operation":   {registry, raw(`{"tenant":"acme","subject":"agent:a","operation":"send"}`), check, fault.FieldInvalid},
		"by no operation":            {registry, raw(`{"tenant":"acme","subject":"agent:a","operation":["inbox/send"]}`), check, fault.FieldInvalid},
		"too long":                   {registry, raw(`{"tenant":"acme","subject":"agent:a"}` + strings.Repeat(" ", maxActsFor)), check, fault.FieldInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := g.call(incoming(g.token(t, c.holder), c.stated), c.method); fault.ReasonOf(err) != c.want {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestCertificates(t *testing.T) {
	g := newGate(t)
	const id = "spiffe://weir.example/service/registry"
	for name, c := range map[string]struct {
		ctx  context.Context
		want fault.Reason
	}{
		"of a known service":       {overTLS(with(), id, true), ""},
		"not verified":             {overTLS(with(), id, false), fault.TokenMissing},
		"of another trust domain":  {overTLS(with(), "spiffe://evil.example/service/registry", true), fault.TokenMissing},
		"of an unknown service":    {overTLS(with(), "spiffe://weir.example/service/other", true), fault.TokenMissing},
		"of a longer path":         {overTLS(with(), id+"/x", true), fault.TokenMissing},
		"and a bad token":          {overTLS(bearer("x"), id, true), fault.TokenInvalid},
		"and an empty header":      {overTLS(with("authorization", ""), id, true), fault.TokenInvalid},
		"and a weaker, good token": {overTLS(bearer(g.token(t, Caller{Tenant: "acme", Subject: "human:ann"})), id, true), fault.ScopeMissing},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := g.call(c.ctx, describe); fault.ReasonOf(err) != c.want {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	got, _ := g.call(overTLS(with(), id, true), describe)
	if !equal(got, registry) {
		t.Errorf("got %+v", got)
	}
	for _, content := range []string{
		`{"https://weir.example/service/registry": []}`,
		`{"spiffe://weir.example/registry": []}`,
		`{"spiffe:///service/registry": []}`,
		`{"spiffe://weir.example/service/a/b": []}`,
		`{"spiffe://weir.example/service/registry?x": []}`,
		`{"spiffe://weir.example/service/registry": ["a b"]}`,
	} {
		if _, err := parsePeers([]byte(content)); err == nil {
			t.Errorf("%s: accepted", content)
		}
	}
}

// stream is a ServerStream that always has another message.
type stream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s stream) Context() context.Context { return s.ctx }
func (s stream) SendMsg(any) error        { return nil }
func (s stream) RecvMsg(any) error        { return nil }

func TestAStreamEndsWithItsCredential(t *testing.T) {
	g := newGate(t)
	for name, c := range map[string]struct {
		end  func()
		want fault.Reason
	}{
		"the caller is disabled": {func() { g.disable(t, "acme", "agent:coder") }, fault.CallerDisabled},
		"the token expires":      {func() { g.clock.advance(2 * time.Hour) }, fault.TokenInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			g.disable(t, "acme", "agent:nobody")
			token := must(g.Issue(agent, audience, time.Until(g.clock.now())+time.Hour))(t)
			err := g.Stream(nil, stream{ctx: bearer(token)}, &grpc.StreamServerInfo{FullMethod: check}, func(_ any, s grpc.ServerStream) error {
				if caller, err := Must(s.Context()); err != nil || !equal(caller, agent) {
					t.Errorf("the handler sees %+v, %v", caller, err)
				}
				if s.SendMsg(nil) != nil || s.RecvMsg(nil) != nil {
					t.Error("the stream has ended already")
				}
				c.end()
				if err := s.RecvMsg(nil); !fault.Is(err, c.want) {
					t.Errorf("receiving: %v", err)
				}
				return s.SendMsg(nil)
			})
			if !fault.Is(err, c.want) {
				t.Errorf("sending: %v", err)
			}
		})
	}
	for method, want := range map[string]fault.Reason{anybody: "", unlisted: fault.TokenMissing} {
		err := g.Stream(nil, stream{ctx: with()}, &grpc.StreamServerInfo{FullMethod: method}, func(any, grpc.ServerStream) error { return nil })
		if fault.ReasonOf(err) != want {
			t.Errorf("%s: %v", method, err)
		}
	}
}

func TestRefusedCallersAreObserved(t *testing.T) {
	g := newGate(t)
	for name, c := range map[string]struct {
		ctx  context.Context
		want Caller
	}{
		"by scope":     {bearer(g.token(t, agent)), agent},
		"by acts-for":  {incoming(g.token(t, agent), ActFor(context.Background(), registry)), agent},
		"by bad token": {bearer("x"), Caller{}},
	} {
		ctx, seen := Observe(c.ctx)
		if _, err := g.call(ctx, unlisted); err == nil || !equal(*seen, c.want) {
			t.Errorf("%s: %v, saw %+v", name, err, *seen)
		}
	}
}

func TestOutsideACallThereIsNoCaller(t *testing.T) {
	if _, err := Must(context.Background()); !fault.Is(err, fault.TokenMissing) {
		t.Error(err)
	}
}

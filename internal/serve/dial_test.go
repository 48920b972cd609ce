package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"weir/internal/fault"
	"weir/internal/identity"
)

// dialBare are the options of a client that does nothing weir's own does but show its
// token.
func dialBare(t *testing.T, r *running) []grpc.DialOption {
	t.Helper()
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(identity.TokenFile(r.tokenFile, false)),
	}
}

func spanOf(md metadata.MD) trace.SpanContext {
	carrier := propagation.MapCarrier{"traceparent": md.Get("traceparent")[0]}
	return trace.SpanContextFromContext(propagators.Extract(context.Background(), carrier))
}

func TestUnavailablePeersAreTriedAgain(t *testing.T) {
	var tries atomic.Int32
	for name, c := range map[string]struct {
		answer error
		until  int32 // the try that is answered well
		want   int32
		reason fault.Reason
	}{
		"away for a moment": {fault.New(fault.JournalUnavailable, "away"), 4, 4, ""},
		"away for longer":   {fault.New(fault.JournalUnavailable, "away"), 9, 4, fault.JournalUnavailable},
		"contention":        {fault.New(fault.Contention, "busy"), 4, 1, fault.Contention},
		"a bug":             {fault.New(fault.Bug, "oops"), 4, 1, fault.Bug},
	} {
		tries.Store(0)
		r := start(t, &backend{echo: func(context.Context, string) (string, error) {
			if tries.Add(1) < c.until {
				return "", c.answer
			}
			return "", nil
		}})
		_, err := r.call(t.Context(), echo, newRequest("a", ""))
		if fault.ReasonOf(err) != c.reason || tries.Load() != c.want {
			t.Errorf("%s: %v after %d tries, want %d", name, err, tries.Load(), c.want)
		}
	}
}

func TestAPeerThatIsAway(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	listener.Close()
	conn, err := Dial(addr, DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := &running{conn: conn}
	if _, err := r.call(t.Context(), echo, newRequest("a", "")); !fault.Is(err, fault.PeerUnavailable) {
		t.Error(err)
	}
}

func TestCallsToPeersHaveADeadline(t *testing.T) {
	var left time.Duration
	r := start(t, &backend{echo: func(ctx context.Context, _ string) (string, error) {
		deadline, _ := ctx.Deadline()
		left = time.Until(deadline)
		return "", nil
	}})
	if _, err := r.call(context.Background(), echo, newRequest("a", "")); err != nil {
		t.Fatal(err)
	}
	if left > peerDeadline || left < peerDeadline/2 {
		t.Errorf("%v left", left)
	}
}

func TestWhatNeedsNoTLS(t *testing.T) {
	for target, want := range map[string]bool{
		"127.0.0.1:7070":           true,
		"localhost:7070":           true,
		"[::1]:7070":               true,
		"dns:///localhost:7070":    true,
		"unix:/run/weir.sock":      true,
		"unix:///run/weir.sock":    true,
		"gate:7070":                false,
		"localhost.example:7070":   false,
		"dns:///gate.weir:7070":    false,
		"0.0.0.0:7070":             false,
		":7070":                    false,
		"127.0.0.1.example.com:70": false,
		"gate":                     false,
	} {
		if got := loopback(target); got != want {
			t.Errorf("%s: %v", target, got)
		}
	}
}

// authority signs certificates for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{file: filepath.Join(t.TempDir(), "ca.pem")}
	a.key = newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.file, "CERTIFICATE", der)
	return a
}

// issue writes a certificate for this machine, and for the SPIFFE id if there is one.
func (a *authority) issue(t *testing.T, id string) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if id != "" {
		u, err := url.Parse(id)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = []*url.URL{u}
	}
	private := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, cert, "CERTIFICATE", der)
	if der, err = x509.MarshalPKCS8PrivateKey(private); err != nil {
		t.Fatal(err)
	}
	writePEM(t, key, "PRIVATE KEY", der)
	return cert, key
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestMutualTLS(t *testing.T) {
	const id = "spiffe://weir.example/service/registry"
	ca, stranger := newAuthority(t), newAuthority(t)
	table := identity.Table{echo: {Scopes: []string{"weir.test"}, Tenantless: true}}
	var seen identity.Caller
	r := start(t, &backend{echo: func(ctx context.Context, _ string) (string, error) {
		seen, _ = identity.FromContext(ctx)
		return "", nil
	}}, func(c *Config, s *Service) {
		c.TLSCert, c.TLSKey = ca.issue(t, "")
		c.TLSClientCA = ca.file
		c.SPIFFEScopes = writeFile(t, "scopes.json", `{"`+id+`": ["weir.test"]}`)
		c.Peer.CA = ca.file
		s.methods = table
	})
	expect := func(name string, c DialConfig, token string, subject string, want fault.Reason) {
		t.Helper()
		conn, err := Dial(r.addr, c)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx := t.Context()
		if token != "" {
			ctx = withToken(ctx, token)
		}
		seen = identity.Caller{}
		_, err = (&running{conn: conn}).call(ctx, echo, newRequest("a", ""))
		if fault.ReasonOf(err) != want || seen.Subject != subject {
			t.Errorf("%s: %v, seen as %+v", name, err, seen)
		}
	}
	with := func(a *authority, id string) DialConfig {
		c := DialConfig{CA: ca.file}
		c.Cert, c.Key = a.issue(t, id)
		return c
	}
	expect("token", DialConfig{CA: ca.file, TokenFile: r.tokenFile}, "", caller.Subject, "")
	expect("certificate", with(ca, id), "", "service:registry", "")
	expect("certificate and bad token", with(ca, id), "x", "", fault.PeerUnavailable)
	expect("certificate of an unknown service", with(ca, id+"2"), "", "", fault.PeerUnavailable)
	expect("certificate of an unknown authority", with(stranger, id), "", "", fault.PeerUnavailable)
	expect("server of an unknown authority", DialConfig{CA: stranger.file}, "", "", fault.PeerUnavailable)
	expect("no TLS", DialConfig{}, "", "", fault.PeerUnavailable)
}

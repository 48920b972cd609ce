package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const audience = "weir"

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// clock is moved by the test. It starts now, as tokens are issued by the real one.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock { return &clock{at: time.Now()} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// issuer is a trusted key, the file it stands in, and a verifier that believes it.
type issuer struct {
	*Signer
	clock    *clock
	jwks     string
	verifier *Verifier
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{Signer: must(NewSigner())(t), clock: newClock(), jwks: filepath.Join(t.TempDir(), "jwks.json")}
	if err := i.WriteJWKS(i.jwks); err != nil {
		t.Fatal(err)
	}
	keys := must(fileKeys(i.jwks, quiet, i.clock.now))(t)
	i.verifier = newVerifier(keys, audience, i.clock.now)
	return i
}

var agent = Caller{
	Tenant:     "acme",
	Subject:    "agent:coder",
	Scopes:     []string{"weir.gate.check", "weir.inbox.send"},
	Session:    "01K5",
	Confined:   true,
	OnBehalfOf: []string{"human:ann"},
}

var registry = Caller{Tenant: AnyTenant, Subject: "service:registry", Scopes: []string{"weir.gate.check"}}

func (i *issuer) token(t *testing.T, c Caller) string {
	t.Helper()
	return must(i.Issue(c, audience, time.Hour))(t)
}

// sign makes a token of any claims, which Issue would refuse to.
func (i *issuer) sign(t *testing.T, c jwt.MapClaims) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, c)
	token.Header["kid"] = i.id
	return must(token.SignedString(i.key))(t)
}

// goodClaims with changes; a nil value leaves the claim out.
func (i *issuer) goodClaims(changes jwt.MapClaims) jwt.MapClaims {
	c := jwt.MapClaims{
		"sub": agent.Subject, "tenant": agent.Tenant, "aud": audience,
		"exp": i.clock.now().Add(time.Hour).Unix(), "scope": "weir.gate.check",
	}
	for k, v := range changes {
		if c[k] = v; v == nil {
			delete(c, k)
		}
	}
	return c
}

// writeECKey adds a P-256 key to a JWKS file of its own.
func writeECKey(t *testing.T, path string) *ecdsa.PrivateKey {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	point := must(key.PublicKey.Bytes())(t)
	coordinate := base64.RawURLEncoding.EncodeToString
	writeJSON(t, path, map[string]any{"keys": []any{
		map[string]string{"kty": "RSA", "kid": "passed over", "n": "AQAB", "e": "AQAB"},
		map[string]string{"kty": "EC", "crv": "P-256", "kid": "ec", "x": coordinate(point[1:33]), "y": coordinate(point[33:])},
	}})
	return key
}

func writeJSON(t *testing.T, path string, v any) {
	t.Helper()
	writeFile(t, path, string(must(json.Marshal(v))(t)))
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func equal(a, b Caller) bool {
	return a.Tenant == b.Tenant && a.Subject == b.Subject && a.Session == b.Session && a.Confined == b.Confined &&
		a.Via == b.Via && a.Operation == b.Operation && slices.Equal(a.Scopes, b.Scopes) && slices.Equal(a.OnBehalfOf, b.OnBehalfOf)
}

func verify(t *testing.T, v *Verifier, token string) (Caller, error) {
	t.Helper()
	return v.Verify(context.Background(), token)
}

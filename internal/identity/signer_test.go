package identity

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"weir/internal/fault"
)

func TestASignerSurvivesItsFile(t *testing.T) {
	i := newIssuer(t)
	path := filepath.Join(t.TempDir(), "key.pem")
	if err := i.WriteKey(path); err != nil {
		t.Fatal(err)
	}
	if mode := must(os.Stat(path))(t).Mode(); mode != 0o600 {
		t.Errorf("mode is %v", mode)
	}
	if err := i.WriteKey(path); err == nil {
		t.Error("a key was overwritten")
	}
	loaded := must(LoadSigner(path))(t)
	if _, err := verify(t, i.verifier, must(loaded.Issue(agent, audience, time.Hour))(t)); err != nil {
		t.Error(err)
	}
	if _, err := LoadSigner(i.jwks); err == nil {
		t.Error("loaded a file that holds no private key")
	}
}

func TestASignerIssuesNothingThatWouldBeRefused(t *testing.T) {
	i := newIssuer(t)
	for _, c := range []Caller{{}, {Tenant: AnyTenant, Subject: "human:ann"}, {Tenant: "acme", Subject: "agent:a", Via: "service:registry"}} {
		if _, err := i.Issue(c, audience, time.Hour); err == nil {
			t.Errorf("issued for %+v", c)
		}
	}
}

func TestTokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	credentials := TokenFile(path, true)
	if !credentials.RequireTransportSecurity() || TokenFile(path, false).RequireTransportSecurity() {
		t.Error("requireTLS is not kept")
	}
	if _, err := credentials.GetRequestMetadata(t.Context()); !fault.Is(err, fault.PeerUnavailable) {
		t.Errorf("before the file is there: %v", err)
	}
	expect := func(want string) {
		t.Helper()
		md, err := credentials.GetRequestMetadata(t.Context())
		if err != nil || md["authorization"] != want {
			t.Errorf("got %v, %v; want %s", md, err, want)
		}
	}
	clock := newClock()
	credentials.(*tokenFile).now = clock.now
	writeFile(t, path, "first\n")
	expect("Bearer first")
	writeFile(t, path, "second one")
	clock.advance(lookAgain)
	expect("Bearer first")
	writeFile(t, path, "third\n")
	clock.advance(lookAgain)
	expect("Bearer third")
}

package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"weir/internal/fault"
)

func TestATokenProvesItsCaller(t *testing.T) {
	i := newIssuer(t)
	for _, want := range []Caller{agent, registry, {Tenant: "acme", Subject: "human:ann"}} {
		got, err := verify(t, i.verifier, i.token(t, want))
		if err != nil || !equal(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
}

func TestES256(t *testing.T) {
	i := newIssuer(t)
	key := writeECKey(t, i.jwks)
	i.clock.advance(lookAgain)
	for name, kid := range map[string]any{"named": "ec", "unnamed": nil} {
		token := jwt.NewWithClaims(jwt.SigningMethodES256, i.goodClaims(nil))
		if kid != nil {
			token.Header["kid"] = kid
		}
		if _, err := verify(t, i.verifier, must(token.SignedString(key))(t)); err != nil {
			t.Errorf("%s key: %v", name, err)
		}
	}
}

func TestBadTokensAreRefused(t *testing.T) {
	i := newIssuer(t)
	good := i.goodClaims(nil)
	signedBy := func(method jwt.SigningMethod, key any, header ...any) string {
		token := jwt.NewWithClaims(method, good)
		token.Header["kid"] = i.id
		for n := 0; n < len(header); n += 2 {
			token.Header[header[n].(string)] = header[n+1]
		}
		return must(token.SignedString(key))(t)
	}
	in := func(d time.Duration) int64 { return i.clock.now().Add(d).Unix() }
	public := i.key.Public().(ed25519.PublicKey)
	valid := i.sign(t, good)
	stranger := must(NewSigner())(t)

	for name, token := range map[string]string{
		"empty":                      "",
		"garbage":                    "not.a.token",
		"binary":                     "\x00\xff.\x00.\x00",
		"very long":                  strings.Repeat("a", maxToken+1),
		"padded":                     valid + "=",
		"with a space":               " " + valid,
		"signature cut off":          valid[:strings.LastIndexByte(valid, '.')+1],
		"signature of another":       valid[:strings.LastIndexByte(valid, '.')] + i.sign(t, i.goodClaims(jwt.MapClaims{"sub": "human:ann"}))[strings.LastIndexByte(valid, '.'):],
		"alg none":                   signedBy(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType),
		"HS256 with the public key":  signedBy(jwt.SigningMethodHS256, []byte(public)),
		"HS256 with the JWKS file":   signedBy(jwt.SigningMethodHS256, must(os.ReadFile(i.jwks))(t)),
		"RS256":                      signedBy(jwt.SigningMethodRS256, must(rsa.GenerateKey(rand.Reader, 2048))(t)),
		"ES256 under an Ed25519 kid": signedBy(jwt.SigningMethodES256, must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)),
		"wrong key, right kid":       signedBy(jwt.SigningMethodEdDSA, stranger.key),
		"wrong key, its own kid":     must(stranger.Issue(agent, audience, time.Hour))(t),
		"kid that is a number":       signedBy(jwt.SigningMethodEdDSA, i.key, "kid", 7),
		"key brought along":          signedBy(jwt.SigningMethodEdDSA, stranger.key, "kid", stranger.id, "jwk", map[string]string{"kty": "OKP", "crv": "Ed25519", "x": publicOf(stranger)}),
		"expired":                    i.sign(t, i.goodClaims(jwt.MapClaims{"exp": in(-time.Minute)})),
		"no expiry":                  i.sign(t, i.goodClaims(jwt.MapClaims{"exp": nil})),
		"expiry that is text":        i.sign(t, i.goodClaims(jwt.MapClaims{"exp": "tomorrow"})),
		"not yet valid":              i.sign(t, i.goodClaims(jwt.MapClaims{"nbf": in(time.Minute)})),
		"no audience":                i.sign(t, i.goodClaims(jwt.MapClaims{"aud": nil})),
		"empty audience":             i.sign(t, i.goodClaims(jwt.MapClaims{"aud": []string{}})),
		"other audience":             i.sign(t, i.goodClaims(jwt.MapClaims{"aud": "weird"})),
		"no subject":                 i.sign(t, i.goodClaims(jwt.MapClaims{"sub": nil})),
		"malformed subject":          i.sign(t, i.goodClaims(jwt.MapClaims{"sub": "agent:a b"})),
		"no tenant":                  i.sign(t, i.goodClaims(jwt.MapClaims{"tenant": nil})),
		"agent of any tenant":        i.sign(t, i.goodClaims(jwt.MapClaims{"tenant": "*"})),
		"tenant that is a list":      i.sign(t, i.goodClaims(jwt.MapClaims{"tenant": []string{"acme"}})),
		"scope that is a list":       i.sign(t, i.goodClaims(jwt.MapClaims{"scope": []string{"a"}})),
		"chain of a nobody":          i.sign(t, i.goodClaims(jwt.MapClaims{"on_behalf_of": []string{"root"}})),
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // a refusal isn't remembered as anything else
				c, err := verify(t, i.verifier, token)
				if !fault.Is(err, fault.TokenInvalid) || c.Subject != "" {
					t.Errorf("got %+v, %v", c, err)
				}
				if err != nil && fault.From(err).Message() != "the token is not valid here and now" && name != "very long" {
					t.Errorf("the client reads %q", fault.From(err).Message())
				}
			}
		})
	}
	if _, err := verify(t, i.verifier, valid); err != nil {
		t.Fatalf("the token they all derive from is refused: %v", err)
	}
}

func publicOf(s *Signer) string { return public(s.key) }

// lookAgain is more than a watched file waits between two looks.
const lookAgain = 2 * time.Second

func TestRememberedTokensExpire(t *testing.T) {
	i := newIssuer(t)
	token := i.token(t, agent)
	for range 2 {
		if _, err := verify(t, i.verifier, token); err != nil {
			t.Fatal(err)
		}
	}
	if n := i.verifier.cached.EstimatedSize(); n != 1 {
		t.Errorf("%d tokens remembered, want 1", n)
	}
	i.clock.advance(time.Hour + leeway + time.Second)
	if _, err := verify(t, i.verifier, token); !fault.Is(err, fault.TokenInvalid) {
		t.Errorf("an expired token: %v", err)
	}
}

func TestRememberedTokensDieWithTheirKey(t *testing.T) {
	i := newIssuer(t)
	old := i.token(t, agent)
	next := must(NewSigner())(t)
	fresh := must(next.Issue(agent, audience, time.Hour))(t)
	expect := func(step string, oldWorks, freshWorks bool) {
		t.Helper()
		for token, works := range map[string]bool{old: oldWorks, fresh: freshWorks} {
			if _, err := verify(t, i.verifier, token); (err == nil) != works {
				t.Errorf("%s: old %v: %v", step, token == old, err)
			}
		}
	}
	expect("before", true, false)

	next.WriteJWKS(i.jwks, i.Signer)
	expect("within the second", true, false)
	i.clock.advance(lookAgain)
	expect("both trusted", true, true)

	next.WriteJWKS(i.jwks)
	i.clock.advance(lookAgain)
	expect("old one withdrawn", false, true)

	for _, content := range []string{"", "{", `{"keys":[]}`, `{"keys":[{"kty":"RSA"}]}`} {
		writeFile(t, i.jwks, content)
		i.clock.advance(lookAgain)
		expect("unreadable file "+content, false, true)
	}
	if err := os.Remove(i.jwks); err != nil {
		t.Fatal(err)
	}
	i.clock.advance(lookAgain)
	expect("no file", false, true)

	i.WriteJWKS(i.jwks)
	i.clock.advance(lookAgain)
	expect("old one back", true, false)
}

func TestKeySetsThatAreRefused(t *testing.T) {
	const x = `"x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"`
	for name, content := range map[string]string{
		"empty":                  ``,
		"no keys":                `{"keys":[]}`,
		"only other kinds":       `{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"},{"kty":"EC","crv":"P-384"}]}`,
		"only for encryption":    `{"keys":[{"kty":"OKP","crv":"Ed25519","use":"enc",` + x + `}]}`,
		"short key":              `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AQAB"}]}`,
		"the same kid twice":     `{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a",` + x + `},{"kty":"OKP","crv":"Ed25519","kid":"a",` + x + `}]}`,
		"point off the curve":    `{"keys":[{"kty":"EC","crv":"P-256",` + x + `,` + strings.Replace(x, `"x"`, `"y"`, 1) + `}]}`,
		"point at infinity":      `{"keys":[{"kty":"EC","crv":"P-256","x":"","y":""}]}`,
		"one bad among the good": `{"keys":[{"kty":"OKP","crv":"Ed25519",` + x + `},{"kty":"OKP","crv":"Ed25519","kid":"b","x":"?"}]}`,
	} {
		path := filepath.Join(t.TempDir(), "jwks.json")
		writeFile(t, path, content)
		if _, err := FileKeys(path, quiet); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := FileKeys(filepath.Join(t.TempDir(), "absent"), quiet); err == nil {
		t.Error("a file that isn't there: accepted")
	}
}

func TestOIDC(t *testing.T) {
	i := newIssuer(t)
	var url string
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(map[string]string{"issuer": url, "jwks_uri": url + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, i.jwks) })
	server := httptest.NewServer(mux)
	defer server.Close()
	url = server.URL

	keys := must(OIDCKeys(t.Context(), url))(t)
	v := newVerifier(keys, audience, i.clock.now)
	if c, err := verify(t, v, i.sign(t, i.goodClaims(jwt.MapClaims{"iss": url}))); err != nil || c.Subject != agent.Subject {
		t.Errorf("good token: %+v, %v", c, err)
	}
	hs256 := jwt.NewWithClaims(jwt.SigningMethodHS256, i.goodClaims(jwt.MapClaims{"iss": url}))
	none := jwt.NewWithClaims(jwt.SigningMethodNone, i.goodClaims(jwt.MapClaims{"iss": url}))
	for name, token := range map[string]string{
		"no issuer":      i.sign(t, i.goodClaims(nil)),
		"another issuer": i.sign(t, i.goodClaims(jwt.MapClaims{"iss": "https://example.com"})),
		"other audience": i.sign(t, i.goodClaims(jwt.MapClaims{"iss": url, "aud": "x"})),
		"expired":        i.sign(t, i.goodClaims(jwt.MapClaims{"iss": url, "exp": 1})),
		"wrong key":      must(must(NewSigner())(t).Issue(agent, audience, time.Hour))(t),
		"HS256":          must(hs256.SignedString([]byte(i.key.Public().(ed25519.PublicKey))))(t),
		"none":           must(none.SignedString(jwt.UnsafeAllowNoneSignatureType))(t),
		"garbage":        "a.b.c",
	} {
		if _, err := verify(t, v, token); !fault.Is(err, fault.TokenInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}

	// While the issuer is away, known keys serve and unknown ones are nobody's fault.
	server.Close()
	if _, err := verify(t, v, i.sign(t, i.goodClaims(jwt.MapClaims{"iss": url, "sub": "human:ann"}))); err != nil {
		t.Errorf("known key, issuer away: %v", err)
	}
	if _, err := verify(t, v, must(must(NewSigner())(t).Issue(agent, audience, time.Hour))(t)); !fault.Is(err, fault.PeerUnavailable) {
		t.Errorf("unknown key, issuer away: %v", err)
	}
	if _, err := OIDCKeys(context.Background(), url); err == nil {
		t.Error("started without an issuer")
	}
}

func BenchmarkVerify(b *testing.B) {
	signer := must(NewSigner())(b)
	path := filepath.Join(b.TempDir(), "jwks.json")
	signer.WriteJWKS(path)
	v := NewVerifier(must(FileKeys(path, quiet))(b), audience)
	token := must(signer.Issue(agent, audience, time.Hour))(b)
	b.Run("remembered", func(b *testing.B) {
		for b.Loop() {
			v.Verify(b.Context(), token)
		}
	})
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			v.check(b.Context(), token)
		}
	})
}

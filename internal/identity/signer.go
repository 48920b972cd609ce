package identity

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Signer issues tokens, for development and tests. Elsewhere an issuer does that.
type Signer struct {
	key ed25519.PrivateKey
	id  string
}

// NewSigner makes a new key.
func NewSigner() (*Signer, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	return signer(key), nil
}

// LoadSigner reads a key that WriteKey wrote.
func LoadSigner(path string) (*Signer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s: not a PEM file", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s: not an Ed25519 key", path)
	}
	return signer(key), nil
}

// signer names the key by its RFC 7638 thumbprint, so that equal keys have equal ids.
func signer(key ed25519.PrivateKey) *Signer {
	sum := sha256.Sum256(fmt.Appendf(nil, `{"crv":"Ed25519","kty":"OKP","x":"%s"}`, public(key)))
	return &Signer{key, base64.RawURLEncoding.EncodeToString(sum[:])}
}

func public(key ed25519.PrivateKey) string {
	return base64.RawURLEncoding.EncodeToString(key.Public().(ed25519.PublicKey))
}

// WriteKey writes the private key as PEM, readable by its owner alone. It never
// overwrites one: tokens signed with it would be lost.
func (s *Signer) WriteKey(path string) error {
	der, err := x509.MarshalPKCS8PrivateKey(s.key)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(pem.Encode(f, &pem.Block{Type: "PRIVATE KEY", Bytes: der}), f.Close())
}

// WriteJWKS writes the file that FileKeys reads. Earlier signers given along stay
// trusted, which is how a key is rotated.
func (s *Signer) WriteJWKS(path string, earlier ...*Signer) error {
	type key struct {
		Kty string `json:"kty"`
		Crv string `json:"crv"`
		Alg string `json:"alg"`
		Use string `json:"use"`
		Kid string `json:"kid"`
		X   string `json:"x"`
	}
	var set struct {
		Keys []key `json:"keys"`
	}
	for _, signer := range append([]*Signer{s}, earlier...) {
		set.Keys = append(set.Keys, key{"OKP", "Ed25519", "EdDSA", "sig", signer.id, public(signer.key)})
	}
	data, err := json.MarshalIndent(set, "", "  ")
	if err != nil {
		return err
	}
	return replace(path, append(data, '\n'))
}

// replace writes a file so that a reader sees the old content or the new, not half.
func replace(path string, data []byte) error {
	next := path + ".new"
	if err := os.WriteFile(next, data, 0o644); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// Issue signs a token that proves c to the audience until ttl from now.
func (s *Signer) Issue(c Caller, audience string, ttl time.Duration) (string, error) {
	if err := c.check(); err != nil {
		return "", err
	}
	if c.Via != "" {
		return "", errors.New("a token is for whoever holds it, not for one acted for")
	}
	now := time.Now()
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, &claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Subject:   c.Subject,
			Audience:  jwt.ClaimStrings{audience},
			IssuedAt:  jwt.NewNumericDate(now),
			ExpiresAt: jwt.NewNumericDate(now.Add(ttl)),
		},
		Tenant:     c.Tenant,
		Scope:      strings.Join(c.Scopes, " "),
		Session:    c.Session,
		Confined:   c.Confined,
		OnBehalfOf: c.OnBehalfOf,
	})
	token.Header["kid"] = s.id
	return token.SignedString(s.key)
}

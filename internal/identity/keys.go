package identity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/golang-jwt/jwt/v5"

	"weir/internal/fault"
	"weir/internal/identity/watched"
)

// algorithms are the only ones a token may be signed with. Both are asymmetric and
// each has one kind of key, so a public key can't be misused as an HMAC secret.
var algorithms = []string{jwt.SigningMethodEdDSA.Alg(), jwt.SigningMethodES256.Alg()}

// Keys tells whether a token was signed by the issuer.
type Keys interface {
	// signed returns the claims of a token with a good signature. Whether they hold
	// now and here is the Verifier's business.
	signed(ctx context.Context, token string) (*claims, error)

	// epoch changes when a key may have been withdrawn, and with it every token
	// verified earlier.
	epoch() uint64
}

// FileKeys reads a JWKS file, again whenever it changes.
func FileKeys(path string, log *slog.Logger) (Keys, error) {
	return fileKeys(path, log, time.Now)
}

func fileKeys(path string, log *slog.Logger, now func() time.Time) (*jwksFile, error) {
	file, err := watched.Open(path, log, now, parseJWKS)
	if err != nil {
		return nil, fmt.Errorf("reading keys: %w", err)
	}
	return &jwksFile{file, jwt.NewParser(jwt.WithValidMethods(algorithms), jwt.WithoutClaimsValidation())}, nil
}

type jwksFile struct {
	file   *watched.File[jwks]
	parser *jwt.Parser
}

func (f *jwksFile) epoch() uint64 { return f.file.Get().Epoch }

func (f *jwksFile) signed(_ context.Context, token string) (*claims, error) {
	keys := f.file.Get().Value
	c := &claims{}
	_, err := f.parser.ParseWithClaims(token, c, func(t *jwt.Token) (any, error) {
		return keys.find(t.Method.Alg(), t.Header["kid"])
	})
	return c, err
}

// jwks is a set of public keys.
type jwks []publicKey

type publicKey struct {
	id  string
	alg string
	key crypto.PublicKey
}

// find returns the keys a token with this header may have been signed with. One that
// names no key may be signed with any of the right kind.
func (s jwks) find(alg string, kid any) (any, error) {
	id, named := kid.(string)
	if kid != nil && !named {
		return nil, errors.New("kid is not a string")
	}
	var set jwt.VerificationKeySet
	for _, k := range s {
		if k.alg == alg && (!named || k.id == id) {
			set.Keys = append(set.Keys, k.key)
		}
	}
	if len(set.Keys) == 0 {
		return nil, errors.New("signed with a key that isn't known")
	}
	return set, nil
}

// maxKeys bounds the work that a token naming no key can cause.
const maxKeys = 32

// parseJWKS reads a JSON Web Key Set. Keys of other kinds and uses are passed over, as
// RFC 7517 asks; a set in which none is left is an error, or a wrong file would look
// like a set that trusts nobody.
func parseJWKS(data []byte) (jwks, error) {
	var set struct {
		Keys []struct{ Kty, Crv, Kid, Use, Alg, X, Y string }
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("not a JSON Web Key Set: %w", err)
	}
	var keys jwks
	for i, k := range set.Keys {
		if k.Use != "" && k.Use != "sig" {
			continue
		}
		x, errX := base64.RawURLEncoding.DecodeString(k.X)
		y, errY := base64.RawURLEncoding.DecodeString(k.Y)
		parsed := publicKey{id: k.Kid}
		switch {
		case k.Kty == "OKP" && k.Crv == "Ed25519":
			if errX != nil || len(x) != ed25519.PublicKeySize {
				return nil, fmt.Errorf("key %d: x is not an Ed25519 public key", i)
			}
			parsed.alg, parsed.key = jwt.SigningMethodEdDSA.Alg(), ed25519.PublicKey(x)
		case k.Kty == "EC" && k.Crv == "P-256":
			// The parser also checks that the point is on the curve.
			point, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, x, y))
			if err := errors.Join(errX, errY, err); err != nil {
				return nil, fmt.Errorf("key %d: x and y are not a P-256 public key: %w", i, err)
			}
			parsed.alg, parsed.key = jwt.SigningMethodES256.Alg(), point
		default:
			continue
		}
		if slices.ContainsFunc(keys, func(other publicKey) bool { return other.id == parsed.id && other.alg == parsed.alg }) {
			return nil, fmt.Errorf("key %d: the kid %q is there twice", i, k.Kid)
		}
		keys = append(keys, parsed)
	}
	if len(keys) == 0 || len(keys) > maxKeys {
		return nil, fmt.Errorf("%d usable keys, want 1 to %d (Ed25519 or P-256)", len(keys), maxKeys)
	}
	return keys, nil
}

// OIDCKeys takes the keys an OpenID Connect issuer publishes. The issuer must answer
// now; afterwards it is asked only for keys not seen before, so it may be away while
// known keys sign. A key it withdraws stays good here until a restart.
func OIDCKeys(ctx context.Context, issuer string) (Keys, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	provider, err := oidc.NewProvider(ctx, issuer)
	if err != nil {
		return nil, fmt.Errorf("asking issuer %s for its keys: %w", issuer, err)
	}
	var metadata struct {
		JWKS string `json:"jwks_uri"`
	}
	if err := provider.Claims(&metadata); err != nil {
		return nil, fmt.Errorf("issuer %s: %w", issuer, err)
	}
	return &oidcKeys{
		issuer: issuer,
		remote: oidc.NewRemoteKeySet(context.WithoutCancel(ctx), metadata.JWKS),
		parser: jwt.NewParser(),
	}, nil
}

type oidcKeys struct {
	issuer string
	remote *oidc.RemoteKeySet
	parser *jwt.Parser
}

func (k *oidcKeys) epoch() uint64 { return 0 }

func (k *oidcKeys) signed(ctx context.Context, token string) (*claims, error) {
	// The key set leaves the algorithm to its caller.
	header, _, err := k.parser.ParseUnverified(token, jwt.MapClaims{})
	if err != nil {
		return nil, err
	}
	if alg := header.Method.Alg(); !slices.Contains(algorithms, alg) {
		return nil, fmt.Errorf("signed with %s", alg)
	}
	payload, err := k.remote.VerifySignature(ctx, token)
	if err != nil {
		if _, unreachable := errors.AsType[*url.Error](err); unreachable {
			return nil, fault.New(fault.PeerUnavailable, "the issuer of the token can't be asked for its keys").Wrap(err)
		}
		return nil, err
	}
	c := &claims{}
	if err := json.Unmarshal(payload, c); err != nil {
		return nil, err
	}
	if c.Issuer != k.issuer {
		return nil, errors.New("issued by another issuer")
	}
	return c, nil
}

package identity

import (
	"context"
	"crypto/sha256"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/maypok86/otter/v2"

	"weir/internal/fault"
)

// claims is what a token says. Names are those of RFC 7519 and OpenID Connect where
// they have one.
type claims struct {
	jwt.RegisteredClaims
	Tenant     string   `json:"tenant"`
	Scope      string   `json:"scope,omitempty"` // separated by single spaces
	Session    string   `json:"sid,omitempty"`
	Confined   bool     `json:"confined,omitempty"`
	OnBehalfOf []string `json:"on_behalf_of,omitempty"`
}

func (c *claims) caller() Caller {
	scopes := strings.Fields(c.Scope)
	slices.Sort(scopes)
	return Caller{
		Tenant:     c.Tenant,
		Subject:    c.Subject,
		Scopes:     slices.Compact(scopes),
		Session:    c.Session,
		Confined:   c.Confined,
		OnBehalfOf: c.OnBehalfOf,
	}
}

const (
	leeway    = 5 * time.Second // how far the issuer's clock and ours may differ
	maxToken  = 8 << 10
	maxCached = 10_000 // tokens; some 10 MB
)

// Verifier turns bearer tokens into callers. It remembers the tokens it found good,
// because checking a signature costs more than the rest of a read.
type Verifier struct {
	keys   Keys
	valid  *jwt.Validator
	now    func() time.Time
	cached *otter.Cache[[sha256.Size]byte, verified]
}

// verified is a caller and how long a token proves it.
type verified struct {
	caller Caller
	until  time.Time // zero: for as long as the connection lives
	epoch  uint64
}

// NewVerifier accepts tokens signed with one of the keys and meant for the audience.
func NewVerifier(keys Keys, audience string) *Verifier {
	return newVerifier(keys, audience, time.Now)
}

func newVerifier(keys Keys, audience string, now func() time.Time) *Verifier {
	return &Verifier{
		keys: keys,
		valid: jwt.NewValidator(
			jwt.WithExpirationRequired(),
			jwt.WithAudience(audience),
			jwt.WithLeeway(leeway),
			jwt.WithTimeFunc(now),
		),
		now:    now,
		cached: otter.Must(&otter.Options[[sha256.Size]byte, verified]{MaximumSize: maxCached}),
	}
}

// Verify is the caller that the token proves.
func (v *Verifier) Verify(ctx context.Context, token string) (Caller, error) {
	known, err := v.verify(ctx, token)
	return known.caller, err
}

func (v *Verifier) verify(ctx context.Context, token string) (verified, error) {
	// Taken before the keys are used: should they change meanwhile, the result is
	// filed under the old epoch and never found again.
	epoch := v.keys.epoch()
	key := sha256.Sum256([]byte(token))
	if known, ok := v.cached.GetIfPresent(key); ok {
		if known.epoch == epoch && v.now().Before(known.until) {
			return known, nil
		}
		v.cached.Invalidate(key)
	}
	known, err := v.check(ctx, token)
	if err != nil {
		return verified{}, err
	}
	known.epoch = epoch
	v.cached.Set(key, known)
	return known, nil
}

func (v *Verifier) check(ctx context.Context, token string) (verified, error) {
	if len(token) > maxToken {
		return verified{}, fault.New(fault.TokenInvalid, "the token is longer than %d bytes", maxToken)
	}
	c, err := v.keys.signed(ctx, token)
	if fault.Is(err, fault.PeerUnavailable) {
		return verified{}, err
	}
	if err == nil {
		err = v.valid.Validate(c)
	}
	if err == nil {
		err = c.caller().check()
	}
	if err != nil {
		// One message for every cause: what exactly is wrong with a token helps whoever
		// made a false one more than whoever holds a good one. The log has it.
		return verified{}, fault.New(fault.TokenInvalid, "the token is not valid here and now").Wrap(err)
	}
	return verified{caller: c.caller(), until: c.ExpiresAt.Add(leeway)}, nil
}

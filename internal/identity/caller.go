// Package identity says who is calling, and whether they may. The caller is whoever
// the credential says, never a field of the request.
package identity

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"weir/internal/fault"
)

// Caller is who a call is made by. Callers are shared between calls, so their slices
// are never written to.
type Caller struct {
	Tenant     string
	Subject    string   // "human:ann", "agent:coder", "service:registry"
	Scopes     []string // sorted; of the credential, which under Via is the service's
	Session    string   // the conversation or run the credential was issued for, or ""
	Confined   bool     // reached from an outside channel
	OnBehalfOf []string // subjects, the nearest first
	Via        string   // the service that holds the credential and acts for this caller, or ""
	// Operation is the registry's operation through which the caller acts, or "". No
	// credential says it: only who acts for the caller knows.
	Operation string
}

// AnyTenant is the tenant of a service that belongs to none. It opens no tenant's
// data: such a service must act for a caller to touch any.
const AnyTenant = "*"

// Kind is the part of a subject before the colon.
type Kind string

const (
	Human   Kind = "human"
	Agent   Kind = "agent"
	Service Kind = "service"
)

// Names are refused or taken as they are. Trimming or folding one would let two
// spellings meet, and one of them may be on a list.
var (
	namePattern    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	tenantPattern  = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
	sessionPattern = regexp.MustCompile(`^[!-~]{1,128}$`)
	scopePattern   = regexp.MustCompile(`^[!#-\[\]-~]{1,128}$`) // RFC 6749, section 3.3
	// operationPattern is also that of the gate's and the registry's requests.
	operationPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*)+$`)
)

const (
	maxScopes    = 64
	maxChain     = 16 // OnBehalfOf
	maxOperation = 200
)

// ParseSubject splits a subject into its kind and name.
func ParseSubject(s string) (Kind, string, error) {
	kind, name, _ := strings.Cut(s, ":")
	switch Kind(kind) {
	case Human, Agent, Service:
		if namePattern.MatchString(name) {
			return Kind(kind), name, nil
		}
	}
	return "", "", fault.New(fault.IDMalformed, "a subject is human:, agent: or service: and a name of up to 64 letters, digits, '.', '_' and '-'")
}

// Is says whether a subject is of this kind. Subjects were parsed on their way in.
func (k Kind) Is(subject string) bool {
	return len(subject) > len(k) && subject[len(k)] == ':' && subject[:len(k)] == string(k)
}

// ByAgent says whether an agent is behind a call: the subject itself, or one on whose
// behalf it acts.
func ByAgent(subject string, onBehalfOf []string) bool {
	return Agent.Is(subject) || slices.ContainsFunc(onBehalfOf, Agent.Is)
}

// Kind is that of the subject, "" for the zero Caller.
func (c Caller) Kind() Kind {
	kind, _, _ := ParseSubject(c.Subject)
	return kind
}

// HasScope reports whether the credential carries the scope.
func (c Caller) HasScope(scope string) bool {
	_, found := slices.BinarySearch(c.Scopes, scope)
	return found
}

// check refuses what no credential may say. Every Caller passes it once, on the way
// in, so that the rest of weir need not.
func (c Caller) check() error {
	kind, _, err := ParseSubject(c.Subject)
	if err != nil {
		return fmt.Errorf("subject %q is malformed", c.Subject)
	}
	switch {
	case c.Tenant == AnyTenant && kind != Service:
		return fmt.Errorf("%s must have a tenant", c.Subject)
	case c.Tenant != AnyTenant && !tenantPattern.MatchString(c.Tenant):
		return fmt.Errorf("tenant %q is malformed", c.Tenant)
	case c.Session != "" && !sessionPattern.MatchString(c.Session):
		return fmt.Errorf("session is malformed")
	case len(c.OnBehalfOf) > maxChain:
		return fmt.Errorf("acts on behalf of more than %d subjects", maxChain)
	case len(c.Scopes) > maxScopes:
		return fmt.Errorf("has more than %d scopes", maxScopes)
	case c.Operation != "" && (len(c.Operation) > maxOperation || !operationPattern.MatchString(c.Operation)):
		return fmt.Errorf("operation is malformed")
	}
	for _, subject := range c.OnBehalfOf {
		if _, _, err := ParseSubject(subject); err != nil {
			return fmt.Errorf("on_behalf_of: subject %q is malformed", subject)
		}
	}
	for _, scope := range c.Scopes {
		if !scopePattern.MatchString(scope) {
			return fmt.Errorf("scope %q is malformed", scope)
		}
	}
	return nil
}

type (
	callerKey   struct{}
	observedKey struct{}
)

// NewContext returns a context of a call made by c.
func NewContext(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// FromContext is the caller of the call that ctx belongs to. Public methods and
// background work have none.
func FromContext(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// Must is FromContext for code that only runs behind the Guard. Its error is a
// refusal, so that a handler that somehow isn't behind it fails closed.
func Must(ctx context.Context) (Caller, error) {
	c, ok := FromContext(ctx)
	if !ok {
		return Caller{}, fault.New(fault.TokenMissing, "the call carries no credential")
	}
	return c, nil
}

// Observe returns a context in which the Guard leaves the caller for whoever stands in
// front of it, such as an access log: also one that it then refuses. It stays zero
// where the credential proved nobody.
func Observe(ctx context.Context) (context.Context, *Caller) {
	seen := &Caller{}
	return context.WithValue(ctx, observedKey{}, seen), seen
}

func observed(ctx context.Context, c Caller) {
	if seen, ok := ctx.Value(observedKey{}).(*Caller); ok {
		*seen = c
	}
}

package identity

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/maypok86/otter/v2"
	"google.golang.org/grpc/metadata"

	"weir/internal/fault"
)

// actsForKey is the metadata in which a service states for whom it calls.
const actsForKey = "weir-acts-for-bin"

const maxActsFor = 4 << 10

// actsFor is the wire form of the recorded caller. Scopes are left out: those that
// count are the calling service's own.
type actsFor struct {
	Tenant     string   `json:"tenant"`
	Subject    string   `json:"subject"`
	Session    string   `json:"session,omitempty"`
	Confined   bool     `json:"confined,omitempty"`
	OnBehalfOf []string `json:"on_behalf_of,omitempty"`
	Operation  string   `json:"operation,omitempty"`
}

// ActFor returns a context whose outgoing calls are made for c, which may have been
// recorded long ago. It replaces whoever ctx acted for before.
func ActFor(ctx context.Context, c Caller) context.Context {
	data, err := json.Marshal(actsFor{c.Tenant, c.Subject, c.Session, c.Confined, c.OnBehalfOf, c.Operation})
	if err != nil {
		panic(err) // strings and a bool always encode
	}
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	if md == nil {
		md = metadata.MD{}
	}
	md.Set(actsForKey, string(data))
	return metadata.NewOutgoingContext(ctx, md)
}

// resolve is the caller in the end: the credential's holder, or whoever it says it
// acts for if the method believes it. Statements that aren't believed are refused,
// not ignored, or a call meant to be confined would run with a service's own rights.
func resolve(ctx context.Context, holder Caller, believed []string) (Caller, error) {
	stated := metadata.ValueFromIncomingContext(ctx, actsForKey)
	if len(stated) == 0 {
		return holder, nil
	}
	if !slices.Contains(believed, holder.Subject) {
		return Caller{}, fault.New(fault.ScopeMissing, "%s may not act for others here", holder.Subject)
	}
	malformed := fault.New(fault.FieldInvalid, "%s is malformed", actsForKey)
	if len(stated) > 1 || len(stated[0]) > maxActsFor {
		return Caller{}, malformed
	}
	c, err := parseStatement(stated[0])
	if err != nil {
		return Caller{}, malformed.Wrap(err)
	}
	c.Scopes, c.Via = holder.Scopes, holder.Subject
	if c.Tenant == AnyTenant || holder.Tenant != AnyTenant && holder.Tenant != c.Tenant {
		return Caller{}, fault.New(fault.ScopeMissing, "%s may not act in that tenant", holder.Subject)
	}
	return c, nil
}

// statements remembers what was stated and found well-formed.
var statements = otter.Must(&otter.Options[string, Caller]{MaximumSize: maxCached})

func parseStatement(stated string) (Caller, error) {
	if known, ok := statements.GetIfPresent(stated); ok {
		return known, nil
	}
	var a actsFor
	if err := strictJSON([]byte(stated), &a); err != nil {
		return Caller{}, err
	}
	c := Caller{
		Tenant: a.Tenant, Subject: a.Subject, Session: a.Session, Confined: a.Confined, OnBehalfOf: a.OnBehalfOf, Operation: a.Operation,
	}
	if err := c.check(); err != nil {
		return Caller{}, err
	}
	statements.Set(stated, c)
	return c, nil
}

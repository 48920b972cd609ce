package identity

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"

	"weir/internal/fault"
)

// Rule says who may call a method. The zero Rule lets nobody.
type Rule struct {
	Scopes     []string // any one of these is enough
	Public     bool     // no credential is asked for or looked at
	ActsFor    []string // services whose word is taken on whom they act for
	Tenantless bool     // touches no tenant's data, so a service of no tenant may call it as itself
}

// Table holds a Rule for each method by its full name, "/weir.gate.v1.GateService/Check".
// A method without one can't be called.
type Table map[string]Rule

// Missing lists the methods of a server that no row opens, sorted. A test of each
// service holds it to none.
func (t Table) Missing(server *grpc.Server) []string {
	var missing []string
	for service, info := range server.GetServiceInfo() {
		for _, m := range info.Methods {
			name := "/" + service + "/" + m.Name
			if rule := t[name]; !rule.Public && len(rule.Scopes) == 0 {
				missing = append(missing, name)
			}
		}
	}
	slices.Sort(missing)
	return missing
}

// OpenReflection is the table with reflection open to anybody, so that grpcurl works
// without a token.
func (t Table) OpenReflection() Table {
	open := maps.Clone(t)
	for _, method := range reflectionMethods {
		open[method] = Rule{Public: true}
	}
	return open
}

// allow holds a caller against the rule. Scopes are the credential's, also where its
// holder acts for another.
func (r Rule) allow(c Caller) error {
	if !slices.ContainsFunc(r.Scopes, c.HasScope) {
		if len(r.Scopes) == 0 {
			return fault.New(fault.ScopeMissing, "no scope opens this method")
		}
		return fault.New(fault.ScopeMissing, "the credential has no scope that opens this method: it takes %s", strings.Join(r.Scopes, " or "))
	}
	if c.Tenant == AnyTenant && !r.Tenantless {
		return fault.New(fault.ScopeMissing, "%s belongs to no tenant and must act for a caller here", c.Subject)
	}
	return nil
}

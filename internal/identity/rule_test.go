package identity

import (
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
)

func TestTheTableKnowsWhatItLacks(t *testing.T) {
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	reflection.Register(server)
	for name, table := range map[string]Table{"Methods": Methods, "OpenReflection": Methods.OpenReflection()} {
		if missing := table.Missing(server); missing != nil {
			t.Errorf("%s lacks %v", name, missing)
		}
	}
	want := []string{"/grpc.health.v1.Health/List", "/grpc.health.v1.Health/Watch"}
	want = append(want, sortedReflection()...)
	if got := (Table{"/grpc.health.v1.Health/Check": {Public: true}, want[0]: {}}).Missing(server); !slices.Equal(got, want) {
		t.Errorf("lacks %v, want %v", got, want)
	}
}

func sortedReflection() []string {
	s := slices.Clone(reflectionMethods[:])
	slices.Sort(s)
	return s
}

func TestReflectionIsClosedUnlessOpened(t *testing.T) {
	open := Methods.OpenReflection()
	for _, method := range reflectionMethods {
		if Methods[method].Public || !open[method].Public {
			t.Errorf("%s: public %v, when opened %v", method, Methods[method].Public, open[method].Public)
		}
	}
}

// Rows that contradict themselves would be read one way and enforced another.
func TestRowsMakeSense(t *testing.T) {
	for method, rule := range Methods {
		if rule.Public && (rule.Scopes != nil || rule.ActsFor != nil || rule.Tenantless) {
			t.Errorf("%s is public and asks for something", method)
		}
		for _, service := range rule.ActsFor {
			if kind, _, err := ParseSubject(service); err != nil || kind != Service {
				t.Errorf("%s believes %q, which is no service", method, service)
			}
		}
		for _, scope := range rule.Scopes {
			if !scopePattern.MatchString(scope) {
				t.Errorf("%s asks for %q, which no token can carry", method, scope)
			}
		}
	}
}

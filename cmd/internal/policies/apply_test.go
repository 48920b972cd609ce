package policies

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"weir/cmd/internal/console"
	"weir/cmd/internal/golden"
	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
	"weir/internal/meshtest"
)

// gate is a PolicyService of a few lines: it keeps, counts revisions, and refuses what is
// put on another revision than the newest.
type gate struct {
	gatev1.UnimplementedPolicyServiceServer
	policies map[string]*gatev1.Policy
	grants   map[string]*gatev1.Grant
	revision uint64
	did      []string
	finding  *gatev1.Finding
	// meanwhile happens once, before the first change.
	meanwhile func(*gate)
}

func (g *gate) ListPolicies(_ context.Context, r *gatev1.ListPoliciesRequest) (*gatev1.ListPoliciesResponse, error) {
	// Two pages.
	all := sorted(g.policies)
	if len(all) > 1 && r.GetPageToken() == "" {
		return &gatev1.ListPoliciesResponse{Policies: all[:1], NextPageToken: "more"}, nil
	}
	return &gatev1.ListPoliciesResponse{Policies: all[min(1, len(all)-1, len(r.GetPageToken())):]}, nil
}

func (g *gate) ListGrants(context.Context, *gatev1.ListGrantsRequest) (*gatev1.ListGrantsResponse, error) {
	return &gatev1.ListGrantsResponse{Grants: sorted(g.grants)}, nil
}

func (g *gate) VerifyPolicy(_ context.Context, r *gatev1.VerifyPolicyRequest) (*gatev1.VerifyPolicyResponse, error) {
	answer := &gatev1.VerifyPolicyResponse{Verified: 1}
	if g.finding.GetPolicyId() == r.GetPolicy().GetPolicyId() && g.finding != nil {
		answer.Findings = append(answer.Findings, g.finding)
	}
	return answer, nil
}

func (g *gate) expect(what string, have uint64, want *uint64) error {
	if g.meanwhile != nil {
		g.meanwhile(g)
		g.meanwhile = nil
		return fault.New(fault.StateConflict, "revision %d is newer than %d", have+1, *want)
	}
	if want == nil || have != *want {
		return fault.New(fault.StateConflict, "revision %d is the newest", have)
	}
	g.revision++
	g.did = append(g.did, what)
	return nil
}

func (g *gate) PutPolicy(_ context.Context, r *gatev1.PutPolicyRequest) (*gatev1.PutPolicyResponse, error) {
	p := r.GetPolicy()
	if err := g.expect("put policy "+p.GetPolicyId(), g.policies[p.GetPolicyId()].GetRevision(), r.ExpectedRevision); err != nil {
		return nil, err
	}
	p.Revision = g.revision
	g.policies[p.GetPolicyId()] = p
	return &gatev1.PutPolicyResponse{Policy: p}, nil
}

func (g *gate) DeletePolicy(_ context.Context, r *gatev1.DeletePolicyRequest) (*gatev1.DeletePolicyResponse, error) {
	if err := g.expect("delete policy "+r.GetPolicyId(), g.policies[r.GetPolicyId()].GetRevision(), r.ExpectedRevision); err != nil {
		return nil, err
	}
	delete(g.policies, r.GetPolicyId())
	return &gatev1.DeletePolicyResponse{}, nil
}

func (g *gate) PutGrant(_ context.Context, r *gatev1.PutGrantRequest) (*gatev1.PutGrantResponse, error) {
	grant := r.GetGrant()
	if err := g.expect("put grant "+grant.GetGrantId(), g.grants[grant.GetGrantId()].GetRevision(), r.ExpectedRevision); err != nil {
		return nil, err
	}
	grant.Revision = g.revision
	g.grants[grant.GetGrantId()] = grant
	return &gatev1.PutGrantResponse{Grant: grant, UnmatchedOperations: []string{"crm/**"}}, nil
}

func (g *gate) DeleteGrant(_ context.Context, r *gatev1.DeleteGrantRequest) (*gatev1.DeleteGrantResponse, error) {
	if err := g.expect("delete grant "+r.GetGrantId(), g.grants[r.GetGrantId()].GetRevision(), r.ExpectedRevision); err != nil {
		return nil, err
	}
	delete(g.grants, r.GetGrantId())
	return &gatev1.DeleteGrantResponse{}, nil
}

func (g *gate) serve(t *testing.T) gatev1.PolicyServiceClient {
	t.Helper()
	server := grpc.NewServer()
	gatev1.RegisterPolicyServiceServer(server, g)
	conn := meshtest.Loopback(t, server)
	return gatev1.NewPolicyServiceClient(conn)
}

const applied = `policies:
  - id: base
    layer: tenant
    rules:
      - {id: payments, ask: [pay/**], why: money leaves the house}
      - {id: notes, allow: [crm/notes/add], allow_writes: true}
  - id: guests
    agent: agent:guest
    confined: true
  - {id: same, layer: tenant}
grants:
  - {id: alice, subject: agent:alice, operations: [crm/**, pay/send]}
  - {id: bob, subject: agent:bob, operations: [crm/read]}
`

func load(t *testing.T, text string) *Files {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := Load([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func stored() *gate {
	rule := func(id string, verdict gatev1.Verdict, patterns ...string) *gatev1.Rule {
		return &gatev1.Rule{RuleId: id, Verdict: verdict, Operations: patterns}
	}
	return &gate{
		revision: 9,
		policies: map[string]*gatev1.Policy{
			"base": {PolicyId: "base", Layer: gatev1.Layer_LAYER_TENANT, Revision: 7, Updater: "human:ann", Rules: []*gatev1.Rule{
				rule("payments", gatev1.Verdict_VERDICT_DENY, "pay/**"),
			}},
			"same": {PolicyId: "same", Layer: gatev1.Layer_LAYER_TENANT, Revision: 3},
			"old":  {PolicyId: "old", Layer: gatev1.Layer_LAYER_TENANT, Revision: 4, Rules: []*gatev1.Rule{rule("x", gatev1.Verdict_VERDICT_ASK, "old/*")}},
		},
		grants: map[string]*gatev1.Grant{
			"alice": {GrantId: "alice", Subject: "agent:alice", Operations: []string{"crm/**", "old/run"}, Revision: 5},
			"gone":  {GrantId: "gone", Subject: "agent:gone\x1b]0;x", Operations: []string{"crm/**"}, Revision: 6},
		},
	}
}

// The plan is shown as it is, changes nothing where nobody can be asked, and is Pending.
func TestThePlanAsItIsShown(t *testing.T) {
	g := stored()
	var out strings.Builder
	err := Apply(t.Context(), &console.Terminal{Out: &out, Colour: true}, g.serve(t), load(t, applied), Options{Prune: true})
	if !errors.Is(err, Pending) || len(g.did) > 0 {
		t.Errorf("it gave %v and did %v", err, g.did)
	}
	golden.Match(t, "plan", strings.ReplaceAll(out.String(), "\x1b", "^"))
}

func TestApplying(t *testing.T) {
	g := stored()
	client, files := g.serve(t), load(t, applied)
	var out strings.Builder
	terminal := &console.Terminal{Out: &out, In: strings.NewReader("y\n"), Asks: true}
	if err := Apply(t.Context(), terminal, client, files, Options{Prune: true}); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	want := []string{
		"put grant alice", "delete grant gone", // what stays of alice
		"put policy base", "put policy guests", // what both close
		"put policy base", "delete policy old",
		"put grant alice", "put grant bob",
	}
	if !slices.Equal(g.did, want) {
		t.Errorf("it did %q", g.did)
	}
	for _, says := range []string{"Apply this? [y/N]", "2 to create, 2 to change, 2 to delete, 1 unchanged", "grant bob: no operation matches crm/** now", "applied"} {
		if !strings.Contains(out.String(), says) {
			t.Errorf("%q is not in\n%s", says, &out)
		}
	}

	// There is nothing to do then, with a terminal or without.
	out.Reset()
	g.did = nil
	if err := Apply(t.Context(), &console.Terminal{Out: &out}, client, files, Options{Prune: true}); err != nil || len(g.did) > 0 {
		t.Errorf("again: %v, did %v", err, g.did)
	}
	if got := out.String(); got != "0 to create, 0 to change, 0 to delete, 5 unchanged\n" {
		t.Errorf("again: %s", got)
	}
}

func TestWithoutPruneTheRestStays(t *testing.T) {
	g := stored()
	var out strings.Builder
	if err := Apply(t.Context(), &console.Terminal{Out: &out}, g.serve(t), load(t, applied), Options{Yes: true}); err != nil {
		t.Fatal(err)
	}
	if g.policies["old"] == nil || g.grants["gone"] == nil || !strings.Contains(out.String(), "2 stored ones are in no file, and stay; --prune deletes") {
		t.Errorf("left are %v and %v\n%s", g.policies, g.grants, &out)
	}
}

func TestNothingIsAppliedThatIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*gate)
		answer string
		want   string
	}{
		"no is the answer": {nil, "n\n", "nothing was changed\n"},
		"it is unsafe": {func(g *gate) {
			g.finding = &gatev1.Finding{
				Severity: gatev1.Severity_SEVERITY_ERROR, Kind: gatev1.FindingKind_FINDING_KIND_OPENS_WRITE, PolicyId: "base", RuleId: "notes",
				Pattern: "crm/**", Operation: "crm/-", Message: "opens\x1b[2J",
			}
		}, "y\n", `policies.yaml:6: error: base/notes: OPENS_WRITE: opens\u001b[2J (pattern crm/**, for example crm/-)`},
		"somebody was faster": {func(g *gate) {
			g.meanwhile = func(g *gate) { g.did = nil }
		}, "y\n", "somebody changed it since it was planned; nothing was changed; apply again to plan anew"},
	} {
		t.Run(name, func(t *testing.T) {
			g := stored()
			if c.change != nil {
				c.change(g)
			}
			var out strings.Builder
			terminal := &console.Terminal{Out: &out, In: strings.NewReader(c.answer), Asks: true}
			err := Apply(t.Context(), terminal, g.serve(t), load(t, applied), Options{})
			if err == nil || len(g.did) > 0 {
				t.Errorf("it gave %v and did %v", err, g.did)
			}
			if !strings.Contains(out.String()+err.Error(), c.want) {
				t.Errorf("%q is not in\n%s%v", c.want, &out, err)
			}
		})
	}
}

// What is exported is what is stored: applying it changes nothing.
func TestExportedAndApplied(t *testing.T) {
	g := stored()
	g.grants["gone"].Subject = "agent:gone"
	client := g.serve(t)
	var text strings.Builder
	if err := Export(t.Context(), &console.Terminal{Out: &text}, client); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := Apply(t.Context(), &console.Terminal{Out: &out}, client, load(t, text.String()), Options{Prune: true}); err != nil {
		t.Fatalf("%v\n%s\n%s", err, &out, &text)
	}
	if !strings.HasSuffix(out.String(), ", 5 unchanged\n") {
		t.Errorf("%s\n%s", &out, &text)
	}
}

func TestAPolicyDoesNotChangeWhomItIsFor(t *testing.T) {
	g := stored()
	g.policies["guests"] = &gatev1.Policy{PolicyId: "guests", Layer: gatev1.Layer_LAYER_AGENT, Target: "agent:other"}
	err := Apply(t.Context(), &console.Terminal{Out: &strings.Builder{}}, g.serve(t), load(t, applied), Options{Yes: true})
	if err == nil || !strings.Contains(err.Error(), "policies.yaml:7: policy guests is stored for somebody else") || len(g.did) > 0 {
		t.Errorf("it gave %v and did %v", err, g.did)
	}
}

func TestAnIdInTwoFiles(t *testing.T) {
	folder := t.TempDir()
	var paths []string
	for _, name := range []string{"a.yaml", "b.yaml"} {
		paths = append(paths, filepath.Join(folder, name))
		if err := os.WriteFile(paths[len(paths)-1], []byte("policies: [{id: base, layer: tenant}]"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load(paths); err == nil || !strings.Contains(err.Error(), "policy base stands in") {
		t.Errorf("it gave %v", err)
	}
}

func TestVerifyingAndTestingFiles(t *testing.T) {
	files := load(t, `policies:
  - id: base
    layer: tenant
    rules:
      - {id: broken, ask: [pay/**], when: input.amount >}
      - {id: fine, deny: [pay/refund]}
  - id: open
    layer: tenant
    rules:
      - {id: crm, allow: [crm/**]}
cases:
  - {name: "alice\u202e", caller: agent:alice, operation: crm/read, expect: allow}
`)
	var out strings.Builder
	if err := Verify(&console.Terminal{Out: &out}, files); !errors.Is(err, console.Failed) {
		t.Errorf("verify gave %v", err)
	}
	for _, says := range []string{"policies.yaml:5: error: base/broken: when: ", "policies.yaml:10: error: open/crm: OPENS_WRITE: ", "(pattern crm/**, for example crm/", "2 policies, 0 grants: 2 errors, 0 warnings"} {
		if !strings.Contains(out.String(), says) {
			t.Errorf("%q is not in\n%s", says, &out)
		}
	}
	out.Reset()
	files.Policies = files.Policies[1:]
	if err := Test(&console.Terminal{Out: &out}, files, false); !errors.Is(err, console.Failed) {
		t.Errorf("test gave %v", err)
	}
	if want := "--- FAIL: alice\\u202e\n    got  deny, reason NOT_GRANTED\n    want allow\nFAIL\t1 of 1 case failed\t"; !strings.HasPrefix(out.String(), want) {
		t.Errorf("shown is\n%s", &out)
	}
}

func TestAnExplanationAsItIsShown(t *testing.T) {
	var out strings.Builder
	ShowExplanation(&console.Terminal{Out: &out}, &gatev1.ExplainCheckResponse{
		Verdict: gatev1.Verdict_VERDICT_ASK, Reason: "RULE", Rule: "base/payments", GrantIds: []string{"alice"}, PolicyRevision: 12,
		Matches: []*gatev1.RuleMatch{
			{PolicyId: "base", RuleId: "payments", Layer: gatev1.Layer_LAYER_TENANT, Verdict: gatev1.Verdict_VERDICT_ASK, Predicate: gatev1.Predicate_PREDICATE_ERROR, PredicateError: "no such key\x1b", Counted: true},
			{PolicyId: "mine", RuleId: "all", Layer: gatev1.Layer_LAYER_AGENT, Target: "agent:alice", Verdict: gatev1.Verdict_VERDICT_ALLOW, Predicate: gatev1.Predicate_PREDICATE_NONE, WhyNot: "the tenant has not delegated this operation"},
		},
		Terms: &gatev1.Terms{OnTimeout: gatev1.OnTimeout_ON_TIMEOUT_ALLOW, NoteRequired: true, Approvers: []*gatev1.Approver{{Scope: "approval.decide.finance", Count: 2}}},
	})
	golden.Match(t, "explanation", out.String())
}

// What only the gate sets is no difference.
func TestPlansCompareMeaning(t *testing.T) {
	g := stored()
	p := proto.CloneOf(g.policies["base"])
	p.Revision, p.Updater = 0, ""
	p.Rules[0].Terms = &gatev1.Terms{} // the same as none
	files := &Files{}
	files.Policies = []*gatev1.Policy{p}
	plan, err := NewPlan(&Stored{Policies: g.policies, Grants: g.grants}, files, false)
	if err != nil || !plan.Empty() || plan.Left != 4 {
		t.Errorf("%+v, %v", plan, err)
	}
}

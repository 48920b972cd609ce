package policies

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"weir/cmd/internal/console"
	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
	"weir/internal/visible"
)

// Pending is the exit of an Apply that only planned, and has something to do.
const Pending console.Exit = 2

// Options of an Apply.
type Options struct {
	Yes   bool // go ahead without asking
	Prune bool // delete what is in no file
}

// Apply makes the stored policies and grants those of the files: it shows what would
// change, verifies it, asks, and does it. Where nobody can be asked it ends there, with
// Pending if there is something to do.
func Apply(ctx context.Context, t *console.Terminal, client gatev1.PolicyServiceClient, files *Files, o Options) error {
	stored, err := Fetch(ctx, client)
	if err != nil {
		return err
	}
	plan, err := NewPlan(stored, files, o.Prune)
	if err != nil {
		return err
	}
	plan.Show(t)
	if plan.Empty() {
		return nil
	}
	if err := plan.verify(ctx, t, client, files); err != nil {
		return err
	}
	if !o.Yes {
		yes, err := t.Confirm(ctx, "Apply this?")
		switch {
		case errors.Is(err, console.ErrNobodyToAsk):
			t.Printf("nothing was changed; --yes applies it\n")
			return Pending
		case err != nil:
			return err
		case !yes:
			t.Printf("nothing was changed\n")
			return console.Failed
		}
	}
	return plan.apply(ctx, t, client)
}

// verify asks the gate, which knows what operations there are and what is delegated,
// about all that is new before anything is changed.
func (p *Plan) verify(ctx context.Context, t *console.Terminal, client gatev1.PolicyServiceClient, files *Files) error {
	bad := 0
	for _, c := range p.changes {
		if c.after == nil {
			continue
		}
		answer, err := client.VerifyPolicy(ctx, &gatev1.VerifyPolicyRequest{Subject: &gatev1.VerifyPolicyRequest_Policy{Policy: c.after}})
		if fault.Is(err, fault.FieldInvalid) && len(fault.From(err).Violations()) > 0 {
			bad += len(compileErrors(t, files, c.after, err))
			continue
		}
		if err != nil {
			return err
		}
		for _, f := range answer.GetFindings() {
			if showFinding(t, files.Place(c.id, f.GetRuleId()), f) {
				bad++
			}
		}
	}
	if bad > 0 {
		t.Printf("%s nothing was changed\n", t.Red(count(bad, "error:", "errors:")))
		return console.Failed
	}
	return nil
}

// apply takes the steps, each against the revision that was planned with.
func (p *Plan) apply(ctx context.Context, t *console.Terminal, client gatev1.PolicyServiceClient) error {
	revisions := make(map[string]uint64)
	for _, c := range p.changes {
		revisions[key(c.policy(), c.id)] = max(c.before.GetRevision(), c.grantWas.GetRevision())
	}
	steps := p.steps()
	for i, s := range steps {
		if err := s.take(ctx, t, client, revisions); err != nil {
			done := "nothing was changed"
			if i > 0 {
				done = fmt.Sprintf("%d of %d steps were done, those that close first, so nothing is open that should not be", i, len(steps))
			}
			if fault.Is(err, fault.StateConflict) {
				done = "somebody changed it since it was planned; " + done + "; apply again to plan anew"
			}
			return fmt.Errorf("%s: %w\n  %s", s.name(), console.Explain(err), done)
		}
	}
	t.Printf("%s\n", t.Green("applied"))
	return nil
}

func key(isPolicy bool, id string) string { return fmt.Sprint(isPolicy, " ", id) }

func (s step) name() string {
	switch {
	case s.policy != nil && s.partly:
		return "policy " + s.policy.GetPolicyId() + ", what it closes"
	case s.policy != nil:
		return "policy " + s.policy.GetPolicyId()
	case s.deletedPolicy != nil:
		return "policy " + s.deletedPolicy.GetPolicyId() + ", deleted"
	case s.grant != nil && s.partly:
		return "grant " + s.grant.GetGrantId() + ", what it closes"
	case s.grant != nil:
		return "grant " + s.grant.GetGrantId()
	default:
		return "grant " + s.deletedGrant.GetGrantId() + ", deleted"
	}
}

// take keeps the revision for the next step of the same policy or grant; after a
// deletion there is none.
func (s step) take(ctx context.Context, t *console.Terminal, client gatev1.PolicyServiceClient, revisions map[string]uint64) error {
	switch {
	case s.policy != nil:
		at := key(true, s.policy.GetPolicyId())
		answer, err := client.PutPolicy(ctx, &gatev1.PutPolicyRequest{Policy: s.policy, ExpectedRevision: proto.Uint64(revisions[at])})
		if err != nil {
			return err
		}
		revisions[at] = answer.GetPolicy().GetRevision()
	case s.deletedPolicy != nil:
		at := key(true, s.deletedPolicy.GetPolicyId())
		_, err := client.DeletePolicy(ctx, &gatev1.DeletePolicyRequest{PolicyId: s.deletedPolicy.GetPolicyId(), ExpectedRevision: proto.Uint64(revisions[at])})
		if err != nil {
			return err
		}
		revisions[at] = 0
	case s.grant != nil:
		at := key(false, s.grant.GetGrantId())
		answer, err := client.PutGrant(ctx, &gatev1.PutGrantRequest{Grant: s.grant, ExpectedRevision: proto.Uint64(revisions[at])})
		if err != nil {
			return err
		}
		revisions[at] = answer.GetGrant().GetRevision()
		for _, pattern := range answer.GetUnmatchedOperations() {
			t.Printf("%s grant %s: no operation matches %s now\n", t.Yellow("warning:"), s.grant.GetGrantId(), visible.Text(pattern))
		}
	default:
		at := key(false, s.deletedGrant.GetGrantId())
		_, err := client.DeleteGrant(ctx, &gatev1.DeleteGrantRequest{GrantId: s.deletedGrant.GetGrantId(), ExpectedRevision: proto.Uint64(revisions[at])})
		if err != nil {
			return err
		}
		revisions[at] = 0
	}
	if !s.partly {
		t.Printf("%s\n", t.Dim(s.name()))
	}
	return nil
}

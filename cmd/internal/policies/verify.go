package policies

import (
	"context"
	"fmt"
	"strings"

	"weir/cmd/internal/console"
	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
	"weir/internal/visible"
	"weir/services/gate/policy"
)

// Verify says what is wrong with every policy and grant of the files. It needs no mesh,
// and so knows nothing of which operations exist. It is console.Failed where it found an
// error.
func Verify(t *console.Terminal, files *Files) error {
	errors, warnings := 0, 0
	for _, p := range files.Policies {
		if err := policy.Check(p, "policy"); err != nil {
			errors += len(compileErrors(t, files, p, err))
			continue // what does not compile can't be verified
		}
		for _, f := range files.Verify(p) {
			f.PolicyId = p.GetPolicyId()
			if showFinding(t, files.Place(p.GetPolicyId(), f.GetRuleId()), f) {
				errors++
			} else {
				warnings++
			}
		}
	}
	for _, g := range files.Grants {
		if err := policy.CheckGrant(g, "grant"); err != nil {
			for _, v := range fault.From(err).Violations() {
				errors++
				t.Printf("%s grant %s: %s: %s\n", t.Red("error:"), g.GetGrantId(), visible.Text(v.Field), visible.Text(v.Description))
			}
		}
	}
	t.Printf("%s, %s: %s, %s\n", count(len(files.Policies), "policy", "policies"), count(len(files.Grants), "grant", "grants"),
		count(errors, "error", "errors"), count(warnings, "warning", "warnings"))
	if errors > 0 {
		return console.Failed
	}
	return nil
}

// compileErrors shows each field that does not compile, at its rule.
func compileErrors(t *console.Terminal, files *Files, p *gatev1.Policy, err error) []fault.Violation {
	violations := fault.From(err).Violations()
	for _, v := range violations {
		ruleID, field := fieldRule(p, v.Field)
		t.Printf("%s: %s %s: %s: %s\n", visible.Text(files.Place(p.GetPolicyId(), ruleID)), t.Red("error:"),
			visible.Text(ruleName(p.GetPolicyId(), ruleID)), visible.Text(field), visible.Text(v.Description))
	}
	return violations
}

// VerifyStored verifies every revision that was ever stored of every policy that is in
// force. It is console.Failed where one has an error.
func VerifyStored(ctx context.Context, t *console.Terminal, client gatev1.PolicyServiceClient) error {
	stored, err := storedPolicies(ctx, client)
	if err != nil {
		return err
	}
	errors, revisions := 0, int32(0)
	for _, p := range stored {
		answer, err := client.VerifyPolicy(ctx, &gatev1.VerifyPolicyRequest{Subject: &gatev1.VerifyPolicyRequest_PolicyId{PolicyId: p.GetPolicyId()}})
		if err != nil {
			return err
		}
		revisions += answer.GetVerified()
		for _, f := range answer.GetFindings() {
			place := fmt.Sprintf("%s at revision %d", p.GetPolicyId(), f.GetRevision())
			if f.GetRevision() == p.GetRevision() {
				place += ", in force"
			}
			if showFinding(t, place, f) {
				errors++
			}
		}
	}
	t.Printf("%s, %s: %s\n", count(len(stored), "policy", "policies"), count(int(revisions), "revision", "revisions"), count(errors, "error", "errors"))
	if errors > 0 {
		return console.Failed
	}
	return nil
}

// showFinding says whether it was an error.
func showFinding(t *console.Terminal, place string, f *gatev1.Finding) bool {
	failed := f.GetSeverity() != gatev1.Severity_SEVERITY_WARNING
	severity := t.Yellow("warning:")
	if failed {
		severity = t.Red("error:")
	}
	var about []string
	if f.GetPattern() != "" {
		about = append(about, "pattern "+visible.Text(f.GetPattern()))
	}
	if f.GetOperation() != "" {
		about = append(about, "for example "+visible.Text(f.GetOperation()))
	}
	more := ""
	if len(about) > 0 {
		more = " (" + strings.Join(about, ", ") + ")"
	}
	t.Printf("%s: %s %s: %s: %s%s\n", visible.Text(place), severity, visible.Text(ruleName(f.GetPolicyId(), f.GetRuleId())),
		strings.TrimPrefix(f.GetKind().String(), "FINDING_KIND_"), visible.Text(f.GetMessage()), more)
	return failed
}

func ruleName(policyID, ruleID string) string {
	if ruleID == "" {
		return policyID
	}
	return policyID + "/" + ruleID
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

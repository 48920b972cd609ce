// Package policies is what `weir policy` does: it verifies, explains, tests and applies
// files of policies and grants.
package policies

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/visible"
	"weir/services/gate/policy"
)

// Files are policies, grants and cases of several files, as if they stood in one.
type Files struct {
	policy.File
	parts []*policy.File
}

// maxFileBytes is one more than what a file may have: enough for ParseFile to refuse it.
const maxFileBytes = 2<<20 + 1

// Load reads files and reports the problems of all of them. An id that stands in two is
// one of them: nobody could say which one should hold.
func Load(paths []string) (*Files, error) {
	all := &Files{}
	var problems []error
	seen := make(map[string]string)
	once := func(path, kind, id string) {
		if first, twice := seen[kind+id]; twice {
			problems = append(problems, fmt.Errorf("%s: %s %s stands in %s too", path, kind, id, first))
		}
		seen[kind+id] = path
	}
	for _, path := range paths {
		text, err := read(path)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		f, err := policy.ParseFile(path, text)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		for _, p := range f.Policies {
			once(path, "policy", p.GetPolicyId())
		}
		for _, g := range f.Grants {
			once(path, "grant", g.GetGrantId())
		}
		all.Policies = append(all.Policies, f.Policies...)
		all.Grants = append(all.Grants, f.Grants...)
		all.Cases = append(all.Cases, f.Cases...)
		all.parts = append(all.parts, f)
	}
	if len(problems) > 0 {
		// They repeat keys of the files, whatever those are.
		return nil, errors.New(visible.Lines(errors.Join(problems...).Error()))
	}
	return all, nil
}

func read(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxFileBytes))
}

// Place is `file:line` of a policy's rule; the policy's id where it is in no file.
func (f *Files) Place(policyID, ruleID string) string {
	for _, part := range f.parts {
		if place := part.Place(policyID, ruleID); place != "" {
			return place
		}
	}
	return policyID
}

// Verify says what is wrong with one of the files' policies that compiles. What the
// tenant delegates is known only where the files say what holds for the tenant.
func (f *Files) Verify(p *gatev1.Policy) []*gatev1.Finding {
	var delegated map[string]bool
	for _, tenant := range f.Policies {
		if tenant.GetLayer() != gatev1.Layer_LAYER_TENANT {
			continue
		}
		if delegated == nil {
			delegated = make(map[string]bool)
		}
		for _, name := range tenant.GetDelegatedOperations() {
			delegated[name] = true
		}
	}
	return policy.Verify(p, policy.Environment{Delegated: delegated, NeverTrue: policy.NeverTrue})
}

// Book compiles the files, and nothing that is stored.
func (f *Files) Book() (*policy.Book, error) { return policy.NewBook(0, f.Policies, f.Grants) }

// ruleField is how an error about a policy names one of its rules.
var ruleField = regexp.MustCompile(`^policy\.rules\[([0-9]+)\]\.?`)

// fieldRule is the rule that a field of a policy is in, and the rest of the field.
func fieldRule(p *gatev1.Policy, field string) (ruleID, rest string) {
	parts := ruleField.FindStringSubmatch(field)
	if parts == nil {
		return "", field
	}
	if i, err := strconv.Atoi(parts[1]); err == nil && i < len(p.GetRules()) {
		ruleID = p.GetRules()[i].GetRuleId()
	}
	return ruleID, field[len(parts[0]):]
}

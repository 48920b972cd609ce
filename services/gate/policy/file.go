package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
)

// File is what a YAML file for people holds: policies, grants, and cases that say what
// they should decide. policy.schema.json describes the form; as protocol buffers, it is
// what the gate takes.
type File struct {
	Policies []*gatev1.Policy
	Grants   []*gatev1.Grant
	Cases    []*gatev1.Case

	// places are where policies and rules begin, as `policy` and `policy/rule`.
	places map[string]string
}

// Place is `file:line` of a rule, or of a policy where the rule is empty or unknown;
// empty for what the file does not hold.
func (f *File) Place(policyID, ruleID string) string {
	if place, known := f.places[policyID+"/"+ruleID]; known {
		return place
	}
	return f.places[policyID]
}

// FileError is a problem of a file.
type FileError struct {
	File         string
	Line, Column int
	Field        string // such as policies[0].rules[2].ttl; empty where it is the file
	Message      string
}

func (e FileError) Error() string {
	field := ""
	if e.Field != "" {
		field = e.Field + ": "
	}
	return fmt.Sprintf("%s:%d:%d: %s%s", e.File, e.Line, e.Column, field, e.Message)
}

// FileErrors are all problems that were found, in the order of the file.
type FileErrors []FileError

// maxFileErrors is how many problems are reported: what is wrong with one is often wrong
// with all that follow.
const maxFileErrors = 50

func (e FileErrors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// ParseFile reads a file. Nothing in it is ignored: what is not understood is an error,
// since a misspelt key in a policy must not be a gate that is missing. Whether the rules
// compile and are safe is for NewBook and Verify. The error is FileErrors.
func ParseFile(name string, data []byte) (*File, error) {
	r := &fileReader{name: name, file: &File{places: make(map[string]string)}}
	if root := r.readYAML(data); root != nil {
		r.root(root)
	}
	if len(r.problems) > 0 {
		slices.SortStableFunc(r.problems, func(a, b FileError) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		return nil, r.problems
	}
	return r.file, nil
}

// fileReader makes a File of yamlNodes, and collects what is wrong.
type fileReader struct {
	name     string
	file     *File
	problems FileErrors
}

func (r *fileReader) fail(n *yamlNode, at, format string, args ...any) {
	if len(r.problems) < maxFileErrors {
		r.problems = append(r.problems, FileError{r.name, n.line, n.column, at, fmt.Sprintf(format, args...)})
	}
}

func (r *fileReader) place(n *yamlNode) string { return fmt.Sprintf("%s:%d", r.name, n.line) }

// The most that one file holds is what one TestPolicy takes.
const (
	maxFilePolicies = 100
	maxFileGrants   = 1000
	maxFileCases    = 1000
)

func (r *fileReader) root(n *yamlNode) {
	policies, grants, cases := unique{}, unique{}, unique{}
	r.mapping(n, "", fields{
		"policies": func(n *yamlNode, at string) {
			r.list(n, at, 0, maxFilePolicies, func(n *yamlNode, at string) {
				p := r.policy(n, at)
				r.once(policies, n, join(at, "id"), p.GetPolicyId())
				r.file.Policies = append(r.file.Policies, p)
			})
		},
		"grants": func(n *yamlNode, at string) {
			r.list(n, at, 0, maxFileGrants, func(n *yamlNode, at string) {
				g := r.grant(n, at)
				r.once(grants, n, join(at, "id"), g.GetGrantId())
				r.file.Grants = append(r.file.Grants, g)
			})
		},
		"cases": func(n *yamlNode, at string) {
			r.list(n, at, 0, maxFileCases, func(n *yamlNode, at string) {
				c := r.testCase(n, at)
				r.once(cases, n, join(at, "name"), c.GetName())
				r.file.Cases = append(r.file.Cases, c)
			})
		},
	})
}

func (r *fileReader) policy(n *yamlNode, at string) *gatev1.Policy {
	p := &gatev1.Policy{}
	rules := unique{}
	layer := func(layer gatev1.Layer, shape textShape) func(*yamlNode, string) {
		return func(n *yamlNode, at string) { p.Layer, p.Target = layer, r.text(n, at, shape) }
	}
	ruleNodes := make(map[string]*yamlNode)
	r.mapping(n, at, fields{
		"id": func(n *yamlNode, at string) { p.PolicyId = r.text(n, at, idText) },
		"layer": func(n *yamlNode, at string) {
			p.Layer = choice(r, n, at, []string{"tenant"}, gatev1.Layer_LAYER_TENANT)
		},
		"agent":       layer(gatev1.Layer_LAYER_AGENT, agentText),
		"session":     layer(gatev1.Layer_LAYER_SESSION, sessionText),
		"description": func(n *yamlNode, at string) { p.Description = r.text(n, at, textShape{max: 2000}) },
		"confined":    func(n *yamlNode, at string) { p.Confined = r.flag(n, at) },
		"delegates": func(n *yamlNode, at string) {
			p.DelegatedOperations = r.texts(n, at, 0, 1000, operationText, false)
		},
		"budgets": func(n *yamlNode, at string) { p.Budgets = r.budgets(n, at) },
		"rules": func(n *yamlNode, at string) {
			r.list(n, at, 0, 1000, func(n *yamlNode, at string) {
				rule := r.rule(n, at)
				r.once(rules, n, join(at, "id"), rule.GetRuleId())
				ruleNodes[rule.GetRuleId()] = n
				p.Rules = append(p.Rules, rule)
			})
		},
	}, "id")
	r.oneOf(n, at, map[string][]string{
		"layer": {"confined"}, "agent": {"delegates", "budgets"}, "session": {"delegates", "budgets"},
	})
	r.file.places[p.GetPolicyId()] = r.place(n)
	for id, rule := range ruleNodes {
		r.file.places[p.GetPolicyId()+"/"+id] = r.place(rule)
	}
	return p
}

func (r *fileReader) budgets(n *yamlNode, at string) *gatev1.Budgets {
	b := &gatev1.Budgets{}
	r.mapping(n, at, fields{
		"per_operation": func(n *yamlNode, at string) { b.PerOperation = r.window(n, at) },
		"per_caller":    func(n *yamlNode, at string) { b.PerCaller = r.window(n, at) },
		"per_tenant":    func(n *yamlNode, at string) { b.PerTenant = r.window(n, at) },
	})
	return b
}

func (r *fileReader) rule(n *yamlNode, at string) *gatev1.Rule {
	rule := &gatev1.Rule{}
	var terms gatev1.Terms
	asked := false
	says := func(verdict gatev1.Verdict) func(*yamlNode, string) {
		return func(n *yamlNode, at string) {
			rule.Verdict, rule.Operations = verdict, r.texts(n, at, 1, 100, patternShape, false)
		}
	}
	term := func(read func(*yamlNode, string)) func(*yamlNode, string) {
		return func(n *yamlNode, at string) { asked = true; read(n, at) }
	}
	r.mapping(n, at, fields{
		"id":           func(n *yamlNode, at string) { rule.RuleId = r.text(n, at, idText) },
		"ask":          says(gatev1.Verdict_VERDICT_ASK),
		"allow":        says(gatev1.Verdict_VERDICT_ALLOW),
		"deny":         says(gatev1.Verdict_VERDICT_DENY),
		"effects":      func(n *yamlNode, at string) { rule.Effects = r.effects(n, at) },
		"when":         func(n *yamlNode, at string) { rule.When = r.text(n, at, textShape{max: 2000}) },
		"why":          func(n *yamlNode, at string) { rule.Description = r.text(n, at, textShape{max: 500}) },
		"allow_writes": func(n *yamlNode, at string) { rule.AllowWrites = r.flag(n, at) },
		"budget":       func(n *yamlNode, at string) { rule.Budget = r.window(n, at) },
		"approvers": term(func(n *yamlNode, at string) {
			r.list(n, at, 1, 10, func(n *yamlNode, at string) { terms.Approvers = append(terms.Approvers, r.approver(n, at)) })
		}),
		"ttl": term(func(n *yamlNode, at string) { terms.Ttl = r.duration(n, at, 30*24*time.Hour) }),
		"on_timeout": term(func(n *yamlNode, at string) {
			terms.OnTimeout = choice(r, n, at, timeoutNames, gatev1.OnTimeout_ON_TIMEOUT_DENY,
				gatev1.OnTimeout_ON_TIMEOUT_WAIT, gatev1.OnTimeout_ON_TIMEOUT_ALLOW)
		}),
		"note": term(func(n *yamlNode, at string) { terms.NoteRequired = choice(r, n, at, []string{"required"}, true) }),
	}, "id")
	r.oneOf(n, at, map[string][]string{
		"ask": {"budget"}, "allow": {"approvers", "ttl", "on_timeout", "note"},
		"deny": {"approvers", "ttl", "on_timeout", "note", "budget", "allow_writes"},
	})
	if asked {
		rule.Terms = &terms
	}
	return rule
}

var (
	effectNames  = []string{"read", "write", "admin"}
	timeoutNames = []string{"deny", "wait", "allow"}
)

func (r *fileReader) effects(n *yamlNode, at string) []registryv1.Effect {
	var effects []registryv1.Effect
	seen := unique{}
	r.list(n, at, 1, 3, func(n *yamlNode, at string) {
		r.once(seen, n, at, n.text)
		effects = append(effects, r.effect(n, at))
	})
	return effects
}

func (r *fileReader) effect(n *yamlNode, at string) registryv1.Effect {
	return choice(r, n, at, effectNames, registryv1.Effect_EFFECT_READ, registryv1.Effect_EFFECT_WRITE, registryv1.Effect_EFFECT_ADMIN)
}

func (r *fileReader) approver(n *yamlNode, at string) *gatev1.Approver {
	a := &gatev1.Approver{}
	r.mapping(n, at, fields{
		"scope":  func(n *yamlNode, at string) { a.Scope = r.text(n, at, scopeText) },
		"count":  func(n *yamlNode, at string) { a.Count = r.whole(n, at, 1, 10) },
		"people": func(n *yamlNode, at string) { a.People = r.texts(n, at, 1, 100, personText, true) },
	}, "scope")
	return a
}

func (r *fileReader) grant(n *yamlNode, at string) *gatev1.Grant {
	g := &gatev1.Grant{}
	r.mapping(n, at, fields{
		"id":         func(n *yamlNode, at string) { g.GrantId = r.text(n, at, idText) },
		"subject":    func(n *yamlNode, at string) { g.Subject = r.text(n, at, subjectText) },
		"operations": func(n *yamlNode, at string) { g.Operations = r.texts(n, at, 1, 100, patternShape, false) },
	}, "id", "subject", "operations")
	return g
}

// window reads `60/1m`.
func (r *fileReader) window(n *yamlNode, at string) *gatev1.Window {
	text := r.text(n, at, windowText)
	count, period, ok := strings.Cut(text, "/")
	if !ok {
		return nil // said already
	}
	w := &gatev1.Window{Period: r.period(n, at, period, 24*time.Hour)}
	if _, err := fmt.Sscan(count, &w.Limit); err != nil || w.Limit < 1 || w.Limit > 100_000 {
		r.fail(n, at, "the number of writes must be 1 to 100000")
	}
	return w
}

func (r *fileReader) duration(n *yamlNode, at string, most time.Duration) *durationpb.Duration {
	text := r.text(n, at, durationText)
	if text == "" {
		return nil // said already
	}
	return r.period(n, at, text, most)
}

func (r *fileReader) period(n *yamlNode, at, text string, most time.Duration) *durationpb.Duration {
	d, err := parsePeriod(text)
	if err != nil || d < time.Second || d > most {
		r.fail(n, at, "%s: must be 1s to %s", text, formatPeriod(most))
	}
	return durationpb.New(d)
}

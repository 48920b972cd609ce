package engines

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
)

// opa is a query that was compiled once.
type opa struct{ query rego.PreparedEvalQuery }

// opaVerdict brings together what rules say. ASK is an outcome of its own here.
const opaVerdict = `package weir

default verdict := "ask"

verdict := "deny" if deny
else := "ask" if ask
else := "allow" if allow
`

// newOPARules writes each rule as one of Rego. OPA indexes what they compare with
// the input, so it evaluates only those that could hold. That goes for equality
// and not for a `*` within a segment, so patterns compare segment by segment.
func newOPARules(rules []Rule) (Engine, error) {
	var module strings.Builder
	module.WriteString(opaVerdict)
	for _, r := range rules {
		module.WriteString(opaRule(r))
	}
	return newOPA(module.String(), nil)
}

func opaRule(r Rule) string {
	if !r.exact() {
		return opaPattern(r)
	}
	if r.Below > 0 {
		return fmt.Sprintf("\n%s if {\n\tinput.operation == %q\n\tinput.amount < %d\n}\n", r.Verdict, r.Pattern, r.Below)
	}
	return fmt.Sprintf("\n%s if input.operation == %q\n", r.Verdict, r.Pattern)
}

func opaPattern(r Rule) string {
	var literal, within []string
	segments := strings.Split(r.Pattern, "/")
	for i, segment := range segments {
		before, after, wild := strings.Cut(segment, "*")
		switch {
		case !wild:
			literal = append(literal, fmt.Sprintf("input.segments[%d] == %q", i, segment))
		case before == "" && after == "":
		case after == "":
			within = append(within, fmt.Sprintf("startswith(input.segments[%d], %q)", i, before))
		case before == "":
			within = append(within, fmt.Sprintf("endswith(input.segments[%d], %q)", i, after))
		default:
			within = append(within, fmt.Sprintf("glob.match(%q, [], input.segments[%d])", segment, i))
		}
	}
	literal = append(literal, fmt.Sprintf("count(input.segments) == %d", len(segments)))
	return fmt.Sprintf("\n%s if {\n\t%s\n}\n", r.Verdict, strings.Join(append(literal, within...), "\n\t"))
}

// newOPAData keeps rules as data: exact names are looked up in an object, and
// the patterns of a verdict tried one by one.
func newOPAData(rules []Rule) (Engine, error) {
	var module strings.Builder
	module.WriteString(opaVerdict)
	exact := make(map[string]any)
	lists := map[Verdict][]any{Deny: {}, Ask: {}, Allow: {}}
	for _, r := range rules {
		switch {
		case r.Below > 0:
			module.WriteString(opaRule(r)) // a predicate is no data
		case r.exact():
			exact[r.Pattern] = string(r.Verdict)
		default:
			lists[r.Verdict] = append(lists[r.Verdict], r.Pattern)
		}
	}
	patterns := make(map[string]any)
	for verdict, list := range lists {
		fmt.Fprintf(&module, `
%[1]s if data.exact[input.operation] == %[1]q

%[1]s if {
	some pattern in data.patterns.%[1]s
	glob.match(pattern, ["/"], input.operation)
}
`, verdict)
		patterns[string(verdict)] = list
	}
	data := map[string]any{"exact": exact, "patterns": patterns}
	return newOPA(module.String(), inmem.NewFromObjectWithOpts(data, inmem.OptReturnASTValuesOnRead(true)))
}

func newOPA(module string, store storage.Store) (Engine, error) {
	options := []func(*rego.Rego){rego.Query("data.weir.verdict"), rego.Module("weir.rego", module)}
	if store != nil {
		options = append(options, rego.Store(store))
	}
	query, err := rego.New(options...).PrepareForEval(context.Background())
	if err != nil {
		return nil, err
	}
	return opa{query}, nil
}

func (o opa) Question(operation string, amount int) (Question, error) {
	// A parsed input spares every evaluation its conversion.
	input, err := ast.InterfaceToValue(map[string]any{"operation": operation, "segments": strings.Split(operation, "/"), "amount": amount})
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	return func() (bool, error) {
		results, err := o.query.Eval(ctx, rego.EvalParsedInput(input))
		if err != nil {
			return false, err
		}
		if len(results) != 1 || len(results[0].Expressions) != 1 {
			return false, errors.New("the policy gives no verdict")
		}
		return results[0].Expressions[0].Value == string(Allow), nil
	}, nil
}

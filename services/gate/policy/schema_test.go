package policy

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func compileFileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("policy.schema.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("policy.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// taken says whether the schema takes a text, read as an editor would read it.
func taken(t *testing.T, schema *jsonschema.Schema, text string) bool {
	t.Helper()
	r := &fileReader{name: "test.yaml"}
	root := r.readYAML([]byte(text))
	if root == nil {
		t.Fatalf("%s\n%v", text, r.problems)
	}
	var b strings.Builder
	writeJSON(&b, root)
	instance, err := jsonschema.UnmarshalJSON(strings.NewReader(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return schema.Validate(instance) == nil
}

// The parts of documents that are right, and what makes each wrong. A good part is one
// that both take; of a bad one both say so.
var shapes = []struct {
	name      string
	form      string // where `@` stands for the part
	good, bad []string
}{
	{
		"document", "@",
		[]string{"{}", "policies: []", "grants: []", "cases: []", "{policies: [], grants: [], cases: []}"},
		[]string{"[]", "1", "text", "null", "policy: []", "policies: {}", "policies: null", "grants: [1]"},
	},
	{
		"policy", "policies: [@]",
		[]string{
			"{id: a, layer: tenant}", "{id: A.b-c_9, agent: agent:alice}", "{id: a, session: s-1}",
			"{id: a, layer: tenant, description: x, delegates: [a/b], budgets: {}, rules: []}",
			"{id: a, agent: agent:x, confined: true}", "{id: a, session: s, confined: false}",
			"{id: a, layer: tenant, budgets: {per_operation: 1/1s, per_caller: 100000/1d, per_tenant: 5/1h30m}}",
			"{id: a, layer: tenant, delegates: []}",
		},
		[]string{
			"{}", "null", "{id: a}", "{layer: tenant}", "{id: '', layer: tenant}", "{id: 1, layer: tenant}", "{id: -a, layer: tenant}",
			"{id: a, layer: agent}", "{id: a, layer: Tenant}", "{id: a, layer: tenant, agent: agent:alice}",
			"{id: a, agent: human:alice}", "{id: a, agent: alice}", "{id: a, session: a b}", "{id: a, session: ''}", "{id: a, session: 5}",
			"{id: a, layer: tenant, confined: true}", "{id: a, agent: agent:x, confined: yes}",
			"{id: a, agent: agent:x, delegates: [a/b]}", "{id: a, session: s, budgets: {}}",
			"{id: a, layer: tenant, delegates: [a/*]}", "{id: a, layer: tenant, delegates: [a]}", "{id: a, layer: tenant, delegates: a/b}",
			"{id: a, layer: tenant, description: ''}", "{id: a, layer: tenant, description: null}", "{id: a, layer: tenant, Rules: []}",
			"{id: a, layer: tenant, budgets: {per_day: 1/1d}}", "{id: a, layer: tenant, budgets: {per_caller: 60}}",
			"{id: a, layer: tenant, budgets: {per_caller: 0/1m}}", "{id: a, layer: tenant, budgets: {per_caller: 1/m}}",
			"{id: a, layer: tenant, revision: 3}", "{id: " + strings.Repeat("a", 65) + ", layer: tenant}",
		},
	},
	{
		"rule", "policies: [{id: a, layer: tenant, rules: [@]}]",
		[]string{
			"{id: a, ask: [pay/**]}", "{id: a, allow: ['*/read', a/b]}", "{id: a, deny: ['*/*', '*/**', a*b/*c*/d-e_f]}",
			"{id: a, ask: [a/b], effects: [read, write, admin], when: x > 1, why: because}",
			"{id: a, ask: [a/b], ttl: 30m, on_timeout: wait, note: required, allow_writes: true}",
			"{id: a, allow: [a/b], allow_writes: false, budget: 10/1m}",
			"{id: a, ask: [a/b], ttl: 1d2h3m4.5s}", "{id: a, ask: [a/b], ttl: 90s}",
			"{id: a, ask: [a/b], approvers: [{scope: approval.decide}, {scope: approval.decide.a.b-c, count: 10, people: [human:carol]}]}",
			"{id: a, ask: [a/b], approvers: [{scope: approval.decide, count: 2.0}]}",
		},
		[]string{
			"{id: a}", "{ask: [a/b]}", "{id: a, ask: []}", "{id: a, ask: a/b}", "{id: a, ask: [a/b], deny: [a/c]}", "{id: a, verdict: ask, operations: [a/b]}",
			"{id: a, ask: [a]}", "{id: a, ask: [a/]}", "{id: a, ask: [/a]}", "{id: a, ask: [a//b]}", "{id: a, ask: ['**/a']}", "{id: a, ask: [a/b**]}",
			"{id: a, ask: ['**']}", "{id: a, ask: [A/b]}", "{id: a, ask: [a/ä]}", "{id: a, ask: ['a/b ']}", `{id: a, ask: ["a/b\n"]}`,
			"{id: a, ask: [a/b], effects: []}", "{id: a, ask: [a/b], effects: [read, read]}", "{id: a, ask: [a/b], effects: read}", "{id: a, ask: [a/b], effects: [WRITE]}",
			"{id: a, ask: [a/b], when: ''}", "{id: a, ask: [a/b], when: true}", "{id: a, ask: [a/b], why: 5}",
			"{id: a, ask: [a/b], ttl: 30}", "{id: a, ask: [a/b], ttl: 30 m}", "{id: a, ask: [a/b], ttl: ''}", "{id: a, ask: [a/b], ttl: 1m1h}", "{id: a, ask: [a/b], ttl: d}",
			"{id: a, ask: [a/b], on_timeout: never}", "{id: a, ask: [a/b], note: true}", "{id: a, ask: [a/b], note: optional}",
			"{id: a, ask: [a/b], budget: 1/1m}", "{id: a, allow: [a/b], ttl: 1m}", "{id: a, allow: [a/b], note: required}", "{id: a, allow: [a/b], on_timeout: deny}",
			"{id: a, allow: [a/b], approvers: [{scope: approval.decide}]}", "{id: a, deny: [a/b], allow_writes: true}",
			"{id: a, deny: [a/b], ttl: 1m}", "{id: a, deny: [a/b], on_timeout: deny}", "{id: a, deny: [a/b], note: required}", "{id: a, deny: [a/b], approvers: [{scope: approval.decide}]}",
			"{id: a, deny: [a/b], budget: 1/1m}",
			"{id: a, ask: [a/b], approvers: []}", "{id: a, ask: [a/b], approvers: [{}]}", "{id: a, ask: [a/b], approvers: [approval.decide]}",
			"{id: a, ask: [a/b], approvers: [{scope: approval}]}", "{id: a, ask: [a/b], approvers: [{scope: approval.decide.}]}",
			"{id: a, ask: [a/b], approvers: [{scope: approval.decide, count: 0}]}", "{id: a, ask: [a/b], approvers: [{scope: approval.decide, count: 11}]}",
			"{id: a, ask: [a/b], approvers: [{scope: approval.decide, count: 1.5}]}", "{id: a, ask: [a/b], approvers: [{scope: approval.decide, count: '1'}]}",
			"{id: a, ask: [a/b], approvers: [{scope: approval.decide, people: [agent:a]}]}", "{id: a, ask: [a/b], approvers: [{scope: approval.decide, people: []}]}",
			"{id: a, ask: [a/b], approvers: [{scope: approval.decide, people: [human:a, human:a]}]}",
			"{id: a, ask: [a/" + strings.Repeat("b", 255) + "]}",
		},
	},
	{
		"grant", "grants: [@]",
		[]string{"{id: a, subject: agent:a, operations: [a/**]}", "{id: a, subject: service:s, operations: [a/b, a/b]}"},
		[]string{
			"{id: a, subject: agent:a}", "{id: a, operations: [a/b]}", "{subject: agent:a, operations: [a/b]}", "{id: a, subject: robot:a, operations: [a/b]}",
			"{id: a, subject: agent:a, operations: []}", "{id: a, subject: agent:a, operations: [a]}", "{id: a, subject: agent:a, operations: [a/b], ttl: 1h}",
		},
	},
	{
		"case", "cases: [{name: n, operation: a/b, @}]",
		[]string{
			"caller: agent:a, expect: allow", "caller: {subject: human:h}, expect: {verdict: deny}",
			"caller: {subject: agent:a, session: s, confined: true, on_behalf_of: [human:h]}, expect: {verdict: ask, rule: a/b, reason: RULE}",
			"caller: agent:a, expect: ask, effect: admin, conversation: c, target: d, now: '2026-01-02T03:04:05.5+02:00'",
			"caller: agent:a, expect: ask, input: null", "caller: agent:a, expect: ask, input: {a: [1, {}]}", "caller: agent:a, expect: ask, input: 0",
			"caller: {subject: agent:a, on_behalf_of: []}, expect: deny",
		},
		[]string{
			"caller: agent:a", "expect: ask", "caller: a, expect: ask", "caller: {}, expect: ask", "caller: null, expect: ask", "caller: agent:a, expect: maybe",
			"caller: agent:a, expect: {}", "caller: agent:a, expect: {rule: a/b}", "caller: agent:a, expect: {verdict: ask, rule: a}",
			"caller: agent:a, expect: {verdict: ask, reason: rule}", "caller: agent:a, expect: ask, effect: none", "caller: agent:a, expect: ask, now: today",
			"caller: agent:a, expect: ask, now: 2026-01-02", "caller: agent:a, expect: ask, conversation: a/b", "caller: agent:a, expect: ask, inputs: {}",
			"caller: {subject: agent:a, session: ''}, expect: ask", "caller: {subject: agent:a, scopes: []}, expect: ask", "caller: [agent:a], expect: ask", "caller: agent:a, expect: [ask]",
		},
	},
}

func TestTheSchemaTakesWhatTheParserTakes(t *testing.T) {
	schema := compileFileSchema(t)
	check := func(text string, want bool) {
		_, err := ParseFile("test.yaml", []byte(text))
		if parsed, valid := err == nil, taken(t, schema, text); parsed != want || valid != want {
			t.Errorf("%s\nparser: %v, schema: %v, want both %v (%v)", text, parsed, valid, want, err)
		}
	}
	for _, shape := range shapes {
		for _, part := range shape.good {
			check(strings.Replace(shape.form, "@", part, 1), true)
		}
		for _, part := range shape.bad {
			check(strings.Replace(shape.form, "@", part, 1), false)
		}
	}
	full, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	check(string(full), true)
}

// What no schema can say, the parser says.
func TestBeyondTheSchema(t *testing.T) {
	schema := compileFileSchema(t)
	for _, text := range []string{
		"policies: [{id: a, layer: tenant}, {id: a, agent: agent:a}]",
		"policies: [{id: a, layer: tenant, rules: [{id: a, ask: [a/b]}, {id: a, deny: [a/b]}]}]",
		"grants: [{id: a, subject: agent:a, operations: [a/b]}, {id: a, subject: agent:b, operations: [a/b]}]",
		"cases: [{name: a, caller: agent:a, operation: a/b, expect: ask}, {name: a, caller: agent:b, operation: a/b, expect: ask}]",
		"cases: [{name: a, caller: agent:a, operation: a/b, expect: ask, now: '2026-02-30T00:00:00Z'}]",
		"cases: [{name: a, caller: agent:a, operation: a/b, expect: ask, input: 9007199254740993}]",
		"policies: [{id: a, layer: tenant, rules: [{id: a, ask: [a/b], ttl: 0.5s}]}]",
		"policies: [{id: a, layer: tenant, rules: [{id: a, ask: [a/b], ttl: 31d}]}]",
		"policies: [{id: a, layer: tenant, rules: [{id: a, allow: [a/b], budget: 1/2d}]}]",
		"policies: [{id: a, layer: tenant, rules: [{id: a, allow: [a/b], budget: 100001/1d}]}]",
	} {
		if _, err := ParseFile("test.yaml", []byte(text)); err == nil || !taken(t, schema, text) {
			t.Errorf("%s\nparser: %v", text, err)
		}
	}
}

// Schema and parser have each regular expression and each bound once; they are the same.
func TestTheSchemaHasTheParsersTexts(t *testing.T) {
	var schema struct {
		Definitions map[string]struct {
			Pattern   string
			MaxLength int
		}
	}
	if err := json.Unmarshal(Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	for name, shape := range map[string]textShape{
		"id": idText, "subject": subjectText, "operation": operationText, "pattern": patternShape, "window": windowText, "period": durationText,
	} {
		if d := schema.Definitions[name]; d.Pattern != shape.shape.String() || d.MaxLength != shape.max {
			t.Errorf("%s: the schema says %s, %d; the parser %s, %d", name, d.Pattern, d.MaxLength, shape.shape, shape.max)
		}
	}
}

// A pattern that the file's form takes is one that compiles, and the other way round.
func TestPatternsOfFilesCompile(t *testing.T) {
	var texts func(prefix string, n int)
	texts = func(text string, n int) {
		_, err := compilePattern(text)
		if compiles := err == nil; compiles != patternShape.shape.MatchString(text) {
			t.Fatalf("%q: compiles: %v", text, compiles)
		}
		if n == 0 {
			return
		}
		for _, next := range "a-*/A" {
			texts(text+string(next), n-1)
		}
	}
	texts("", 7)
}

package policy

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
)

func parse(t testing.TB, text string) *File {
	t.Helper()
	f, err := ParseFile("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestAFileInFull(t *testing.T) {
	text, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f := parse(t, string(text))
	wantPolicies := []*gatev1.Policy{{
		PolicyId: "base", Layer: gatev1.Layer_LAYER_TENANT, Description: "What everybody may do.\nAsk Carol.",
		DelegatedOperations: []string{"crm/notes/add"},
		Budgets: &gatev1.Budgets{
			PerOperation: &gatev1.Window{Limit: 60, Period: durationpb.New(time.Minute)},
			PerTenant:    &gatev1.Window{Limit: 6000, Period: durationpb.New(time.Minute)},
		},
		Rules: []*gatev1.Rule{
			{
				RuleId: "payments", Verdict: gatev1.Verdict_VERDICT_ASK, Operations: []string{"pay/**"},
				Effects: []registryv1.Effect{registryv1.Effect_EFFECT_WRITE}, When: `input.amount > 100 || subject == "agent:bob"`,
				Description: "money leaves the house",
				Terms: &gatev1.Terms{
					Approvers: []*gatev1.Approver{
						{Scope: "approval.decide.finance", Count: 2},
						{Scope: "approval.decide.security", People: []string{"human:carol"}},
					},
					Ttl: durationpb.New(30 * time.Minute), OnTimeout: gatev1.OnTimeout_ON_TIMEOUT_DENY, NoteRequired: true,
				},
			},
			{
				RuleId: "notes", Verdict: gatev1.Verdict_VERDICT_ALLOW, Operations: []string{"crm/notes/add"}, AllowWrites: true,
				Budget: &gatev1.Window{Limit: 10, Period: durationpb.New(90 * time.Second)},
			},
		},
	}, {
		PolicyId: "guest", Layer: gatev1.Layer_LAYER_AGENT, Target: "agent:alice", Confined: true,
		Rules: []*gatev1.Rule{{RuleId: "none", Verdict: gatev1.Verdict_VERDICT_DENY, Operations: []string{"*/admin", "pay/**"}}},
	}}
	wantGrants := []*gatev1.Grant{{GrantId: "alice", Subject: "agent:alice", Operations: []string{"crm/**"}}}
	wantCases := []*gatev1.Case{
		{
			Name: "alice may read", Verdict: gatev1.Verdict_VERDICT_ALLOW,
			Check: &gatev1.DryRun{
				Caller: &gatev1.Caller{Subject: "agent:alice"}, Operation: "crm/read", Effect: registryv1.Effect_EFFECT_READ,
			},
		},
		{
			Name: "but not pay", Verdict: gatev1.Verdict_VERDICT_DENY, Rule: "guest/none", Reason: "RULE",
			Check: &gatev1.DryRun{
				Caller:    &gatev1.Caller{Subject: "agent:alice", Session: "s1", Confined: true, OnBehalfOf: []string{"human:boss"}},
				Operation: "pay/send", InputJson: proto.String(`{"amount":100.50,"to":["a",null,true],"big":1E+21}`),
				ConversationId: "talk", TargetConversationId: "other",
				Now: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
			},
		},
	}
	same(t, f.Policies, wantPolicies)
	same(t, f.Grants, wantGrants)
	same(t, f.Cases, wantCases)
	if got := f.Place("base", "notes"); got != "test.yaml:24" {
		t.Errorf("the rule stands at %s", got)
	}
	if f.Place("guest", "") != "test.yaml:28" || f.Place("guest", "gone") != "test.yaml:28" || f.Place("gone", "") != "" {
		t.Error("a policy stands elsewhere")
	}

	written, err := os.ReadFile("testdata/full.golden.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got := string(f.YAML()); got != string(written) {
		t.Errorf("written as\n%s", got)
	}
}

func same[M proto.Message](t testing.TB, got, want []M) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d, want %d", len(got), len(want))
		return
	}
	for i := range got {
		if !proto.Equal(got[i], want[i]) {
			t.Errorf("%d is\n%v\nwant\n%v", i, got[i], want[i])
		}
	}
}

func TestNoInputNullAndNothingInIt(t *testing.T) {
	const form = "cases:\n  - {name: a, caller: agent:a, operation: x/y, expect: ask%s}\n"
	for text, want := range map[string]string{
		"":                                  "none",
		", input: null":                     "null",
		", input: ~":                        "null",
		", input: {}":                       "{}",
		", input: []":                       "[]",
		`, input: ""`:                       `""`,
		", input: 0.1":                      "0.1",
		", input: -0":                       "-0",
		", input: 9007199254740992":         "9007199254740992",
		", input: 1e400":                    "refused",
		", input: 9007199254740993":         "refused",
		", input: 0.1000000000000000055511": "refused",
		", input: 0x1F":                     "refused",
		", input: 1_000":                    "refused",
		", input: .5":                       "refused",
		", input: +1":                       "refused",
		", input: 007":                      "refused",
		", input: .inf":                     "refused",
		", input: .nan":                     "refused",
		", input: {1: a}":                   "refused",
		", input: {a: 1, a: 2}":             "refused",
		", input: 1.2.3":                    `"1.2.3"`,
		", input: yes":                      `"yes"`,
		", input: '007'":                    `"007"`,
		", input: <b>":                      `"<b>"`,
		`, input: "\ud83d"`:                 "refused",
		`, input: "\U0001F600"`:             `"😀"`,
		", input: 2026-01-02":               `"2026-01-02"`,
		", input: !!int 3":                  "refused",
	} {
		f, err := ParseFile("test.yaml", fmt.Appendf(nil, form, text))
		got := "refused"
		switch {
		case err != nil:
		case f.Cases[0].Check.InputJson == nil:
			got = "none"
		default:
			got = f.Cases[0].GetCheck().GetInputJson()
		}
		if got != want {
			t.Errorf("%q is %s, want %s (%v)", text, got, want, err)
		}
	}
}

func TestEveryProblemIsSaidWithItsPlace(t *testing.T) {
	_, err := ParseFile("bad.yaml", []byte(`policies:
  - id: base
    layer: tenant
    rules:
      - id: a b
        ask: [pay]
        ttl: 31d
        approvres: []
      - id: b
        allow: [x/y]
        deny: [x/z]
        ttl: 1m
      - {id: c, ask: [a/b], approvers: [{scope: approval.decide, count: "2"}], budget: 1/1m}
      - id: b
        deny: [a/b]
        why:
grants:
  - id: 7
    subject: alice
polices: []
`))
	want := `bad.yaml:5:13: policies[0].rules[0].id: "a b" must be letters, digits, and . _ - after the first
bad.yaml:6:15: policies[0].rules[0].ask[0]: "pay" must be a pattern of two segments at least: lower-case letters, digits, _ - and * in a segment, ** as the last one
bad.yaml:7:14: policies[0].rules[0].ttl: 31d: must be 1s to 30d
bad.yaml:8:9: policies[0].rules[0].approvres: there is no such key; known are allow, allow_writes, approvers, ask, budget, deny, effects, id, note, on_timeout, ttl, when, why
bad.yaml:9:9: policies[0].rules[1]: exactly one of allow, ask, deny must be there
bad.yaml:13:73: policies[0].rules[2].approvers[0].count: this should be a number, and is text
bad.yaml:13:80: policies[0].rules[2].budget: this cannot stand beside ask
bad.yaml:14:9: policies[0].rules[3].id: "b" stands twice, first on line 9
bad.yaml:16:13: policies[0].rules[3].why: this is empty, and should be text; or leave it out
bad.yaml:18:5: grants[0]: operations is missing
bad.yaml:18:9: grants[0].id: this should be text; put 7 in quotes
bad.yaml:19:14: grants[0].subject: "alice" must be human:, agent: or service: and a name
bad.yaml:20:1: polices: there is no such key; known are cases, grants, policies`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v", err)
	}
}

func TestTextThatIsNoFile(t *testing.T) {
	for says, text := range map[string]string{
		"test.yaml:1:1: there is nothing in this file":                            "# later\n",
		"test.yaml:1:1: this should be a mapping, and is a list":                  "- a\n",
		"test.yaml:2:1: a file is one document":                                   "grants: []\n---\ngrants: []\n",
		"test.yaml:2:1: grants: this key stands twice, first on line 1":           "grants: []\ngrants: []\n",
		"test.yaml:2:1: this is not YAML: did not find expected ',' or ']'":       "grants: [\na: 1\n",
		"test.yaml:1:1: the file is not UTF-8":                                    "grants: \"\x9b\"\n",
		"a file is at most 2097152 bytes":                                         strings.Repeat("#", maxFileBytes+1),
		"test.yaml:1:1: this is not YAML: exceeded max depth of 10000":            strings.Repeat("[", 200_000),
		"this is nested deeper than 64":                                           strings.Repeat("- ", 200),
		"x":                                                                       "grants: [{id: a, subject: agent:a, operations: [*/admin]}]",
		"test.yaml:1:1: a key must be text":                                       "<<: {grants: []}\n",
		"test.yaml:1:9: grants: there are no tags here":                           "grants: !!seq []\n",
		"there must be 0 to 1000, and there are 1001":                             "grants: [" + strings.Repeat("0, ", 1001) + "]",
		"the file has more than 200000 values, with those that aliases repeat":    bomb(),
		"this is not YAML: unknown anchor 'a' referenced":                         "grants: [*a, &a {}]",
		"test.yaml:1:13: grants[0]: &a holds itself":                              "grants: &a [*a]",
		"test.yaml:1:12: policies[0]: exactly one of agent, layer, session must ": "policies: [{id: a}]",
	} {
		_, err := ParseFile("test.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q is not said, but %v", says, err)
		}
	}
}

// bomb is 2¹⁵ values at every level of five.
func bomb() string {
	var b strings.Builder
	b.WriteString("cases:\n- input:\n  - &l0 [x,x,x,x,x,x,x,x]\n")
	for i := range 6 {
		fmt.Fprintf(&b, "  - &l%d [%s]\n", i+1, strings.Repeat(fmt.Sprintf("*l%d,", i), 8))
	}
	return b.String()
}

func TestAliasesRepeat(t *testing.T) {
	f := parse(t, `grants:
  - {id: a, subject: agent:a, operations: &reads [crm/**, "*/read"]}
  - {id: b, subject: agent:b, operations: *reads}
`)
	if got := f.Grants[1].GetOperations(); len(got) != 2 || got[1] != "*/read" {
		t.Errorf("the second has %v", got)
	}
}

func TestPeriods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(365*24*time.Hour)).Draw(t, "d"))
		if rapid.Bool().Draw(t, "whole") {
			d = d.Truncate(time.Minute)
		}
		text := formatPeriod(d)
		if !durationText.shape.MatchString(text) {
			t.Fatalf("%q is no period", text)
		}
		if back, err := parsePeriod(text); back != d || err != nil {
			t.Fatalf("%v is %q is %v (%v)", d, text, back, err)
		}
	})
	for _, text := range []string{"", "5", "1w", "1m1h", "-1s", "1.5h", "1 h", "s", "1s1s"} {
		if durationText.shape.MatchString(text) {
			t.Errorf("%q is a period", text)
		}
	}
}

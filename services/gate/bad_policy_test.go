package gate

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/fault"
	"weir/internal/meshtest"
	"weir/internal/strictjson"
)

var policyFields = []badRequest{
	{field: "policy_id", reason: fault.IDMalformed, values: required(ids)},
	{field: "layer", reason: fault.FieldInvalid, values: append(enums(false), badValue{"a layer to come", protoreflect.EnumNumber(100), "defined"})},
	{field: "target", reason: fault.FieldInvalid, values: over(128)},
	{field: "description", reason: fault.FieldInvalid, values: over(2000)},
	{field: "rules", reason: fault.FieldInvalid, values: tooMany(1000)},
	{field: "rules[0].rule_id", reason: fault.IDMalformed, values: required(ids)},
	{field: "rules[0].verdict", reason: fault.FieldInvalid, values: enums(false)},
	{field: "rules[0].operations", reason: fault.FieldInvalid, values: append(tooMany(100), badValue{"none", repeat(0), "1"})},
	{field: "rules[0].operations[0]", reason: fault.FieldInvalid, values: []badValue{{"empty", "", "1"}, {"too long", "a/" + strings.Repeat("b", 255), "256"}}},
	{field: "rules[0].effects", reason: fault.FieldInvalid, values: []badValue{{"twice", repeat(2), "unique"}}},
	{field: "rules[0].effects[0]", reason: fault.FieldInvalid, values: enums(false)},
	{field: "rules[0].when", reason: fault.FieldInvalid, values: over(2000)},
	{field: "rules[0].description", reason: fault.FieldInvalid, values: over(500)},
	{field: "rules[0].budget.limit", reason: fault.FieldInvalid, values: []badValue{{"none", int32(0), "1"}, {"too many", int32(100001), "100000"}, {"negative", int32(-1), "1"}}},
	{field: "rules[0].budget.period", reason: fault.FieldInvalid, values: durations(time.Second, 24*time.Hour, false)},
	{field: "budgets.per_operation.limit", reason: fault.FieldInvalid, values: []badValue{{"none", int32(0), "1"}, {"too many", int32(100001), "100000"}}},
	{field: "budgets.per_caller.period", reason: fault.FieldInvalid, values: durations(time.Second, 24*time.Hour, false)},
	{field: "budgets.per_tenant.period", reason: fault.FieldInvalid, values: durations(time.Second, 24*time.Hour, false)},
	{field: "rules[0].terms.ttl", reason: fault.FieldInvalid, values: durations(time.Second, 30*24*time.Hour, true)},
	{field: "rules[0].terms.on_timeout", reason: fault.FieldInvalid, values: enums(true)},
	{field: "rules[0].terms.approvers", reason: fault.FieldInvalid, values: tooMany(10)},
	{field: "rules[0].terms.approvers[0].count", reason: fault.FieldInvalid, values: []badValue{{"negative", int32(-1), "0"}, {"too many", int32(11), "10"}}},
	{field: "rules[0].terms.approvers[0].scope", reason: fault.FieldInvalid, values: []badValue{
		{"empty", "", "pattern"},
		{"another scope", "policy.admin", "pattern"},
		{"every group", "approval.decide.*", "pattern"},
		{"upper case", "approval.decide.Finance", "pattern"},
		{"no group", "approval.decide.", "pattern"},
		{"too long", "approval.decide." + strings.Repeat("a", 128), "128"},
	}},
	{field: "rules[0].terms.approvers[0].people[0]", reason: fault.FieldInvalid, values: append([]badValue{{"an agent", "agent:alice", "pattern"}}, subjects...)},
	{field: "rules[0].terms.approvers[0].people", reason: fault.FieldInvalid, values: []badValue{{"twice", repeat(2), "unique"}}},
	{field: "delegated_operations", reason: fault.FieldInvalid, values: tooMany(1000)},
	{field: "delegated_operations[0]", reason: fault.FieldInvalid, values: names},
}

// fullPolicy has every field that has a limit. It could not be stored.
func fullPolicy() *gatev1.Policy {
	window := func() *gatev1.Window { return &gatev1.Window{Limit: 1, Period: durationpb.New(time.Second)} }
	full := rule("r", gatev1.Verdict_VERDICT_ASK, "a/*")
	full.Effects, full.When, full.Budget = []registryv1.Effect{registryv1.Effect_EFFECT_READ}, "true", window()
	full.Terms = &gatev1.Terms{Ttl: durationpb.New(time.Minute), Approvers: []*gatev1.Approver{{Scope: "approval.decide", People: []string{"human:fay"}}}}
	p := tenantPolicy("bad", full)
	p.DelegatedOperations, p.Budgets = []string{"a/b"}, &gatev1.Budgets{PerOperation: window(), PerCaller: window(), PerTenant: window()}
	return p
}

// malformedJSON is every shape that has no canonical form.
var malformedJSON = map[string]string{
	"no text":              "",
	"no value":             " \n",
	"cut off":              `{"amount":`,
	"a key twice":          `{"amount":1000000,"amount":1}`,
	"a key twice, escaped": `{"amount":1000000,"\u0061mount":1}`,
	"a key twice inside":   `{"amount":1,"to":[{"a":1,"a":2}]}`,
	"half a surrogate":     `{"amount":1,"to":"\ud800"}`,
	"the other half":       `{"amount":1,"to":"\udc00\ud800"}`,
	"text behind":          `{"amount":1} {}`,
	"a comma behind":       `{"amount":1,}`,
	"a comment":            `{"amount":1/* */}`,
	"a byte order mark":    "\ufeff" + `{"amount":1}`,
	"an inexact number":    `{"amount":1,"id":9007199254740993}`,
	"too large a number":   `{"amount":1e400}`,
	"no number":            `{"amount":NaN}`,
	"a leading zero":       `{"amount":01}`,
	"single quotes":        `{'amount':1}`,
	"a bare key":           `{amount:1}`,
	"a control character":  "{\"amount\":1,\"to\":\"a\nb\"}",
	"too deep":             `{"amount":1,"to":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`,
}

// badPatterns are none that any operation could match.
var badPatterns = map[string]string{
	"** inside":          "a/**/b",
	"** alone":           "**",
	"** first":           "**/a",
	"** in a segment":    "a/b**",
	"three stars":        "a/***",
	"* alone":            "*",
	"one segment":        "a",
	"an empty segment":   "a//b",
	"a slash before":     "/a",
	"a slash behind":     "a/b/",
	"only slashes":       "//",
	"upper case":         "A/b",
	"percent-encoded":    "a/%2f",
	"the way up":         "a/..",
	"here":               "a/./b",
	"NUL":                "a/b\x00",
	"a line break":       "a/b\n",
	"a space":            "a/b ",
	"fullwidth":          "a/\uff42",
	"Cyrillic":           "\u0430/b",
	"zero-width":         "a/b\u200b",
	"right to left":      "a/\u202eb",
	"a question mark":    "a/?",
	"a class":            "a/[a-z]",
	"an alternative":     "a/{b,c}",
	"an expression":      "a/.*",
	"a negation":         "!a/b",
	"a bus's wildcard":   "a/>",
	"two in one":         "a/b,a/c",
	"a backslash":        `a\b/c`,
	"many stars, no end": strings.Repeat("*a", 127) + "**",
}

func TestAPatternThatNoNameCouldMatchIsRefused(t *testing.T) {
	r := newRig(t)
	before := r.stored()
	for name, pattern := range badPatterns {
		p := tenantPolicy("bad", rule("good", gatev1.Verdict_VERDICT_DENY, "a/b"), rule("bad", gatev1.Verdict_VERDICT_DENY, "a/b", "a/*", pattern))
		_, err := r.policies().PutPolicy(t.Context(), &gatev1.PutPolicyRequest{Policy: p})
		wantField(t, name, err, fault.FieldInvalid, "policy.rules[1].operations[2]", "")
		_, err = r.policies().VerifyPolicy(t.Context(), &gatev1.VerifyPolicyRequest{Subject: &gatev1.VerifyPolicyRequest_Policy{Policy: p}})
		wantField(t, name+", verified", err, fault.FieldInvalid, "policy.rules[1].operations[2]", "")
		grant := &gatev1.Grant{GrantId: "g", Subject: "agent:x", Operations: []string{"a/b", pattern}}
		_, err = r.policies().PutGrant(t.Context(), &gatev1.PutGrantRequest{Grant: grant})
		wantField(t, name+", granted", err, fault.FieldInvalid, "grant.operations[1]", "")
		_, err = r.policies().TestPolicy(t.Context(), &gatev1.TestPolicyRequest{Grants: []*gatev1.Grant{grant}, Cases: oneCase()})
		wantField(t, name+", granted in a test", err, fault.FieldInvalid, "grants[0].operations[1]", "")
	}
	if after := r.stored(); after != before {
		t.Errorf("%d events were stored", after-before)
	}
}

// A pattern of many stars is a pattern all the same; it costs no more than others.
func TestAPatternOfManyStarsMatchesInTime(t *testing.T) {
	r := newRig(t)
	stars := "a/" + strings.Repeat("*a", 126) + "*"
	r.grant("stars", "agent:alice", stars)
	r.put(tenantPolicy("stars", rule("no", gatev1.Verdict_VERDICT_DENY, stars)))
	for name, reason := range map[string]string{
		"a/" + strings.Repeat("a", 198):       "RULE",
		"a/" + strings.Repeat("a", 125):       "NOT_GRANTED",
		"a/" + strings.Repeat("a", 125) + "b": "NOT_GRANTED",
	} {
		c := say("inv-1", "x")
		c.Operation = name
		start := time.Now()
		if got := r.check(c); got.GetVerdict() != gatev1.Verdict_VERDICT_DENY || got.GetReason() != reason {
			t.Errorf("%d letters: %v, want %s", len(name), got, reason)
		}
		withinASecond(t, name, start)
	}
}

func oneCase() []*gatev1.Case {
	return []*gatev1.Case{{Name: "c", Check: fullDryRun(), Verdict: gatev1.Verdict_VERDICT_ASK}}
}

// withinASecond is a generous bound: what is meant is milliseconds.
func withinASecond(t testing.TB, what string, start time.Time) {
	t.Helper()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("%s took %v", what, took)
	}
}

// unsound are policies whose fields are well-formed and contradict each other.
func unsound() map[string]struct {
	policy *gatev1.Policy
	reason fault.Reason
	field  string
} {
	type row = struct {
		policy *gatev1.Policy
		reason fault.Reason
		field  string
	}
	const deny, ask, allow = gatev1.Verdict_VERDICT_DENY, gatev1.Verdict_VERDICT_ASK, gatev1.Verdict_VERDICT_ALLOW
	of := func(layer gatev1.Layer, target string, rules ...*gatev1.Rule) *gatev1.Policy {
		return &gatev1.Policy{PolicyId: "bad", Layer: layer, Target: target, Rules: rules}
	}
	agents := func(rules ...*gatev1.Rule) *gatev1.Policy { return of(gatev1.Layer_LAYER_AGENT, "agent:x", rules...) }
	with := func(r *gatev1.Rule, change func(*gatev1.Rule)) *gatev1.Rule { change(r); return r }
	delegating, budgeting, confining := agents(), agents(), tenantPolicy("bad")
	delegating.DelegatedOperations = []string{"a/b"}
	budgeting.Budgets = &gatev1.Budgets{PerCaller: &gatev1.Window{Limit: 1, Period: durationpb.New(time.Second)}}
	confining.Confined = true
	window := func(r *gatev1.Rule) { r.Budget = &gatev1.Window{Limit: 1, Period: durationpb.New(time.Second)} }
	terms := func(approvers ...*gatev1.Approver) func(*gatev1.Rule) {
		return func(r *gatev1.Rule) { r.Terms = &gatev1.Terms{Approvers: approvers} }
	}
	onTimeout := func(acknowledged bool) func(*gatev1.Rule) {
		return func(r *gatev1.Rule) {
			r.Terms, r.AllowWrites = &gatev1.Terms{OnTimeout: gatev1.OnTimeout_ON_TIMEOUT_ALLOW}, acknowledged
		}
	}
	when := func(text string) func(*gatev1.Rule) { return func(r *gatev1.Rule) { r.When = text } }
	large := tenantPolicy("bad")
	for i := range 300 {
		r := rule(fmt.Sprintf("r%d", i), deny, "a/b")
		r.When = "operation == '" + strings.Repeat("x", 1900) + "'"
		large.Rules = append(large.Rules, r)
	}
	return map[string]row{
		"a rule's id twice":                {tenantPolicy("bad", rule("r", deny, "a/b"), rule("r", ask, "a/c")), fault.FieldInvalid, "policy.rules[1].rule_id"},
		"terms on an ALLOW":                {tenantPolicy("bad", with(rule("r", allow, "a/b"), terms())), fault.FieldInvalid, "policy.rules[0].terms"},
		"terms on a DENY":                  {tenantPolicy("bad", with(rule("r", deny, "a/b"), terms())), fault.FieldInvalid, "policy.rules[0].terms"},
		"a budget on a DENY":               {tenantPolicy("bad", with(rule("r", deny, "a/b"), window)), fault.FieldInvalid, "policy.rules[0].budget"},
		"a budget on an ASK":               {tenantPolicy("bad", with(rule("r", ask, "a/b"), window)), fault.FieldInvalid, "policy.rules[0].budget"},
		"a DENY that acknowledges writes":  {tenantPolicy("bad", with(rule("r", deny, "a/b"), func(r *gatev1.Rule) { r.AllowWrites = true })), fault.FieldInvalid, "policy.rules[0].allow_writes"},
		"an agent delegates":               {delegating, fault.FieldInvalid, "policy.delegated_operations"},
		"an agent has budgets":             {budgeting, fault.FieldInvalid, "policy.budgets"},
		"a confined tenant":                {confining, fault.FieldInvalid, "policy.confined"},
		"a tenant with a target":           {of(gatev1.Layer_LAYER_TENANT, "agent:x"), fault.FieldInvalid, "policy.target"},
		"an agent's without a target":      {of(gatev1.Layer_LAYER_AGENT, ""), fault.FieldInvalid, "policy.target"},
		"an agent's for a person":          {of(gatev1.Layer_LAYER_AGENT, "human:x"), fault.FieldInvalid, "policy.target"},
		"an agent's for all agents":        {of(gatev1.Layer_LAYER_AGENT, "agent:*"), fault.FieldInvalid, "policy.target"},
		"an agent's for a lookalike":       {of(gatev1.Layer_LAYER_AGENT, "agent:\u0430lice"), fault.FieldInvalid, "policy.target"},
		"a session's without a target":     {of(gatev1.Layer_LAYER_SESSION, ""), fault.FieldInvalid, "policy.target"},
		"a session's with a space":         {of(gatev1.Layer_LAYER_SESSION, "s 1"), fault.FieldInvalid, "policy.target"},
		"a session's with a NUL":           {of(gatev1.Layer_LAYER_SESSION, "s\x00"), fault.FieldInvalid, "policy.target"},
		"more than 512 KiB":                {large, fault.TooLarge, "policy"},
		"a predicate that is no CEL":       {tenantPolicy("bad", with(rule("r", deny, "a/b"), when("input.a >"))), fault.FieldInvalid, "policy.rules[0].when"},
		"a predicate of an unknown name":   {tenantPolicy("bad", with(rule("r", deny, "a/b"), when("request.a == 1"))), fault.FieldInvalid, "policy.rules[0].when"},
		"a predicate that is a number":     {tenantPolicy("bad", with(rule("r", deny, "a/b"), when("1 + 1"))), fault.FieldInvalid, "policy.rules[0].when"},
		"a predicate that is nested deep":  {tenantPolicy("bad", with(rule("r", deny, "a/b"), when(strings.Repeat("(", 900)+"true"+strings.Repeat(")", 900)))), fault.FieldInvalid, "policy.rules[0].when"},
		"a predicate with a huge regex":    {tenantPolicy("bad", with(rule("r", deny, "a/b"), when("operation.matches('((a{1000}){1000}){1000}')"))), fault.FieldInvalid, "policy.rules[0].when"},
		"a predicate with no regex":        {tenantPolicy("bad", with(rule("r", deny, "a/b"), when("operation.matches('(')"))), fault.FieldInvalid, "policy.rules[0].when"},
		"a predicate that is never true":   {tenantPolicy("bad", with(rule("r", deny, "a/b"), when("false"))), fault.PolicyUnsafe, "policy.rules.r"},
		"a pattern that is no name":        {tenantPolicy("bad", rule("r", deny, "a/-b")), fault.PolicyUnsafe, "policy.rules.r"},
		"an ALLOW by a pattern":            {tenantPolicy("bad", with(rule("r", allow, "a/*"), func(r *gatev1.Rule) { r.AllowWrites = true })), fault.PolicyUnsafe, "policy.rules.r"},
		"an ALLOW that says nothing":       {tenantPolicy("bad", rule("r", allow, "a/b")), fault.PolicyUnsafe, "policy.rules.r"},
		"an agent's allow on timeout":      {agents(with(rule("r", ask, "a/b"), onTimeout(true))), fault.PolicyUnsafe, "policy.rules.r"},
		"a session's allow on timeout":     {of(gatev1.Layer_LAYER_SESSION, "s-1", with(rule("r", ask, "a/b"), onTimeout(true))), fault.PolicyUnsafe, "policy.rules.r"},
		"an allow on timeout by a pattern": {tenantPolicy("bad", with(rule("r", ask, "a/*"), onTimeout(true))), fault.PolicyUnsafe, "policy.rules.r"},
		"an unsaid allow on timeout":       {tenantPolicy("bad", with(rule("r", ask, "a/b"), onTimeout(false))), fault.PolicyUnsafe, "policy.rules.r"},
		"two people of one":                {tenantPolicy("bad", with(rule("r", ask, "a/b"), terms(&gatev1.Approver{Scope: "approval.decide", Count: 2, People: []string{"human:fay"}}))), fault.PolicyUnsafe, "policy.rules.r"},
		"the same person for two groups": {tenantPolicy("bad", with(rule("r", ask, "a/b"), terms(
			&gatev1.Approver{Scope: "approval.decide.finance", People: []string{"human:fay"}},
			&gatev1.Approver{Scope: "approval.decide.security", People: []string{"human:fay"}}))), fault.PolicyUnsafe, "policy.rules.r"},
		"more people than an approval can need": {
			tenantPolicy("bad", with(rule("r", ask, "a/b"), terms(
				&gatev1.Approver{Scope: "approval.decide.a", Count: 10}, &gatev1.Approver{Scope: "approval.decide.b", Count: 10}, &gatev1.Approver{Scope: "approval.decide.c", Count: 1}))),
			fault.PolicyUnsafe, "policy.rules.r",
		},
	}
}

func TestAPolicyThatContradictsItselfIsRefusedAndChangesNothing(t *testing.T) {
	r := newRig(t)
	before := r.stored()
	for name, tc := range unsound() {
		start := time.Now()
		_, err := r.policies().PutPolicy(t.Context(), &gatev1.PutPolicyRequest{Policy: tc.policy})
		wantField(t, name, err, tc.reason, tc.field, "")
		verified, err := r.policies().VerifyPolicy(t.Context(), &gatev1.VerifyPolicyRequest{Subject: &gatev1.VerifyPolicyRequest_Policy{Policy: tc.policy}})
		if tc.reason != fault.PolicyUnsafe {
			wantField(t, name+", verified", err, tc.reason, tc.field, "")
		} else if err != nil || len(verified.GetFindings()) == 0 || verified.GetFindings()[0].GetSeverity() != gatev1.Severity_SEVERITY_ERROR {
			t.Errorf("%s, verified: %v, %v", name, verified, err)
		}
		if tc.reason != fault.PolicyUnsafe {
			field := "policies" // all of them together are too large
			if tc.reason == fault.FieldInvalid {
				field = "policies[1]" + strings.TrimPrefix(tc.field, "policy")
			}
			_, err = r.policies().TestPolicy(t.Context(), &gatev1.TestPolicyRequest{Policies: []*gatev1.Policy{tenantPolicy("good"), tc.policy}, Cases: oneCase()})
			wantField(t, name+", tested", err, tc.reason, field, "")
		}
		withinASecond(t, name, start)
	}
	if after := r.stored(); after != before {
		t.Errorf("%d events were stored", after-before)
	}
}

// However many policies one agent has, each of them counts.
func TestAllPoliciesOfALayerCount(t *testing.T) {
	r := newRig(t)
	r.grant("many", "agent:alice", "many/*")
	for i := range 100 {
		id := fmt.Sprintf("p%02d", i)
		r.put(&gatev1.Policy{PolicyId: id, Layer: gatev1.Layer_LAYER_AGENT, Target: "agent:alice", Rules: []*gatev1.Rule{rule("no", gatev1.Verdict_VERDICT_DENY, "many/"+id)}})
	}
	for i := range 100 {
		c := say(fmt.Sprintf("inv-%d", i), "x")
		c.Operation = fmt.Sprintf("many/p%02d", i)
		if got, want := r.check(c), fmt.Sprintf("p%02d/no", i); got.GetVerdict() != gatev1.Verdict_VERDICT_DENY || got.GetRule() != want {
			t.Fatalf("%s: %v, want DENY by %s", c.GetOperation(), got, want)
		}
	}
}

// costly are predicates that would burn a processor, with an input for which
// they do.
func costly() map[string]struct{ when, input string } {
	const ten = "[0,1,2,3,4,5,6,7,8,9]"
	numbers := "[" + strings.TrimSuffix(strings.Repeat("123456789,", 50_000), ",") + "]"
	text := `{"text":"` + strings.Repeat("a", 500_000) + `"}`
	thousand := func(inner string) string {
		return ten + ".all(a, " + ten + ".all(b, " + ten + ".all(c, " + inner + ")))"
	}
	return map[string]struct{ when, input string }{
		"comprehensions in each other":      {"input.all(x, input.all(y, x + y > 0))", numbers},
		"lists made of lists":               {"input.map(x, input.map(y, x * y)).size() > 0", numbers},
		"comparing all of it":               {thousand("input == input"), "[" + numbers + "]"},
		"comparing copies":                  {"[" + strings.TrimSuffix(strings.Repeat("input,", 150), ",") + "] == [" + strings.TrimSuffix(strings.Repeat("input,", 150), ",") + "]", numbers},
		"looking for what is not there":     {ten + ".all(a, !(a in input))", numbers},
		"a regex of many states":            {"input.text.matches('((.*a){10}){10}c')", text},
		"a regex that the caller sends":     {"input.text.matches(input.text)", text},
		"the length of a text, often":       {thousand("input.text.size() >= 0"), text},
		"a text that grows":                 {"[input.text]" + strings.Repeat(".map(a, a + a)", 40) + ".exists(a, a.size() > 0)", text},
		"a list that grows":                 {"[input]" + strings.Repeat(".map(a, a + a)", 40) + ".exists(a, -1 in a)", numbers},
		"a list that grows without input":   {"[[1,2,3,4]]" + strings.Repeat(".map(a, a + a)", 40) + ".exists(a, 7 in a)", "{}"},
		"a tree that grows without input":   {"[1]" + strings.Repeat(".map(a, [a,a])", 40) + ".exists(a, a != a)", "{}"},
		"a tree of objects that grows":      {"[1]" + strings.Repeat(".map(a, {'l':a,'r':a})", 40) + ".exists(a, a != a)", "{}"},
		"a tree bound by one in each other": {strings.Repeat("[[x,x]].exists(x, ", 20) + "x != x" + strings.Repeat(")", 20), "{}"},
	}
}

// A predicate that costs too much is refused when it is put, or it counts against
// the caller: as a match of DENY and ASK, and as none of ALLOW. In time, either way.
func TestAPredicateThatCostsTooMuchCountsAgainstTheCallerInTime(t *testing.T) {
	r := newRig(t)
	idle := map[string]time.Duration{} // by input: how long a check takes with a predicate that reads it and costs nothing
	for name, tc := range costly() {
		if len(tc.when) > 2000 {
			t.Fatalf("%s has %d characters", name, len(tc.when))
		}
		if idle[tc.input] == 0 {
			r.put(costing(gatev1.Verdict_VERDICT_DENY, "type(input) == bool"))
			_, idle[tc.input] = r.timed(t, "idle", tc.input)
		}
		verdicts := []gatev1.Verdict{gatev1.Verdict_VERDICT_DENY}
		if name == "comparing all of it" { // the others cost as much, whatever the verdict
			verdicts = append(verdicts, gatev1.Verdict_VERDICT_ASK, gatev1.Verdict_VERDICT_ALLOW)
		}
		for _, verdict := range verdicts {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			put, err := r.policies().PutPolicy(ctx, &gatev1.PutPolicyRequest{Policy: costing(verdict, tc.when)})
			cancel()
			if err != nil {
				wantField(t, name+", put", err, fault.FieldInvalid, "policy.rules[0].when", "")
				continue
			}
			meshtest.Eventually(t, "the policy is in force", func() bool {
				now, err := r.policies().ExplainCheck(t.Context(), &gatev1.ExplainCheckRequest{Check: fullDryRun()})
				return err == nil && now.GetPolicyRevision() == put.GetPolicy().GetRevision()
			})
			got, took := r.timed(t, "inv-"+verdict.String(), tc.input)
			if took > 3*idle[tc.input]+5*time.Second {
				t.Errorf("%s, %v: a check took %v, and %v where the predicate costs nothing", name, verdict, took, idle[tc.input])
			}
			switch {
			case verdict == gatev1.Verdict_VERDICT_ALLOW && (got.GetVerdict() != gatev1.Verdict_VERDICT_ASK || got.GetRule() != ""):
				t.Errorf("%s: an ALLOW counts: %v", name, got)
			case verdict != gatev1.Verdict_VERDICT_ALLOW && (got.GetVerdict() != verdict || got.GetRule() != "costly/costs"):
				t.Errorf("%s: %v does not count: %v", name, verdict, got)
			}
		}
	}
}

// costing is a policy whose one rule has a predicate. Without it nothing denies,
// and a write is asked for by no rule.
func costing(verdict gatev1.Verdict, when string) *gatev1.Policy {
	costs := rule("costs", verdict, "conversation/say")
	costs.When, costs.AllowWrites = when, verdict == gatev1.Verdict_VERDICT_ALLOW
	return tenantPolicy("costly", costs)
}

// timed checks an input once, and says how long that took.
func (r *rig) timed(t testing.TB, request, input string) (*gatev1.CheckResponse, time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c := say(request, "x")
	c.InputJson = &input
	start := time.Now()
	got, err := r.checks().Check(as(ctx, alice), c)
	if err != nil {
		t.Errorf("check: %v", err)
	}
	return got, time.Since(start)
}

// hostileNames are all like conversation/say, and none is.
var hostileNames = []string{
	"Conversation/say", "conversation/Say", "CONVERSATION/SAY", "conversation/say/", "/conversation/say", "conversation//say", "conversation/./say",
	"conversation/../conversation/say", "x/../conversation/say", "conversation%2fsay", "conversation%2Fsay", "conversation/s%61y", "conversation/say%00",
	"conversation/say\x00", "conversation\x00/say", "conversation/say\n", "\nconversation/say", " conversation/say", "conversation/say ", "conversation/say\t",
	"conversation/s\u0430y", "c\u043enversation/say", "conversation/\uff53ay", "conversation\u2215say", "conversation\uff0fsay", "conversation\\say",
	"conversation/say\u200b", "conversation/\u202esay", "conversation/sa\u0079\u0301", "conversation/\u017fay", "\ufeffconversation/say",
	"conversation/*", "conversation/**", "*/*", "**", "", "/", "//", "conversation/", "/say", "conversation", "conversation.say", "conversation:say",
}

func TestAHostileNameIsNeverAGrantedOne(t *testing.T) {
	r := newRig(t)
	r.grant("all", "agent:alice", "conversation/**", "conversation/say", "x/**")
	r.put(tenantPolicy("base", allowing("conversation/say")))
	id := r.ask(say2("inv-1"))
	before := r.stored()
	for _, name := range hostileNames {
		c := say("inv-h", "x")
		c.Operation = name
		_, err := r.checks().Check(as(t.Context(), alice), c)
		wantField(t, fmt.Sprintf("check %q", name), err, fault.FieldInvalid, "operation", "")
		in := redeem(id, say2("inv-1"))
		in.Operation = name
		_, err = r.checks().Redeem(as(t.Context(), alice), in)
		wantField(t, fmt.Sprintf("redeem %q", name), err, fault.FieldInvalid, "operation", "")
		run := &gatev1.DryRun{Caller: &gatev1.Caller{Subject: "agent:alice"}, Operation: name}
		_, err = r.policies().ExplainCheck(t.Context(), &gatev1.ExplainCheckRequest{Check: run})
		wantField(t, fmt.Sprintf("explain %q", name), err, fault.FieldInvalid, "check.operation", "")
	}
	// The registry asks this of names that callers made up.
	out, err := r.checks().MatchGrants(as(t.Context(), alice), &gatev1.MatchGrantsRequest{Operations: append(slices.Clone(hostileNames), "conversation/say")})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range out.GetGranted() {
		if name != "conversation/say" {
			t.Errorf("%q counts as granted", name)
		}
	}
	if !slices.Contains(out.GetGranted(), "conversation/say") {
		t.Error("conversation/say is not granted")
	}
	if after := r.stored(); after != before {
		t.Errorf("%d events were stored", after-before)
	}
}

// say2 asks: no rule is for it.
func say2(request string) *gatev1.CheckRequest {
	c := say(request, "x")
	c.Operation = "conversation/start"
	return c
}

// An input of two readings has none: a rule that looks at it allows nothing, and
// lets nothing past.
func TestMalformedInputIsRefusedWhateverARuleReadsInIt(t *testing.T) {
	r := newRig(t)
	r.grant("reads", "agent:alice", "ledger/*")
	small := allowing("ledger/pay", "ledger/look")
	small.When = "input.amount < 10"
	large := rule("large", gatev1.Verdict_VERDICT_DENY, "ledger/pay", "ledger/look")
	large.When = "has(input.amount) && input.amount > 100"
	r.put(tenantPolicy("base", small, large))
	good := `{"amount": 1}`
	paid := say("inv-good", "x")
	paid.Operation, paid.InputJson, paid.InputDigest = "ledger/pay", &good, strictjson.Digest([]byte(`{"amount":1}`))
	if got := r.check(paid); got.GetVerdict() != gatev1.Verdict_VERDICT_ALLOW || got.GetRule() != "base/allow" {
		t.Fatalf("what is well-formed: %v", got)
	}
	before := r.stored()
	for name, input := range malformedJSON {
		for operation, effect := range map[string]registryv1.Effect{
			"ledger/pay": registryv1.Effect_EFFECT_WRITE, "ledger/look": registryv1.Effect_EFFECT_READ, "ledger/other": registryv1.Effect_EFFECT_WRITE,
		} {
			c := say("inv-bad", "x")
			c.Operation, c.Effect, c.InputJson = operation, effect, &input
			_, err := r.checks().Check(as(t.Context(), alice), c)
			wantField(t, operation+" with "+name, err, fault.JSONInvalid, "input_json", "line")
			out, err := r.checks().CheckBatch(as(t.Context(), alice), &gatev1.CheckBatchRequest{Checks: []*gatev1.CheckRequest{c}})
			if err != nil || out.GetResults()[0].GetFailure().GetReason() != string(fault.JSONInvalid) {
				t.Errorf("%s with %s in a batch: %v, %v", operation, name, out, err)
			}
		}
	}
	if after := r.stored(); after != before {
		t.Errorf("%d events were stored", after-before)
	}
	meshtest.Eventually(t, "the list shows that nobody was asked", func() bool {
		page, err := r.approvals(carol).ListApprovals(t.Context(), &gatev1.ListApprovalsRequest{})
		return err == nil && len(page.GetApprovals()) == 0
	})
}

// raw sends bytes that no client of ours would write.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

func (raw) Unmarshal([]byte, any) error { return nil }

func (raw) Name() string { return "proto" }

// Bytes that are not UTF-8 never get as far as a rule or a person.
func TestTextThatIsNotUTF8IsRefused(t *testing.T) {
	r := newRig(t)
	c := say("inv-1", "x")
	text := `{"text":"AAAA"}`
	c.InputJson = &text
	wire, err := proto.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	before := r.stored()
	wire = bytes.Replace(wire, []byte("AAAA"), []byte("\xff\xfe\xc0\x80"), 1)
	if err := r.dial(registry).Invoke(as(t.Context(), alice), gatev1.GateService_Check_FullMethodName, wire, nil, grpc.ForceCodec(raw{})); err == nil {
		t.Error("a check with text that is not UTF-8 was answered")
	}
	if after := r.stored(); after != before {
		t.Errorf("%d events were stored", after-before)
	}
}

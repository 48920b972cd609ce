package policy

import (
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
)

const (
	allow = gatev1.Verdict_VERDICT_ALLOW
	ask   = gatev1.Verdict_VERDICT_ASK
	deny  = gatev1.Verdict_VERDICT_DENY

	read  = registryv1.Effect_EFFECT_READ
	write = registryv1.Effect_EFFECT_WRITE
	admin = registryv1.Effect_EFFECT_ADMIN

	opensWrite       = gatev1.FindingKind_FINDING_KIND_OPENS_WRITE
	neverMatches     = gatev1.FindingKind_FINDING_KIND_NEVER_MATCHES
	unsatisfiable    = gatev1.FindingKind_FINDING_KIND_UNSATISFIABLE
	opensOnTimeout   = gatev1.FindingKind_FINDING_KIND_OPENS_ON_TIMEOUT
	gatesNothing     = gatev1.FindingKind_FINDING_KIND_GATES_NOTHING
	allowsNothing    = gatev1.FindingKind_FINDING_KIND_ALLOWS_NOTHING
	unknownOperation = gatev1.FindingKind_FINDING_KIND_UNKNOWN_OPERATION
	notDelegated     = gatev1.FindingKind_FINDING_KIND_NOT_DELEGATED
	tooComplex       = gatev1.FindingKind_FINDING_KIND_TOO_COMPLEX
)

var testEnvironment = Environment{NeverTrue: func(when string) bool { return when == "false" }}

func findingOf(all []*gatev1.Finding, kind gatev1.FindingKind, rule, pattern string) *gatev1.Finding {
	i := slices.IndexFunc(all, func(f *gatev1.Finding) bool {
		return f.GetKind() == kind && f.GetRuleId() == rule && f.GetPattern() == pattern
	})
	if i < 0 {
		return nil
	}
	return all[i]
}

func TestVerifyFindsWhatEnumerationFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := aPolicy.Draw(t, "policy")
		m := enumerated{p}
		found := Verify(p, testEnvironment)
		for _, f := range found {
			if f.GetKind() == tooComplex {
				t.Fatal(f)
			}
		}
		for _, r := range p.GetRules() {
			for _, pattern := range r.GetOperations() {
				name, effect := m.firstOpened(r, pattern)
				f := findingOf(found, opensWrite, r.GetRuleId(), pattern)
				switch {
				case f == nil && name != "":
					t.Fatalf("%s opens %s by %s, and nothing was found", r.GetRuleId(), name, pattern)
				case f == nil:
				case !nameText.MatchString(f.GetOperation()) || !plainMatch(pattern, f.GetOperation()) || !m.opens(r, f.GetOperation(), f.GetEffect()):
					t.Fatalf("it opens no such thing: %v", f)
				case (f.GetOperation() != name || f.GetEffect() != effect) && len(f.GetOperation()) <= shortNameLength:
					t.Fatalf("it opens %s first, and found was %v", name, f)
				}
				short := slices.Contains(matchesShort(pattern), true)
				if never := findingOf(found, neverMatches, r.GetRuleId(), pattern) != nil; never && short {
					t.Fatalf("%s matches", pattern)
				} else if !never && !short && shortestPlain(pattern) <= shortNameLength {
					t.Fatalf("%s never matches", pattern)
				}
			}
			if (findingOf(found, neverMatches, r.GetRuleId(), "") != nil) != (r.GetWhen() == "false") {
				t.Fatalf("%s: never true", r.GetRuleId())
			}
			if r.GetVerdict() == deny {
				continue
			}
			kind := gatesNothing
			if r.GetVerdict() == allow {
				kind = allowsNothing
			}
			matches, decides := m.says(r)
			switch said := findingOf(found, kind, r.GetRuleId(), "") != nil; {
			case said && (decides || r.GetWhen() == "false"):
				t.Fatalf("%s has something to say", r.GetRuleId())
			case !said && matches && !decides && !decidesLong(m, r):
				t.Fatalf("%s has nothing to say", r.GetRuleId())
			}
		}
	})
}

// shortestPlain gives how long a name must be at least, were all its wildcards
// to stand for one character. It is that long at most unless none matches.
func shortestPlain(pattern string) int { return len(strings.ReplaceAll(pattern, "**", "a")) }

// decidesLong says that a rule decides about a name that is too long to be
// enumerated: a search gives one, and it is evaluated like the others.
func decidesLong(m enumerated, r *gatev1.Rule) bool {
	stricter := []gatev1.Verdict{deny}
	if r.GetVerdict() == allow {
		stricter = append(stricter, ask)
	}
	for _, e := range []registryv1.Effect{read, write, admin} {
		var covers []string
		for _, other := range m.policy.GetRules() {
			if slices.Contains(stricter, other.GetVerdict()) && other.GetWhen() == "" && matchesEffect(other, e) {
				covers = append(covers, other.GetOperations()...)
			}
		}
		for _, pattern := range r.GetOperations() {
			unlimited := proofBudget{steps: 1 << 40}
			name, result := newResiduals().firstUncovered(pattern, covers, &unlimited)
			if result == foundName && matchesEffect(r, e) && nameText.MatchString(name) && plainMatch(pattern, name) && !m.stricter(name, e, stricter...) {
				return true
			}
		}
	}
	return false
}

func TestTheGeneratedPoliciesAreOfAllSorts(t *testing.T) {
	const policies = 500
	kinds := map[gatev1.FindingKind]int{}
	proven := 0 // by more than a single pattern, or a rule's effects
	for seed := range policies {
		p := aPolicy.Example(seed)
		found := Verify(p, testEnvironment)
		for kind := range gatev1.FindingKind_name {
			if slices.ContainsFunc(found, func(f *gatev1.Finding) bool { return f.GetKind() == gatev1.FindingKind(kind) }) {
				kinds[gatev1.FindingKind(kind)]++
			}
		}
		if slices.ContainsFunc(p.GetRules(), func(r *gatev1.Rule) bool { return mayWrite(r) && !opens(found, r) }) {
			proven++
		}
	}
	t.Logf("of %d: %v, and %d rules proven to open nothing", policies, kinds, proven)
	for _, kind := range []gatev1.FindingKind{opensWrite, neverMatches, gatesNothing, allowsNothing} {
		if n := kinds[kind]; n < policies/10 || n > policies*9/10 {
			t.Errorf("%v in %d of %d", kind, n, policies)
		}
	}
	if proven < policies/10 {
		t.Errorf("only %d of %d have an ALLOW that is covered", proven, policies)
	}
}

func mayWrite(r *gatev1.Rule) bool {
	return r.GetVerdict() == allow && r.GetWhen() != "false" && (matchesEffect(r, write) || matchesEffect(r, admin)) &&
		slices.ContainsFunc(r.GetOperations(), func(p string) bool { return slices.Contains(matchesShort(p), true) })
}

func opens(found []*gatev1.Finding, r *gatev1.Rule) bool {
	return slices.ContainsFunc(found, func(f *gatev1.Finding) bool {
		return f.GetKind() == opensWrite && f.GetRuleId() == r.GetRuleId()
	})
}

// A rule is written as `VERDICT pattern... [effects] if predicate +writes`.
func ruleOf(id, text string) *gatev1.Rule {
	r := &gatev1.Rule{RuleId: id}
	text, r.When, _ = strings.Cut(text, " if ")
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
			r.Verdict = gatev1.Verdict(gatev1.Verdict_value["VERDICT_"+word])
		case word == "+writes":
			r.AllowWrites = true
		case word[0] == '[':
			for e := range strings.SplitSeq(strings.Trim(word, "[]"), ",") {
				r.Effects = append(r.Effects, registryv1.Effect(registryv1.Effect_value["EFFECT_"+e]))
			}
		default:
			r.Operations = append(r.Operations, word)
		}
	}
	return r
}

func policyOf(rules ...string) *gatev1.Policy {
	p := &gatev1.Policy{PolicyId: "p", Layer: gatev1.Layer_LAYER_TENANT}
	for i, text := range rules {
		p.Rules = append(p.Rules, ruleOf(fmt.Sprintf("r%d", i), text))
	}
	return p
}

// brief writes findings as `KIND rule pattern operation EFFECT`, as far as these
// are there.
func brief(found []*gatev1.Finding) []string {
	var all []string
	for _, f := range found {
		text := []string{strings.TrimPrefix(f.GetKind().String(), "FINDING_KIND_"), f.GetRuleId(), f.GetPattern(), f.GetOperation()}
		if f.GetEffect() != 0 {
			text = append(text, strings.TrimPrefix(f.GetEffect().String(), "EFFECT_"))
		}
		all = append(all, strings.Join(slices.DeleteFunc(text, func(s string) bool { return s == "" }), " "))
	}
	return all
}

func TestVerifyReadsPolicies(t *testing.T) {
	deep := "a" + strings.Repeat("/b", 98) // 197 bytes
	for _, c := range []struct {
		name  string
		rules []string
		want  []string
	}{
		{"reads may be allowed widely", []string{"ALLOW crm/** [READ]"}, nil},
		{"writes may not", []string{"ALLOW crm/**"}, []string{"OPENS_WRITE r0 crm/** crm/0 WRITE"}},
		{"nor what may be ADMIN", []string{"ALLOW crm/** [READ,ADMIN]"}, []string{"OPENS_WRITE r0 crm/** crm/0 ADMIN"}},
		{"a predicate may be true", []string{"ALLOW */** if input.safe"}, []string{"OPENS_WRITE r0 */** 0/0 WRITE"}},
		{"or is false", []string{"ALLOW crm/** if false"}, []string{"NEVER_MATCHES r0"}},
		{"which is all there is to say", []string{"ALLOW crm/** if false", "ASK crm/**"}, []string{"NEVER_MATCHES r0"}},
		{"a name without acknowledgement", []string{"ALLOW crm/put"}, []string{"OPENS_WRITE r0 crm/put crm/put WRITE"}},
		{"a name with it", []string{"ALLOW crm/put +writes"}, nil},
		{"it does not extend to wildcards", []string{"ALLOW crm/put* +writes"}, []string{"OPENS_WRITE r0 crm/put* crm/put WRITE"}},
		{
			"but what a rule names exactly its wildcards don't open",
			[]string{"ALLOW crm/pu crm/put crm/pu*t +writes"},
			[]string{"OPENS_WRITE r0 crm/pu*t crm/pu-t WRITE"},
		},
		{
			"another rule's acknowledgement is not this one's",
			[]string{"ALLOW crm/put", "ALLOW crm/put +writes"},
			[]string{"OPENS_WRITE r0 crm/put crm/put WRITE"},
		},
		{
			"all of it is asked for",
			[]string{"ALLOW crm/**", "ASK crm/**"},
			[]string{"ALLOWS_NOTHING r0"},
		},
		{
			"by two rules together",
			[]string{"ALLOW crm/**", "ASK crm/*", "DENY crm/*/** [WRITE,ADMIN]", "ASK crm/*/*/** crm/*/* [READ]"},
			[]string{"ALLOWS_NOTHING r0"},
		},
		{
			"writes are asked for, reads allowed",
			[]string{"ALLOW crm/**", "ASK */** [WRITE,ADMIN]"},
			nil,
		},
		{
			"only WRITE is asked for",
			[]string{"ALLOW crm/**", "ASK */** [WRITE]"},
			[]string{"OPENS_WRITE r0 crm/** crm/0 ADMIN"},
		},
		{
			"an ASK with a predicate may not match",
			[]string{"ALLOW crm/**", "ASK crm/** if input.large"},
			[]string{"OPENS_WRITE r0 crm/** crm/0 WRITE"},
		},
		{
			"what begins alike is covered, what is longer is not",
			[]string{"ALLOW crm/put*", "ASK crm/put crm/put*_all crm/put0*"},
			[]string{"OPENS_WRITE r0 crm/put* crm/put- WRITE"},
		},
		{
			"every beginning is denied",
			[]string{"ALLOW crm/*", "DENY crm/0* crm/1* crm/2* crm/3* crm/4* crm/5* crm/6* crm/7* crm/8* crm/9*" +
				" crm/a* crm/b* crm/c* crm/d* crm/e* crm/f* crm/g* crm/h* crm/i* crm/j* crm/k* crm/l* crm/m*" +
				" crm/n* crm/o* crm/p* crm/q* crm/r* crm/s* crm/t* crm/u* crm/v* crm/w* crm/x* crm/y* crm/z*"},
			[]string{"ALLOWS_NOTHING r0"},
		},
		{
			"every beginning but one",
			[]string{"ALLOW crm/*", "DENY crm/0* crm/1* crm/2* crm/3* crm/4* crm/5* crm/6* crm/7* crm/8* crm/9*" +
				" crm/a* crm/b* crm/c* crm/d* crm/e* crm/f* crm/g* crm/h* crm/i* crm/j* crm/k* crm/l* crm/m*" +
				" crm/n* crm/o* crm/p* crm/q*e crm/r* crm/s* crm/t* crm/u* crm/v* crm/w* crm/x* crm/y* crm/z*"},
			[]string{"OPENS_WRITE r0 crm/* crm/q WRITE"},
		},
		{
			"one beginning is covered with all that follows",
			[]string{"ALLOW a*/*", "ASK a/** a-*/*"},
			[]string{"OPENS_WRITE r0 a*/* a0/0 WRITE"},
		},
		{
			"the same deny hides an ASK too",
			[]string{"ASK crm/delete", "ASK crm/put", "DENY crm/del*"},
			[]string{"GATES_NOTHING r0"},
		},
		{
			"an ASK does not hide an ASK",
			[]string{"ASK crm/delete", "ASK crm/del*"},
			nil,
		},
		{
			"patterns that are no names", // `_x` begins no segment, but ends one
			[]string{"ASK crm/_x crm/*_x -a/** a/-*", "ALLOW _crm/**"},
			[]string{"NEVER_MATCHES r0 crm/_x", "NEVER_MATCHES r0 -a/**", "NEVER_MATCHES r0 a/-*", "NEVER_MATCHES r1 _crm/**"},
		},
		{"a name of 200 bytes", []string{"ALLOW " + deep + "/bb"}, []string{"OPENS_WRITE r0 " + deep + "/bb " + deep + "/bb WRITE"}},
		{"a name of 201 bytes", []string{"ALLOW " + deep + "/bbb"}, []string{"NEVER_MATCHES r0 " + deep + "/bbb"}},
		{
			"all that fits into 200 bytes is covered",
			[]string{"ALLOW " + deep + "/** [READ,WRITE]", "ASK " + deep + "/* [WRITE]"},
			nil,
		},
		{
			"all but one character",
			[]string{"ALLOW " + deep + "/**", "ASK " + deep + "/*b* " + deep + "/b* " + deep + "/*0"},
			[]string{"OPENS_WRITE r0 " + deep + "/** " + deep + "/1 WRITE"},
		},
		{"the same pattern twice is one", []string{"ALLOW crm/* crm/*"}, []string{"OPENS_WRITE r0 crm/* crm/0 WRITE"}},
		{"what does not compile is left out", []string{"ALLOW crm/**/x crm/**", "ASK CRM/*", "ALLOW"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := Verify(policyOf(c.rules...), testEnvironment)
			if got := brief(found); !slices.Equal(got, c.want) {
				t.Errorf("found\n\t%s\nnot\n\t%s", strings.Join(got, "\n\t"), strings.Join(c.want, "\n\t"))
			}
			for _, f := range found {
				if f.GetPolicyId() != "p" || !strings.Contains(f.GetMessage(), `"`+f.GetRuleId()+`"`) || !strings.Contains(f.GetMessage(), f.GetOperation()) {
					t.Errorf("message %q", f.GetMessage())
				}
			}
		})
	}
}

func TestApproversThatCannotBeMet(t *testing.T) {
	of := func(count int32, people ...string) *gatev1.Approver {
		return &gatev1.Approver{Scope: "approval.decide", Count: count, People: people}
	}
	for _, c := range []struct {
		name      string
		approvers []*gatev1.Approver
		want      string // of the message; none if they can be met
	}{
		{"none", nil, ""},
		{"anybody", []*gatev1.Approver{of(10), of(9), of(0)}, ""},
		{"too many", []*gatev1.Approver{of(10), of(10), of(0)}, "21 people are needed, and 20 is the limit"},
		{"one of one", []*gatev1.Approver{of(0, "human:ann"), of(3)}, ""},
		{"two of one", []*gatev1.Approver{of(2, "human:ann")}, "2 different people are needed of only 1: human:ann"},
		{"who is listed twice is one", []*gatev1.Approver{of(2, "human:ann", "human:ann")}, "2 different people are needed of only 1: human:ann"},
		{"the same for two", []*gatev1.Approver{of(1, "human:ann"), of(1, "human:ann")}, "2 different people are needed of only 1: human:ann"},
		{"moved aside", []*gatev1.Approver{of(1, "human:ann", "human:bob"), of(1, "human:ann")}, ""},
		{"moved aside twice", []*gatev1.Approver{
			of(1, "human:ann", "human:bob"), of(1, "human:bob", "human:cas"), of(1, "human:bob", "human:ann"),
		}, ""},
		{"three of two, beside others", []*gatev1.Approver{
			of(1, "human:eve", "human:dan"),
			of(2, "human:ann", "human:bob"), of(1, "human:bob", "human:cas"), of(1, "human:bob", "human:ann"), of(4),
		}, "3 different people are needed of only 2: human:ann, human:bob"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := policyOf("ASK crm/put")
			p.Rules[0].Terms = &gatev1.Terms{Approvers: c.approvers}
			found := Verify(p, testEnvironment)
			if c.want == "" && len(found) > 0 || c.want != "" && (len(found) != 1 || found[0].GetKind() != unsatisfiable || !strings.Contains(found[0].GetMessage(), c.want)) {
				t.Errorf("found %v", found)
			}
		})
	}
}

// Few people, so that all ways to seat them can be tried.
func TestApproversAreMatchedExactly(t *testing.T) {
	met, unmet := 0, 0
	people := []string{"human:a", "human:b", "human:c", "human:d"}
	check := func(t interface{ Fatalf(string, ...any) }, approvers []*gatev1.Approver) {
		var slots [][]string
		for _, a := range approvers {
			for range max(1, a.GetCount()) {
				if len(a.GetPeople()) > 0 {
					slots = append(slots, a.GetPeople())
				}
			}
		}
		var seat func(slots [][]string, free []string) bool
		seat = func(slots [][]string, free []string) bool {
			return len(slots) == 0 || slices.ContainsFunc(slots[0], func(person string) bool {
				return slices.Contains(free, person) && seat(slots[1:], slices.DeleteFunc(slices.Clone(free), func(p string) bool { return p == person }))
			})
		}
		want := seat(slots, people)
		if reason := TermsFrom(&gatev1.Terms{Approvers: approvers}).unmeetable(); (reason == "") != want {
			t.Fatalf("%v: %q", approvers, reason)
		}
		if want {
			met++
		} else {
			unmet++
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		var approvers []*gatev1.Approver
		for range rapid.IntRange(1, 4).Draw(t, "approvers") {
			approvers = append(approvers, &gatev1.Approver{
				Count:  rapid.Int32Range(0, 2).Draw(t, "count"),
				People: rapid.SliceOfNDistinct(rapid.SampledFrom(people), 0, 4, rapid.ID).Draw(t, "people"),
			})
		}
		check(t, approvers)
	})
	if met == 0 || unmet == 0 {
		t.Errorf("%d are met and %d are not", met, unmet)
	}
}

func TestAllowOnTimeoutIsTheTenantsAndExact(t *testing.T) {
	for _, c := range []struct {
		rule  string
		layer gatev1.Layer
		want  []string
	}{
		{"ASK crm/put crm/get +writes", gatev1.Layer_LAYER_TENANT, nil},
		{"ASK crm/put", gatev1.Layer_LAYER_TENANT, []string{"OPENS_ON_TIMEOUT r0"}},
		{"ASK crm/put crm/* +writes", gatev1.Layer_LAYER_TENANT, []string{"OPENS_ON_TIMEOUT r0 crm/*"}},
		{"ASK crm/put +writes", gatev1.Layer_LAYER_AGENT, []string{"OPENS_ON_TIMEOUT r0"}},
		{"ASK crm/put +writes", gatev1.Layer_LAYER_SESSION, []string{"OPENS_ON_TIMEOUT r0"}},
	} {
		p := policyOf(c.rule)
		p.Layer = c.layer
		p.Rules[0].Terms = &gatev1.Terms{OnTimeout: gatev1.OnTimeout_ON_TIMEOUT_ALLOW}
		if got := brief(Verify(p, testEnvironment)); !slices.Equal(got, c.want) {
			t.Errorf("%s in %v: %q", c.rule, c.layer, got)
		}
		p.Rules[0].Terms.OnTimeout = gatev1.OnTimeout_ON_TIMEOUT_WAIT
		if got := Verify(p, testEnvironment); len(got) > 0 {
			t.Errorf("%s in %v, waiting: %q", c.rule, c.layer, got)
		}
	}
}

func TestPatternsAreComparedWithWhatIsKnown(t *testing.T) {
	p := policyOf("DENY crm/put crm/putt crm/pu* crm/x* */get *x/get git/** gi/** crm/**", "ASK crm/_x")
	want := []string{
		"NEVER_MATCHES r1 crm/_x",
		"UNKNOWN_OPERATION r0 crm/putt", "UNKNOWN_OPERATION r0 crm/x*", "UNKNOWN_OPERATION r0 *x/get", "UNKNOWN_OPERATION r0 gi/**",
	}
	known := []string{"git/get", "crm/put", "crm/put_all"}
	if got := brief(Verify(p, Environment{Known: known})); !slices.Equal(got, want) {
		t.Errorf("found %q", got)
	}
	if got := brief(Verify(p, Environment{})); !slices.Equal(got, want[:1]) {
		t.Errorf("found %q, knowing nothing", got)
	}
	if got := brief(Verify(policyOf("DENY crm/put"), Environment{Known: []string{}})); !slices.Equal(got, []string{"UNKNOWN_OPERATION r0 crm/put"}) {
		t.Errorf("found %q, there being nothing", got)
	}
	if got := Unmatched([]string{"crm/get", "crm/*", "CRM/*", "git/*/**"}, known); !slices.Equal(got, []string{"crm/get", "CRM/*", "git/*/**"}) {
		t.Errorf("unmatched are %q", got)
	}
}

func TestAnAllowBelowTheTenantNeedsDelegation(t *testing.T) {
	env := Environment{Delegated: map[string]bool{"crm/put": true, "crm/get": true, "git/push": false}}
	rules := []string{"ALLOW crm/put crm/pu* crm/del* git/push +writes [READ]", "ASK git/push"}
	for layer, want := range map[gatev1.Layer][]string{
		gatev1.Layer_LAYER_TENANT:  nil,
		gatev1.Layer_LAYER_AGENT:   {"NOT_DELEGATED r0 crm/del*", "NOT_DELEGATED r0 git/push"},
		gatev1.Layer_LAYER_SESSION: {"NOT_DELEGATED r0 crm/del*", "NOT_DELEGATED r0 git/push"},
	} {
		p := policyOf(rules...)
		p.Layer = layer
		if got := brief(Verify(p, env)); !slices.Equal(got, want) {
			t.Errorf("%v: %q", layer, got)
		}
		if got := Verify(p, Environment{}); len(got) > 0 {
			t.Errorf("%v, delegations not known: %q", layer, got)
		}
	}
}

func TestErrorsComeFirst(t *testing.T) {
	found := Verify(policyOf("ASK crm/put", "DENY crm/**", "ALLOW crm/get", "ALLOW git/*"), Environment{Known: []string{}})
	warned := false
	for _, f := range found {
		if want := warnings[f.GetKind()]; want != (f.GetSeverity() == gatev1.Severity_SEVERITY_WARNING) || warned && !want {
			t.Errorf("found %q", brief(found))
		}
		warned = warnings[f.GetKind()]
	}
	if len(found) < 5 {
		t.Errorf("found %q", brief(found))
	}
}

// The policies here are of full size and made to be hard to verify. What cannot
// be proven in the steps there are must come out as an error.
func TestAHostilePolicyDoesNotTakeLong(t *testing.T) {
	star := func(i int) string {
		return fmt.Sprintf("*%c*%c*%c*/**", 'a'+i%26, 'a'+i/26%26, 'a'+i/676%26)
	}
	many := func(n int, verdict string, pattern func(int) string) []string {
		var rules []string
		for i := 0; i < n; i += 100 {
			text := verdict
			for j := i; j < min(i+100, n); j++ {
				text += " " + pattern(j)
			}
			rules = append(rules, text)
		}
		return rules
	}
	long := func(i int) string { return strings.Repeat(fmt.Sprintf("*%c", 'a'+i%26), 120) + "/*" }
	limit := 3 * time.Second
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		limit *= 12 // that is how much slower code runs with the race detector
	}
	for name, rules := range map[string][]string{
		"allows only":             many(100_000, "ALLOW", star),
		"as many asks":            append(many(50_000, "ALLOW", star), many(50_000, "ASK", star)...),
		"asks with few in common": append(many(10_000, "ALLOW", star), many(30, "ASK", func(i int) string { return star(i * 31) })...),
		"each next to all":        append(many(100, "ALLOW", func(int) string { return "*/**" }), many(400, "ASK", long)...),
		"hidden asks": append(many(2000, "ALLOW", func(i int) string { return fmt.Sprintf("x%d/*", i) }),
			many(200, "ASK", func(i int) string { return fmt.Sprintf("*/*%c*%c*%c*", 'a'+i%7, 'a'+i/7%7, 'a'+i/49%7) })...),
		"other segments": append(many(100, "ALLOW", func(i int) string { return fmt.Sprintf("*/*%c*/**", 'a'+i%26) }),
			many(10_000, "ASK", func(i int) string { return fmt.Sprintf("*/a%d/**", i) })...),
		"long literals": append(many(1000, "ALLOW", func(i int) string { return strings.Repeat("ab*", 20) + fmt.Sprint(i) + "/*" }),
			many(1000, "ASK", func(i int) string { return fmt.Sprintf("*%s%d*/**", strings.Repeat("ab", 90), i) })...),
		"covered at last": append(many(2000, "ALLOW", func(i int) string { return fmt.Sprintf("x%d/*", i) }),
			"ASK */0* */1* */2* */3* */4* */5* */6* */7* */8* */9*"+
				" */a* */b* */c* */d* */e* */f* */g* */h* */i* */j* */k* */l* */m*"+
				" */n* */o* */p* */q* */r* */s* */t* */u* */v* */w* */x* */y* */z*"),
	} {
		t.Run(name, func(t *testing.T) {
			p := policyOf(rules...)
			known := []string{"crm/put"}
			for i := range 1000 {
				known = append(known, fmt.Sprintf("crm/op%d", i))
			}
			start := processorTime(t)
			found := Verify(p, Environment{Known: known})
			took := processorTime(t) - start
			counts := map[gatev1.FindingKind]int{}
			for _, f := range found {
				counts[f.GetKind()]++
			}
			t.Logf("%v, found %v", took.Round(time.Millisecond), counts)
			if took > limit {
				t.Errorf("took %v, more than %v", took, limit)
			}
			if len(found) == 0 || len(found) > maxFindings {
				t.Errorf("found %d", len(found))
			}
		})
	}
}

// processorTime does not count what other processes make a test wait.
func processorTime(t *testing.T) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func BenchmarkVerify(b *testing.B) {
	var rules []string
	for i := range 25 {
		rules = append(rules,
			fmt.Sprintf("ALLOW ns%d/** [READ]", i),
			fmt.Sprintf("ALLOW ns%d/put ns%d/create +writes", i, i),
			fmt.Sprintf("ASK ns%d/*delete* ns%d/*remove* ns%d/admin/**", i, i, i),
			fmt.Sprintf("DENY ns%d/secret/** */secret*", i),
		)
	}
	p := policyOf(append(rules, "ALLOW crm/**", "ASK */** [WRITE,ADMIN]")...)
	for b.Loop() {
		if found := Verify(p, testEnvironment); len(found) != 0 {
			b.Fatal(brief(found))
		}
	}
}

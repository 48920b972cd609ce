package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
)

// The oracle decides a question the way the design's page says it, in the
// plainest way: every rule of every policy is looked at, one after the other. It
// shares nothing with what it is compared with but the messages.
type oracle struct {
	policies []*gatev1.Policy
	grants   []*gatev1.Grant
}

// tested are predicates with what they mean: true, false, or impossible to say.
var tested = map[string]func(*Question) (bool, error){
	"true":                           func(*Question) (bool, error) { return true, nil },
	"subject == 'agent:a'":           func(q *Question) (bool, error) { return q.Subject == "agent:a", nil },
	"input.n > 5":                    func(q *Question) (bool, error) { return numberAbove(q, 5) },
	"has(input.n) && input.n > 5":    func(q *Question) (bool, error) { return hasNumberAbove(q, 5) },
	"session == 's1'":                func(q *Question) (bool, error) { return q.Session == "s1", nil },
	"'human:h' in on_behalf_of":      func(q *Question) (bool, error) { return slices.Contains(q.OnBehalfOf, "human:h"), nil },
	"effect == 'READ' || confined":   func(q *Question) (bool, error) { return q.Effect == Read || q.Confined, nil },
	"input.list.all(x, x < input.n)": func(q *Question) (bool, error) { return false, errors.New("there is no list") },
	"[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, a+b+c+d+e > 0)))))": func(*Question) (bool, error) {
		return false, errors.New("it costs too much")
	},
}

func numberAbove(q *Question, least float64) (bool, error) {
	object, _ := q.Input.value.(map[string]any)
	n, ok := object["n"].(float64)
	if !ok {
		return false, errors.New("there is no n")
	}
	return n > least, nil
}

// hasNumberAbove: to CEL a scalar has no fields, and a list cannot be asked.
func hasNumberAbove(q *Question, least float64) (bool, error) {
	if _, list := q.Input.value.([]any); list || q.Input.text == nil {
		return false, errors.New("there is nothing to look into")
	}
	object, _ := q.Input.value.(map[string]any)
	if object["n"] == nil {
		return false, nil
	}
	return numberAbove(q, least)
}

// said is what the oracle answers: the verdict, the reason, and all rules that
// could have been named for it.
type said struct {
	verdict gatev1.Verdict
	reason  string
	rules   []string
}

func (o oracle) decide(q *Question) said {
	deny := func(reason string) said { return said{verdict: gatev1.Verdict_VERDICT_DENY, reason: reason} }
	agent := strings.HasPrefix(strings.Join(append([]string{q.Subject}, q.OnBehalfOf...), " "), "agent:") ||
		strings.Contains(strings.Join(q.OnBehalfOf, " "), "agent:")
	if agent && q.Effect == Admin {
		return deny("AGENT_ADMIN")
	}
	if agent && q.Target != "" && (q.Target == q.Conversation || q.Target == q.Session) {
		return deny("SELF_TARGET")
	}
	granted := false
	for _, g := range o.grants {
		for _, p := range g.GetOperations() {
			granted = granted || g.GetSubject() == q.Subject && plainMatch(p, q.Operation)
		}
	}
	if !granted {
		return deny("NOT_GRANTED")
	}
	confined := q.Confined
	for _, p := range o.policies {
		if p.GetConfined() && (p.GetLayer() == gatev1.Layer_LAYER_AGENT && (p.GetTarget() == q.Subject || slices.Contains(q.OnBehalfOf, p.GetTarget())) ||
			p.GetLayer() == gatev1.Layer_LAYER_SESSION && p.GetTarget() == q.Session) {
			confined = true
		}
	}
	if confined && q.Effect != Read {
		return deny("CONFINED")
	}

	delegated := false
	for _, p := range o.policies {
		delegated = delegated || slices.Contains(p.GetDelegatedOperations(), q.Operation)
	}
	var denies, asks, allows []string
	for _, l := range []struct {
		layer    gatev1.Layer
		targets  []string
		allows   bool
		denyOnly bool
	}{
		{gatev1.Layer_LAYER_TENANT, []string{""}, true, false},
		{gatev1.Layer_LAYER_AGENT, []string{q.Subject}, delegated, false},
		{gatev1.Layer_LAYER_SESSION, []string{q.Session}, delegated, false},
		{gatev1.Layer_LAYER_AGENT, q.OnBehalfOf, false, true},
	} {
		var d, a, w []string
		for _, p := range o.policies {
			if p.GetLayer() != l.layer || !slices.Contains(l.targets, p.GetTarget()) || l.layer == gatev1.Layer_LAYER_SESSION && q.Session == "" {
				continue
			}
			for _, r := range p.GetRules() {
				if !o.matches(r, q) {
					continue
				}
				ref := p.GetPolicyId() + "/" + r.GetRuleId()
				switch r.GetVerdict() {
				case gatev1.Verdict_VERDICT_DENY:
					d = append(d, ref)
				case gatev1.Verdict_VERDICT_ASK:
					a = append(a, ref)
				default:
					w = append(w, ref)
				}
			}
		}
		denies = append(denies, d...)
		if l.denyOnly || len(d) > 0 {
			continue
		}
		asks = append(asks, a...)
		if len(a) == 0 && l.allows {
			allows = append(allows, w...)
		}
	}
	switch {
	case len(denies) > 0:
		return said{gatev1.Verdict_VERDICT_DENY, "RULE", denies}
	case len(asks) > 0:
		return said{gatev1.Verdict_VERDICT_ASK, "RULE", asks}
	case len(allows) > 0:
		return said{gatev1.Verdict_VERDICT_ALLOW, "RULE", allows}
	case q.Effect == Read:
		return said{verdict: gatev1.Verdict_VERDICT_ALLOW, reason: "READ_ALLOWED"}
	default:
		return said{verdict: gatev1.Verdict_VERDICT_ASK, reason: "WRITE_ASKS"}
	}
}

// matches says whether a rule has a say. An ALLOW has one on a write only by
// naming it exactly and acknowledging it.
func (o oracle) matches(r *gatev1.Rule, q *Question) bool {
	effect := map[Effect]registryv1.Effect{Read: registryv1.Effect_EFFECT_READ, Write: registryv1.Effect_EFFECT_WRITE, Admin: registryv1.Effect_EFFECT_ADMIN}[q.Effect]
	if len(r.GetEffects()) > 0 && !slices.Contains(r.GetEffects(), effect) {
		return false
	}
	allow := r.GetVerdict() == gatev1.Verdict_VERDICT_ALLOW
	named := false
	for _, p := range r.GetOperations() {
		if plainMatch(p, q.Operation) && (!allow || q.Effect == Read || p == q.Operation && r.GetAllowWrites()) {
			named = true
		}
	}
	if !named || r.GetWhen() == "" {
		return named
	}
	is, err := tested[r.GetWhen()](q)
	if err != nil {
		return !allow
	}
	return is
}

// The world that questions are drawn from is small, so that things meet.
var (
	someNames    = []string{"a/a", "a/b", "b/a", "a/b/c", "ab/a", "b/b/b"}
	somePatterns = append([]string{"a/*", "a/**", "*/a", "*b/*", "a*/a", "*/*/*", "b/**"}, someNames...)
	someSubjects = []string{"agent:a", "agent:b", "human:h", "service:s"}
	someSessions = []string{"", "s1", "c2"}
	someVerdicts = []gatev1.Verdict{gatev1.Verdict_VERDICT_ALLOW, gatev1.Verdict_VERDICT_ALLOW, gatev1.Verdict_VERDICT_ALLOW, gatev1.Verdict_VERDICT_ASK, gatev1.Verdict_VERDICT_DENY}
	someEffects  = []Effect{Write, Write, Write, Read, Read, Admin}
	someInputs   = []string{"", "null", "{}", `{"n": 3}`, `{"n": 7}`, `{"n": "7"}`, `[1]`}
)

func drawPatterns(t *rapid.T, label string) []string {
	return rapid.SliceOfNDistinct(rapid.SampledFrom(somePatterns), 1, 3, rapid.ID[string]).Draw(t, label)
}

func drawWorld(t *rapid.T) oracle {
	var o oracle
	for i := range rapid.IntRange(0, 5).Draw(t, "policies") {
		p := &gatev1.Policy{PolicyId: fmt.Sprintf("p%d", i), Layer: gatev1.Layer(rapid.IntRange(1, 3).Draw(t, "layer"))}
		switch p.GetLayer() {
		case gatev1.Layer_LAYER_TENANT:
			p.DelegatedOperations = rapid.SliceOfDistinct(rapid.SampledFrom(someNames), rapid.ID[string]).Draw(t, "delegated")
		case gatev1.Layer_LAYER_AGENT:
			p.Target = rapid.SampledFrom(someSubjects[:2]).Draw(t, "agent")
			p.Confined = rapid.IntRange(0, 9).Draw(t, "confined") == 0
		default:
			p.Target = rapid.SampledFrom(someSessions[1:]).Draw(t, "session")
			p.Confined = rapid.IntRange(0, 9).Draw(t, "confined") == 0
		}
		for j := range rapid.IntRange(0, 4).Draw(t, "rules") {
			r := &gatev1.Rule{
				RuleId: fmt.Sprintf("r%d", j), Verdict: rapid.SampledFrom(someVerdicts).Draw(t, "verdict"),
				Operations: drawPatterns(t, "operations"), AllowWrites: rapid.Bool().Draw(t, "allow writes"),
			}
			if rapid.IntRange(0, 2).Draw(t, "narrowed") == 0 {
				r.Effects = []registryv1.Effect{registryv1.Effect(rapid.IntRange(1, 3).Draw(t, "effect"))}
			}
			if rapid.Bool().Draw(t, "conditional") {
				r.When = rapid.SampledFrom(slices.Sorted(keys(tested))).Draw(t, "when")
			}
			p.Rules = append(p.Rules, r)
		}
		o.policies = append(o.policies, p)
	}
	for i := range rapid.IntRange(1, 5).Draw(t, "grants") {
		o.grants = append(o.grants, &gatev1.Grant{
			GrantId: fmt.Sprintf("g%d", i), Subject: rapid.SampledFrom(someSubjects).Draw(t, "holder"), Operations: drawPatterns(t, "granted"),
		})
	}
	if rapid.Bool().Draw(t, "much is granted") {
		for _, subject := range someSubjects {
			o.grants = append(o.grants, &gatev1.Grant{GrantId: "all " + subject, Subject: subject, Operations: []string{"*/**"}})
		}
	}
	return o
}

func keys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func drawQuestion(t *rapid.T) *Question {
	q := &Question{
		Subject:   rapid.SampledFrom(someSubjects).Draw(t, "subject"),
		Session:   rapid.SampledFrom(someSessions).Draw(t, "session"),
		Confined:  rapid.IntRange(0, 5).Draw(t, "confined") == 0,
		Operation: rapid.SampledFrom(someNames).Draw(t, "operation"),
		Effect:    rapid.SampledFrom(someEffects).Draw(t, "effect"),
		OnBehalfOf: rapid.SliceOfNDistinct(rapid.SampledFrom(someSubjects), 0, 2, rapid.ID[string]).
			Draw(t, "chain"),
		Conversation: rapid.SampledFrom([]string{"", "", "c1", "c2"}).Draw(t, "conversation"),
		Target:       rapid.SampledFrom([]string{"", "", "", "", "c1", "c2"}).Draw(t, "target"),
		Now:          time.Unix(0, 0),
	}
	if text := rapid.SampledFrom(someInputs).Draw(t, "input"); text != "" {
		q.Input = NewInput(&text)
		q.Input.get() // the oracle looks at the value itself
	}
	return q
}

func TestEveryDecisionIsWhatThePageSays(t *testing.T) {
	counts := make(map[string]int)
	rapid.Check(t, func(t *rapid.T) {
		world := drawWorld(t)
		book, err := NewBook(7, world.policies, world.grants)
		if err != nil {
			t.Fatal(err)
		}
		for range 40 {
			q := drawQuestion(t)
			want, got := world.decide(q), book.Decide(q)
			counts[got.Verdict.String()+" "+got.Reason]++
			if got.Verdict != want.verdict || got.Reason != want.reason || got.Revision != 7 {
				t.Fatalf("%+v: %v %s, the page says %v %s", q, got.Verdict, got.Reason, want.verdict, want.reason)
			}
			if len(want.rules) > 0 && !slices.Contains(want.rules, got.Rule) {
				t.Fatalf("%+v: decided by %s, the page says one of %v", q, got.Rule, want.rules)
			}
			if got.Verdict == gatev1.Verdict_VERDICT_ASK && got.Reason == ReasonRule {
				var asked []string
				for _, a := range got.Asked {
					asked = append(asked, a.Rule)
				}
				slices.Sort(asked)
				slices.Sort(want.rules)
				if !slices.Equal(asked, want.rules) {
					t.Fatalf("%+v: asked by %v, the page says %v", q, asked, want.rules)
				}
			}
			checkSafe(t, world, q, got)
		}
	})
	for _, reason := range []string{"ALLOW RULE", "ALLOW READ_ALLOWED", "ASK RULE", "ASK WRITE_ASKS", "DENY RULE", "DENY CONFINED", "DENY NOT_GRANTED", "DENY AGENT_ADMIN", "DENY SELF_TARGET"} {
		if n := counts["VERDICT_"+reason]; n < 10 {
			t.Errorf("%s came up %d times in %v", reason, n, counts)
		}
	}
}

// checkSafe is the first thing that must hold, on its own.
func checkSafe(t *rapid.T, world oracle, q *Question, got Answer) {
	if got.Verdict == gatev1.Verdict_VERDICT_DENY {
		return
	}
	granted := slices.ContainsFunc(world.grants, func(g *gatev1.Grant) bool {
		return g.GetSubject() == q.Subject && slices.ContainsFunc(g.GetOperations(), func(p string) bool { return plainMatch(p, q.Operation) })
	})
	if !granted {
		t.Fatalf("%+v: nothing is granted and it is %v", q, got.Verdict)
	}
	if got.Verdict != gatev1.Verdict_VERDICT_ALLOW || q.Effect == Read {
		return
	}
	acknowledged := slices.ContainsFunc(world.policies, func(p *gatev1.Policy) bool {
		return slices.ContainsFunc(p.GetRules(), func(r *gatev1.Rule) bool {
			return r.GetVerdict() == gatev1.Verdict_VERDICT_ALLOW && r.GetAllowWrites() && slices.Contains(r.GetOperations(), q.Operation)
		})
	})
	if !acknowledged {
		t.Fatalf("%+v: a write runs without anybody having said so", q)
	}
}

func TestExplainingDecidesTheSameAndNamesWhatDecided(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := drawWorld(t)
		book, err := NewBook(7, world.policies, world.grants)
		if err != nil {
			t.Fatal(err)
		}
		q := drawQuestion(t)
		run := &gatev1.DryRun{
			Caller:    &gatev1.Caller{Subject: q.Subject, Session: q.Session, Confined: q.Confined, OnBehalfOf: q.OnBehalfOf},
			Operation: q.Operation, Effect: q.Effect.Proto(), InputJson: q.Input.text, ConversationId: q.Conversation, TargetConversationId: q.Target,
		}
		decided, explained := book.Decide(q), book.Explain(run)
		if explained.GetVerdict() != decided.Verdict || explained.GetReason() != decided.Reason || explained.GetRule() != decided.Rule {
			t.Fatalf("explained %v %s %s, decided %+v", explained.GetVerdict(), explained.GetReason(), explained.GetRule(), decided)
		}
		var counted []string
		for _, m := range explained.GetMatches() {
			if m.GetCounted() == (m.GetWhyNot() != "") {
				t.Fatalf("%v counts and says why not", m)
			}
			if m.GetCounted() {
				counted = append(counted, m.GetPolicyId()+"/"+m.GetRuleId())
			}
		}
		if want := world.decide(q).rules; len(want) > 0 {
			slices.Sort(counted)
			slices.Sort(want)
			if !slices.Equal(slices.Compact(counted), slices.Compact(want)) {
				t.Fatalf("%+v: counted are %v, the page says %v", q, counted, want)
			}
		} else if len(counted) > 0 {
			t.Fatalf("%+v: %v are said to count", q, counted)
		}
	})
}

// A Book that follows changes one by one is the Book of what there is in the end.
func TestABookThatFollowedChangesDecidesLikeOneMadeAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, after := drawWorld(t), drawWorld(t)
		book, err := NewBook(1, before.policies, before.grants)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range slices.Concat(before.policies, after.policies) {
			var same []*gatev1.Policy
			for _, other := range after.policies {
				if other.GetLayer() == p.GetLayer() && other.GetTarget() == p.GetTarget() {
					same = append(same, other)
				}
			}
			if book, err = book.WithPolicies(2, p.GetLayer(), p.GetTarget(), same); err != nil {
				t.Fatal(err)
			}
		}
		for _, g := range slices.Concat(before.grants, after.grants) {
			var same []*gatev1.Grant
			for _, other := range after.grants {
				if other.GetSubject() == g.GetSubject() {
					same = append(same, other)
				}
			}
			if book, err = book.WithGrants(2, g.GetSubject(), same); err != nil {
				t.Fatal(err)
			}
		}
		for range 8 {
			q := drawQuestion(t)
			want, got := after.decide(q), book.Decide(q)
			if got.Verdict != want.verdict || got.Reason != want.reason {
				t.Fatalf("%+v: %v %s, want %v %s", q, got.Verdict, got.Reason, want.verdict, want.reason)
			}
		}
	})
}

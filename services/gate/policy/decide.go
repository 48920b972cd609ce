package policy

import (
	"slices"
	"time"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/identity"
)

// Question is one check, with the caller as its credential says.
type Question struct {
	Subject    string
	Session    string
	Confined   bool
	OnBehalfOf []string // the nearest first

	Operation    string
	Effect       Effect
	Conversation string // that the caller is running in, if any
	Target       string // conversation that the operation acts on, if any
	Input        Input
	Now          time.Time

	spent uint64 // on predicates
}

// The reasons of answers.
const (
	ReasonNotGranted  = "NOT_GRANTED"
	ReasonAgentAdmin  = "AGENT_ADMIN"
	ReasonSelfTarget  = "SELF_TARGET"
	ReasonConfined    = "CONFINED"
	ReasonRule        = "RULE"
	ReasonReadAllowed = "READ_ALLOWED"
	ReasonWriteAsks   = "WRITE_ASKS"
	// Of several rules that ask, no people could meet all together.
	ReasonUnsatisfiable = "TERMS_UNSATISFIABLE"
)

// Answer is the verdict on a question. An ASK is one before trusts are looked at,
// and an ALLOW of a write one before budgets are.
type Answer struct {
	Verdict gatev1.Verdict
	Reason  string
	Rule    string // that decided, as policy/rule; the first of several
	// Asked are all rules that ask, with their merged terms.
	Asked []Asking
	Terms Terms
	// Budget is what rules that allow a write let it run within; Limit 0 where no
	// rule allowed it.
	Budget   Window
	Revision uint64
}

func (a Answer) asked(rule string) bool {
	return slices.ContainsFunc(a.Asked, func(asking Asking) bool { return asking.Rule == rule })
}

// Asking is a rule that asks.
type Asking struct{ Rule, Why string }

// Decide answers in a fixed order; the first that denies ends it. It is a pure
// function of the Book and the question.
func (b *Book) Decide(q *Question) Answer {
	q.spent = 0 // a question may be asked again
	agent := identity.ByAgent(q.Subject, q.OnBehalfOf)
	switch {
	// What no configuration lifts.
	case agent && q.Effect == Admin:
		return b.deny(ReasonAgentAdmin, "")
	case agent && q.Target != "" && (q.Target == q.Conversation || q.Target == q.Session):
		return b.deny(ReasonSelfTarget, "")
	// A capability is a grant; without one nothing else counts.
	case !b.Granted(q.Subject, q.Operation):
		return b.deny(ReasonNotGranted, "")
	case q.Effect != Read && b.Confines(q):
		return b.deny(ReasonConfined, "")
	}

	o := opinions{within: b.tenant.budgets.PerOperation}
	b.eachLayer(q, func(l *layer, counts part) { o.hear(l, q, counts) })
	return b.conclude(q, &o)
}

// eachLayer gives the layers that have a say on a question, and how much of one.
func (b *Book) eachLayer(q *Question, hear func(*layer, part)) {
	give := func(l *layer, counts part) {
		if l != nil {
			hear(l, counts)
		}
	}
	give(b.tenant, allowCounts)
	// Below the tenant an ALLOW counts only for what the tenant delegated, and
	// within the tenant's budget.
	below := allowIgnored
	if b.tenant.delegated[q.Operation] {
		below = allowWithin
	}
	give(b.agents[q.Subject], below)
	if q.Session != "" {
		give(b.sessions[q.Session], below)
	}
	// Denies pass to whoever acts on behalf of their target; what allows, or
	// asks somebody, does not.
	for _, subject := range q.OnBehalfOf {
		give(b.agents[subject], denyOnly)
	}
}

// Confines says whether the caller, or one that it acts for, is confined.
func (b *Book) Confines(q *Question) bool {
	if q.Confined {
		return true
	}
	confined := func(l *layer) bool { return l != nil && l.confined }
	return confined(b.agents[q.Subject]) || confined(b.sessions[q.Session]) ||
		slices.ContainsFunc(q.OnBehalfOf, func(subject string) bool { return confined(b.agents[subject]) })
}

// part is which of a layer's verdicts count.
type part int

const (
	allowCounts part = iota
	allowWithin      // within the tenant's budget
	allowIgnored
	denyOnly
)

// opinions collects what layers say. The strictest of them wins.
type opinions struct {
	deny  *rule
	asks  []*rule
	allow *rule
	// budget is the rarest of all rules that allow; within is the tenant's.
	budget, within Window
}

// hear adds the opinion of one layer: DENY beats ASK beats ALLOW in it.
func (o *opinions) hear(l *layer, q *Question, counts part) {
	if o.deny != nil {
		return
	}
	var found hits[place]
	l.rules.find(q.Operation, &found)
	if o.deny = denying(&found, q); o.deny != nil || counts == denyOnly {
		return
	}
	before := len(o.asks)
	for i := range found.n {
		c := &found.at(i).cells[q.Effect]
		o.asks = append(o.asks, c.asks...)
		for _, r := range c.conditional {
			if r.verdict == gatev1.Verdict_VERDICT_ASK && r.matches(q) {
				o.asks = append(o.asks, r)
			}
		}
	}
	if len(o.asks) == before && counts != allowIgnored {
		o.hearAllows(&found, q, counts)
	}
}

// hearAllows takes the first rule that allows, and the rarest budget of all that
// do: whoever wants less is heard too.
func (o *opinions) hearAllows(found *hits[place], q *Question, counts part) {
	allows := func(r *rule, budget Window) {
		if o.allow == nil {
			o.allow = r
		}
		o.budget = o.budget.rarest(budget)
		if counts == allowWithin {
			o.budget = o.budget.rarest(o.within)
		}
	}
	for i := range found.n {
		if c := &found.at(i).cells[q.Effect]; c.allow != nil {
			allows(c.allow, c.budget)
		}
	}
	for i := range found.n {
		for _, r := range found.at(i).cells[q.Effect].conditional {
			// Reads have no budgets, so one that allows them is enough.
			if q.Effect == Read && o.allow != nil {
				return
			}
			if r.verdict == gatev1.Verdict_VERDICT_ALLOW && r.matches(q) {
				allows(r, r.budget)
			}
		}
	}
}

func denying(found *hits[place], q *Question) *rule {
	for i := range found.n {
		if r := found.at(i).cells[q.Effect].deny; r != nil {
			return r
		}
	}
	for i := range found.n {
		for _, r := range found.at(i).cells[q.Effect].conditional {
			if r.verdict == gatev1.Verdict_VERDICT_DENY && r.matches(q) {
				return r
			}
		}
	}
	return nil
}

// matches evaluates a rule's predicate. What can't be evaluated counts against
// the caller.
func (r *rule) matches(q *Question) bool {
	return r.holds(r.when.eval(q))
}

func (r *rule) holds(said bool, err error) bool {
	if err != nil {
		return r.verdict != gatev1.Verdict_VERDICT_ALLOW
	}
	return said
}

func (b *Book) conclude(q *Question, o *opinions) Answer {
	switch {
	case o.deny != nil:
		return b.deny(ReasonRule, o.deny.ref)
	case len(o.asks) > 0:
		return b.ask(o.asks)
	case o.allow != nil:
		return Answer{
			Verdict: gatev1.Verdict_VERDICT_ALLOW, Reason: ReasonRule, Rule: o.allow.ref,
			Budget: o.budget, Revision: b.Revision,
		}
	case q.Effect == Read:
		return Answer{Verdict: gatev1.Verdict_VERDICT_ALLOW, Reason: ReasonReadAllowed, Revision: b.Revision}
	default:
		return Answer{Verdict: gatev1.Verdict_VERDICT_ASK, Reason: ReasonWriteAsks, Revision: b.Revision}
	}
}

func (b *Book) deny(reason, rule string) Answer {
	return Answer{Verdict: gatev1.Verdict_VERDICT_DENY, Reason: reason, Rule: rule, Revision: b.Revision}
}

// ask brings the terms of all rules that ask together. A rule is heard once,
// however many of its patterns match.
func (b *Book) ask(asks []*rule) Answer {
	out := Answer{
		Verdict: gatev1.Verdict_VERDICT_ASK, Reason: ReasonRule, Rule: asks[0].ref,
		Terms: asks[0].terms, Revision: b.Revision,
	}
	for i, r := range asks {
		if !out.asked(r.ref) {
			out.Asked = append(out.Asked, Asking{Rule: r.ref, Why: r.source.GetDescription()})
		}
		if i > 0 {
			out.Terms = out.Terms.merge(r.terms)
		}
	}
	if out.Terms.unmeetable() != "" {
		return b.deny(ReasonUnsatisfiable, out.Rule)
	}
	return out
}

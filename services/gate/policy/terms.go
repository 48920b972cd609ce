package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	gatev1 "weir/gen/gate/v1"
)

// ScopeDecide is the scope of everyone who decides, and the requirement where
// no rule names another.
const ScopeDecide = "approval.decide"

// MaxApprovers caps how many people one approval can need.
const MaxApprovers = 20

// OnTimeout is what happens when nobody answers in time.
type OnTimeout string

// The empty OnTimeout leaves it to whether a person stands behind the caller.
const (
	TimeoutDeny  OnTimeout = "DENY"
	TimeoutWait  OnTimeout = "WAIT"
	TimeoutAllow OnTimeout = "ALLOW"
)

// Terms say how a person is asked.
type Terms struct {
	Approvers    []Approver    `json:",omitempty"`
	TTL          time.Duration `json:",omitempty"` // 0: the gate's own
	OnTimeout    OnTimeout     `json:",omitempty"`
	NoteRequired bool          `json:",omitempty"`
}

// Approver is a requirement: so many people who hold a scope.
type Approver struct {
	Scope  string
	Count  int
	People []string `json:",omitempty"` // if set, the only ones who count
}

// Voter is somebody who approved, with the scopes that they held then.
type Voter struct {
	Subject string
	Scopes  []string
}

// meets says whether somebody could stand for a requirement.
func (a Approver) meets(v Voter) bool {
	return slices.Contains(v.Scopes, a.Scope) && (len(a.People) == 0 || slices.Contains(a.People, v.Subject))
}

// key tells requirements apart. Those with the same key are met by the same people.
func (a Approver) key() string { return a.Scope + " " + strings.Join(a.People, " ") }

// Required gives the requirements; without any, one holder of the common scope.
func (t Terms) Required() []Approver {
	if len(t.Approvers) == 0 {
		return []Approver{{Scope: ScopeDecide, Count: 1}}
	}
	return t.Approvers
}

// Missing gives what is still needed after these people approved, each person
// standing for one requirement at most. People are moved between requirements
// so that most are met: who could stand for two is kept for the one that nobody
// else can.
func (t Terms) Missing(voters []Voter) []Approver {
	required := t.Required()
	var slots []int // the requirement of each slot
	for i, a := range required {
		for range a.Count {
			slots = append(slots, i)
		}
	}
	holder := make([]int, len(slots)) // the voter of each slot, from 1
	for v := range voters {
		seen := make([]bool, len(slots))
		var place func(v int) bool
		place = func(v int) bool {
			for s, requirement := range slots {
				if seen[s] || !required[requirement].meets(voters[v]) {
					continue
				}
				seen[s] = true
				if holder[s] == 0 || place(holder[s]-1) {
					holder[s] = v + 1
					return true
				}
			}
			return false
		}
		place(v)
	}
	var missing []Approver
	for i, a := range required {
		a.Count = 0
		for s, requirement := range slots {
			if requirement == i && holder[s] == 0 {
				a.Count++
			}
		}
		if a.Count > 0 {
			missing = append(missing, a)
		}
	}
	return missing
}

// unmeetable says why the requirements can't all be met, each by other people;
// empty where they can.
// Those that name no people can be met by anybody with the scope, so only the
// ones that do compete: each person they need is a slot, and slots are matched
// with people.
func (t Terms) unmeetable() string {
	var slots [][]string // the people each slot is open to
	for _, a := range t.Approvers {
		if len(a.People) > 0 {
			slots = append(slots, slices.Repeat([][]string{a.People}, min(a.Count, MaxApprovers+1))...)
		}
	}
	if total := People(t.Approvers); total > MaxApprovers {
		return fmt.Sprintf("%d people are needed, and %d is the limit", total, MaxApprovers)
	}
	taken := map[string]int{} // person to slot
	for slot := range slots {
		tried := map[string]bool{}
		if !fill(slot, slots, taken, tried) {
			// All who were tried have a slot that only those tried could fill.
			few := slices.SortedFunc(maps.Keys(tried), cmp.Compare)
			return fmt.Sprintf("%d different people are needed of only %d: %s", len(few)+1, len(few), strings.Join(few, ", "))
		}
	}
	return ""
}

// fill gives a slot a person, moving others to other slots if it must.
func fill(slot int, slots [][]string, taken map[string]int, tried map[string]bool) bool {
	for _, person := range slots[slot] {
		if tried[person] {
			continue
		}
		tried[person] = true
		holder, ok := taken[person]
		if !ok || fill(holder, slots, taken, tried) {
			taken[person] = slot
			return true
		}
	}
	return false
}

// People is how many people requirements need in all.
func People(requirements []Approver) int {
	n := 0
	for _, a := range requirements {
		n += a.Count
	}
	return n
}

// Concerns says whether somebody could stand for any of the requirements.
func (t Terms) Concerns(v Voter) bool {
	return slices.ContainsFunc(t.Required(), func(a Approver) bool { return a.meets(v) })
}

// merge gives the terms that satisfy both: all requirements of either, and the
// strictest of the rest.
func (t Terms) merge(o Terms) Terms {
	out := Terms{
		Approvers:    slices.Clone(t.Approvers),
		TTL:          t.TTL,
		OnTimeout:    stricter(t.OnTimeout, o.OnTimeout),
		NoteRequired: t.NoteRequired || o.NoteRequired,
	}
	if out.TTL == 0 || o.TTL != 0 && o.TTL < out.TTL {
		out.TTL = o.TTL
	}
	for _, a := range o.Approvers {
		i := slices.IndexFunc(out.Approvers, func(b Approver) bool { return a.key() == b.key() })
		if i < 0 {
			out.Approvers = append(out.Approvers, a)
		} else {
			out.Approvers[i].Count = max(out.Approvers[i].Count, a.Count)
		}
	}
	slices.SortFunc(out.Approvers, func(a, b Approver) int { return strings.Compare(a.key(), b.key()) })
	return out
}

// strictness orders what happens on a timeout. What is left open becomes DENY or
// WAIT, so it is stricter than a WAIT that somebody wrote.
var strictness = map[OnTimeout]int{TimeoutAllow: 0, TimeoutWait: 1, "": 2, TimeoutDeny: 3}

func stricter(a, b OnTimeout) OnTimeout {
	if strictness[a] > strictness[b] {
		return a
	}
	return b
}

// Key is equal for terms that ask the same people for the same. How long they
// have does not count.
func (t Terms) Key() string {
	var b strings.Builder
	for _, a := range t.Required() {
		fmt.Fprintf(&b, "%d %s; ", a.Count, a.key())
	}
	fmt.Fprintf(&b, "%s %v", t.OnTimeout, t.NoteRequired)
	return b.String()
}

// TermsFrom reads terms; nil are those without any demand.
func TermsFrom(p *gatev1.Terms) Terms {
	t := Terms{TTL: p.GetTtl().AsDuration(), OnTimeout: timeoutFromProto[p.GetOnTimeout()], NoteRequired: p.GetNoteRequired()}
	for _, p := range p.GetApprovers() {
		a := Approver{Scope: p.GetScope(), Count: max(1, int(p.GetCount())), People: slices.Sorted(slices.Values(p.GetPeople()))}
		// Each requirement of one rule is met by other people, also where two are alike.
		if i := slices.IndexFunc(t.Approvers, func(b Approver) bool { return a.key() == b.key() }); i >= 0 {
			t.Approvers[i].Count += a.Count
		} else {
			t.Approvers = append(t.Approvers, a)
		}
	}
	// Merging with nothing brings requirements into order.
	return Terms{OnTimeout: TimeoutAllow}.merge(t)
}

// Proto writes terms, with the requirements that hold by default too.
func (t Terms) Proto() *gatev1.Terms {
	out := &gatev1.Terms{OnTimeout: timeoutToProto[t.OnTimeout], NoteRequired: t.NoteRequired, Approvers: ApproversToProto(t.Required())}
	if t.TTL > 0 {
		out.Ttl = durationpb.New(t.TTL)
	}
	return out
}

// ApproversToProto writes requirements.
func ApproversToProto(list []Approver) []*gatev1.Approver {
	var out []*gatev1.Approver
	for _, a := range list {
		out = append(out, &gatev1.Approver{Scope: a.Scope, Count: int32(a.Count), People: a.People})
	}
	return out
}

var timeoutFromProto = map[gatev1.OnTimeout]OnTimeout{
	gatev1.OnTimeout_ON_TIMEOUT_DENY:  TimeoutDeny,
	gatev1.OnTimeout_ON_TIMEOUT_WAIT:  TimeoutWait,
	gatev1.OnTimeout_ON_TIMEOUT_ALLOW: TimeoutAllow,
}

var timeoutToProto = map[OnTimeout]gatev1.OnTimeout{
	TimeoutDeny:  gatev1.OnTimeout_ON_TIMEOUT_DENY,
	TimeoutWait:  gatev1.OnTimeout_ON_TIMEOUT_WAIT,
	TimeoutAllow: gatev1.OnTimeout_ON_TIMEOUT_ALLOW,
}

// Window is a number of writes in any period of a length.
type Window struct {
	Limit  int
	Period time.Duration
}

// rarer says whether a window lets less through in the long run; among equal
// rates, the one of the smaller limit, which lets less through at once.
func (w Window) rarer(o Window) bool {
	// Limits are at most 100,000 and periods a day, so this cannot overflow.
	a, b := int64(w.Limit)*o.Period.Milliseconds(), int64(o.Limit)*w.Period.Milliseconds()
	return cmp.Or(cmp.Compare(a, b), cmp.Compare(w.Limit, o.Limit)) < 0
}

// rarest gives the one that lets less through, of those that are set at all.
func (w Window) rarest(o Window) Window {
	if w.Limit == 0 || o.Limit != 0 && o.rarer(w) {
		return o
	}
	return w
}

func windowFrom(p *gatev1.Window) Window {
	return Window{Limit: int(p.GetLimit()), Period: p.GetPeriod().AsDuration()}
}

// Budgets cap writes that run without asking.
type Budgets struct{ PerOperation, PerCaller, PerTenant Window }

// DefaultBudgets hold where a tenant's policies set none.
var DefaultBudgets = Budgets{
	PerOperation: Window{60, time.Minute},
	PerCaller:    Window{600, time.Minute},
	PerTenant:    Window{6000, time.Minute},
}

// budgetsOf gives, of all that are set, the one that lets least through.
func budgetsOf(policies []*gatev1.Policy) Budgets {
	out := DefaultBudgets
	for _, part := range []struct {
		into *Window
		from func(*gatev1.Budgets) *gatev1.Window
	}{
		{&out.PerOperation, (*gatev1.Budgets).GetPerOperation},
		{&out.PerCaller, (*gatev1.Budgets).GetPerCaller},
		{&out.PerTenant, (*gatev1.Budgets).GetPerTenant},
	} {
		set := false
		for _, p := range policies {
			if w := part.from(p.GetBudgets()); w != nil && (!set || windowFrom(w).rarer(*part.into)) {
				*part.into, set = windowFrom(w), true
			}
		}
	}
	return out
}

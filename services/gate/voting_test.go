package gate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/services/gate/policy"
)

// finance and security are two groups; both must agree.
var both = policy.Terms{
	TTL: time.Minute, OnTimeout: policy.TimeoutDeny,
	Approvers: []policy.Approver{{Scope: "approval.decide.finance", Count: 1}, {Scope: "approval.decide.security", Count: 1}},
}

// by is what somebody of some groups says.
func by(who string, approve bool, groups ...string) decision {
	d := decision{RequestID: "by-" + who, Decider: "human:" + who, Approve: approve, InputDigest: "input", Scopes: []string{"approval.decide"}}
	for _, g := range groups {
		d.Scopes = append(d.Scopes, "approval.decide."+g)
	}
	return d
}

func askedOn(terms policy.Terms) *history {
	h := &history{}
	cmd := asked
	cmd.Terms = terms
	event, err := decideRequest(h.approval, cmd, epoch)
	if err != nil {
		panic(err)
	}
	h.record(event, epoch)
	return h
}

// say has somebody decide, and gives the state after it or the reason why not.
func (h *history) say(d decision) string {
	event, err := decideDecision(h.approval, "a-1", d, inTime)
	if err != nil {
		return string(fault.ReasonOf(err))
	}
	if event != nil {
		h.record(event, inTime)
	}
	return string(h.approval.State)
}

func TestAQuorumNeedsDistinctPeopleOfEachGroup(t *testing.T) {
	two := both
	two.Approvers = []policy.Approver{{Scope: "approval.decide.finance", Count: 2}}
	named := both
	named.Approvers = []policy.Approver{{Scope: "approval.decide", Count: 1, People: []string{"human:erin"}}}
	for name, tc := range map[string]struct {
		terms policy.Terms
		says  []decision
		want  []string
	}{
		"one of each":                    {both, []decision{by("fay", true, "finance"), by("sam", true, "security")}, []string{"PENDING", "APPROVED"}},
		"in any order":                   {both, []decision{by("sam", true, "security"), by("fay", true, "finance")}, []string{"PENDING", "APPROVED"}},
		"one who is in both counts once": {both, []decision{by("x", true, "finance", "security"), by("x", true, "finance", "security")}, []string{"PENDING", "PENDING"}},
		"the same one under another id": {both, []decision{by("x", true, "finance", "security"), func() decision {
			d := by("x", true, "finance", "security")
			d.RequestID = "again"
			return d
		}()}, []string{"PENDING", "APPROVAL_DECIDED"}},
		"one who is in both makes room for another": {both, []decision{by("x", true, "finance", "security"), by("fay", true, "finance")}, []string{"PENDING", "APPROVED"}},
		"a second of one group is one too many":     {both, []decision{by("fay", true, "finance"), by("fred", true, "finance")}, []string{"PENDING", "APPROVER_SCOPE_MISSING"}},
		"one of no group":                           {both, []decision{by("carol", true)}, []string{"APPROVER_SCOPE_MISSING"}},
		"nor may they deny":                         {both, []decision{by("carol", false)}, []string{"APPROVER_SCOPE_MISSING"}},
		"one denial ends it":                        {both, []decision{by("fay", true, "finance"), by("fred", false, "finance"), by("sam", true, "security")}, []string{"PENDING", "DENIED", "APPROVAL_DECIDED"}},
		"a change of mind ends it":                  {both, []decision{by("fay", true, "finance"), func() decision { d := by("fay", false, "finance"); d.RequestID = "no"; return d }()}, []string{"PENDING", "DENIED"}},
		"two of one group":                          {two, []decision{by("fay", true, "finance"), by("fred", true, "finance")}, []string{"PENDING", "APPROVED"}},
		"only who is named":                         {named, []decision{by("carol", true), by("erin", true)}, []string{"APPROVER_SCOPE_MISSING", "APPROVED"}},
		"a retry gets the first answer":             {both, []decision{by("fay", true, "finance"), by("fay", true, "finance")}, []string{"PENDING", "PENDING"}},
	} {
		h := askedOn(tc.terms)
		for i, d := range tc.says {
			if got := h.say(d); got != tc.want[i] {
				t.Errorf("%s: step %d: %s, want %s", name, i, got, tc.want[i])
			}
		}
	}
}

// Whoever votes in whatever order: it is approved exactly when people can be
// found among those who approved, all different, for every requirement.
func TestAnApprovalIsApprovedExactlyWhenEveryRequirementHasSomebodyElse(t *testing.T) {
	groups := []string{"finance", "security", "legal"}
	rapid.Check(t, func(t *rapid.T) {
		terms := policy.Terms{TTL: time.Minute, OnTimeout: policy.TimeoutDeny}
		for _, g := range groups {
			if n := rapid.IntRange(0, 2).Draw(t, g); n > 0 {
				terms.Approvers = append(terms.Approvers, policy.Approver{Scope: "approval.decide." + g, Count: n})
			}
		}
		h := askedOn(terms)
		var approved []policy.Voter
		for i := range rapid.IntRange(1, 8).Draw(t, "people") {
			d := by(fmt.Sprint(i), true, rapid.SliceOfDistinct(rapid.SampledFrom(groups), rapid.ID[string]).Draw(t, "groups")...)
			state := h.say(d)
			if state == "PENDING" || state == "APPROVED" {
				approved = append(approved, policy.Voter{Subject: d.Decider, Scopes: d.Scopes})
			}
			if enough := canFill(terms.Required(), approved, nil); enough != (h.approval.State == stateApproved) {
				t.Fatalf("%v approved of %v: state %s", approved, terms.Required(), h.approval.State)
			}
			if state == "APPROVED" {
				return
			}
		}
	})
}

// canFill tries every way to give each requirement people of its own.
func canFill(required []policy.Approver, people []policy.Voter, used []string) bool {
	if len(required) == 0 {
		return true
	}
	first := required[0]
	if first.Count == 0 {
		return canFill(required[1:], people, used)
	}
	rest := slices.Clone(required)
	rest[0].Count--
	for _, p := range people {
		if !slices.Contains(used, p.Subject) && slices.Contains(p.Scopes, first.Scope) && canFill(rest, people, append(slices.Clone(used), p.Subject)) {
			return true
		}
	}
	return false
}

func TestARequiredNoteIsRequiredOfEverybody(t *testing.T) {
	terms := one
	terms.NoteRequired = true
	h := askedOn(terms)
	if got := h.say(approved); got != "NOTE_REQUIRED" {
		t.Errorf("approving without: %s", got)
	}
	blank := denied
	blank.Note = " \t"
	if got := h.say(blank); got != "NOTE_REQUIRED" {
		t.Errorf("denying with a blank one: %s", got)
	}
	if got := h.say(denied); got != "DENIED" {
		t.Errorf("denying with one: %s", got)
	}
}

func TestAnAmendmentStartsTheVotingAnew(t *testing.T) {
	h := askedOn(both)
	h.say(by("fay", true, "finance"))
	amend := by("sam", true, "security")
	amend.Amendment = &amendment{Input: `{"amount":5}`, Digest: "amended"}
	if got := h.say(amend); got != "PENDING" {
		t.Fatalf("the amendment: %s; what was said to another input must not count", got)
	}
	if got := h.say(by("fred", true, "finance")); got != "DIGEST_MISMATCH" {
		t.Fatalf("approving the old digest: %s", got)
	}
	again := by("fay", true, "finance")
	again.RequestID, again.InputDigest = "again", "amended"
	if got := h.say(again); got != "APPROVED" {
		t.Fatalf("approving the new one: %s", got)
	}
	shown := approvalToProto(h.approval)
	if shown.GetAmendedBy() != "human:sam" || shown.GetInputDigest() != "amended" || shown.GetAskedInputDigest() != "input" || len(shown.GetVotes()) != 2 {
		t.Errorf("shown as %v", shown)
	}
	if !slices.ContainsFunc(shown.GetFlags(), func(f *gatev1.Flag) bool { return f.GetKind() == gatev1.FlagKind_FLAG_KIND_AMENDED }) {
		t.Error("an amendment is not flagged")
	}
	use := redeemed
	use.Now.Terms = both
	if event, err := decideRedemption(h.approval, "a-1", use, inTime); err != nil || event == nil {
		t.Errorf("redeeming by the digest that was asked for: %v", err)
	}
	use.InputDigest = "amended"
	_, err := decideRedemption(h.approval, "a-1", use, inTime)
	want(t, "redeeming by another digest than was asked for", err, fault.DigestMismatch)
}

func TestATrustIsTheNarrowestThatAllApproversAskedFor(t *testing.T) {
	wish := func(d decision, anyInput bool, ttl time.Duration) decision {
		d.Remember = &remember{AnyInput: anyInput, TTL: ttl}
		return d
	}
	last := func(h *history) *gatev1.TrustGiven { return h.events[len(h.events)-1].GetApprovalDecided().GetTrust() }

	h := askedOn(both)
	h.say(wish(by("fay", true, "finance"), true, time.Hour))
	if last(h) != nil {
		t.Fatal("a trust before the approval")
	}
	h.say(wish(by("sam", true, "security"), false, 2*time.Hour))
	given := last(h)
	if given.GetInputDigest() != "input" || !given.GetExpireTime().AsTime().Equal(inTime.Add(time.Hour)) ||
		strings.Join(given.GetGivenBy(), " ") != "human:fay human:sam" || given.GetSession() != "s-1" || given.GetSubject() != "agent:alice" {
		t.Errorf("given is %v", given)
	}

	h = askedOn(both)
	h.say(by("fay", true, "finance"))
	h.say(wish(by("sam", true, "security"), true, time.Hour))
	if last(h) != nil {
		t.Error("one of two did not want it remembered, and it is")
	}

	for name, change := range map[string]func(*Approval, *decision){
		"without a session": func(a *Approval, _ *decision) { a.Session = "" },
		"of an ADMIN":       func(a *Approval, _ *decision) { a.Effect = policy.Admin },
		"of an amendment":   func(_ *Approval, d *decision) { d.Amendment = &amendment{Input: "{}", Digest: "x"} },
		"with a denial":     func(_ *Approval, d *decision) { d.Approve = false },
	} {
		a, d := askedOn(one).approval, wish(approved, true, time.Hour)
		change(&a, &d)
		_, err := decideDecision(a, "a-1", d, inTime)
		want(t, "a trust "+name, err, fault.FieldInvalid)
	}
}

// Who decides must be a person who decides for themselves.
func TestWhoDecidesOnBehalfOfWhom(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*decision)
		want   fault.Reason
	}{
		"on behalf of the requester":         {func(d *decision) { d.Chain = []string{"agent:alice"} }, fault.SelfApproval},
		"on behalf of whom it was asked for": {func(d *decision) { d.Chain = []string{"human:boss"} }, fault.SelfApproval},
		"on behalf of another agent":         {func(d *decision) { d.Chain = []string{"agent:other"} }, fault.NotAPerson},
		"reached from an outside channel":    {func(d *decision) { d.Confined = true }, fault.Confined},
		"an agent, whatever scopes it has":   {func(d *decision) { d.Decider = "agent:other" }, fault.NotAPerson},
		"a service, whatever scopes it has":  {func(d *decision) { d.Decider = "service:other" }, fault.NotAPerson},
	} {
		d := approved
		tc.change(&d)
		_, err := decideDecision(askedOn(one).approval, "a-1", d, inTime)
		want(t, name, err, tc.want)
	}
}

// A retry is the same decision in all it says; anything else under its id is told.
func TestADecisionUnderAnIDThatWasUsedForAnother(t *testing.T) {
	h := askedOn(both)
	h.say(by("fay", true, "finance"))
	for name, change := range map[string]func(*decision){
		"denied":            func(d *decision) { d.Approve = false },
		"amended":           func(d *decision) { d.Amendment = &amendment{Input: "{}", Digest: "x"} },
		"noted":             func(d *decision) { d.Note = "now with a note" },
		"remembered":        func(d *decision) { d.Remember = &remember{TTL: time.Hour} },
		"of another digest": func(d *decision) { d.InputDigest = "other" },
	} {
		d := by("fay", true, "finance")
		change(&d)
		if got := h.say(d); got != "IDEMPOTENCY_MISMATCH" {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := h.say(by("fay", true, "finance")); got != "PENDING" {
		t.Errorf("the retry: %s", got)
	}
	// A vote that an amendment made void does not come back by being sent again.
	amend := by("sam", true, "security")
	amend.Amendment = &amendment{Input: "{}", Digest: "amended"}
	h.say(amend)
	again := by("fay", true, "finance")
	again.InputDigest = "amended"
	if got := h.say(again); got != "IDEMPOTENCY_MISMATCH" {
		t.Errorf("the void one for the new digest: %s", got)
	}
	if got := h.say(amend); got != "PENDING" {
		t.Errorf("the amendment's retry: %s", got)
	}
}

// An approval is for who asked it as they asked: in that session, for those people.
func TestAnApprovalIsNotUsedInAnotherSessionOrForOthers(t *testing.T) {
	a := in(stateApproved)
	for name, change := range map[string]func(*redemption){
		"another session": func(r *redemption) { r.Session = "s-2" },
		"another chain":   func(r *redemption) { r.OnBehalfOf = []string{"human:carol"} },
		"no chain":        func(r *redemption) { r.OnBehalfOf = nil },
	} {
		use := redeemed
		change(&use)
		_, err := decideRedemption(a, "a-1", use, inTime)
		want(t, name, err, fault.ApprovalNotFound)
	}
}

// A budget is not given back by asking again in another way, nor by a policy that
// denied in between.
func TestWhatWasAllowedStaysCounted(t *testing.T) {
	checked := &gatev1.CheckedRequest{RequestId: "inv-1", Subject: "agent:a", Operation: "x/y"}
	var c Check
	record := func(sequence uint64, o outcome) {
		o.Request = checked
		event, err := decideOutcome(c, o)
		if err != nil {
			t.Fatal(err)
		}
		if event != nil {
			c = evolveCheck(c, aggregate.Recorded[*gatev1.Event]{Event: event, Time: epoch.Add(time.Duration(sequence) * time.Second), Sequence: sequence})
		}
	}
	record(1, outcome{Reason: "RATE_LIMITED"})
	if lists := checkKind().Lists(c, 1); len(lists) > 0 {
		t.Errorf("a denial is counted: %v", lists)
	}
	record(2, outcome{Allowed: true, Reason: "RULE"})
	counted := checkKind().Lists(c, 2)
	record(3, outcome{Reason: "RULE", Rule: "p/no"})
	record(4, outcome{Allowed: true, Reason: "RULE"})
	if got := checkKind().Lists(c, 4); len(counted) != 4 || fmt.Sprint(got) != fmt.Sprint(counted) {
		t.Errorf("counted as %v, then as %v", counted, got)
	}
	other := &gatev1.CheckedRequest{RequestId: "inv-1", Subject: "agent:a", Operation: "x/y", ConversationId: "c", TargetConversationId: "c"}
	if checkID(other) == checkID(checked) {
		t.Error("a check of another conversation is the same check")
	}
}

func TestATrustCoversExactlyWhatItSays(t *testing.T) {
	given := Trust{State: trustHeld, Terms: one, Expires: afterwars}
	for name, tc := range map[string]struct {
		change func(*Trust)
		terms  policy.Terms
		at     time.Time
		holds  bool
	}{
		"as given":          {func(*Trust) {}, one, inTime, true},
		"at its very end":   {func(*Trust) {}, one, afterwars, false},
		"after its end":     {func(*Trust) {}, one, afterwars.Add(1), false},
		"on other terms":    {func(*Trust) {}, both, inTime, false},
		"revoked":           {func(t *Trust) { t.State = trustRevoked }, one, inTime, false},
		"with another TTL":  {func(*Trust) {}, policy.Terms{TTL: time.Hour, OnTimeout: policy.TimeoutDeny}, inTime, true},
		"a note is wanted":  {func(*Trust) {}, policy.Terms{OnTimeout: policy.TimeoutDeny, NoteRequired: true}, inTime, false},
		"one that is ended": {func(t *Trust) { t.State = trustExpired }, one, inTime, false},
	} {
		trust := given
		tc.change(&trust)
		if got := trust.holds(tc.terms, tc.at); got != tc.holds {
			t.Errorf("%s: holds is %v", name, got)
		}
	}
	c := coverage{Subject: "agent:a", Session: "s", Operation: "x/y", SpecDigest: "d", InputDigest: "*"}
	seen := map[string]bool{c.id(): true}
	for _, other := range []coverage{
		{Subject: "agent:b", Session: "s", Operation: "x/y", SpecDigest: "d", InputDigest: "*"},
		{Subject: "agent:a", Session: "*", Operation: "x/y", SpecDigest: "d", InputDigest: "*"},
		{Subject: "agent:a", Session: "s", Operation: "x/*", SpecDigest: "d", InputDigest: "*"},
		{Subject: "agent:a", Session: "s", Operation: "x/y", SpecDigest: "e", InputDigest: "*"},
		{Subject: "agent:a", Session: "s", Operation: "x/y", SpecDigest: "d"},
		{Subject: "agent:a", Session: "s", Chain: "human:b", Operation: "x/y", SpecDigest: "d", InputDigest: "*"},
	} {
		if seen[other.id()] {
			t.Errorf("%+v is covered by another's trust", other)
		}
		seen[other.id()] = true
	}
}

func TestHearingOfATrustAgainDoesNotBringItBack(t *testing.T) {
	held := Trust{ID: "t", State: trustHeld, Decision: 10}
	revoked := Trust{ID: "t", State: trustRevoked, Decision: 10, Revoked: 20}
	for name, tc := range map[string]struct {
		trust    Trust
		decision uint64
		given    bool
	}{
		"the first":                      {Trust{}, 10, true},
		"heard again":                    {held, 10, false},
		"an older one":                   {held, 9, false},
		"renewed":                        {held, 11, true},
		"heard again after a revocation": {revoked, 10, false},
		"decided before the revocation":  {revoked, 15, false},
		"decided after the revocation":   {revoked, 21, true},
	} {
		event, err := decideGive(tc.trust, "human:carol", &gatev1.TrustGiven{TrustId: "t", DecisionSequence: tc.decision})
		if err != nil || (event != nil) != tc.given {
			t.Errorf("%s: %v, %v", name, event, err)
		}
	}
}

func TestWhatHappensAtTheDeadline(t *testing.T) {
	on := func(what policy.OnTimeout) *history {
		terms := one
		terms.OnTimeout = what
		return askedOn(terms)
	}
	end := epoch.Add(time.Minute)

	if h := on(policy.TimeoutWait); h.approval.lapsed(end.Add(1000*time.Hour)) || !h.approval.Expires.IsZero() {
		t.Error("one that waits lapses")
	}
	h := on(policy.TimeoutAllow)
	if event, err := decideExpiry(h.approval, end.Add(-1)); event != nil || err != nil {
		t.Errorf("a moment before: %v, %v", event, err)
	}
	event, err := decideExpiry(h.approval, end)
	if err != nil || event.GetApprovalTimedOut() == nil {
		t.Fatalf("at the deadline: %v, %v", event, err)
	}
	h.record(event, end)
	if h.approval.State != stateApproved || !approvalToProto(h.approval).GetByTimeout() {
		t.Errorf("nobody answered, and it is %+v", h.approval)
	}
	// The policies must still say so when it is used.
	use := redeemed
	use.Now.Terms = one
	_, err = decideRedemption(h.approval, "a-1", use, end)
	if err != errOtherTerms {
		t.Errorf("redeeming where a person is needed now: %v", err)
	}
	use.Now.Terms = h.approval.Terms
	if event, err := decideRedemption(h.approval, "a-1", use, end); err != nil || event == nil {
		t.Errorf("redeeming: %v", err)
	}
	// Once approved by people it must be used in time, however it was asked.
	h = on(policy.TimeoutWait)
	h.say(approved)
	if got := h.approval.Expires; !got.Equal(inTime.Add(time.Minute)) {
		t.Errorf("approved, it lapses at %v", got)
	}
}

// A clock that steps back does not undo what was recorded, and one that steps
// forward ends things at once.
func TestClockSteps(t *testing.T) {
	h := askedOn(one)
	h.say(approved)
	event, err := decideExpiry(h.approval, afterwars)
	if err != nil || event == nil {
		t.Fatalf("forward: %v, %v", event, err)
	}
	h.record(event, afterwars)
	_, err = decideRedemption(h.approval, "a-1", redeemed, epoch)
	want(t, "redeeming after the clock stepped back", err, fault.ApprovalExpired)
}

// Whoever approved meanwhile may be enough for the terms that hold now: then
// nothing is superseded.
func TestAnApprovalThatSatisfiesTheNewTermsIsNotSuperseded(t *testing.T) {
	h := askedOn(one)
	h.say(by("fay", true, "finance"))
	finance := one
	finance.Approvers = []policy.Approver{{Scope: "approval.decide.finance", Count: 1}}
	if event, err := decideSupersede(h.approval, finance, "a-2"); event != nil || err != nil {
		t.Errorf("by one of the group: %v, %v", event, err)
	}
	noted := finance
	noted.NoteRequired = true
	if event, err := decideSupersede(h.approval, noted, "a-2"); event == nil || err != nil {
		t.Errorf("without the note that is wanted now: %v, %v", event, err)
	}
	// One that another request asked for is left to that request.
	other := asked
	other.RequestID, other.Terms = "inv-2", both
	if _, err := decideRequest(h.approval, other, inTime); err != errTaken {
		t.Errorf("another request on other terms: %v", err)
	}
}

// A replica that is behind does not go back to older terms.
func TestAReplicaThatIsBehindVouchesForNothing(t *testing.T) {
	h := &history{}
	cmd := asked
	cmd.Revision = 7
	event, err := decideRequest(h.approval, cmd, epoch)
	if err != nil {
		t.Fatal(err)
	}
	h.record(event, epoch)
	behind := asked
	behind.Revision, behind.Terms = 6, both
	_, err = decideRequest(h.approval, behind, inTime)
	want(t, "asking", err, fault.PolicyUnreadable)
	h.say(approved)
	use := redeemed
	use.Now.Revision = 6
	_, err = decideRedemption(h.approval, "a-1", use, inTime)
	want(t, "redeeming", err, fault.PolicyUnreadable)
	use.Now.Revision = 8
	if event, err := decideRedemption(h.approval, "a-1", use, inTime); err != nil || event == nil {
		t.Errorf("by a newer one: %v", err)
	}
}

// What nobody answered in time is not approved over the head of who says no just
// then.
func TestADenialBeforeTheTimeIsRecordedCounts(t *testing.T) {
	terms := one
	terms.OnTimeout = policy.TimeoutAllow
	a := askedOn(terms).approval
	event, err := decideDecision(a, "a-1", denied, afterwars)
	if err != nil || event.GetApprovalDecided().GetOutcome() != gatev1.ApprovalState_APPROVAL_STATE_DENIED {
		t.Errorf("a denial: %v, %v", event, err)
	}
	if event, err := decideCancel(a, "a-1", "agent:alice", afterwars); err != nil || event == nil {
		t.Errorf("a cancel: %v, %v", event, err)
	}
}

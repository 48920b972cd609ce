package gate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/visible"
	"weir/services/gate/policy"
)

var epoch = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// history is an approval and what happened to it.
type history struct {
	approval Approval
	events   []*gatev1.Event
	sequence uint64
}

func (h *history) record(event *gatev1.Event, at time.Time) {
	h.sequence++
	h.events = append(h.events, event)
	h.approval = evolveApproval(h.approval, aggregate.Recorded[*gatev1.Event]{Event: event, Time: at, Sequence: h.sequence})
}

var (
	one       = policy.Terms{TTL: time.Minute, OnTimeout: policy.TimeoutDeny}
	asked     = request{ApprovalID: "a-1", RequestID: "inv-1", Requester: "agent:alice", Session: "s-1", OnBehalfOf: []string{"human:boss"}, Operation: "x/y", SpecDigest: "spec", InputDigest: "input", Terms: one}
	approved  = decision{RequestID: "d-1", Decider: "human:carol", Scopes: []string{"approval.decide"}, Approve: true, InputDigest: "input"}
	still     = policy.Answer{Verdict: gatev1.Verdict_VERDICT_ASK, Terms: one}
	redeemed  = redemption{RequestID: "inv-1", Requester: "agent:alice", Session: "s-1", OnBehalfOf: []string{"human:boss"}, Operation: "x/y", SpecDigest: "spec", InputDigest: "input", Now: still}
	denied    = decision{RequestID: "d-1", Decider: "human:carol", Scopes: []string{"approval.decide"}, InputDigest: "input", Note: "no"}
	inTime    = epoch.Add(time.Second)
	afterwars = epoch.Add(time.Hour)
)

// commands are what can be asked of an approval, each in its plain form.
var commands = map[string]func(Approval, time.Time) (*gatev1.Event, error){
	"ask again": func(a Approval, now time.Time) (*gatev1.Event, error) {
		again := asked
		again.RequestID = "inv-2"
		return decideRequest(a, again, now)
	},
	"approve": func(a Approval, now time.Time) (*gatev1.Event, error) {
		other := approved
		other.RequestID = "d-2"
		return decideDecision(a, "a-1", other, now)
	},
	"redeem": func(a Approval, now time.Time) (*gatev1.Event, error) {
		other := redeemed
		other.RequestID = "inv-2"
		return decideRedemption(a, "a-1", other, now)
	},
	"cancel": func(a Approval, now time.Time) (*gatev1.Event, error) {
		return decideCancel(a, "a-1", "agent:alice", now)
	},
	"expire": decideExpiry,
	"supersede": func(a Approval, _ time.Time) (*gatev1.Event, error) {
		return decideSupersede(a, both, "a-2")
	},
	"ask on other terms": func(a Approval, now time.Time) (*gatev1.Event, error) {
		other := asked
		other.Terms.Approvers = []policy.Approver{{Scope: "approval.decide.finance", Count: 1}}
		return decideRequest(a, other, now)
	},
}

// in gives an approval in a state.
func in(state approvalState) Approval {
	h := &history{}
	do := func(event *gatev1.Event, err error) {
		if err != nil || event == nil {
			panic(fmt.Sprint(event, err))
		}
		h.record(event, epoch)
	}
	if state == "" {
		return h.approval
	}
	do(decideRequest(h.approval, asked, epoch))
	switch state {
	case stateApproved, stateRedeemed:
		do(decideDecision(h.approval, "a-1", approved, epoch))
	case stateDenied:
		do(decideDecision(h.approval, "a-1", denied, epoch))
	case stateCancelled:
		do(decideCancel(h.approval, "a-1", "agent:alice", epoch))
	case stateExpired:
		do(decideExpiry(h.approval, afterwars))
	case stateSuperseded:
		do(decideSupersede(h.approval, both, "a-2"))
	}
	if state == stateRedeemed {
		do(decideRedemption(h.approval, "a-1", redeemed, epoch))
	}
	return h.approval
}

// The whole machine: what every command does in every state, in time and after
// the deadline. A name of an event, a reason, or "-" for nothing to do.
func TestEveryCommandInEveryState(t *testing.T) {
	table := map[approvalState]map[string][2]string{
		"": {
			"ask again":          {"ApprovalRequested", "ApprovalRequested"},
			"approve":            {"APPROVAL_NOT_FOUND", "APPROVAL_NOT_FOUND"},
			"redeem":             {"APPROVAL_NOT_FOUND", "APPROVAL_NOT_FOUND"},
			"cancel":             {"APPROVAL_NOT_FOUND", "APPROVAL_NOT_FOUND"},
			"expire":             {"-", "-"},
			"supersede":          {"-", "-"},
			"ask on other terms": {"ApprovalRequested", "ApprovalRequested"},
		},
		statePending: {
			"ask again":          {"-", "taken"},
			"approve":            {"ApprovalDecided", "APPROVAL_EXPIRED"},
			"redeem":             {"APPROVAL_PENDING", "APPROVAL_EXPIRED"},
			"cancel":             {"ApprovalCancelled", "APPROVAL_EXPIRED"},
			"expire":             {"-", "ApprovalExpired"},
			"supersede":          {"ApprovalSuperseded", "ApprovalSuperseded"},
			"ask on other terms": {"other terms", "-"},
		},
		stateApproved: {
			"ask again":          {"taken", "taken"},
			"approve":            {"APPROVAL_DECIDED", "APPROVAL_DECIDED"},
			"redeem":             {"ApprovalRedeemed", "APPROVAL_EXPIRED"},
			"cancel":             {"ApprovalCancelled", "APPROVAL_EXPIRED"},
			"expire":             {"-", "ApprovalExpired"},
			"supersede":          {"ApprovalSuperseded", "ApprovalSuperseded"},
			"ask on other terms": {"other terms", "-"},
		},
		stateRedeemed: {
			"ask again":          {"taken", "taken"},
			"approve":            {"APPROVAL_DECIDED", "APPROVAL_DECIDED"},
			"redeem":             {"APPROVAL_REDEEMED", "APPROVAL_REDEEMED"},
			"cancel":             {"APPROVAL_REDEEMED", "APPROVAL_REDEEMED"},
			"expire":             {"-", "-"},
			"supersede":          {"-", "-"},
			"ask on other terms": {"-", "-"},
		},
		stateDenied: {
			"ask again":          {"taken", "taken"},
			"approve":            {"APPROVAL_DECIDED", "APPROVAL_DECIDED"},
			"redeem":             {"APPROVAL_DENIED", "APPROVAL_DENIED"},
			"cancel":             {"APPROVAL_DENIED", "APPROVAL_DENIED"},
			"expire":             {"-", "-"},
			"supersede":          {"-", "-"},
			"ask on other terms": {"-", "-"},
		},
		stateExpired: {
			"ask again":          {"taken", "taken"},
			"approve":            {"APPROVAL_EXPIRED", "APPROVAL_EXPIRED"},
			"redeem":             {"APPROVAL_EXPIRED", "APPROVAL_EXPIRED"},
			"cancel":             {"APPROVAL_EXPIRED", "APPROVAL_EXPIRED"},
			"expire":             {"-", "-"},
			"supersede":          {"-", "-"},
			"ask on other terms": {"-", "-"},
		},
		stateSuperseded: {
			"ask again":          {"taken", "taken"},
			"approve":            {"APPROVAL_SUPERSEDED", "APPROVAL_SUPERSEDED"},
			"redeem":             {"APPROVAL_SUPERSEDED", "APPROVAL_SUPERSEDED"},
			"cancel":             {"APPROVAL_SUPERSEDED", "APPROVAL_SUPERSEDED"},
			"expire":             {"-", "-"},
			"supersede":          {"-", "-"},
			"ask on other terms": {"taken", "taken"},
		},
		stateCancelled: {
			"ask again":          {"taken", "taken"},
			"approve":            {"APPROVAL_CANCELLED", "APPROVAL_CANCELLED"},
			"redeem":             {"APPROVAL_CANCELLED", "APPROVAL_CANCELLED"},
			"cancel":             {"-", "-"},
			"expire":             {"-", "-"},
			"supersede":          {"-", "-"},
			"ask on other terms": {"-", "-"},
		},
	}
	if len(table) != len(stateToProto)+1 {
		t.Fatalf("the table has %d states", len(table))
	}
	for state, row := range table {
		for name, command := range commands {
			for i, now := range []time.Time{inTime, afterwars} {
				event, err := command(in(state), now)
				if got := whatHappens(event, err); got != row[name][i] {
					t.Errorf("%q, %s, late %v: %s, want %s", state, name, i == 1, got, row[name][i])
				}
			}
		}
	}
}

func whatHappens(event *gatev1.Event, err error) string {
	switch {
	case errors.Is(err, errTaken):
		return "taken"
	case errors.Is(err, errOtherTerms):
		return "other terms"
	case err != nil:
		return string(fault.ReasonOf(err))
	case event == nil:
		return "-"
	default:
		name := fmt.Sprintf("%T", event.GetEvent())
		return name[strings.LastIndex(name, "_")+1:]
	}
}

// Whatever is asked in whatever order: what was decided stays decided, one
// request redeems, and only what was approved and in time.
func TestNoSequenceOfCommandsBreaksAnApproval(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &history{}
		now := epoch
		var decided, used *gatev1.Event
		for range rapid.IntRange(1, 30).Draw(t, "commands") {
			now = now.Add(time.Duration(rapid.IntRange(-5, 30).Draw(t, "seconds")) * time.Second)
			who := rapid.SampledFrom([]string{"agent:alice", "human:boss", "human:carol", "human:dan"}).Draw(t, "who")
			id := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "id")
			digest := rapid.SampledFrom([]string{"input", "input", "other"}).Draw(t, "digest")
			before := h.approval
			var event *gatev1.Event
			var err error
			switch rapid.SampledFrom([]string{"ask", "decide", "redeem", "cancel", "expire"}).Draw(t, "command") {
			case "ask":
				cmd := asked
				cmd.RequestID = id
				event, err = decideRequest(before, cmd, now)
			case "decide":
				event, err = decideDecision(before, "a-1", decision{
					RequestID: id, Decider: who, InputDigest: digest, Scopes: []string{"approval.decide"},
					Approve: rapid.Bool().Draw(t, "approve"),
				}, now)
			case "redeem":
				cmd := redeemed
				cmd.RequestID, cmd.InputDigest = id, digest
				if !rapid.Bool().Draw(t, "granted") {
					cmd.Now = policy.Answer{Verdict: gatev1.Verdict_VERDICT_DENY, Reason: policy.ReasonNotGranted}
				}
				event, err = decideRedemption(before, "a-1", cmd, now)
			case "cancel":
				event, err = decideCancel(before, "a-1", who, now)
			case "expire":
				event, err = decideExpiry(before, now)
			}
			if err != nil || event == nil {
				continue
			}
			h.record(event, now)
			switch event.GetEvent().(type) {
			case *gatev1.Event_ApprovalDecided:
				if decided != nil {
					t.Fatal("decided twice")
				}
				if event.GetActor() == "agent:alice" || event.GetActor() == "human:boss" {
					t.Fatalf("%s decided its own request", event.GetActor())
				}
				if !now.Before(before.Expires) {
					t.Fatal("decided after its time")
				}
				decided = event
			case *gatev1.Event_ApprovalRedeemed:
				switch {
				case used != nil:
					t.Fatal("redeemed twice")
				case decided.GetApprovalDecided().GetDecision() != gatev1.Decision_DECISION_APPROVE:
					t.Fatal("redeemed what nobody approved")
				case !now.Before(before.Expires):
					t.Fatal("redeemed after its time")
				}
				used = event
			case *gatev1.Event_ApprovalExpired:
				if now.Before(before.Expires) {
					t.Fatal("expired before its time")
				}
			}
		}
	})
}

func TestARetriedDecisionGetsTheFirstAnswerAndAChangedOneDoesNot(t *testing.T) {
	a := in(stateApproved)
	if event, err := decideDecision(a, "a-1", approved, inTime); event != nil || err != nil {
		t.Fatalf("the retry: %v, %v", event, err)
	}
	flipped := approved
	flipped.Approve = false
	_, err := decideDecision(a, "a-1", flipped, inTime)
	want(t, "the other verdict under the same id", err, fault.IdempotencyMismatch)
}

func TestWhatCouldMisleadAReaderIsShownAsEscapes(t *testing.T) {
	for text, shown := range map[string]string{
		"plain ascii, ünïcode, 漢字": "plain ascii, ünïcode, 漢字",
		"a\u202eb":                 `a\u202eb`, // right-to-left override
		"a\u200bb":                 `a\u200bb`, // zero-width space
		"a\U000E0041b":             `a\udb40\udc41b`,
		"a\x1b[31mb":               `a\u001b[31mb`,
		"a\u2028b":                 `a\u2028b`,
		"a\u00a0b":                 `a\u00a0b`,
		"a\u3164b\u115fb":          `a\u3164b\u115fb`, // Hangul fillers
		"a\u034fb\u2800b":          `a\u034fb\u2800b`,
	} {
		if got := visible.Text(text); got != shown {
			t.Errorf("%q is shown as %q, want %q", text, got, shown)
		}
	}
}

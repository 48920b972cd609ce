package gate

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strconv"
	"strings"
	"time"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/hot"
	"weir/services/gate/policy"
)

// Check is the record of what a check said without asking anybody: a denial, or
// a write that may run. One of an allowed read is not kept.
//
//	absent → ALLOWED ⇄ DENIED
//
// A retry of the same request is the same Check, so a write is counted once. It
// goes from one to the other where the policies changed between two tries. What
// was allowed once stays counted: it may have run.
type Check struct {
	Allowed   bool
	Denied    bool
	Reason    string
	Rule      string `json:",omitempty"`
	Subject   string
	Operation string
	// Spent is when it was allowed first, and First the event that said so.
	Spent time.Time `json:",omitzero"`
	First uint64    `json:",omitempty"`
}

// outcome is the command that records a check.
type outcome struct {
	Request  *gatev1.CheckedRequest
	Allowed  bool
	Reason   string
	Rule     string
	TrustID  string
	Revision uint64
}

// decideOutcome records what differs from what is recorded.
func decideOutcome(c Check, cmd outcome) (*gatev1.Event, error) {
	event := &gatev1.Event{Actor: cmd.Request.GetSubject()}
	switch {
	case cmd.Allowed && c.Allowed:
		return nil, nil
	case cmd.Allowed:
		event.Event = &gatev1.Event_WriteAllowed{WriteAllowed: &gatev1.WriteAllowed{
			Request: cmd.Request, Reason: cmd.Reason, Rule: cmd.Rule, TrustId: cmd.TrustID, PolicyRevision: cmd.Revision,
		}}
	case c.Denied && c.Reason == cmd.Reason && c.Rule == cmd.Rule:
		return nil, nil
	default:
		event.Event = &gatev1.Event_CheckDenied{CheckDenied: &gatev1.CheckDenied{
			Request: cmd.Request, Reason: cmd.Reason, Rule: cmd.Rule, PolicyRevision: cmd.Revision,
		}}
	}
	return event, nil
}

func evolveCheck(c Check, e aggregate.Recorded[*gatev1.Event]) Check {
	next := func(r *gatev1.CheckedRequest) Check {
		return Check{Subject: r.GetSubject(), Operation: r.GetOperation(), Spent: c.Spent, First: c.First}
	}
	switch event := e.Event.GetEvent().(type) {
	case *gatev1.Event_WriteAllowed:
		a := event.WriteAllowed
		c = next(a.GetRequest())
		c.Allowed, c.Reason, c.Rule = true, a.GetReason(), a.GetRule()
		if c.First == 0 {
			c.Spent, c.First = e.Time, e.Sequence
		}
	case *gatev1.Event_CheckDenied:
		d := event.CheckDenied
		c = next(d.GetRequest())
		c.Denied, c.Reason, c.Rule = true, d.GetReason(), d.GetRule()
	}
	return c
}

// checkID names the check of one request of a caller.
func checkID(r *gatev1.CheckedRequest) string {
	return digestOf("check", r.GetSubject(), r.GetSession(), chainOf(r.GetOnBehalfOf()), strconv.FormatBool(r.GetConfined()), r.GetRequestId(),
		r.GetOperation(), policy.EffectFrom(r.GetEffect()).String(), r.GetSpecDigest(), r.GetInputDigest(), r.GetConversationId(), r.GetTargetConversationId())
}

// digestOf gives an id that stands for all of its parts and holds none of them.
func digestOf(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		// Lengths keep ("a", "bc") and ("ab", "c") apart.
		_, _ = fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil)[:16]))
}

const checkKindName = "check"

func checkKind() aggregate.Kind[Check, *gatev1.Event] {
	return aggregate.Kind[Check, *gatev1.Event]{
		Name:   checkKindName,
		Evolve: evolveCheck,
		Codec:  aggregate.RootCodec[Check, *gatev1.Event]{Bytes: func(Check) int { return 512 }},
		Lists: func(c Check, _ uint64) []hot.Entry {
			if c.First == 0 {
				return nil
			}
			// Budgets count in these lists, so they are ordered by time.
			at := uint64(c.Spent.UnixMilli())
			entries := []hot.Entry{{Set: usedList(c.Subject, c.Operation), Score: c.First}}
			for _, set := range spentLists(c.Subject, c.Operation) {
				entries = append(entries, hot.Entry{Set: set, Score: at})
			}
			return entries
		},
	}
}

// spentLists name the lists of allowed writes: of one caller by one operation, of
// the caller, and of the tenant.
func spentLists(subject, operation string) [3]string {
	return [3]string{"spent/" + subject + "/" + operation, "spent/" + subject, "spent"}
}

// windowsOf are the budgets that a write of a caller is counted in.
func windowsOf(subject, operation string, ofRule policy.Window, b policy.Budgets) []hot.Window {
	if ofRule.Limit == 0 {
		ofRule = b.PerOperation
	}
	sets := spentLists(subject, operation)
	windows := make([]hot.Window, 0, len(sets))
	for i, w := range []policy.Window{ofRule, b.PerCaller, b.PerTenant} {
		windows = append(windows, hot.Window{Set: sets[i], Limit: w.Limit, Period: w.Period})
	}
	return windows
}

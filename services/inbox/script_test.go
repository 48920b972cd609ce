package inbox

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/benbjohnson/immutable"
	"pgregory.net/rapid"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
)

// start is when every script begins.
var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// script is an inbox that commands are run on, as the loop does it but without
// any store.
type script struct {
	t     rapid.TB
	state inbox
	// sequence is that of the newest event.
	sequence uint64
	// document is the Redis hash, written field by field.
	document map[string]string
}

// ruled are the default rules with some limit of messages.
func ruled(limit int) rules {
	return rules{Limit: limit, Body: defaultBody, Deliveries: defaultDeliveries, KeepIDs: defaultKeepIDs}
}

// put is the enqueue of messages into an inbox without a limit worth the name.
func put(messages ...newMessage) enqueue {
	for i := range messages {
		messages[i].Policy = busyPolicy(messages[i].Policy)
	}
	return enqueue{Goal: "bob", Sender: origin{Subject: "agent:ann"}, Messages: messages, Rules: ruled(maxLimit)}
}

func newScript(t rapid.TB) *script { return &script{t: t, document: map[string]string{}} }

// run takes what was decided: the event, or the refusal.
func (p *script) run(now time.Time) func(*inboxv1.Event, error) (*inboxv1.Event, error) {
	return func(event *inboxv1.Event, refusal error) (*inboxv1.Event, error) {
		p.t.Helper()
		if event != nil {
			if refusal != nil {
				p.t.Fatalf("an event and a refusal: %v, %v", event, refusal)
			}
			p.follow(event, now)
		}
		return event, refusal
	}
}

func (p *script) follow(event *inboxv1.Event, now time.Time) {
	p.t.Helper()
	p.sequence++
	p.state = evolveInbox(p.state, aggregate.Recorded[*inboxv1.Event]{Event: event, Time: now, Sequence: p.sequence})
	for _, name := range (inboxCodec{}).Touched(p.state, event) {
		content, err := (inboxCodec{}).Encode(p.state, name)
		switch {
		case err != nil:
			p.t.Fatalf("encode %s: %v", name, err)
		case content == nil:
			delete(p.document, name)
		default:
			p.document[name] = string(content)
		}
	}
}

// must is run for what is not refused.
func (p *script) must(now time.Time) func(*inboxv1.Event, error) *inboxv1.Event {
	return func(event *inboxv1.Event, refusal error) *inboxv1.Event {
		p.t.Helper()
		if _, err := p.run(now)(event, refusal); err != nil {
			p.t.Fatal(err)
		}
		return event
	}
}

// check holds the document, written field by field, against the state: it must
// be what the whole state would be written as, and read back to the same state.
func (p *script) check() {
	p.t.Helper()
	if !p.state.exists() {
		return
	}
	if whole := written(p.t, p.state); !maps.Equal(whole, p.document) {
		p.t.Fatalf("field by field the document is\n%v\nand as a whole\n%v", p.document, whole)
	}
	read, err := inboxCodec{}.Decode(p.document)
	if err != nil {
		p.t.Fatalf("decode: %v", err)
	}
	if got, want := drawn(read), drawn(p.state); got != want {
		p.t.Fatalf("read back the state is\n%s\nit was\n%s", got, want)
	}
}

// written is the document of a whole state.
func written(t rapid.TB, s inbox) map[string]string {
	document := map[string]string{}
	for _, name := range (inboxCodec{}).Names(s) {
		content, err := inboxCodec{}.Encode(s, name)
		if err != nil || content == nil {
			t.Fatalf("encode %s: %s, %v", name, content, err)
		}
		document[name] = string(content)
	}
	return document
}

// drawn is everything in a state as text, the indexes in their order.
func drawn(s inbox) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%+v\n", s.root)
	for name, index := range map[string]*queue{"ready": s.ready, "waiting": s.waiting} {
		listed(&b, name, index)
	}
	for name, index := range map[string]*timeline{
		"ages": s.ages, "delayed": s.delayed, "leases": s.leases, "expiries": s.expiries, "deaths": s.deaths,
	} {
		listed(&b, name, index)
	}
	for name, index := range map[string]*tickets{"requests": s.requests, "busy": s.busy} {
		listed(&b, name, index)
	}
	for itr := s.messages.Iterator(); !itr.Done(); {
		id, m, _ := itr.Next()
		fmt.Fprintf(&b, "message %s %+v\n", id, m)
	}
	for itr := s.finished.buckets.Iterator(); !itr.Done(); {
		number, bucket, _ := itr.Next()
		fmt.Fprintf(&b, "bucket %d %v\n", number, bucket)
	}
	for itr := s.finished.byID.Iterator(); !itr.Done(); {
		hash, number, _ := itr.Next()
		fmt.Fprintf(&b, "%x is in bucket %d\n", hash, number)
	}
	fmt.Fprintf(&b, "buckets %d to %d, %d ids, %d deliveries\n", s.finished.first, s.finished.next, s.finished.count, s.history)
	lines := strings.Split(b.String(), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func listed[K any](b *strings.Builder, name string, index *immutable.SortedMap[K, string]) {
	for itr := index.Iterator(); !itr.Done(); {
		at, id, _ := itr.Next()
		fmt.Fprintf(b, "%s %v %s\n", name, at, id)
	}
}

// offset is a time as a script writes it.
func offset(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Sub(start).String()
}

// told is an event in one line.
func told(event *inboxv1.Event) string {
	switch e := event.GetEvent().(type) {
	case *inboxv1.Event_MessagesEnqueued:
		line := "MessagesEnqueued"
		for _, m := range e.MessagesEnqueued.GetMessages() {
			line += " " + m.GetMessageId()
			if m.GetPriority() != 0 {
				line += fmt.Sprintf(" priority %d", m.GetPriority())
			}
			if m.GetNotBefore() != nil {
				line += " not before " + offset(m.GetNotBefore().AsTime())
			}
			if m.GetExpireTime() != nil {
				line += " until " + offset(m.GetExpireTime().AsTime())
			}
			if m.GetReplacedMessageId() != "" {
				line += " in place of " + m.GetReplacedMessageId()
			}
		}
		return line + " from " + e.MessagesEnqueued.GetSender()
	case *inboxv1.Event_MessagesClaimed:
		c := e.MessagesClaimed
		return fmt.Sprintf("MessagesClaimed %v by %s under %s until %s",
			c.GetMessageIds(), c.GetClaimant(), c.GetClaimToken(), offset(c.GetLeaseExpireTime().AsTime()))
	case *inboxv1.Event_LeaseExtended:
		return fmt.Sprintf("LeaseExtended %v until %s", e.LeaseExtended.GetMessageIds(), offset(e.LeaseExtended.GetLeaseExpireTime().AsTime()))
	case *inboxv1.Event_MessagesDone:
		return fmt.Sprintf("MessagesDone %v", e.MessagesDone.GetMessageIds())
	case *inboxv1.Event_MessagesReleased:
		line := fmt.Sprintf("MessagesReleased %v", e.MessagesReleased.GetMessageIds())
		if t := e.MessagesReleased.GetNotBefore(); t != nil {
			line += " not before " + offset(t.AsTime())
		}
		return line
	case *inboxv1.Event_DeadlinesPassed:
		line := "DeadlinesPassed"
		for _, list := range []struct {
			name string
			ids  []string
		}{
			{"due", e.DeadlinesPassed.GetDueMessageIds()},
			{"lapsed", e.DeadlinesPassed.GetLapsedMessageIds()},
			{"dead", e.DeadlinesPassed.GetDeadMessageIds()},
			{"expired", e.DeadlinesPassed.GetExpiredMessageIds()},
		} {
			if len(list.ids) > 0 {
				line += fmt.Sprintf(" %s %v", list.name, list.ids)
			}
		}
		return line
	case *inboxv1.Event_MessagesRedriven:
		return fmt.Sprintf("MessagesRedriven %v", e.MessagesRedriven.GetMessageIds())
	case *inboxv1.Event_MessagesDiscarded:
		return fmt.Sprintf("MessagesDiscarded %v", e.MessagesDiscarded.GetMessageIds())
	case *inboxv1.Event_InboxStateChanged:
		return fmt.Sprintf("InboxStateChanged %s %q", e.InboxStateChanged.GetState(), e.InboxStateChanged.GetNote())
	case *inboxv1.Event_DispatchBegun:
		return fmt.Sprintf("DispatchBegun %s attempt %d", e.DispatchBegun.GetDispatchId(), e.DispatchBegun.GetAttempt())
	case *inboxv1.Event_DispatchSent:
		return fmt.Sprintf("DispatchSent %s to %s", e.DispatchSent.GetDispatchId(), e.DispatchSent.GetConversationId())
	}
	return "nothing"
}

// refused is a refusal in one line.
func refused(err error) string {
	e := fault.From(err)
	line := string(e.Reason()) + ": " + e.Message()
	for _, v := range e.Violations() {
		line += " [" + v.Field + " " + v.Description + "]"
	}
	return line
}

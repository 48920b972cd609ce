package inbox

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

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
	for itr := s.ready.Iterator(); !itr.Done(); {
		at, id, _ := itr.Next()
		fmt.Fprintf(&b, "ready %v %s\n", at, id)
	}
	for name, index := range map[string]*timeline{"delayed": s.delayed, "leases": s.leases, "ends": s.ends} {
		for itr := index.Iterator(); !itr.Done(); {
			at, id, _ := itr.Next()
			fmt.Fprintf(&b, "%s %v %s\n", name, at, id)
		}
	}
	for itr := s.requests.Iterator(); !itr.Done(); {
		at, id, _ := itr.Next()
		fmt.Fprintf(&b, "request %v %s\n", at, id)
	}
	for itr := s.messages.Iterator(); !itr.Done(); {
		id, m, _ := itr.Next()
		fmt.Fprintf(&b, "message %s %+v\n", id, m)
	}
	for itr := s.finished.Iterator(); !itr.Done(); {
		id, f, _ := itr.Next()
		fmt.Fprintf(&b, "finished %s %+v\n", id, f)
	}
	lines := strings.Split(b.String(), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
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
		m := e.MessagesEnqueued.GetMessages()[0]
		line := "MessagesEnqueued " + m.GetMessageId() + " from " + e.MessagesEnqueued.GetSender()
		if m.GetPriority() != 0 {
			line += fmt.Sprintf(" priority %d", m.GetPriority())
		}
		if m.GetNotBefore() != nil {
			line += " not before " + offset(m.GetNotBefore().AsTime())
		}
		return line
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
		return fmt.Sprintf("DeadlinesPassed %v dead %v", e.DeadlinesPassed.GetLapsedMessageIds(), e.DeadlinesPassed.GetDeadMessageIds())
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

package inbox

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
)

// The scripts in testdata are commands and what they come to. Rewrite what they
// expect with `go test -run Script -rewrite`, and read the difference.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		p := newScript(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			defer p.check()
			return scripted(t, p, d)
		})
	})
}

func scripted(t *testing.T, p *script, d *datadriven.TestData) string {
	text := func(name, otherwise string) string { d.MaybeScanArgs(t, name, &otherwise); return otherwise }
	number := func(name string, otherwise int) int { d.MaybeScanArgs(t, name, &otherwise); return otherwise }
	span := func(name string) time.Duration {
		s, err := time.ParseDuration(text(name, "0s"))
		if err != nil {
			d.Fatalf(t, "%s: %v", name, err)
		}
		return s
	}
	now := start.Add(span("at"))
	holds := func(length string) holding {
		return holding{Goal: "bob", IDs: strings.Split(text("ids", ""), "+"), Token: text("token", ""), Actor: "agent:bob", For: span(length)}
	}
	var event *inboxv1.Event
	var err error
	switch d.Cmd {
	case "enqueue":
		m := newMessage{
			ID: text("id", ""), Body: text("body", "hello"), Priority: int32(number("priority", 0)),
			BusyKey: text("key", ""), Policy: policies[text("policy", "enqueue")],
		}
		if n := number("bytes", 0); n > 0 {
			m.Body = strings.Repeat("x", n)
		}
		if delay := span("delay"); delay > 0 {
			m.NotBefore = now.Add(delay)
		}
		if life := span("life"); life != 0 {
			m.Expires = now.Add(life)
		}
		c := put(m)
		c.Sender.Subject, c.Rules.Limit = text("from", "agent:ann"), number("limit", defaultLimit)
		event, err = p.run(now)(decideEnqueue(p.state, c, now))
	case "batch": // one message a line: id, policy, key
		var messages []newMessage
		for line := range strings.Lines(d.Input) {
			words := append(strings.Fields(line), "", "")
			messages = append(messages, newMessage{ID: words[0], Body: "hello", Policy: policies[cmp.Or(words[1], "enqueue")], BusyKey: words[2]})
		}
		c := put(messages...)
		c.Batch, c.Rules.Limit = true, number("limit", defaultLimit)
		event, err = p.run(now)(decideEnqueue(p.state, c, now))
	case "claim":
		event, err = p.run(now)(decideClaim(p.state, claim{
			Goal: "bob", Request: text("request", "r"), Claimant: text("by", "agent:bob"), Token: text("token", "t"),
			Max: number("max", 1), Lease: span("lease"), Rules: ruledTo(number("deliveries", defaultDeliveries)),
		}, now))
	case "extend":
		event, err = p.run(now)(decideExtend(p.state, holds("lease"), now))
	case "done":
		event, err = p.run(now)(decideDone(p.state, holds("none"), now))
	case "release":
		event, err = p.run(now)(decideRelease(p.state, holds("delay"), now))
	case "deadlines":
		event, err = p.run(now)(decideDeadlines(p.state, "bob", now))
	case "redrive", "discard":
		c := operation{Goal: "bob", IDs: strings.Split(text("ids", ""), "+"), Actor: "human:op", Rules: ruled(number("limit", defaultLimit))}
		decide := decideRedrive
		if d.Cmd == "discard" {
			decide = decideDiscard
		}
		event, err = p.run(now)(decide(p.state, c, now))
	case "pause", "drain", "resume":
		to := map[string]mode{"pause": paused, "drain": draining, "resume": open}[d.Cmd]
		event, err = p.run(now)(decideMode(p.state, setMode{Goal: "bob", Mode: to, Note: text("note", ""), Actor: "human:op"}, now))
	case "interrupted":
		return fmt.Sprintln(p.state.interrupted(strings.Split(text("ids", ""), "+")))
	case "dead":
		return showDead(p.state, now)
	case "known":
		at, _ := p.state.standing(text("id", ""), "", now)
		return standingNames[at] + "\n"
	case "held":
		return fmt.Sprintln(p.state.held(text("request", "r"), now))
	case "show":
		return shown(p.state, now)
	default:
		d.Fatalf(t, "there is no command %s", d.Cmd)
	}
	if err != nil {
		return refused(err) + "\n"
	}
	return told(event) + "\n"
}

// shown is what Peek and GetInbox tell, in short.
func shown(s inbox, now time.Time) string {
	if !s.exists() {
		return "no inbox\n"
	}
	var b strings.Builder
	c := s.countsAt(now)
	fmt.Fprintf(&b, "%d pending, %d delayed, %d claimed, %d dead, oldest %s, due %s", c.Pending, c.Delayed, c.Claimed, c.Dead, offset(s.oldestAt(now)), offset(s.due()))
	if s.Mode != open {
		fmt.Fprintf(&b, ", %s", s.Mode)
	}
	b.WriteByte('\n')
	for id := range s.openFrom(front, now) {
		m, _ := s.messages.Get(id)
		fmt.Fprintf(&b, "%s %s", id, standingNames[m.standing(now)])
		if m.Deliveries > 0 {
			fmt.Fprintf(&b, ", delivered %d", m.Deliveries)
		}
		if m.Reclaimed {
			b.WriteString(", reclaimed")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// showDead is what ListDead tells, in short.
func showDead(s inbox, now time.Time) string {
	var b strings.Builder
	for _, id := range s.deadAt(latest, maxDead, now) {
		m, _ := s.messages.Get(id)
		fmt.Fprintf(&b, "%s died at %s:", id, offset(m.death().at))
		for _, d := range m.toDead(nil).GetDeliveries() {
			fmt.Fprintf(&b, " %s %s-%s %s", d.GetClaimant(), offset(d.GetClaimTime().AsTime()), offset(d.GetEndTime().AsTime()),
				strings.ToLower(strings.TrimPrefix(d.GetEnd().String(), "DELIVERY_END_")))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func ruledTo(deliveries int) rules {
	r := ruled(defaultLimit)
	r.Deliveries = deliveries
	return r
}

var policies = map[string]inboxv1.BusyPolicy{
	"enqueue":   inboxv1.BusyPolicy_BUSY_POLICY_ENQUEUE,
	"reject":    inboxv1.BusyPolicy_BUSY_POLICY_REJECT,
	"replace":   inboxv1.BusyPolicy_BUSY_POLICY_REPLACE,
	"interrupt": inboxv1.BusyPolicy_BUSY_POLICY_INTERRUPT,
}

var standingNames = [standings]string{
	unknown: "unknown", delayed: "delayed", due: "due", ready: "ready", overdue: "overdue", held: "held",
	lapsed: "lapsed", outlived: "outlived", spent: "spent", buried: "dead", done: "done",
	expired: "expired", replaced: "replaced", discarded: "discarded",
}

// messageIn gives an inbox whose message m, with the busy key k, stands as wanted at
// the time given along, and where that is possible its newest claim was under the
// token "own".
func messageIn(t *testing.T, want standing) (*script, time.Time) {
	p := newScript(t)
	now := start
	take := func(token string, lease time.Duration) {
		p.must(now)(decideClaim(p.state, claim{
			Goal: "bob", Request: token, Claimant: "agent:bob", Token: token, Max: 1, Lease: lease, Rules: ruled(10),
		}, now))
	}
	m := theMessage
	own := holding{Goal: "bob", IDs: []string{"m"}, Token: "own"}
	operates := operation{Goal: "bob", IDs: []string{"m"}, Rules: ruled(10)}
	if want == unknown {
		p.must(now)(decideEnqueue(p.state, put(newMessage{ID: "another", Body: "hello"}), now))
		return p, now
	}
	p.must(now)(decideEnqueue(p.state, put(m), now))
	if want == spent || want == buried || want == discarded {
		for i := range defaultDeliveries - 1 {
			take(fmt.Sprint("before-", i), time.Second)
			now = now.Add(time.Second)
		}
	}
	take("own", time.Minute)
	switch want {
	case delayed, due:
		own.For = time.Hour
		p.must(now)(decideRelease(p.state, own, now))
		if want == due {
			now = now.Add(time.Hour)
		}
	case ready, buried, discarded, expired, overdue:
		p.must(now)(decideRelease(p.state, own, now))
		if want == discarded {
			p.must(now)(decideDiscard(p.state, operates, now))
		}
		if want == expired || want == overdue {
			now = m.Expires
		}
		if want == expired {
			p.must(now)(decideDeadlines(p.state, "bob", now))
		}
	case lapsed, spent:
		now = now.Add(time.Minute)
	case outlived:
		own.For = m.Expires.Sub(now) + time.Second
		p.must(now)(decideExtend(p.state, own, now))
		now = now.Add(own.For)
	case done:
		p.must(now)(decideDone(p.state, own, now))
	case replaced:
		p.must(now)(decideRelease(p.state, own, now))
		p.must(now)(decideEnqueue(p.state, put(newMessage{ID: "n", Body: "hello", Policy: policies["replace"], BusyKey: "k"}), now))
	}
	if at, _ := p.state.standing("m", "", now); at != want {
		t.Fatalf("the message is %s, it should be %s", standingNames[at], standingNames[want])
	}
	return p, now
}

// theMessage is the message m as it is enqueued.
var theMessage = newMessage{ID: "m", Body: "hello", Expires: start.Add(10 * time.Hour), Policy: policies["reject"], BusyKey: "k"}

// asked runs one command on the message m of an inbox.
var asked = [commands]struct {
	name string
	run  func(inbox, time.Time) (*inboxv1.Event, error)
}{
	enqueueSame: {"enqueue, same content", func(s inbox, now time.Time) (*inboxv1.Event, error) {
		return decideEnqueue(s, put(theMessage), now)
	}},
	enqueueOther: {"enqueue, other content", func(s inbox, now time.Time) (*inboxv1.Event, error) {
		m := theMessage
		m.Body = "good bye"
		return decideEnqueue(s, put(m), now)
	}},
	toReplace: {"replace by another", func(s inbox, now time.Time) (*inboxv1.Event, error) {
		return decideEnqueue(s, put(newMessage{ID: "o", Body: "hello", Policy: policies["replace"], BusyKey: "k"}), now)
	}},
	toClaim: {"claim", func(s inbox, now time.Time) (*inboxv1.Event, error) {
		return decideClaim(s, claim{
			Goal: "bob", Request: "new", Claimant: "agent:bob", Token: "new", Max: 10, Lease: time.Minute, Rules: ruled(10),
		}, now)
	}},
	toExtend:       {"extend", withToken(decideExtend, "own")},
	toFinish:       {"done", withToken(decideDone, "own")},
	toRelease:      {"release", withToken(decideRelease, "own")},
	toExtendStale:  {"extend, other token", withToken(decideExtend, "other")},
	toFinishStale:  {"done, other token", withToken(decideDone, "other")},
	toReleaseStale: {"release, other token", withToken(decideRelease, "other")},
	toRedrive: {"redrive", func(s inbox, now time.Time) (*inboxv1.Event, error) {
		return decideRedrive(s, operation{Goal: "bob", IDs: []string{"m"}, Rules: ruled(10)}, now)
	}},
	toDiscard: {"discard", func(s inbox, now time.Time) (*inboxv1.Event, error) {
		return decideDiscard(s, operation{Goal: "bob", IDs: []string{"m"}, Rules: ruled(10)}, now)
	}},
	toPass: {"deadline", func(s inbox, now time.Time) (*inboxv1.Event, error) {
		return decideDeadlines(s, "bob", now)
	}},
}

func withToken(decide func(inbox, holding, time.Time) (*inboxv1.Event, error), token string) func(inbox, time.Time) (*inboxv1.Event, error) {
	return func(s inbox, now time.Time) (*inboxv1.Event, error) {
		return decide(s, holding{Goal: "bob", IDs: []string{"m"}, Token: token, For: time.Minute}, now)
	}
}

// Every command on a message in every state: what it comes to is in
// testdata/transitions, and it must be what the table in message.go says.
func TestEveryCommandInEveryStateOfAMessage(t *testing.T) {
	datadriven.RunTest(t, "testdata/transitions/message", func(t *testing.T, _ *datadriven.TestData) string {
		var b strings.Builder
		for at := range standing(standings) {
			for c := range command(commands) {
				p, now := messageIn(t, at)
				event, err := p.run(now)(asked[c].run(p.state, now))
				p.check()
				after, _ := p.state.standing("m", "", now)
				came, as := standingNames[after], happens
				switch {
				case fault.Is(err, fault.StaleClaim):
					came, as = string(fault.StaleClaim), stale
				case fault.Is(err, fault.IdempotencyMismatch):
					came, as = string(fault.IdempotencyMismatch), mismatch
				case fault.Is(err, fault.MessageNotFound):
					came, as = string(fault.MessageNotFound), missing
				case fault.Is(err, fault.StateConflict):
					came, as = string(fault.StateConflict), conflict
				case err != nil:
					t.Errorf("%s, %s: %v", standingNames[at], asked[c].name, err)
				case !strings.Contains(event.String(), `"m"`):
					came, as = "-", nothing
				}
				if err != nil && event != nil {
					t.Errorf("%s, %s: refused with an event, %v", standingNames[at], asked[c].name, event)
				}
				if as != transitions[at][c] {
					t.Errorf("%s, %s: came to %s, the table says %v", standingNames[at], asked[c].name, came, transitions[at][c])
				}
				fmt.Fprintf(&b, "%-9s %-22s  %s\n", standingNames[at], asked[c].name, came)
			}
		}
		return b.String()
	})
}

func TestContentsThatDifferHaveDifferentFingerprints(t *testing.T) {
	type content struct {
		sender string
		newMessage
	}
	seen := map[string]content{}
	for _, c := range []content{
		{"agent:a", newMessage{Body: "xy"}},
		{"agent:ax", newMessage{Body: "y"}},
		{"agent:a", newMessage{Body: "x", Correlation: "y"}},
		{"agent:a", newMessage{Body: "x", BusyKey: "y"}},
		{"agent:a", newMessage{Body: "xy", Priority: 1}},
		{"agent:a", newMessage{Body: "xy", Policy: policies["reject"]}},
		{"agent:a", newMessage{Body: "xy", NotBefore: start}},
		{"agent:a", newMessage{Body: "xy", Expires: start}},
		{"agent:a", newMessage{Body: "xy", NotBefore: start, Expires: start}},
		{"agent:a", newMessage{Body: "xy", NotBefore: start.Add(time.Nanosecond)}},
	} {
		print := string(c.fingerprint(c.sender))
		if other, ok := seen[print]; ok {
			t.Errorf("%+v and %+v have one fingerprint", c, other)
		}
		seen[print] = c
	}
	// How it is delivered is no content.
	if m := (newMessage{ID: "m", Body: "xy", Conversation: "c"}); seen[string(m.fingerprint("agent:a"))].Body != "xy" {
		t.Error("id or conversation is part of the fingerprint")
	}
}

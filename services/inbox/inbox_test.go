package inbox

import (
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
		c := enqueue{
			Goal: "bob", ID: text("id", ""), Sender: text("from", "agent:ann"), Body: text("body", "hello"),
			Priority: int32(number("priority", 0)), Limit: number("limit", defaultLimit),
		}
		if n := number("bytes", 0); n > 0 {
			c.Body = strings.Repeat("x", n)
		}
		if delay := span("delay"); delay > 0 {
			c.NotBefore = now.Add(delay)
		}
		event, err = p.run(now)(decideEnqueue(p.state, c, now))
	case "claim":
		event, err = p.run(now)(decideClaim(p.state, claim{
			Goal: "bob", Request: text("request", "r"), Claimant: text("by", "agent:bob"), Token: text("token", "t"),
			Max: number("max", 1), Lease: span("lease"),
		}, now))
	case "extend":
		event, err = p.run(now)(decideExtend(p.state, holds("lease"), now))
	case "done":
		event, err = p.run(now)(decideDone(p.state, holds("none"), now))
	case "release":
		event, err = p.run(now)(decideRelease(p.state, holds("delay"), now))
	case "expire":
		event, err = p.run(now)(decideExpire(p.state, "bob", now))
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
	fmt.Fprintf(&b, "%d pending, %d delayed, %d claimed, %d dead, due %s\n", c.Pending, c.Delayed, c.Claimed, c.Dead, offset(s.due()))
	for id := range s.waiting() {
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

var standingNames = [standings]string{
	unknown: "unknown", delayed: "delayed", ready: "ready", held: "held",
	lapsed: "lapsed", spent: "spent", buried: "buried", done: "done",
}

// messageIn gives an inbox whose message m stands as wanted at the time given
// along, and where that is possible its newest claim was under the token "own".
func messageIn(t *testing.T, want standing) (*script, time.Time) {
	p := newScript(t)
	now := start
	put := func(id string) {
		p.must(now)(decideEnqueue(p.state, enqueue{Goal: "bob", ID: id, Sender: "agent:ann", Body: "hello", Limit: 10}, now))
	}
	take := func(token string, lease time.Duration) {
		p.must(now)(decideClaim(p.state, claim{Goal: "bob", Request: token, Claimant: "agent:bob", Token: token, Max: 1, Lease: lease}, now))
	}
	own := holding{Goal: "bob", IDs: []string{"m"}, Token: "own"}
	if want == unknown {
		put("another")
		return p, now
	}
	put("m")
	if want == spent || want == buried {
		for i := range maxDeliveries - 1 {
			take(fmt.Sprint("before-", i), time.Second)
			now = now.Add(time.Second)
		}
	}
	take("own", time.Minute)
	switch want {
	case delayed:
		own.For = time.Hour
		p.must(now)(decideRelease(p.state, own, now))
	case ready, buried:
		p.must(now)(decideRelease(p.state, own, now))
	case lapsed, spent:
		now = now.Add(time.Minute)
	case done:
		p.must(now)(decideDone(p.state, own, now))
	}
	if at, _ := p.state.standing("m", "", now); at != want {
		t.Fatalf("the message is %s, it should be %s", standingNames[at], standingNames[want])
	}
	return p, now
}

// asked runs one command on the message m of an inbox.
var asked = [commands]struct {
	name string
	run  func(inbox, time.Time) (*inboxv1.Event, error)
}{
	enqueueSame: {"enqueue, same content", func(s inbox, now time.Time) (*inboxv1.Event, error) {
		return decideEnqueue(s, enqueue{Goal: "bob", ID: "m", Sender: "agent:ann", Body: "hello", Limit: 10}, now)
	}},
	enqueueOther: {"enqueue, other content", func(s inbox, now time.Time) (*inboxv1.Event, error) {
		return decideEnqueue(s, enqueue{Goal: "bob", ID: "m", Sender: "agent:ann", Body: "good bye", Limit: 10}, now)
	}},
	toClaim: {"claim", func(s inbox, now time.Time) (*inboxv1.Event, error) {
		return decideClaim(s, claim{Goal: "bob", Request: "new", Claimant: "agent:bob", Token: "new", Max: 10, Lease: time.Minute}, now)
	}},
	toExtend:       {"extend", withToken(decideExtend, "own")},
	toFinish:       {"done", withToken(decideDone, "own")},
	toRelease:      {"release", withToken(decideRelease, "own")},
	toExtendStale:  {"extend, other token", withToken(decideExtend, "other")},
	toFinishStale:  {"done, other token", withToken(decideDone, "other")},
	toReleaseStale: {"release, other token", withToken(decideRelease, "other")},
	toExpire: {"lease end", func(s inbox, now time.Time) (*inboxv1.Event, error) {
		return decideExpire(s, "bob", now)
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
				fmt.Fprintf(&b, "%-8s %-22s  %s\n", standingNames[at], asked[c].name, came)
			}
		}
		return b.String()
	})
}

func TestContentsThatDifferHaveDifferentFingerprints(t *testing.T) {
	seen := map[string]enqueue{}
	for _, c := range []enqueue{
		{Sender: "agent:a", Body: "xy"},
		{Sender: "agent:ax", Body: "y"},
		{Sender: "agent:a", Body: "x", Correlation: "y"},
		{Sender: "agent:a", Body: "xy", Priority: 1},
		{Sender: "agent:a", Body: "xy", NotBefore: start},
		{Sender: "agent:a", Body: "xy", NotBefore: start.Add(time.Nanosecond)},
	} {
		print := string(c.fingerprint())
		if other, ok := seen[print]; ok {
			t.Errorf("%+v and %+v have one fingerprint", c, other)
		}
		seen[print] = c
	}
	// How it is delivered is no content.
	if c := (enqueue{Goal: "g", ID: "m", Sender: "agent:a", Body: "xy", Limit: 7}); seen[string(c.fingerprint())].Body != "xy" {
		t.Error("id or limit is part of the fingerprint")
	}
}

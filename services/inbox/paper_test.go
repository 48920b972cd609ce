package inbox

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
)

// Random commands at random times, by several workers, with clocks that differ:
// the inbox decides as the model does, and its counts, order and document are
// right after each.
func TestAnInboxIsWhatIsOnPaper(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &paper{script: newScript(t), model: &model{}, now: start}
		t.Repeat(map[string]func(*rapid.T){
			"time passes":                  func(t *rapid.T) { p.now = p.now.Add(seconds.Draw(t, "by")) },
			"much time passes":             func(t *rapid.T) { p.now = p.now.Add(6 * seconds.Draw(t, "by")) },
			"the clock of another replica": func(t *rapid.T) { p.now = p.now.Add(-seconds.Draw(t, "by")) },
			"enqueue":                      p.enqueue,
			"claim":                        p.claim,
			"extend":                       p.extend,
			"done":                         p.done,
			"release":                      p.release,
			"deadlines": func(t *rapid.T) {
				expected := p.model.deadlines(p.now)
				event, err := p.run(p.now)(decideDeadlines(p.state, "bob", p.now))
				p.want(t, event, err, expected)
			},
			"operate": p.operate,
			"mode":    p.mode,
			"":        p.same,
		})
		p.check()
	})
}

var (
	anyID   = rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h", "i"})
	someIDs = rapid.SliceOfNDistinct(anyID, 1, 3, rapid.ID[string])
	seconds = rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds")) * time.Second
	})
	// paperRules are such that every limit is met often.
	paperRules = rules{Limit: 6, Body: 10, Deliveries: 3, KeepIDs: modelKeep}
)

// paper is an inbox and its model, side by side.
type paper struct {
	*script
	model  *model
	now    time.Time
	tokens []string
}

// want holds what the inbox decided against what the model did.
func (p *paper) want(t *rapid.T, event *inboxv1.Event, err error, expected string) {
	t.Helper()
	got := told(event)
	if err != nil {
		got = string(fault.ReasonOf(err))
	}
	if got != expected {
		t.Fatalf("at %s: got %s, on paper it is %s", offset(p.now), got, expected)
	}
	if event != nil {
		p.model.events++
		if p.now.After(p.model.updated) {
			p.model.updated = p.now
		}
	}
}

func (p *paper) enqueue(t *rapid.T) {
	c := enqueue{Goal: "bob", Sender: origin{Subject: "agent:ann"}, Rules: paperRules, Batch: true}
	for _, id := range someIDs.Draw(t, "ids") {
		m := newMessage{
			ID:       id,
			Body:     rapid.SampledFrom([]string{"x", "x", "x", "y"}).Draw(t, "body"),
			Priority: int32(rapid.IntRange(0, 1).Draw(t, "priority")),
			Policy:   inboxv1.BusyPolicy(rapid.IntRange(1, 4).Draw(t, "policy")),
		}
		if rapid.IntRange(0, 3).Draw(t, "delayed") == 0 {
			m.NotBefore = p.now.Add(seconds.Draw(t, "delay"))
		}
		if rapid.IntRange(0, 3).Draw(t, "expires") == 0 {
			m.Expires = p.now.Add(20*time.Second + seconds.Draw(t, "life"))
		}
		switch m.Policy {
		case inboxv1.BusyPolicy_BUSY_POLICY_REJECT:
			m.BusyKey = rapid.SampledFrom([]string{"", "k", "l"}).Draw(t, "key")
		case inboxv1.BusyPolicy_BUSY_POLICY_REPLACE:
			m.BusyKey = rapid.SampledFrom([]string{"k", "l"}).Draw(t, "key")
		}
		c.Messages = append(c.Messages, m)
	}
	expected := p.model.enqueue(c, p.now)
	event, err := p.run(p.now)(decideEnqueue(p.state, c, p.now))
	p.want(t, event, err, expected)
}

func (p *paper) claim(t *rapid.T) {
	p.tokens = append(p.tokens, fmt.Sprint("token-", len(p.tokens)))
	c := claim{
		Goal: "bob", Request: rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "request"),
		Claimant: rapid.SampledFrom([]string{"service:one", "service:two"}).Draw(t, "claimant"),
		Token:    p.tokens[len(p.tokens)-1], Max: rapid.IntRange(1, 4).Draw(t, "max"), Lease: seconds.Draw(t, "lease"),
		Rules: paperRules,
	}
	expected := p.model.claim(c, p.now)
	event, err := p.run(p.now)(decideClaim(p.state, c, p.now))
	p.want(t, event, err, expected)
	if got, on := fmt.Sprint(p.state.held(c.Request, p.now)), fmt.Sprint(ids(p.model.held(c.Request, p.now))); got != on {
		t.Fatalf("request %s holds %s, on paper %s", c.Request, got, on)
	}
}

// hold runs one of the commands that carry a token. Already says of a message that
// the command does not change whether that is fine.
func (p *paper) hold(t *rapid.T, decide func(inbox, holding, time.Time) (*inboxv1.Event, error), length time.Duration,
	already func(x *modelMessage, token string) bool, tell func(ids []string) string, apply func(*modelMessage),
) {
	if len(p.tokens) == 0 {
		t.Skip("nothing was claimed")
	}
	c := holding{
		Goal: "bob", Token: rapid.SampledFrom(p.tokens).Draw(t, "token"), For: length, IDs: someIDs.Draw(t, "ids"),
	}
	expected, change := "nothing", []*modelMessage{}
	for _, id := range c.IDs {
		x := p.model.find(id)
		switch {
		case x != nil && x.where(p.now) == "held" && x.token == c.Token:
			change = append(change, x)
		case x == nil || !already(x, c.Token):
			expected = "STALE_CLAIM"
		}
	}
	switch {
	case p.model.events == 0:
		expected = "INBOX_NOT_FOUND"
	case expected == "nothing" && len(change) > 0:
		expected = tell(ids(change))
		for _, x := range change {
			apply(x)
		}
	}
	event, err := p.run(p.now)(decide(p.state, c, p.now))
	p.want(t, event, err, expected)
}

func (p *paper) extend(t *rapid.T) {
	lease := seconds.Draw(t, "lease")
	p.hold(t, decideExtend, lease, func(*modelMessage, string) bool { return false },
		func(ids []string) string {
			return fmt.Sprintf("LeaseExtended %v until %s", ids, offset(p.now.Add(lease)))
		},
		func(x *modelMessage) { x.until = p.now.Add(lease) })
}

func (p *paper) done(t *rapid.T) {
	p.hold(t, decideDone, 0, func(x *modelMessage, _ string) bool { return x.state == "done" },
		func(ids []string) string { return fmt.Sprintf("MessagesDone %v", ids) },
		func(x *modelMessage) { p.model.end(x, "done", p.now) })
}

func (p *paper) release(t *rapid.T) {
	delay := seconds.Draw(t, "delay") - time.Second
	p.hold(t, decideRelease, delay,
		func(x *modelMessage, token string) bool {
			return slices.Contains([]string{"pending", "delayed", "dead"}, x.state) && x.token == token
		},
		func(ids []string) string {
			if delay == 0 {
				return fmt.Sprintf("MessagesReleased %v", ids)
			}
			return fmt.Sprintf("MessagesReleased %v not before %s", ids, offset(p.now.Add(delay)))
		},
		func(x *modelMessage) {
			x.state, x.notBefore = "pending", time.Time{}
			x.failed++
			switch {
			case x.last:
				x.state, x.died = "dead", p.now
			case delay > 0:
				x.state, x.notBefore = "delayed", p.now.Add(delay)
			}
		})
}

func (p *paper) operate(t *rapid.T) {
	c := operation{Goal: "bob", IDs: someIDs.Draw(t, "ids"), Actor: "human:op", Rules: paperRules}
	redrive := rapid.Bool().Draw(t, "redrive")
	decide := decideDiscard
	if redrive {
		decide = decideRedrive
	}
	expected := p.model.operate(redrive, c, p.now)
	event, err := p.run(p.now)(decide(p.state, c, p.now))
	p.want(t, event, err, expected)
}

func (p *paper) mode(t *rapid.T) {
	c := setMode{Goal: "bob", Actor: "human:op"}
	// Open most often, or else little would happen.
	c.Mode = rapid.SampledFrom([]mode{open, open, open, paused, draining}).Draw(t, "mode")
	if c.Mode != open {
		c.Note = rapid.SampledFrom([]string{"", "why"}).Draw(t, "note")
	}
	expected := "nothing"
	if c.Mode != p.model.mode || c.Note != p.model.note {
		expected = fmt.Sprintf("InboxStateChanged %s %q", modes[c.Mode], c.Note)
		p.model.mode, p.model.note = c.Mode, c.Note
	}
	event, err := p.run(p.now)(decideMode(p.state, c, p.now))
	p.want(t, event, err, expected)
}

// same holds all that can be asked of the inbox against the model.
func (p *paper) same(t *rapid.T) {
	if !p.state.exists() {
		return
	}
	m, now := p.model, p.now
	c := p.state.Counts
	got := []int{c.Pending, c.Delayed, c.Claimed, c.Dead, p.state.Finished}
	on := []int{m.count("pending"), m.count("delayed"), m.count("claimed"), m.count("dead"), m.count("done", "expired", "replaced", "discarded")}
	if !slices.Equal(got, on) {
		t.Fatalf("counts are %v, on paper %v", got, on)
	}
	at := p.state.countsAt(now)
	got = []int{at.Pending, at.Delayed, at.Claimed, at.Dead}
	pending := m.all(now, "ready", "due", "lapsed")
	on = []int{len(pending), len(m.all(now, "delayed")), len(m.all(now, "held")), len(m.all(now, "dead", "spent"))}
	if !slices.Equal(got, on) {
		t.Fatalf("by time counts are %v, on paper %v", got, on)
	}
	var oldest time.Time
	for _, x := range pending {
		if oldest.IsZero() || x.enqueued.Before(oldest) {
			oldest = x.enqueued
		}
	}
	if !p.state.oldestAt(now).Equal(oldest) {
		t.Fatalf("the oldest is of %s, on paper of %s", offset(p.state.oldestAt(now)), offset(oldest))
	}
	if open := slices.Collect(p.state.openFrom(front, now)); !slices.Equal(open, ids(m.all(now, "ready", "due", "lapsed", "delayed", "held"))) {
		t.Fatalf("what waits is %v, on paper %v", open, ids(m.all(now, "ready", "due", "lapsed", "delayed", "held")))
	}
	dead := m.all(now, "dead", "spent")
	byDeath := byTime(dead, func(x *modelMessage) time.Time {
		if x.state == "dead" {
			return x.died
		}
		return x.until
	})
	slices.Reverse(byDeath)
	if listed := p.state.deadAt(latest, 100, now); !slices.Equal(listed, byDeath) {
		t.Fatalf("dead are %v, on paper %v", listed, byDeath)
	}
	for i := range m.messages {
		x := &m.messages[i]
		if standing, _ := p.state.standing(x.id, "", now); standingNames[standing] != x.where(now) {
			t.Fatalf("%s is %s, on paper %s", x.id, standingNames[standing], x.where(now))
		}
		y, ok := p.state.messages.Get(x.id)
		if !ok {
			continue
		}
		if y.Reclaimed != x.reclaimed || int(y.Deliveries) != x.deliveries || len(y.History) != min(x.failed, maxHistory) {
			t.Fatalf("%s: reclaimed %v after %d deliveries, %d before, on paper %v after %d, %d before",
				x.id, y.Reclaimed, y.Deliveries, len(y.History), x.reclaimed, x.deliveries, x.failed)
		}
		if x.state == "claimed" && p.state.interrupted([]string{x.id}) != (x.claim < m.interrupted) {
			t.Fatalf("the claim of %s counts as interrupted: %v", x.id, p.state.interrupted([]string{x.id}))
		}
	}
}

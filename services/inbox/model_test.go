package inbox

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
)

// model is an inbox as one would write it down on paper: a list of messages,
// and a walk over all of it for every question.
type model struct {
	messages []*modelMessage
	updated  time.Time // of the newest event, by the clock that was ahead
	claims   int
}

type modelMessage struct {
	id, content string
	priority    int
	arrival     int
	notBefore   time.Time
	state       string // pending, claimed, dead, done
	until       time.Time
	token       string // of the newest claim, unless its lease end was recorded
	request     string
	claimant    string
	claim       int
	deliveries  int
	reclaimed   bool
}

func (m *model) find(id string) *modelMessage {
	for _, x := range m.messages {
		if x.id == id {
			return x
		}
	}
	return nil
}

func (m *model) count(state string) int {
	n := 0
	for _, x := range m.messages {
		if x.state == state {
			n++
		}
	}
	return n
}

// servable is what may be claimed, in order.
func (m *model) servable(now time.Time) []*modelMessage {
	var found []*modelMessage
	for _, x := range m.messages {
		delayed := x.notBefore.After(now) && x.notBefore.After(m.updated)
		lapsed := !x.until.After(now) && x.deliveries < 5
		if x.state == "pending" && !delayed || x.state == "claimed" && lapsed {
			found = append(found, x)
		}
	}
	inOrder(found)
	return found
}

func inOrder(messages []*modelMessage) {
	slices.SortFunc(messages, func(a, b *modelMessage) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.arrival, b.arrival))
	})
}

// held is what the newest claim of a request holds.
func (m *model) held(request string, now time.Time) []*modelMessage {
	newest := 0
	for _, x := range m.messages {
		if x.state == "claimed" && x.request == request && x.until.After(now) {
			newest = max(newest, x.claim)
		}
	}
	var found []*modelMessage
	for _, x := range m.messages {
		if x.state == "claimed" && x.request == request && x.until.After(now) && x.claim == newest {
			found = append(found, x)
		}
	}
	inOrder(found)
	return found
}

func ids(messages []*modelMessage) []string {
	var out []string
	for _, x := range messages {
		out = append(out, x.id)
	}
	return out
}

// Random commands at random times, by several workers, with clocks that differ:
// the inbox decides as the model does, and its counts, order and document are
// right after each.
func TestAnInboxIsWhatIsOnPaper(t *testing.T) {
	const limit = 6
	rapid.Check(t, func(t *rapid.T) {
		p, m := newScript(t), &model{}
		now := start
		var tokens []string
		newToken := func() string {
			tokens = append(tokens, fmt.Sprint("token-", len(tokens)))
			return tokens[len(tokens)-1]
		}
		anyID := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h", "i"})
		seconds := rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds")) * time.Second
		})
		want := func(event *inboxv1.Event, err error, expected string) {
			t.Helper()
			got := told(event)
			if err != nil {
				got = string(fault.ReasonOf(err))
			}
			if got != expected {
				t.Fatalf("at %s: got %s, on paper it is %s", offset(now), got, expected)
			}
			if event != nil && now.After(m.updated) {
				m.updated = now
			}
		}
		// hold runs one of the commands that carry a token.
		hold := func(t *rapid.T, decide func(inbox, holding, time.Time) (*inboxv1.Event, error), length time.Duration,
			already func(*modelMessage, string) bool, tell func([]*modelMessage) string, apply func(*modelMessage),
		) {
			if len(tokens) == 0 {
				t.Skip("nothing was claimed")
			}
			c := holding{
				Goal: "bob", Token: rapid.SampledFrom(tokens).Draw(t, "token"), For: length,
				IDs: rapid.SliceOfNDistinct(anyID, 1, 3, rapid.ID[string]).Draw(t, "ids"),
			}
			expected, change := "", []*modelMessage{}
			for _, id := range c.IDs {
				x := m.find(id)
				switch {
				case x != nil && x.state == "claimed" && x.token == c.Token && x.until.After(now):
					change = append(change, x)
				case x == nil || !already(x, c.Token):
					expected = "STALE_CLAIM"
				}
			}
			if len(m.messages) == 0 {
				expected = "INBOX_NOT_FOUND"
			}
			event, err := p.run(now)(decide(p.state, c, now))
			switch {
			case expected == "" && len(change) > 0:
				expected = tell(change)
				for _, x := range change {
					apply(x)
				}
			case expected == "":
				expected = "nothing"
			}
			want(event, err, expected)
		}
		t.Repeat(map[string]func(*rapid.T){
			"time passes": func(t *rapid.T) {
				now = now.Add(seconds.Draw(t, "by"))
			},
			"the clock of another replica": func(t *rapid.T) {
				now = now.Add(-seconds.Draw(t, "by"))
			},
			"enqueue": func(t *rapid.T) {
				c := enqueue{
					Goal: "bob", ID: anyID.Draw(t, "id"), Sender: "agent:ann", Limit: limit,
					Body:     rapid.SampledFrom([]string{"x", "x", "x", "y"}).Draw(t, "body"),
					Priority: int32(rapid.IntRange(0, 1).Draw(t, "priority")),
				}
				if rapid.IntRange(0, 3).Draw(t, "delayed") == 0 {
					c.NotBefore = now.Add(seconds.Draw(t, "delay"))
				}
				content := fmt.Sprint(c.Body, c.Priority, c.NotBefore)
				expected := "MessagesEnqueued " + c.ID + " from agent:ann"
				if c.Priority != 0 {
					expected += " priority 1"
				}
				if !c.NotBefore.IsZero() {
					expected += " not before " + offset(c.NotBefore)
				}
				x := m.find(c.ID)
				switch {
				case x != nil && x.content == content:
					expected = "nothing"
				case x != nil:
					expected = "IDEMPOTENCY_MISMATCH"
				case m.count("pending")+m.count("claimed") >= limit:
					expected = "INBOX_FULL"
				default:
					m.messages = append(m.messages, &modelMessage{
						id: c.ID, content: content, priority: int(c.Priority), arrival: len(m.messages),
						notBefore: c.NotBefore, state: "pending",
					})
				}
				event, err := p.run(now)(decideEnqueue(p.state, c, now))
				want(event, err, expected)
			},
			"claim": func(t *rapid.T) {
				c := claim{
					Goal: "bob", Request: rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "request"),
					Claimant: rapid.SampledFrom([]string{"service:one", "service:two"}).Draw(t, "claimant"),
					Token:    newToken(), Max: rapid.IntRange(1, 4).Draw(t, "max"), Lease: seconds.Draw(t, "lease"),
				}
				held, free := m.held(c.Request, now), m.servable(now)
				free = free[:min(len(free), c.Max)]
				expected := "nothing"
				switch {
				case len(held) > 0 && (held[0].claimant != c.Claimant || len(held) > c.Max):
					expected = "IDEMPOTENCY_MISMATCH"
				case len(held) > 0:
				case len(free) > 0:
					expected = fmt.Sprintf("MessagesClaimed %v by %s under %s until %s", ids(free), c.Claimant, c.Token, offset(now.Add(c.Lease)))
					m.claims++
					for _, x := range free {
						x.reclaimed = x.reclaimed || x.state == "claimed"
						x.state, x.token, x.request, x.claimant, x.claim = "claimed", c.Token, c.Request, c.Claimant, m.claims
						x.until = now.Add(c.Lease)
						x.deliveries++
					}
				}
				event, err := p.run(now)(decideClaim(p.state, c, now))
				want(event, err, expected)
				if got := fmt.Sprint(p.state.held(c.Request, now)); p.state.exists() && got != fmt.Sprint(ids(m.held(c.Request, now))) {
					t.Fatalf("request %s holds %s, on paper %v", c.Request, got, ids(m.held(c.Request, now)))
				}
			},
			"extend": func(t *rapid.T) {
				lease := seconds.Draw(t, "lease")
				hold(t, decideExtend, lease, func(*modelMessage, string) bool { return false },
					func(changed []*modelMessage) string {
						return fmt.Sprintf("LeaseExtended %v until %s", ids(changed), offset(now.Add(lease)))
					},
					func(x *modelMessage) { x.until = now.Add(lease) })
			},
			"done": func(t *rapid.T) {
				hold(t, decideDone, 0, func(x *modelMessage, _ string) bool { return x.state == "done" },
					func(changed []*modelMessage) string { return fmt.Sprintf("MessagesDone %v", ids(changed)) },
					func(x *modelMessage) { x.state = "done" })
			},
			"release": func(t *rapid.T) {
				delay := seconds.Draw(t, "delay")
				hold(t, decideRelease, delay,
					func(x *modelMessage, token string) bool {
						return (x.state == "pending" || x.state == "dead") && x.token == token
					},
					func(changed []*modelMessage) string {
						return fmt.Sprintf("MessagesReleased %v not before %s", ids(changed), offset(now.Add(delay)))
					},
					func(x *modelMessage) {
						x.state, x.notBefore = "pending", now.Add(delay)
						if x.deliveries >= 5 {
							x.state = "dead"
						}
					})
			},
			"expire": func(t *rapid.T) {
				event, err := p.run(now)(decideExpire(p.state, "bob", now))
				var back, dead []*modelMessage
				for _, x := range m.messages {
					if x.state == "claimed" && !x.until.After(now) {
						x.reclaimed, x.token = true, ""
						if x.state = "pending"; x.deliveries >= 5 {
							x.state = "dead"
							dead = append(dead, x)
						} else {
							back = append(back, x)
						}
					}
				}
				byLease := func(a, b *modelMessage) int {
					return cmp.Or(a.until.Compare(b.until), cmp.Compare(a.arrival, b.arrival))
				}
				slices.SortFunc(back, byLease)
				slices.SortFunc(dead, byLease)
				expected := "nothing"
				if len(back)+len(dead) > 0 {
					expected = fmt.Sprintf("DeadlinesPassed %v dead %v", ids(back), ids(dead))
				}
				want(event, err, expected)
			},
			"": func(t *rapid.T) {
				if !p.state.exists() {
					return
				}
				c := p.state.Counts
				got := []int{c.Pending + c.Delayed, c.Claimed, c.Dead, p.state.Finished}
				if on := []int{m.count("pending"), m.count("claimed"), m.count("dead"), m.count("done")}; !slices.Equal(got, on) {
					t.Fatalf("counts are %v, on paper %v", got, on)
				}
				at := p.state.countsAt(now)
				if servable := len(m.servable(now)); at.Pending != servable {
					t.Fatalf("%d count as pending, on paper %d", at.Pending, servable)
				}
				if at.depth()+at.Dead != len(m.messages)-m.count("done") {
					t.Fatalf("the counts %+v lose messages, on paper there are %d", at, len(m.messages))
				}
				for _, x := range m.messages {
					if y, ok := p.state.messages.Get(x.id); ok && (y.Reclaimed != x.reclaimed || int(y.Deliveries) != x.deliveries) {
						t.Fatalf("%s: reclaimed %v after %d deliveries, on paper %v after %d", x.id, y.Reclaimed, y.Deliveries, x.reclaimed, x.deliveries)
					}
				}
			},
		})
		p.check()
	})
}

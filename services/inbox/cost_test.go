package inbox

import (
	"fmt"
	"testing"
	"time"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
)

// What one event costs, decided, followed and encoded, does not grow with an inbox,
// of waiting messages and as many ended ones: what it writes is the same, and what it
// allocates grows as the trees get deeper, by their logarithm.
func TestAnEventCostsTheSameAtAnyDepth(t *testing.T) {
	now := start.Add(time.Hour)
	claimOf := func(request string, n int) claim {
		return claim{Goal: "bob", Request: request, Claimant: "agent:bob", Token: request, Max: n, Lease: time.Minute, Rules: ruledTo(1)}
	}
	// Each is what an inbox is brought to, and then asked.
	events := map[string]struct {
		before []func(*script)
		decide func(inbox) (*inboxv1.Event, error)
	}{
		"enqueue": {nil, func(s inbox) (*inboxv1.Event, error) {
			return decideEnqueue(s, put(newMessage{ID: "new", Body: "hello", Expires: now.Add(time.Hour)}), now)
		}},
		"replace": {nil, func(s inbox) (*inboxv1.Event, error) {
			return decideEnqueue(s, put(newMessage{ID: "new", Body: "hello", Policy: policies["replace"], BusyKey: "7"}), now)
		}},
		"claim": {nil, func(s inbox) (*inboxv1.Event, error) { return decideClaim(s, claimOf("r", 1), now) }},
		"extend": {[]func(*script){claimed1(claimOf("r", 1), now)}, func(s inbox) (*inboxv1.Event, error) {
			return decideExtend(s, holding{Goal: "bob", IDs: s.held("r", now), Token: "r", For: time.Hour}, now)
		}},
		"release": {[]func(*script){claimed1(claimOf("r", 1), now)}, func(s inbox) (*inboxv1.Event, error) {
			return decideRelease(s, holding{Goal: "bob", IDs: s.held("r", now), Token: "r", For: time.Hour}, now)
		}},
		"done": {[]func(*script){claimed1(claimOf("r", 1), now)}, func(s inbox) (*inboxv1.Event, error) {
			return decideDone(s, holding{Goal: "bob", IDs: s.held("r", now), Token: "r"}, now)
		}},
		"deadline": {[]func(*script){claimed1(claimOf("r", 1), now)}, func(s inbox) (*inboxv1.Event, error) {
			return decideDeadlines(s, "bob", now.Add(time.Minute))
		}},
		"redrive": {[]func(*script){claimed1(claimOf("r", 1), now)}, func(s inbox) (*inboxv1.Event, error) {
			at := now.Add(time.Minute)
			return decideRedrive(s, operation{Goal: "bob", IDs: s.deadAt(latest, 1, at), Rules: ruled(maxLimit)}, at)
		}},
		"pause": {nil, func(s inbox) (*inboxv1.Event, error) {
			return decideMode(s, setMode{Goal: "bob", Mode: paused}, now)
		}},
	}
	type cost struct{ bytes, allocs float64 }
	var all []map[string]cost
	for _, depth := range []int{10, 1000, 9900} {
		p := deep(t, depth)
		costs := map[string]cost{}
		for name, e := range events {
			q := &script{t: t, state: p.state, sequence: p.sequence, document: map[string]string{}}
			for _, before := range e.before {
				before(q)
			}
			var c cost
			once := func() {
				event, err := e.decide(q.state)
				if err != nil || event == nil {
					t.Fatalf("%s: %v, %v", name, event, err)
				}
				after := evolveInbox(q.state, aggregate.Recorded[*inboxv1.Event]{Event: event, Time: now, Sequence: q.sequence + 1})
				c.bytes = 0
				for _, field := range (inboxCodec{}).Touched(after, event) {
					content, err := (inboxCodec{}).Encode(after, field)
					if err != nil {
						t.Fatal(err)
					}
					c.bytes += float64(len(content))
				}
			}
			c.allocs = testing.AllocsPerRun(20, once)
			costs[name] = c
		}
		all = append(all, costs)
		for name, c := range costs {
			t.Logf("%-9s at %5d: %5.0f bytes, %4.0f allocations", name, depth, c.bytes, c.allocs)
			first, before := all[0][name], all[max(0, len(all)-2)][name]
			// A bucket of ids is filled to some part; one event writes all of it.
			if c.bytes > 1.5*first.bytes+bucketSize*endedBytes {
				t.Errorf("%s writes %.0f bytes at a depth of %d, and %.0f at 10", name, c.bytes, depth, first.bytes)
			}
			if len(all) == 3 && c.allocs > 1.5*before.allocs || c.allocs > 3*first.allocs {
				t.Errorf("%s makes %.0f allocations at a depth of %d, %.0f at 1000 and %.0f at 10", name, c.allocs, depth, before.allocs, first.allocs)
			}
		}
	}
}

// deep is an inbox with so many messages, and as many ended ones.
func deep(t *testing.T, n int) *script {
	p := newScript(t)
	s := newInbox()
	for i := range n {
		at := arrival{Sequence: uint64(i + 1)}
		s = s.set(fmt.Sprint("m-", i), message{
			State: pending, Letter: at, Arrival: at, Enqueued: start, Priority: int32(i % 3), Bytes: 5, Fingerprint: hashed(i), BusyKey: fmt.Sprint(i),
		})
	}
	s.finished, s.touched = endedIDs(t, n), nil
	p.state, p.sequence = s.advanced(start).counted(), uint64(n)
	return p
}

// claimed1 has something claimed.
func claimed1(c claim, now time.Time) func(*script) {
	return func(p *script) {
		p.t.Helper()
		p.must(now)(decideClaim(p.state, c, now))
	}
}

// What a command costs at a depth, without the stores.
func BenchmarkCycle(b *testing.B) {
	for _, depth := range []int{10, 1000, 9000} {
		p := filled(b, depth, 100)
		now := p.state.Updated
		n := 0
		b.Run(fmt.Sprint("depth=", depth), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n++
				id := fmt.Sprint("n", n)
				p.must(now)(decideEnqueue(p.state, put(newMessage{ID: id, Body: "hello"}), now))
				p.must(now)(decideClaim(p.state, claim{Goal: "bob", Request: id, Token: id, Max: 1, Lease: time.Minute, Rules: ruled(maxLimit)}, now))
				p.must(now)(decideDone(p.state, holding{Goal: "bob", IDs: p.state.held(id, now), Token: id}, now))
			}
		})
	}
}

// What it costs to read a document back, when memory does not have the state.
func BenchmarkDecode(b *testing.B) {
	for _, ended := range []int{9000, 200_000} {
		p := filled(b, 9000, 0)
		p.state.finished = endedIDs(b, ended)
		p.state = p.state.counted()
		document := written(b, p.state)
		b.Run(fmt.Sprint("ended=", ended), func(b *testing.B) {
			for b.Loop() {
				if _, err := (inboxCodec{}).Decode(document); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

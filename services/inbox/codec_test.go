package inbox

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"weir/internal/aggregate"
)

// filled is an inbox with so many messages waiting and so many finished.
func filled(t testing.TB, waiting, ended int) *script {
	p := newScript(t)
	now := start
	for i := range ended {
		id := fmt.Sprint("old-", i)
		p.must(now)(decideEnqueue(p.state, put(newMessage{ID: id, Body: "hello"}), now))
		if i%100 != 99 && i != ended-1 {
			continue
		}
		p.must(now)(decideClaim(p.state, claim{Goal: "bob", Request: id, Claimant: "agent:bob", Token: id, Max: 100, Lease: time.Hour, Rules: ruled(maxLimit)}, now))
		p.must(now)(decideDone(p.state, holding{Goal: "bob", IDs: p.state.held(id, now), Token: id, Actor: "agent:bob"}, now))
		now = now.Add(time.Second)
	}
	for i := range waiting {
		p.must(now)(decideEnqueue(p.state, put(newMessage{ID: fmt.Sprint("m-", i), Body: "hello", Priority: int32(i % 3)}), now))
	}
	return p
}

func TestCountsNeedTheRootAlone(t *testing.T) {
	p := filled(t, 7, 3)
	read, err := inboxCodec{}.Decode(map[string]string{aggregate.RootField: p.document[aggregate.RootField]})
	if err != nil {
		t.Fatal(err)
	}
	if read.countsAt(start) != p.state.countsAt(start) || read.Finished != 3 || !read.Updated.Equal(p.state.Updated) {
		t.Fatalf("the root tells %+v of %+v", read.root, p.state.root)
	}
}

func TestADocumentThatDoesNotAddUpIsUnreadable(t *testing.T) {
	whole := filled(t, 7, 3).document
	for what, change := range map[string]func(map[string]string){
		"a message is missing":       func(d map[string]string) { delete(d, messageField+"m-1") },
		"a bucket of ids is missing": func(d map[string]string) { delete(d, finishedField+"0") },
		"a message is too much":      func(d map[string]string) { d[messageField+"x"] = d[messageField+"m-1"] },
		"a message is no JSON":       func(d map[string]string) { d[messageField+"m-1"] = "{" },
		"a bucket of ids is no such": func(d map[string]string) { d[finishedField+"0"] = "\x00" },
		"a field of some other kind": func(d map[string]string) { d["x"] = "{}" },
		"the root is missing":        func(d map[string]string) { delete(d, aggregate.RootField) },
	} {
		document := maps.Clone(whole)
		change(document)
		if _, err := (inboxCodec{}).Decode(document); err == nil {
			t.Errorf("%s: decoded", what)
		}
	}
}

// One event changes a few fields, however many messages there are.
func TestAnEventTouchesAsManyFieldsInAFullInbox(t *testing.T) {
	p := filled(t, 2000, 100)
	now := p.state.Updated
	step := func(event string, want string) {
		t.Helper()
		if got := strings.Join(p.state.touched, " "); got != want {
			t.Errorf("%s touched %s, want %s", event, got, want)
		}
	}
	step("enqueue", "root m:m-1999")
	p.must(now)(decideClaim(p.state, claim{Goal: "bob", Request: "r", Token: "t", Max: 1, Lease: time.Minute, Rules: ruled(maxLimit)}, now))
	step("claim", "root m:m-2")
	p.must(now)(decideDone(p.state, holding{Goal: "bob", IDs: []string{"m-2"}, Token: "t"}, now))
	step("done", "root m:m-2 d:1")
}

// What a command costs at a depth, without the stores.
func BenchmarkCycle(b *testing.B) {
	for _, depth := range []int{10, 1000, 9000} {
		p := filled(b, depth, 100)
		now := p.state.Updated
		n := 0
		run := func(b *testing.B, what func()) {
			for b.Loop() {
				what()
			}
		}
		b.Run(fmt.Sprint("depth=", depth), func(b *testing.B) {
			run(b, func() {
				n++
				id := fmt.Sprint("n", n)
				p.must(now)(decideEnqueue(p.state, put(newMessage{ID: id, Body: "hello"}), now))
				p.must(now)(decideClaim(p.state, claim{Goal: "bob", Request: id, Token: id, Max: 1, Lease: time.Minute, Rules: ruled(maxLimit)}, now))
				p.must(now)(decideDone(p.state, holding{Goal: "bob", IDs: p.state.held(id, now), Token: id}, now))
			})
		})
	}
}

// What it costs to read a document back, when memory does not have the state.
func BenchmarkDecode(b *testing.B) {
	p := filled(b, 9000, 9000)
	for b.Loop() {
		if _, err := (inboxCodec{}).Decode(p.document); err != nil {
			b.Fatal(err)
		}
	}
}

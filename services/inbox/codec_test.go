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
	// batches of the most that one event takes
	batches := func(prefix string, n int, then func(batch []string)) {
		for from := 0; from < n; from += 100 {
			var messages []newMessage
			var ids []string
			for i := from; i < min(n, from+100); i++ {
				ids = append(ids, fmt.Sprint(prefix, i))
				messages = append(messages, newMessage{
					ID: ids[len(ids)-1], Body: "hello", Priority: int32(i % 3), Policy: policies["replace"], BusyKey: fmt.Sprint(i),
				})
			}
			p.must(now)(decideEnqueue(p.state, put(messages...), now))
			then(ids)
		}
	}
	batches("old-", ended, func(ids []string) {
		p.must(now)(decideClaim(p.state, claim{Goal: "bob", Request: ids[0], Token: ids[0], Max: 100, Lease: time.Hour, Rules: ruled(maxLimit)}, now))
		p.must(now)(decideDone(p.state, holding{Goal: "bob", IDs: ids, Token: ids[0]}, now))
		now = now.Add(time.Second)
	})
	batches("m-", waiting, func([]string) {})
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
	p.must(now)(decideEnqueue(p.state, put(newMessage{ID: "new", Body: "hello"}), now))
	step("enqueue", "root m:new")
	p.must(now)(decideClaim(p.state, claim{Goal: "bob", Request: "r", Token: "t", Max: 1, Lease: time.Minute, Rules: ruled(maxLimit)}, now))
	step("claim", "root m:m-2")
	p.must(now)(decideDone(p.state, holding{Goal: "bob", IDs: []string{"m-2"}, Token: "t"}, now))
	step("done", "root m:m-2 d:1")
}

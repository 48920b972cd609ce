package conversation

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
)

// script is a conversation that commands are run on, as the loop does it but
// without any store.
type script struct {
	t       rapid.TB
	state   conversation
	version uint64
	now     time.Time
	// document is the Redis hash, written field by field.
	document map[string]string
}

func newScript(t rapid.TB) *script {
	return &script{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), document: map[string]string{}}
}

// started is a conversation that ann owns and bob takes part in.
func started(t rapid.TB) *script {
	s := newScript(t)
	s.must(decideCreate(s.state, newCreation("c", "plans", ann, []string{bob})))
	return s
}

// must follows an event that has to be there, and gives it.
func (s *script) must(event *conversationv1.Event, err error) *conversationv1.Event {
	s.t.Helper()
	if err != nil || event == nil {
		s.t.Fatalf("decided %v, %v; want an event", event, err)
	}
	s.follow(event)
	return event
}

func (s *script) follow(event *conversationv1.Event) {
	s.t.Helper()
	before := document(s.t, s.state)
	s.version += 1 + s.version%3 // others write to the stream too
	s.now = s.now.Add(time.Second)
	next := evolve(s.state, aggregate.Recorded[*conversationv1.Event]{Event: event, Time: s.now, Sequence: s.version})
	if !maps.Equal(before, document(s.t, s.state)) {
		s.t.Fatal("evolve changed the state that it was given")
	}
	s.state = next
	for _, name := range (codec{}).Touched(next, event) {
		s.document[name] = encoded(s.t, next, name)
	}
	if whole := document(s.t, next); !maps.Equal(s.document, whole) {
		s.t.Fatalf("the document written by fields is %q, whole it is %q", s.document, whole)
	}
}

func document(t rapid.TB, c conversation) map[string]string {
	t.Helper()
	all := map[string]string{}
	if !c.exists() {
		return all
	}
	for _, name := range (codec{}).Names(c) {
		all[name] = encoded(t, c, name)
	}
	return all
}

func encoded(t rapid.TB, c conversation, name string) string {
	t.Helper()
	content, err := codec{}.Encode(c, name)
	if err != nil || content == nil {
		t.Fatalf("field %q is encoded as %q, %v", name, content, err)
	}
	return string(content)
}

func text(t string) []*conversationv1.Part {
	return []*conversationv1.Part{{Part: &conversationv1.Part_Text{Text: t}}}
}

func data(json string) []*conversationv1.Part {
	return []*conversationv1.Part{{Part: &conversationv1.Part_Data{
		Data: &conversationv1.Data{MediaType: "application/json", Json: json},
	}}}
}

// saying is what author says under an id; it is checked.
func saying(t rapid.TB, author, id, words string) message {
	t.Helper()
	m, err := say(message{Conversation: "c", ID: id, Author: author, Parts: text(words)})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func wantReason(t rapid.TB, err error, want fault.Reason) {
	t.Helper()
	if got := fault.ReasonOf(err); got != want {
		t.Fatalf("got %v, want %q", err, want)
	}
}

func TestCreatingTwiceGivesOneConversation(t *testing.T) {
	create := func(title, owner string, participants ...string) creation {
		return newCreation("c", title, owner, participants)
	}
	s := newScript(t)
	s.must(decideCreate(s.state, create("plans", ann, bob, "agent:amy")))

	for name, same := range map[string]creation{
		"again":               create("plans", ann, bob, "agent:amy"),
		"in another order":    create("plans", ann, "agent:amy", bob),
		"with the owner too":  create("plans", ann, "agent:amy", ann, bob),
		"with somebody twice": create("plans", ann, "agent:amy", bob, bob),
	} {
		if event, err := decideCreate(s.state, same); event != nil || err != nil {
			t.Errorf("%s: decided %v, %v; want that it is done", name, event, err)
		}
	}
	for name, other := range map[string]creation{
		"another title":      create("plan", ann, bob, "agent:amy"),
		"another owner":      create("plans", eve, bob, "agent:amy"),
		"fewer participants": create("plans", ann, bob),
	} {
		_, err := decideCreate(s.state, other)
		if !fault.Is(err, fault.IdempotencyMismatch) {
			t.Errorf("%s: %v, want IDEMPOTENCY_MISMATCH", name, err)
		}
	}
}

func TestWhatAnAppendIsRefusedFor(t *testing.T) {
	head := func(n int64) *int64 { return &n }
	for name, c := range map[string]struct {
		command func(*message)
		want    fault.Reason
	}{
		"by a stranger":                {func(m *message) { m.Author = eve }, fault.ConversationNotFound},
		"by a service that is no part": {func(m *message) { m.Author = registrySubject }, fault.ConversationNotFound},
		"to a stranger":                {func(m *message) { m.To = []string{bob, eve} }, fault.FieldInvalid},
		"in reply to nothing":          {func(m *message) { m.ReplyTo = "m9" }, fault.MessageNotFound},
		"in reply to itself":           {func(m *message) { m.ReplyTo = m.ID }, fault.MessageNotFound},
		"with an old head":             {func(m *message) { m.ExpectedHead = head(0) }, fault.HeadMoved},
		"with a head to come":          {func(m *message) { m.ExpectedHead = head(2) }, fault.HeadMoved},
		"under a taken id":             {func(m *message) { m.ID = "m1" }, fault.IdempotencyMismatch},
		"to the owner, from the head":  {func(m *message) { m.To, m.ExpectedHead, m.ReplyTo = []string{ann}, head(1), "m1" }, ""},
		"by the other participant":     {func(m *message) { m.Author = bob }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := started(t)
			s.must(decideAppend(s.state, saying(t, ann, "m1", "hello")))
			m := saying(t, ann, "m2", "and so on")
			c.command(&m)
			m, err := say(m)
			if err != nil {
				t.Fatal(err)
			}
			_, err = decideAppend(s.state, m)
			wantReason(t, err, c.want)
		})
	}
}

func TestAMessageToNoConversationIsRefusedAsToAForeignOne(t *testing.T) {
	_, absent := decideAppend(conversation{}, saying(t, eve, "m1", "hello"))
	_, foreign := decideAppend(started(t).state, saying(t, eve, "m1", "hello"))
	if absent == nil || absent != foreign {
		t.Fatalf("absent: %v, foreign: %v", absent, foreign)
	}
}

// The head is about what comes next; a retry asks for what was.
func TestARetryIsNotRefusedForItsHead(t *testing.T) {
	s := started(t)
	zero := int64(0)
	m := saying(t, ann, "m1", "hello")
	m.ExpectedHead = &zero
	s.must(decideAppend(s.state, m))
	if event, err := decideAppend(s.state, m); event != nil || err != nil {
		t.Fatalf("decided %v, %v; want that it is done", event, err)
	}
}

func TestAFullConversationTakesRetriesAndResultsOnly(t *testing.T) {
	s := started(t)
	s.must(decideAppend(s.state, saying(t, ann, "m1", "hello")))
	s.must(decideAppend(s.state, call("c", bob, &conversationv1.Call{InvocationId: "i1"})))
	s.state.Head = maxMessages

	_, err := decideAppend(s.state, saying(t, ann, "m2", "one more"))
	wantReason(t, err, fault.ConversationFull)
	_, err = decideAppend(s.state, call("c", bob, &conversationv1.Call{InvocationId: "i2"}))
	wantReason(t, err, fault.ConversationFull)

	if event, err := decideAppend(s.state, saying(t, ann, "m1", "hello")); event != nil || err != nil {
		t.Fatalf("a retry: decided %v, %v", event, err)
	}
	event, err := decideAppend(s.state, result("c", &conversationv1.Result{InvocationId: "i1"}))
	if err != nil || event.GetMessageAppended().GetPosition() != maxMessages+1 {
		t.Fatalf("a result: decided %v, %v", event, err)
	}
}

func TestAResultStandsBehindItsCall(t *testing.T) {
	s := started(t)
	ended := result("c", &conversationv1.Result{InvocationId: "i1", State: "SUCCEEDED"})
	_, err := decideAppend(s.state, ended)
	wantReason(t, err, fault.MessageNotFound)

	s.must(decideAppend(s.state, call("c", bob, &conversationv1.Call{InvocationId: "i1", Operation: "a/b"})))
	appended := s.must(decideAppend(s.state, ended)).GetMessageAppended()
	if appended.GetAuthor() != registrySubject || appended.GetReplyTo() != callID("i1") || appended.GetPosition() != 2 {
		t.Fatalf("the result is %v", appended)
	}
}

// Weir may come to word a result another way; the one that is there stays.
func TestACallOrResultIsThereOnceWhateverItSays(t *testing.T) {
	s := started(t)
	s.must(decideAppend(s.state, call("c", bob, &conversationv1.Call{InvocationId: "i1", Operation: "a/b"})))
	s.must(decideAppend(s.state, result("c", &conversationv1.Result{InvocationId: "i1", Message: "no"})))
	for _, again := range []message{
		call("c", ann, &conversationv1.Call{InvocationId: "i1", Operation: "a/c"}),
		result("c", &conversationv1.Result{InvocationId: "i1", Message: "refused"}),
	} {
		if event, err := decideAppend(s.state, again); event != nil || err != nil {
			t.Fatalf("decided %v, %v; want that it is done", event, err)
		}
	}
}

func TestACallByAStrangerDoesNotAppear(t *testing.T) {
	_, err := decideAppend(started(t).state, call("c", "agent:eve", &conversationv1.Call{InvocationId: "i1"}))
	wantReason(t, err, fault.ConversationNotFound)
}

// Every id that weir derives fits the rule for ids, so that a client can ask
// for it, and no client can have chosen it.
func TestDerivedIDsAreValidAndReserved(t *testing.T) {
	for _, invocation := range []string{"i", strings.Repeat("i", 64), "a.b", "\x00", ""} {
		for _, id := range []string{callID(invocation), resultID(invocation)} {
			if len(id) > 64 || strings.Trim(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") != "" {
				t.Errorf("%q makes the id %q", invocation, id)
			}
			_, err := say(message{ID: id, Author: ann, Parts: text("mine")})
			wantReason(t, err, fault.IDMalformed)
		}
	}
	if callID("a") == callID("b") || callID("a") == resultID("a") {
		t.Error("two ids meet")
	}
}

func TestWhatAMessageMayHold(t *testing.T) {
	part := func(p *conversationv1.Part) []*conversationv1.Part { return []*conversationv1.Part{p} }
	const media = len("application/json")
	for name, c := range map[string]struct {
		parts []*conversationv1.Part
		want  fault.Reason
		field string
	}{
		"text":               {parts: text("hello")},
		"data":               {parts: data(`{"a": 1}`)},
		"as much as it can":  {parts: text(strings.Repeat("x", maxMessageBytes))},
		"a byte too much":    {text(strings.Repeat("x", maxMessageBytes+1)), fault.TooLarge, "parts"},
		"just too much both": {append(text(strings.Repeat("x", maxMessageBytes-media-1)), data(`{}`)...), fault.TooLarge, "parts"},
		"a call":             {part(&conversationv1.Part{Part: &conversationv1.Part_Call{Call: &conversationv1.Call{}}}), fault.FieldInvalid, "parts[0]"},
		"a result": {
			append(text("see"), &conversationv1.Part{Part: &conversationv1.Part_Result{Result: &conversationv1.Result{}}}),
			fault.FieldInvalid, "parts[1]",
		},
		"a part of nothing":   {part(&conversationv1.Part{}), fault.FieldInvalid, "parts[0]"},
		"broken JSON":         {append(text("see"), data(`{"a": `)...), fault.JSONInvalid, "parts[1].data.json"},
		"a key that is twice": {data(`{"a": 1, "a": 2}`), fault.JSONInvalid, "parts[0].data.json"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := say(message{ID: "m", Author: ann, Parts: c.parts})
			wantReason(t, err, c.want)
			if err == nil {
				return
			}
			if v := fault.From(err).Violations(); len(v) != 1 || v[0].Field != c.field || v[0].Description == "" {
				t.Fatalf("violations are %v, want one of %s", v, c.field)
			}
		})
	}
}

func TestFingerprintsTellContentsApart(t *testing.T) {
	empty, json := "", "{}"
	call := func(input *string) []*conversationv1.Part {
		return []*conversationv1.Part{{Part: &conversationv1.Part_Call{Call: &conversationv1.Call{InvocationId: "i", Operation: "o", InputJson: input}}}}
	}
	result := func(r *conversationv1.Result) []*conversationv1.Part {
		return []*conversationv1.Part{{Part: &conversationv1.Part_Result{Result: r}}}
	}
	messages := []message{
		{Author: "a"},
		{Author: "b"},
		{Author: "a", Parts: text("")},
		{Author: "a", Parts: text("x")},
		{Author: "a", Parts: text("xy")},
		{Author: "a", Parts: append(text("x"), text("y")...)},
		{Author: "a", Parts: append(text("y"), text("x")...)},
		{Author: "a", Parts: data("x")},
		{Author: "a", Parts: data("")},
		{Author: "a", Parts: call(nil)},
		{Author: "a", Parts: call(&empty)},
		{Author: "a", Parts: call(&json)},
		{Author: "a", Parts: result(&conversationv1.Result{State: "x"})},
		{Author: "a", Parts: result(&conversationv1.Result{Reason: "x"})},
		{Author: "a", Parts: result(&conversationv1.Result{Message: "x"})},
		{Author: "a", Parts: result(&conversationv1.Result{OutputJson: &empty})},
		{Author: "a", To: []string{"x"}},
		{Author: "a", To: []string{"x", "y"}},
		{Author: "a", ReplyTo: "x"},
	}
	seen := map[fingerprint]int{}
	for i, m := range messages {
		if j, ok := seen[m.sum()]; ok {
			t.Errorf("messages %d and %d have one fingerprint", j, i)
		}
		seen[m.sum()] = i
	}
}

// Fingerprints are in the journal for good. If this fails, retries of what was
// said before are refused as other content.
func TestFingerprintsStayWhatTheyWere(t *testing.T) {
	m := message{
		Author: ann, To: []string{bob}, ReplyTo: "m0",
		Parts: append(text("hello"), data(`{"a":1}`)...),
	}
	const want = "f1e3e85e869b8f5a465a9491c4ab87ea8cd59259cb678dff885485285955bbaa"
	if got := fmt.Sprintf("%x", m.sum()); got != want {
		t.Fatalf("the fingerprint is %s, it was %s", got, want)
	}
}

func TestADocumentThatIsDamagedIsNotDecoded(t *testing.T) {
	s := started(t)
	s.must(decideAppend(s.state, saying(t, ann, "m1", "hello")))
	for name, damage := range map[string]func(map[string]string){
		"no root":             func(d map[string]string) { delete(d, "root") },
		"root is not JSON":    func(d map[string]string) { d["root"] = "{" },
		"entry cut":           func(d map[string]string) { d["m:m1"] = d["m:m1"][:10] },
		"entry empty":         func(d map[string]string) { d["m:m1"] = "" },
		"run cut":             func(d map[string]string) { d["p:0"] = d["p:0"][:1] },
		"run too long":        func(d map[string]string) { d["p:0"] = strings.Repeat(d["p:0"], runLength+1) },
		"run without number":  func(d map[string]string) { d["p:x"] = d["p:0"] },
		"run of two numbers":  func(d map[string]string) { d["p:00"] = d["p:0"] },
		"a field of no kind":  func(d map[string]string) { d["x:m1"] = d["m:m1"] },
		"a field of no name":  func(d map[string]string) { d[""] = "" },
		"entry with too much": func(d map[string]string) { d["m:m1"] += "x" },
	} {
		t.Run(name, func(t *testing.T) {
			d := maps.Clone(s.document)
			damage(d)
			if c, err := (codec{}).Decode(d); err == nil {
				t.Fatalf("decoded to %+v", c.root)
			}
		})
	}
}

// Whatever is said, asked again, called and ended in whatever order: positions
// have no gap, a retry finds what was, and other content is refused.
func TestAnyHistoryKeepsWhatMustHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newScript(t)
		said := map[string]message{}
		var order []string
		subjects := rapid.SampledFrom([]string{ann, bob, eve})
		ids := rapid.SampledFrom([]string{"m1", "m2", "m3", "m4", "m5"})
		invocations := rapid.SampledFrom([]string{"i1", "i2", "i3"})

		run := func(m message) {
			event, err := decideAppend(s.state, m)
			old, known := said[m.ID]
			switch {
			case err == nil && event == nil:
				if !known || m.origin.rules().chosenID && old.fingerprint != m.fingerprint {
					t.Fatalf("%s counts as done", m.ID)
				}
			case err == nil:
				if known {
					t.Fatalf("%s is appended twice", m.ID)
				}
				said[m.ID] = m
				order = append(order, m.ID)
				s.follow(event)
				if got := event.GetMessageAppended().GetPosition(); got != int64(len(order)) {
					t.Fatalf("message %d has position %d", len(order), got)
				}
			case fault.Is(err, fault.IdempotencyMismatch):
				if !known || old.fingerprint == m.fingerprint {
					t.Fatalf("%s is refused as other content", m.ID)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				event, err := decideCreate(s.state, newCreation("c", "plans", subjects.Draw(t, "owner"), []string{ann, bob}))
				if err == nil && event != nil {
					s.follow(event)
				}
			},
			"say": func(t *rapid.T) {
				m, err := say(message{
					Conversation: "c", ID: ids.Draw(t, "id"), Author: subjects.Draw(t, "author"),
					Parts:   text(rapid.SampledFrom([]string{"x", "y"}).Draw(t, "text")),
					To:      rapid.SliceOfNDistinct(subjects, 0, 2, rapid.ID).Draw(t, "to"),
					ReplyTo: rapid.SampledFrom([]string{"", "m1", "m2"}).Draw(t, "reply to"),
				})
				if err != nil {
					t.Fatal(err)
				}
				run(m)
			},
			"call": func(t *rapid.T) {
				run(call("c", subjects.Draw(t, "caller"), &conversationv1.Call{InvocationId: invocations.Draw(t, "invocation")}))
			},
			"end": func(t *rapid.T) {
				run(result("c", &conversationv1.Result{InvocationId: invocations.Draw(t, "invocation")}))
			},
			"": func(t *rapid.T) {
				if s.state.Head != int64(len(order)) {
					t.Fatalf("the head is %d after %d messages", s.state.Head, len(order))
				}
				for i, id := range order {
					known, ok := s.state.message(id)
					at, ok2 := s.state.place(int64(i + 1))
					if !ok || !ok2 || known.Position != int64(i+1) || known.Sequence != at.Sequence {
						t.Fatalf("message %s at %d is known as %+v, %+v", id, i+1, known, at)
					}
				}
				if !s.state.exists() {
					return
				}
				back, err := codec{}.Decode(s.document)
				if err != nil || !maps.Equal(document(t, back), s.document) {
					t.Fatalf("the document does not read back: %v", err)
				}
			},
		})
	})
}

// Writers that race decide on one state, and each follows its own event.
func TestTwoFuturesOfOneStateDoNotMix(t *testing.T) {
	s := started(t)
	for i := range 3 {
		s.must(decideAppend(s.state, saying(t, ann, fmt.Sprint("m", i), "hello")))
	}
	future := func(id string, sequence uint64) conversation {
		event, err := decideAppend(s.state, saying(t, ann, id, "hello"))
		if err != nil {
			t.Fatal(err)
		}
		return evolve(s.state, aggregate.Recorded[*conversationv1.Event]{Event: event, Sequence: sequence, Time: s.now})
	}
	one := future("one", 1001)
	want := document(t, one)
	future("two", 2002)
	if got := document(t, one); !maps.Equal(got, want) {
		t.Fatalf("one future is %q, it was %q", got, want)
	}
}

// paged gives a state of of these sizes, as far as pages need it.
func paged(sizes []uint32) conversation {
	c := evolve(conversation{}, aggregate.Recorded[*conversationv1.Event]{Sequence: 1, Event: &conversationv1.Event{
		Event: &conversationv1.Event_ConversationCreated{ConversationCreated: &conversationv1.ConversationCreated{Owner: ann}},
	}})
	for i, size := range sizes {
		c.Head++
		c.runs = withPlace(c.runs, c.Head, place{Sequence: uint64(2 + i), Bytes: size})
	}
	return c
}

// turn pages through a whole conversation and gives the positions seen.
func turn(t rapid.TB, c conversation, l listing) []int64 {
	t.Helper()
	var seen []int64
	for {
		s, err := c.span(l)
		if err != nil {
			t.Fatal(err)
		}
		whole := s
		s, ok := c.fit(s, l.newestFirst)
		if !ok || int64(s.len()) > l.size || s.len() == 0 && whole.len() > 0 {
			t.Fatalf("the page of %d from %d is %+v, %v", l.size, l.from, s, ok)
		}
		if after, ok := c.before(s.first); !ok || after != uint64(s.first) {
			t.Fatalf("before %d is %d, %v", s.first, after, ok)
		}
		var positions []int64
		bytes := 0
		for p := s.first; p <= s.last; p++ {
			positions = append(positions, p)
			at, _ := c.place(p)
			bytes += int(at.Bytes)
		}
		if bytes > maxPageBytes && len(positions) > 1 {
			t.Fatalf("a page of %d messages has %d bytes", len(positions), bytes)
		}
		if l.newestFirst {
			slices.Reverse(positions)
		}
		seen = append(seen, positions...)
		if l.from = c.next(s, l.newestFirst); l.from == 0 {
			return seen
		}
	}
}

func TestPagingShowsEveryPositionOnceBothWays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 3*runLength).Draw(t, "messages")
		sizes := rapid.SliceOfN(rapid.SampledFrom([]uint32{100, 100, 1 << 18, 1 << 19, 3 << 20}), n, n).Draw(t, "sizes")
		size := rapid.Int64Range(1, 150).Draw(t, "page size")
		c := paged(sizes)
		var want []int64
		for p := range c.Head {
			want = append(want, p+1)
		}
		if got := turn(t, c, listing{size: size}); !slices.Equal(got, want) {
			t.Fatalf("forward: %v", got)
		}
		slices.Reverse(want)
		if got := turn(t, c, listing{size: size, newestFirst: true}); !slices.Equal(got, want) {
			t.Fatalf("backward: %v", got)
		}
	})
}

func TestAPageNeedsNoMoreThanTheFieldsItAsksFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5*runLength).Draw(t, "messages")
		c := paged(slices.Repeat([]uint32{10}, n))
		l := listing{
			from:        int64(rapid.IntRange(1, n).Draw(t, "from")),
			size:        int64(rapid.IntRange(1, 3*runLength).Draw(t, "size")),
			newestFirst: rapid.Bool().Draw(t, "newest first"),
		}
		s, err := c.span(l)
		if err != nil {
			t.Fatal(err)
		}
		fields := map[string]string{aggregate.RootField: encoded(t, c, aggregate.RootField)}
		for _, name := range runFields(s) {
			fields[name] = encoded(t, c, name)
		}
		part, err := codec{}.Decode(fields)
		if err != nil {
			t.Fatal(err)
		}
		if fit, ok := part.fit(s, l.newestFirst); !ok || fit != s {
			t.Fatalf("%+v of %v: %+v, %v", s, runFields(s), fit, ok)
		}
		if after, ok := part.before(s.first); !ok || after != uint64(s.first) {
			t.Fatalf("before %d is %d, %v", s.first, after, ok)
		}
	})
}

func TestACursorOutsideOfWhatExistsIsUnavailable(t *testing.T) {
	for _, newestFirst := range []bool{false, true} {
		for head, from := range map[int][]int64{0: {1, 2}, 3: {4, 1 << 40}} {
			c := paged(slices.Repeat([]uint32{10}, head))
			for _, from := range from {
				_, err := c.span(listing{from: from, newestFirst: newestFirst})
				wantReason(t, err, fault.CursorUnavailable)
			}
		}
	}
}

func TestTheSizeOfAMessageIsThatOfItsEvent(t *testing.T) {
	s := started(t)
	event := s.must(decideAppend(s.state, saying(t, ann, "m1", "hello")))
	if at, _ := s.state.place(1); int(at.Bytes) != proto.Size(event) {
		t.Fatalf("place %+v, the event has %d bytes", at, proto.Size(event))
	}
}

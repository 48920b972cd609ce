package conversation

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

func (m *mesh) tryWrite(ctx context.Context, r replica, id string, offset int64, words string) (int64, error) {
	resp, err := r.messages.AppendDelta(ctx, &conversationv1.AppendDeltaRequest{
		ConversationId: "c", MessageId: id, Offset: offset, Text: words,
	})
	return resp.GetLength(), err
}

// write adds to a draft of bob's in the conversation c.
func (m *mesh) write(r replica, id string, offset int64, words string) {
	m.t.Helper()
	length, err := m.tryWrite(m.as(bob), r, id, offset, words)
	if want := offset + int64(len(words)); err != nil || length != want {
		m.t.Fatalf("%q at %d: length %d, want %d; %v", words, offset, length, want, err)
	}
}

// finish appends what bob wrote.
func (m *mesh) finish(r replica, id, words string) *conversationv1.Message {
	m.t.Helper()
	resp, err := r.messages.AppendMessage(m.as(bob), &conversationv1.AppendMessageRequest{
		ConversationId: "c", MessageId: id, Parts: text(words),
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return resp.GetMessage()
}

// wantDraft reads deltas until a draft is so long, and says what it must be then.
func (s stream) wantDraft(id, want string) {
	s.t.Helper()
	var got string
	for len(got) < len(want) {
		got = s.delta(id, got)
	}
	if got != want {
		s.t.Fatalf("the draft is %q, want %q", got, want)
	}
}

// delta adds the delta that comes next to what is known of a draft.
func (s stream) delta(id, known string) string {
	s.t.Helper()
	d := s.next().GetDelta()
	switch {
	case d.GetMessageId() != id || d.GetAuthor() != bob:
		s.t.Fatalf("got %v, want a delta of %s", d, id)
	case d.GetOffset() != 0 && d.GetOffset() != int64(len(known)):
		s.t.Fatalf("got %v behind %q", d, known)
	}
	return known[:d.GetOffset()] + d.GetText()
}

func TestWhoJoinsMidwayGetsWhatWasWrittenSoFar(t *testing.T) {
	m := newMesh(t)
	a, b := m.start(), m.start()
	m.create(a, "c")
	early := m.tail(m.as(ann), a, "c", 0)
	m.write(a, "m1", 0, "Dear Ann, ")
	early.wantDraft("m1", "Dear Ann, ")
	late := m.tail(m.as(ann), b, "c", 0) // at another replica, which heard none of it
	late.wantDraft("m1", "Dear Ann, ")
	m.write(b, "m1", 10, "gr\u00fc\u00dfe")
	known := late.delta("m1", "Dear Ann, ")
	if known != "Dear Ann, gr\u00fc\u00dfe" {
		t.Fatalf("late has %q", known)
	}
	if known = early.delta("m1", "Dear Ann, "); known != "Dear Ann, gr\u00fc\u00dfe" {
		t.Fatalf("early has %q", known)
	}
	m.finish(a, "m1", known)
	early.wantMessages(1)
	late.wantMessages(1)
}

// The writer does not know whether its last delta arrived, and says it again; then
// its replica is gone; and then Redis has lost everything.
func TestAWriterThatWasCutOffGoesOnFromItsOffset(t *testing.T) {
	m := newMesh(t)
	a, b := m.start(), m.start()
	m.create(a, "c")
	s := m.tail(m.as(ann), b, "c", 0)
	m.write(a, "m1", 0, "one ")
	m.write(a, "m1", 0, "one ")
	m.write(a, "m1", 4, "two ")
	a.stop()
	m.write(b, "m1", 4, "two ")
	m.write(b, "m1", 4, "two three ") // more than what is there
	s.wantDraft("m1", "one two three ")
	m.redis.Flush()
	_, err := m.tryWrite(m.as(bob), b, "m1", 14, "four")
	wantReason(t, err, fault.OffsetMismatch)
	if length := fault.From(err).Metadata("length"); length != "0" {
		t.Fatalf("the draft is said to have %s bytes", length)
	}
	m.write(b, "m1", 0, "one two three ")
	m.write(b, "m1", 14, "four")
	if got := s.delta("m1", "one two three "); got != "one two three four" {
		t.Fatalf("after the flush the draft is %q", got)
	}
	// The message is appended, and again because nobody answered.
	said := m.finish(b, "m1", "one two three four")
	wantEqual(t, "the message of the retry", m.finish(b, "m1", "one two three four"), said)
	s.wantMessages(1)
	if got := m.ids(b, "c"); len(got) != 1 {
		t.Fatalf("there are %v", got)
	}
}

func TestAMessageEndsItsDraftForEverybody(t *testing.T) {
	m := newMesh(t)
	a, b := m.start(), m.start()
	m.create(a, "c")
	tails := []stream{m.tail(m.as(ann), a, "c", 0), m.tail(m.as(ann), b, "c", 0)}
	for i := range 5 {
		id, at := "m"+strconv.Itoa(i), int64(2*i)
		m.write(a, id, 0, "words")
		for _, s := range tails {
			s.wantDraft(id, "words")
		}
		m.finish(b, id, "words")
		for _, s := range tails {
			s.wantMessages(at + 1)
		}
		_, err := m.tryWrite(m.as(bob), a, id, 5, " more")
		wantReason(t, err, fault.AlreadyExists)
		// Late deltas, as from a replica that was slow to publish them.
		nc := m.nats.Connect()
		late, err := proto.Marshal(&conversationv1.Delta{MessageId: id, Author: bob, Text: "words"})
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.Publish("weir.live.acme.conversation.c", late); err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		m.say(a, "c", "n"+strconv.Itoa(i), "next")
		for _, s := range append(tails, m.tail(m.as(ann), b, "c", at+1)) {
			s.wantMessages(at + 2)
		}
	}
}

func TestADraftThatSaysSomethingElseBeginsAnew(t *testing.T) {
	m := newMesh(t)
	a, b := m.start(), m.start()
	m.create(a, "c")
	tails := []stream{m.tail(m.as(ann), a, "c", 0), m.tail(m.as(ann), b, "c", 0)}
	m.write(a, "m1", 0, "I think that")
	for _, s := range tails {
		s.wantDraft("m1", "I think that")
	}
	_, err := m.tryWrite(m.as(bob), a, "m1", 2, "know") // not from the beginning
	wantReason(t, err, fault.OffsetMismatch)
	m.write(b, "m1", 0, "No.")
	for _, s := range tails {
		if d := s.next().GetDelta(); d.GetOffset() != 0 || d.GetText() != "No." {
			t.Fatalf("got %v", d)
		}
	}
}

func TestDraftsAreLimited(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	for i := range draftLimits.Drafts {
		m.write(r, "m"+strconv.Itoa(i), 0, "words")
	}
	_, err := m.tryWrite(m.as(bob), r, "n", 0, "words")
	wantReason(t, err, fault.LimitReached)
	m.write(r, "m3", 5, " and more")
	m.finish(r, "m3", "words and more")
	meshtest.Eventually(t, "the draft of a message that landed has made room", func() bool {
		_, err := m.tryWrite(m.as(bob), r, "n", 0, "words")
		return err == nil
	})
	_, err = m.tryWrite(m.as(ann), r, "m4", 5, "not mine")
	wantReason(t, err, fault.AlreadyExists)
	_, err = m.tryWrite(m.as(eve), r, "m4", 5, "not even here")
	wantReason(t, err, fault.ConversationNotFound)
	_, err = m.tryWrite(m.as(bob), r, reservedPrefix+"x", 0, "words")
	wantReason(t, err, fault.IDMalformed)
	piece := strings.Repeat("x", 64<<10)
	m.finish(r, "m5", "words")
	m.redis.Flush()
	for i := range 4 {
		m.write(r, "large", int64(i*len(piece)), piece)
	}
	_, err = m.tryWrite(m.as(bob), r, "large", 256<<10, "x")
	wantReason(t, err, fault.TooLarge)
	if _, err := r.conversations.CloseConversation(m.as(ann), &conversationv1.CloseConversationRequest{ConversationId: "c"}); err != nil {
		t.Fatal(err)
	}
	_, err = m.tryWrite(m.as(bob), r, "m4", 5, "words")
	wantReason(t, err, fault.ConversationClosed)
}

func TestNothingOfADraftIsInTheJournal(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	s := m.tail(m.as(ann), r, "c", 0)
	before := m.lastSequence()
	m.write(r, "m1", 0, "unfinished")
	s.wantDraft("m1", "unfinished")
	if after := m.lastSequence(); after != before {
		t.Fatalf("the stream went on from %d to %d", before, after)
	}
}

func (m *mesh) lastSequence() uint64 {
	m.t.Helper()
	last, err := hear(m).loop.Newest(m.t.Context(), journal.Key{Tenant: "acme", Kind: kindName, ID: "c"})
	if err != nil {
		m.t.Fatal(err)
	}
	return last.Version
}

func TestDraftsGoWithTheirConversation(t *testing.T) {
	m := newMesh(t)
	r := m.start()
	m.create(r, "c")
	s := m.tail(m.as(ann), r, "c", 0)
	m.write(r, "m1", 0, "words")
	s.wantDraft("m1", "words")
	deleted, err := r.retention.DeleteConversation(m.eraser(), &conversationv1.DeleteConversationRequest{ConversationId: "c"})
	if err != nil || !deleted.GetFinished() {
		t.Fatalf("%v, %v", deleted, err)
	}
	_, err = m.tryWrite(m.as(bob), r, "m1", 5, " and more")
	wantReason(t, err, fault.ConversationNotFound)
	client := m.redis.Client()
	defer func() { _ = client.Close() }()
	left, err := client.Keys(t.Context(), "*:draft*").Result()
	if err != nil || len(left) != 0 {
		t.Fatalf("Redis holds %v, %v", left, err)
	}
	s.wantEnd(fault.ConversationNotFound)
}

// What a feed knows of drafts, without anything around it.

func feedOf(drafts ...hot.Draft) *feed {
	f := &feed{key: journal.Key{Tenant: "acme", Kind: kindName, ID: "c"}, changed: make(chan struct{}), stateTurn: -1}
	f.loaded(drafts, time.Now())
	return f
}

func (t *feed) pass(id string, offset int64, words string) bool {
	return t.add(&conversationv1.Delta{MessageId: id, Author: bob, Offset: offset, Text: words}, time.Now())
}

func (t *feed) draft(id string) string {
	if d := t.drafts[id]; d != nil {
		return string(d.text)
	}
	return ""
}

func TestOnlyADeltaThatFitsSparesALookAtRedis(t *testing.T) {
	f := feedOf(hot.Draft{ID: "m1", Author: bob, Text: "hello"})
	for _, c := range []struct {
		id, words string
		offset    int64
		fits      bool
		want      string
	}{
		{"m1", " world", 5, true, "hello world"},
		{"m1", " world", 5, true, "hello world"},
		{"m1", "hello", 0, true, "hello world"},
		{"m1", "world!", 6, true, "hello world!"},
		{"m1", "missing", 20, false, "hello world!"}, // something between them was lost
		{"m1", "other", 0, false, "hello world!"},    // it begins anew
		{"m1", "!!", 10, false, "hello world!"},
		{"m2", "first", 0, false, ""}, // perhaps of a message that landed
	} {
		if fits := f.pass(c.id, c.offset, c.words); fits != c.fits || f.draft(c.id) != c.want {
			t.Errorf("%q at %d: fits %v, the draft is %q, want %v and %q", c.words, c.offset, fits, f.draft(c.id), c.fits, c.want)
		}
	}
	f.loaded([]hot.Draft{{ID: "m1", Author: bob, Text: "hello"}}, time.Now()) // read before the last deltas
	if got := f.draft("m1"); got != "hello world!" {
		t.Errorf("the draft is %q", got)
	}
	f.loaded([]hot.Draft{{ID: "m1", Author: ann, Text: "hello world!"}}, time.Now())
	to := &tail{next: 1, drafted: map[string]sentDraft{"m1": {1, 12}}}
	if got := f.news(to).batch; len(got) != 1 || got[0].GetDelta().GetAuthor() != ann || got[0].GetDelta().GetOffset() != 0 {
		t.Errorf("of another author's draft a tail gets %v", got)
	}
}

func TestADraftDoesNotComeBackAfterItsMessage(t *testing.T) {
	draft := hot.Draft{ID: "m1", Author: bob, Text: "words"}
	said := &conversationv1.Event{Event: &conversationv1.Event_MessagesAppended{MessagesAppended: &conversationv1.MessagesAppended{
		ConversationId: "c", FirstPosition: 1,
		Messages: []*conversationv1.AppendedMessage{{MessageId: "m1", Author: bob, Parts: text("words")}},
	}}}
	recorded := aggregate.Recorded[*conversationv1.Event]{Event: said, Sequence: 2, Time: time.Now()}
	after := evolve(evolve(conversation{}, aggregate.Recorded[*conversationv1.Event]{Sequence: 1, Event: &conversationv1.Event{
		Event: &conversationv1.Event_ConversationCreated{ConversationCreated: &conversationv1.ConversationCreated{Owner: ann}},
	}}), recorded)
	for name, lands := range map[string]func(*feed){
		"heard": func(f *feed) { f.hear(recorded) },
		"read":  func(f *feed) { f.endLanded(after) },
	} {
		f := feedOf(draft)
		lands(f)
		if f.draft("m1") != "" {
			t.Errorf("%s: the draft is still there", name)
		}
		// It lands while Redis is being read, which showed the draft before.
		f = feedOf()
		f.loading = true
		lands(f)
		f.loaded([]hot.Draft{draft}, time.Now())
		if f.draft("m1") != "" {
			t.Errorf("%s: the draft came back", name)
		}
	}
}

func TestADraftThatNobodyAddsToRunsOut(t *testing.T) {
	f := feedOf(hot.Draft{ID: "m1", Author: bob, Text: "words"})
	to := &tail{next: 1}
	if got := f.news(to).batch; len(got) != 1 || len(to.drafted) != 1 {
		t.Fatalf("got %v, marked %v", got, to.drafted)
	}
	f.rest(time.Now().Add(draftLimits.Kept-time.Minute), keepaliveEvery)
	if f.draft("m1") != "words" {
		t.Error("it ran out too soon")
	}
	f.rest(time.Now().Add(draftLimits.Kept), keepaliveEvery)
	if got := f.news(to).batch; f.draft("m1") != "" || len(got) != 0 || len(to.drafted) != 0 {
		t.Errorf("a tail gets %v and remembers %v", got, to.drafted)
	}
}

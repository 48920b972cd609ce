package conversation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

// Words that are said somewhere each, and nowhere else.
const (
	inText  = "quuxtext"
	inData  = "quuxdata"
	inInput = "quuxinput"
	inTitle = "quuxtitle"
	inLabel = "quuxlabel"
	inDraft = "quuxdraft"
)

// secrets makes a conversation of ann and bob that holds them all.
func (m *mesh) secrets(r replica, id string) {
	m.t.Helper()
	_, err := r.conversations.CreateConversation(m.as(ann), &conversationv1.CreateConversationRequest{
		ConversationId: id, Title: "about " + inTitle, Participants: []string{bob}, Labels: []string{inLabel},
	})
	if err != nil {
		m.t.Fatal(err)
	}
	call := toolCall("t")
	call.GetCall().InputJson = proto.String(`{"to":"` + inInput + `"}`)
	_, err = r.messages.AppendMessages(m.as(ann), &conversationv1.AppendMessagesRequest{ConversationId: id, Messages: []*conversationv1.NewMessage{
		{MessageId: "1", Parts: text("this is " + inText)},
		{MessageId: "2", Parts: data(`{"a":"` + inData + `"}`)},
		{MessageId: "3", Parts: []*conversationv1.Part{call}},
		{MessageId: "4", Parts: text("this one is harmless")},
	}})
	if err != nil {
		m.t.Fatal(err)
	}
	_, err = r.messages.AppendDelta(m.as(bob), &conversationv1.AppendDeltaRequest{ConversationId: id, MessageId: "d", Text: inDraft})
	if err != nil {
		m.t.Fatal(err)
	}
}

// indexed waits until ann finds some messages.
func (m *mesh) indexed(r replica, query string, want int) {
	m.t.Helper()
	meshtest.Eventually(m.t, fmt.Sprintf("%d messages with %s are found", want, query), func() bool {
		resp, err := r.messages.SearchMessages(m.as(ann), &conversationv1.SearchMessagesRequest{Query: query, PageSize: 100})
		return err == nil && len(resp.GetMessages()) == want
	})
}

func (m *mesh) remove(r replica, id string) *conversationv1.DeleteConversationResponse {
	m.t.Helper()
	resp, err := r.retention.DeleteConversation(m.eraser(), &conversationv1.DeleteConversationRequest{ConversationId: id})
	if err != nil {
		m.t.Fatal(err)
	}
	return resp
}

func (m *mesh) redact(r replica, conversation, id string) *conversationv1.Message {
	m.t.Helper()
	resp, err := r.messages.RedactMessage(m.eraser(), &conversationv1.RedactMessageRequest{ConversationId: conversation, MessageId: id})
	if err != nil {
		m.t.Fatal(err)
	}
	return resp.GetMessage()
}

func TestADeletionLeavesNothingButInTheFilesOfTheJournal(t *testing.T) {
	w := newWatched(t)
	r := w.start(w.config)
	w.secrets(r, "c")
	// So many events that there is a snapshot.
	var said sync.WaitGroup
	for i := range 8 {
		said.Go(func() {
			for n := range snapshotEvery/8 + 1 {
				if _, err := w.trySay(r, "c", fmt.Sprint("m", i, "-", n), "more"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	said.Wait()
	_, err := r.conversations.ForkConversation(w.as(bob), &conversationv1.ForkConversationRequest{ParentConversationId: "c", Position: 4, ConversationId: "f"})
	if err != nil {
		t.Fatal(err)
	}
	w.indexed(r, inText, 1)
	w.indexed(r, inInput, 1)
	meshtest.Eventually(t, "the snapshot is there", func() bool { return len(w.inStreams(inTitle)) == 2 })
	streams := w.streams()
	for _, word := range []string{inText, inData, inInput, inTitle, inLabel} {
		wantFound(t, "the streams", word, streams.holding(word))
		wantFound(t, "the files of the journal", word, inFiles(t, w.nats.Dir(), word))
	}
	for _, word := range []string{inTitle, inLabel, inDraft} {
		wantFound(t, "redis", word, w.inRedis(word))
	}
	for _, word := range []string{inText, inData, inInput} {
		wantFound(t, "the search index", word, inFiles(t, w.index, word))
	}

	resp := w.remove(r, "c")
	if !resp.GetFinished() {
		t.Fatalf("it is not finished: %v", resp)
	}
	w.wantErased(inText, inData, inInput, inTitle, inLabel, inDraft)
	counts := resp.GetCounts()
	if n := int64(4 + 8*(snapshotEvery/8+1)); counts.GetMessages() != n || counts.GetJournalEvents() != n-2 || counts.GetSnapshots() != 1 ||
		counts.GetConversations() != 1 || counts.GetHotDocuments() != 1 || counts.GetIndexEntries() != n {
		t.Errorf("it counts %v, want %d messages", counts, n)
	}
	// What is purged is unlinked: blocks of the journal hold it until the server
	// writes them anew. This is why no more than that is promised.
	wantFound(t, "the files of the journal", inText, inFiles(t, w.nats.Dir(), inText))

	w.redis.Flush()
	_, err = r.conversations.GetConversation(w.as(ann), &conversationv1.GetConversationRequest{ConversationId: "c"})
	wantReason(t, err, fault.ConversationNotFound)
	meshtest.Eventually(t, "redis is rebuilt", func() bool {
		_, err := r.conversations.ListConversations(w.as(ann), &conversationv1.ListConversationsRequest{})
		return err == nil
	})
	w.wantErased(inText, inData, inInput, inTitle, inLabel, inDraft)
	for _, m := range w.told(r, bob, "f", 10, oldestFirst) {
		if m.GetErasure() != conversationv1.Erasure_ERASURE_CONVERSATION_DELETED || len(m.GetParts()) > 0 || m.GetMessageId() != "" {
			t.Errorf("the fork shows %v", m)
		}
	}
}

func TestARedactionOverwritesAlsoTheFilesOfTheJournal(t *testing.T) {
	w := newWatched(t)
	r := w.start(w.config)
	// Another replica has an index of its own, and hears of it.
	other := t.TempDir()
	second := w.start(func(cfg *Config) { cfg.Index = other })
	w.secrets(r, "c")
	_, err := r.messages.AppendDelta(w.as(bob), &conversationv1.AppendDeltaRequest{ConversationId: "c", MessageId: "d", Offset: int64(len(inDraft)), Text: " and more"})
	if err != nil {
		t.Fatal(err)
	}
	w.indexed(r, inText, 1)
	w.indexed(r, inInput, 1)
	w.indexed(second, inInput, 1)
	ids := map[string]string{"1": inText, "2": inData, "3": inInput}
	for _, word := range ids {
		wantFound(t, "the files of the journal", word, inFiles(t, w.nats.Dir(), word))
		wantFound(t, "the streams", word, w.inStreams(word))
		wantFound(t, "the search index", word, inFiles(t, w.index, word))
	}
	wantFound(t, "redis", inDraft, w.inRedis(inDraft))
	for id, word := range ids {
		left := w.redact(r, "c", id)
		if left.GetErasure() != conversationv1.Erasure_ERASURE_REDACTED || len(left.GetParts()) > 0 || left.GetAuthor() != ann {
			t.Errorf("left of message %s is %v", id, left)
		}
		w.wantErased(word, inDraft)
		if files := inFiles(t, w.nats.Dir(), word); len(files) > 0 {
			t.Errorf("%q is in %v", word, files)
		}
		meshtest.Eventually(t, "the other index has forgotten it", func() bool { return len(inFiles(t, other, word)) == 0 })
	}
	all := w.all(r, "c", 10, conversationv1.Order_ORDER_UNSPECIFIED)
	if len(all) != 4 || all[3].GetParts()[0].GetText() != "this one is harmless" {
		t.Errorf("left are %v", all)
	}
	if got := w.get(r, "c"); got.GetOpenCalls() != 0 || got.GetHead() != 4 {
		t.Errorf("the conversation is %v", got)
	}
	// The call is among what is gone, and so is the place for its result.
	_, err = r.messages.AppendMessage(w.as(ann), &conversationv1.AppendMessageRequest{ConversationId: "c", MessageId: "5", Parts: []*conversationv1.Part{toolResult("t")}})
	wantReason(t, err, fault.CallNotFound)
	if _, err := r.messages.GetContext(w.as(ann), &conversationv1.GetContextRequest{ConversationId: "c", Budget: &conversationv1.GetContextRequest_MaxBytes{MaxBytes: 10_000}}); err != nil {
		t.Error(err)
	}
	wantFound(t, "the streams", inTitle, w.inStreams(inTitle)) // a title goes with its conversation
}

// Without Redis nothing said stays in the journal, and the rest follows.
func TestAnErasureDoesNotWaitForRedisToTakeWhatWasSaid(t *testing.T) {
	w := newWatched(t)
	r := w.start(w.config)
	w.secrets(r, "c")
	w.secrets(r, "d")
	w.indexed(r, inInput, 2)
	w.redis.Kill()
	if resp := w.remove(r, "c"); resp.GetFinished() {
		t.Errorf("it is finished: %v", resp)
	}
	for _, id := range []string{"1", "2", "3"} {
		w.redact(r, "d", id)
	}
	for _, word := range []string{inText, inData, inInput} {
		if found := w.inStreams(word); len(found) > 0 {
			t.Errorf("%q is in %v", word, found)
		}
	}
	if left := w.all(r, "d", 10, conversationv1.Order_ORDER_UNSPECIFIED); len(left) != 4 {
		t.Errorf("without Redis there are %v", left)
	}
	w.redis.Start()
	meshtest.Eventually(t, "the deletion is finished", func() bool { return w.remove(r, "c").GetFinished() })
	meshtest.Eventually(t, "the redactions are finished", func() bool { return w.finished("d") > 0 })
	w.wantErased(inText, inData, inInput, inDraft)
}

// A document that nobody can read is left for an operator to see, but not the bytes
// of what is erased.
func TestAnUnreadableDocumentIsErasedToo(t *testing.T) {
	w := newWatched(t)
	r := w.start(w.config)
	w.secrets(r, "c")
	client := w.redis.Client()
	defer func() { _ = client.Close() }()
	marked := 0
	for _, key := range w.inRedis("about " + inTitle) {
		marked++
		if err := client.HSet(t.Context(), key, ".unreadable", "1").Err(); err != nil {
			t.Fatal(err)
		}
	}
	if marked != 1 {
		t.Fatalf("%d documents are marked", marked)
	}
	w.remove(r, "c")
	meshtest.Eventually(t, "the deletion is finished", func() bool { return w.finished("c") == 1 })
	w.wantErased(inText, inTitle, inLabel, inDraft)
}

// finished is how many erasures of a conversation were recorded as finished.
func (m *mesh) finished(id string) int {
	m.t.Helper()
	return len(m.events(id, func(e *conversationv1.Event) bool { return e.GetErasureFinished() != nil }))
}

// events gives those of a conversation's that are wanted.
func (m *mesh) events(id string, wanted func(*conversationv1.Event) bool) []*conversationv1.Event {
	m.t.Helper()
	j, err := journal.OpenErasable(m.t.Context(), m.nats.Connect(), serviceName, 1, slog.New(slog.DiscardHandler))
	if err != nil {
		m.t.Fatal(err)
	}
	var found []*conversationv1.Event
	_, err = j.Replay(m.t.Context(), journal.Key{Tenant: "acme", Kind: kindName, ID: id}, 0, func(e journal.Event) error {
		recorded, err := aggregate.Decode[*conversationv1.Event](e)
		if err == nil && wanted(recorded.Event) {
			found = append(found, recorded.Event)
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return found
}

// parts is a replica of which only the index is fed: a test does by hand what its
// eraser would do, as far as it lives. Its end is that of a process that is killed.
func (w *watched) parts(redis string) (s *service, end func()) {
	w.t.Helper()
	cfg := Config{Stores: w.stores()}
	w.config(&cfg)
	cfg.Serve.JWKS, cfg.Serve.Listen = w.jwks, "127.0.0.1:0"
	cfg.Index = filepath.Join(w.t.TempDir(), "index")
	if redis != "" {
		cfg.Stores.Redis = redis
	}
	ctx, stop := context.WithCancel(context.Background())
	stores, err := connect(ctx, cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	if s, err = newService(stores, cfg); err != nil {
		w.t.Fatal(err)
	}
	fed := make(chan error, 1)
	go func() { fed <- s.search.run(ctx) }()
	return s, func() {
		stop()
		<-fed
		s.close()
		stores.Close()
	}
}

// Whichever step is the last that the replica lives to do, another one finishes the
// erasure, and in the end all are alike.
func TestAnErasureThatIsKilledHalfWayIsFinishedByAnotherReplica(t *testing.T) {
	w := newWatched(t)
	r := w.start(w.config)
	key := func(id string) journal.Key { return journal.Key{Tenant: "acme", Kind: kindName, ID: id} }
	steps := []string{"appended while Redis was away", "appended", "purged", "snapshot erased", "events erased", "index purged", "drafts dropped"}
	for i := range steps {
		w.secrets(r, fmt.Sprint("deleted", i))
		w.secrets(r, fmt.Sprint("redacted", i))
	}
	w.indexed(r, inInput, 2*len(steps))
	for _, word := range []string{inText, inData, inInput} {
		wantFound(t, "the streams", word, w.inStreams(word))
	}
	r.stop()

	do := func(s *service, id string, steps int, decide func(conversation, time.Time) (*conversationv1.Event, error)) {
		t.Helper()
		after, err := s.history.loop.Do(t.Context(), key(id), decide)
		it := after.State.Erasing
		for _, next := range []func() error{
			func() error { return nil },
			func() error { return nil },
			func() (err error) {
				if it.Past != 0 {
					_, err = s.stores.Journal.ErasePast(t.Context(), key(id), it.Past)
				}
				return err
			},
			func() error { _, err := s.stores.Journal.EraseSnapshot(t.Context(), key(id)); return err },
			func() error { _, err := s.stores.Journal.EraseEvents(t.Context(), key(id), it.Events); return err },
			func() error { _, err := s.search.forget(t.Context(), key(id), after.Version); return err },
			func() error { return s.stores.Hot.DropDrafts(t.Context(), key(id)) },
		}[:steps+1] {
			if err == nil {
				err = next()
			}
		}
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
	}
	for i := range steps {
		away := ""
		if i == 0 {
			away = "redis://127.0.0.1:1"
		}
		s, end := w.parts(away)
		do(s, fmt.Sprint("deleted", i), i, func(c conversation, _ time.Time) (*conversationv1.Event, error) {
			return decideDelete(c, deletion{fmt.Sprint("deleted", i), "human:era"})
		})
		id := fmt.Sprint("redacted", i)
		cmd := redaction{ID: id, Actor: ann, Eraser: true, Author: ann}
		held, _, err := s.history.holders(t.Context(), key(id), 1, ann)
		if err != nil || len(held) != 1 {
			t.Fatalf("%s is held by %v, %v", id, held, err)
		}
		cmd.held = held
		do(s, id, i, func(c conversation, _ time.Time) (*conversationv1.Event, error) { return decideRedactAuthor(c, cmd) })
		end()
	}

	r = w.start(w.config)
	for i, step := range steps {
		for _, id := range []string{fmt.Sprint("deleted", i), fmt.Sprint("redacted", i)} {
			meshtest.Eventually(t, id+", last "+step+", is finished", func() bool { return w.finished(id) == 1 })
			ended := w.events(id, func(e *conversationv1.Event) bool { return e.GetErasureFinished() != nil })
			got := ended[0].GetErasureFinished().GetCounts()
			events := int64(1)
			if strings.HasPrefix(id, "deleted") {
				events = 2
				if resp := w.remove(r, id); !resp.GetFinished() || resp.GetCounts().GetMessages() != 4 {
					t.Errorf("%s: deleting again gives %v", id, resp)
				}
			} else if all := w.all(r, id, 10, conversationv1.Order_ORDER_UNSPECIFIED); len(all) != 4 || slices.ContainsFunc(all, func(m *conversationv1.Message) bool { return m.GetErasure() == 0 }) {
				t.Errorf("%s shows %v", id, all)
			}
			if got.GetMessages() != 4 || got.GetJournalEvents() != events || got.GetHotDocuments() != 1 {
				t.Errorf("%s, last %s: it counts %v", id, step, got)
			}
		}
	}
	w.wantErased(inText, inData, inInput, inDraft)
}

// Redactions of one event, appends and readers race over two replicas.
func TestRedactionsAppendsAndReadersRace(t *testing.T) {
	m := newMesh(t)
	replicas := []replica{m.start(), m.start()}
	m.create(replicas[0], "c")
	const n = 12
	var all []*conversationv1.NewMessage
	for i := range n {
		all = append(all, &conversationv1.NewMessage{MessageId: fmt.Sprint(i), Parts: text("quux")})
	}
	_, err := replicas[0].messages.AppendMessages(m.as(ann), &conversationv1.AppendMessagesRequest{ConversationId: "c", Messages: all})
	if err != nil {
		t.Fatal(err)
	}
	var writers, readers sync.WaitGroup
	done := make(chan struct{})
	for i, r := range replicas {
		writers.Go(func() {
			for k := i; k < n; k += 2 {
				// Who is told that others were faster tries again.
				err := errors.New("not yet")
				for tries := 0; err != nil && tries < 50; tries++ {
					_, err = r.messages.RedactMessage(m.as(ann), &conversationv1.RedactMessageRequest{ConversationId: "c", MessageId: fmt.Sprint(k)})
					if err != nil && !fault.Is(err, fault.Contention) {
						break
					}
				}
				if err != nil {
					t.Errorf("redact %d: %v", k, err)
				}
			}
		})
		writers.Go(func() {
			for k := range 10 {
				if _, err := m.trySay(r, "c", fmt.Sprint("more", i, "-", k), "more"); err != nil {
					t.Errorf("append: %v", err)
				}
			}
		})
		readers.Go(func() {
			for ended := false; !ended; {
				select {
				case <-done:
					ended = true
				default:
				}
				messages, _, err := m.page(r, &conversationv1.ListMessagesRequest{ConversationId: "c"})
				if err != nil || len(messages) < n || messages[n-1].GetPosition() != n {
					t.Errorf("a reader gets %d messages, %v", len(messages), err)
					return
				}
				if _, err := r.messages.GetMessage(m.as(bob), &conversationv1.GetMessageRequest{ConversationId: "c", MessageId: "7"}); err != nil {
					t.Errorf("get: %v", err)
					return
				}
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
	messages := m.all(replicas[1], "c", 100, conversationv1.Order_ORDER_UNSPECIFIED)
	if len(messages) != n+20 {
		t.Fatalf("there are %d messages, want %d", len(messages), n+20)
	}
	for i, it := range messages {
		if redacted := it.GetErasure() == conversationv1.Erasure_ERASURE_REDACTED; redacted != (it.GetPosition() <= n) || it.GetPosition() != int64(i+1) {
			t.Errorf("message %d is %v", i+1, it)
		}
	}
	m.redis.Flush()
	for i, it := range m.all(replicas[0], "c", 100, conversationv1.Order_ORDER_UNSPECIFIED) {
		wantEqual(t, "a message from the journal", it, messages[i])
	}
	if found := m.inStreams("quux"); len(found) > 0 {
		t.Errorf("something is left in %v", found)
	}
}

// A reader whose Redis shows the time before an erasure is not told of a loss.
func TestWhoReadsByOldPlacesIsShownTheNewOnes(t *testing.T) {
	w := newWatched(t)
	r := w.start(w.config)
	w.secrets(r, "c")
	w.secrets(r, "d")
	_, err := r.conversations.ForkConversation(w.as(bob), &conversationv1.ForkConversationRequest{ParentConversationId: "d", Position: 4, ConversationId: "f"})
	if err != nil {
		t.Fatal(err)
	}
	s, end := w.parts("")
	defer end()
	caller := identity.Caller{Tenant: "acme", Subject: bob, Scopes: []string{scopeRead}}
	read := func(id string) (conversation, span) {
		c, err := s.history.read(t.Context(), keyOf(caller, id), caller, runField(0))
		if err != nil {
			t.Fatal(err)
		}
		return c, span{1, c.Head}
	}
	// Pages are cut by what was read before, as by a replica that is slow.
	c, places := read("c")
	before, err := s.history.spots(t.Context(), keyOf(caller, "c"), c, places, s.history.loop.Read)
	if err != nil {
		t.Fatal(err)
	}
	w.redact(r, "c", "1")
	if _, err := s.history.messages(t.Context(), keyOf(caller, "c"), before); !fault.Is(err, fault.EventUnreadable) {
		t.Fatalf("old places give %v, so this test cannot fail", err)
	}
	m, err := s.history.at(t.Context(), keyOf(caller, "c"), c, 1)
	if err != nil || m.GetErasure() != conversationv1.Erasure_ERASURE_REDACTED {
		t.Errorf("read by the old state, it is %v, %v", m, err)
	}
	d, _ := read("d")
	w.remove(r, "d")
	if _, err := s.history.at(t.Context(), keyOf(caller, "d"), d, 1); !fault.Is(err, fault.ConversationNotFound) {
		t.Errorf("read by the state of before, a deleted one gives %v", err)
	}
}

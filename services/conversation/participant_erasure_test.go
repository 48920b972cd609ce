package conversation

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

func (m *mesh) forget(r replica, request, subject string) (*conversationv1.ParticipantErasure, error) {
	resp, err := r.retention.DeleteParticipantData(m.eraser(), &conversationv1.DeleteParticipantDataRequest{RequestId: request, Subject: subject})
	return resp.GetErasure(), err
}

// forgotten waits until an erasure is finished.
func (m *mesh) forgotten(r replica, request string) *conversationv1.ParticipantErasure {
	m.t.Helper()
	var erasure *conversationv1.ParticipantErasure
	meshtest.Eventually(m.t, request+" is finished", func() bool {
		resp, err := r.retention.GetParticipantErasure(m.eraser(), &conversationv1.GetParticipantErasureRequest{RequestId: request})
		erasure = resp.GetErasure()
		return err == nil && erasure.GetFinished()
	})
	return erasure
}

// talk makes conversations in which bob says two things at once, twice, between ann's.
func (m *mesh) talk(r replica, ids ...string) {
	m.t.Helper()
	for _, id := range ids {
		m.create(r, id)
		m.say(r, id, "a", "harmless")
		for batch := range 2 {
			var all []*conversationv1.NewMessage
			for n := range 2 {
				all = append(all, &conversationv1.NewMessage{MessageId: fmt.Sprintf("b%d%d", batch, n), Parts: text("quuxbob")})
			}
			_, err := r.messages.AppendMessages(m.as(bob), &conversationv1.AppendMessagesRequest{ConversationId: id, Messages: all})
			if err != nil {
				m.t.Fatal(err)
			}
		}
		m.say(r, id, "z", "harmless")
	}
}

func TestAllThatASubjectSaidIsErasedWhileItKeepsTalking(t *testing.T) {
	w := newWatched(t)
	r := w.start(w.config)
	second := w.start()
	ids := []string{"c1", "c2", "c3", "gone"}
	w.talk(r, ids...)
	w.create(r, "silent")
	w.say(r, "silent", "m", "harmless")
	if err := w.fork(r, ann, "c1", 3, "f"); err != nil {
		t.Fatal(err)
	}
	w.indexed(r, "quuxbob", 16)
	w.remove(r, "gone")
	wantFound(t, "the streams", "quuxbob", w.inStreams("quuxbob"))
	wantFound(t, "the search index", "quuxbob", inFiles(t, w.index, "quuxbob"))

	asked, err := w.forget(r, "e", bob)
	if err != nil || asked.GetFinished() {
		t.Fatalf("asked for, it is %v, %v", asked, err)
	}
	for i := range 20 {
		err := w.speak(second, bob, ids[i%3], fmt.Sprint("later", i), func(req *conversationv1.AppendMessageRequest) { req.Parts = text("still here") })
		if err != nil {
			t.Error(err)
		}
	}
	done := w.forgotten(second, "e").GetCounts()
	if done.GetConversations() != 3 || done.GetHotDocuments() != 3 || done.GetMessages() < 12 || done.GetMessages() > 12+20 {
		t.Errorf("it counts %v", done)
	}
	w.wantErased("quuxbob")
	if files := inFiles(t, w.nats.Dir(), "quuxbob"); len(files) > 1 {
		t.Errorf("it is in %v", files) // what was deleted before is only unlinked
	}
	for _, id := range ids[:3] {
		all := w.all(r, id, 100, oldestFirst)
		for _, it := range all {
			early := slices.Contains([]string{"b00", "b01", "b10", "b11"}, it.GetMessageId())
			if it.GetAuthor() == ann && it.GetErasure() != 0 || early && it.GetErasure() == 0 {
				t.Errorf("%s shows %v", id, it)
			}
		}
	}
	if got := outline(w.told(r, ann, "f", 10, oldestFirst)); got != "a@c1 -b00@c1 -b01@c1" {
		t.Errorf("the fork shows %q", got)
	}
	// Asking again gives what came of it, and another subject is another request.
	again, err := w.forget(second, "e", bob)
	if err != nil || !again.GetFinished() || !proto.Equal(again.GetCounts(), done) {
		t.Errorf("asked again, it is %v, %v", again, err)
	}
	_, err = w.forget(r, "e", ann)
	wantReason(t, err, fault.IdempotencyMismatch)
	_, err = r.retention.GetParticipantErasure(w.eraser(), &conversationv1.GetParticipantErasureRequest{RequestId: "x"})
	wantReason(t, err, fault.ErasureNotFound)
	// Whoever talks on is erased again by another request.
	if _, err := w.forget(r, "e2", bob); err != nil {
		t.Fatal(err)
	}
	rest := w.forgotten(r, "e2").GetCounts()
	if total := done.GetMessages() + rest.GetMessages(); total != 12+20 {
		t.Errorf("together they took %d messages, want 32", total)
	}
}

// A replica that dies between the redactions and the record of them leaves counts
// that are right all the same.
func TestAParticipantErasureThatIsKilledIsFinishedWithTheSameCounts(t *testing.T) {
	w := newWatched(t)
	r := w.start(w.config)
	ids := []string{"c1", "c2", "c3", "c4"}
	w.talk(r, ids...)
	w.indexed(r, "quuxbob", 16)
	r.stop()

	s, end := w.parts("")
	request := journal.Key{Tenant: "acme", Kind: erasureKindName, ID: "e"}
	asked, err := s.erasures.Do(t.Context(), request, func(p participantErasure, _ time.Time) (*conversationv1.Event, error) {
		return decideErasure(p, "e", bob, "human:era")
	})
	if err != nil {
		t.Fatal(err)
	}
	p := &participantEraser{erasures: s.erasures, eraser: s.eraser}
	key := func(id string) journal.Key { return journal.Key{Tenant: "acme", Kind: kindName, ID: id} }
	// The first is done, of the second the redaction is in and nothing is erased, and
	// none of it is recorded.
	took, next, err := p.redactAll(t.Context(), key("c1"), asked.State, 0, time.Now().Add(time.Minute))
	if err != nil || next != 0 || took != (counts{Messages: 4, Events: 2, Documents: 1, Entries: 4}) {
		t.Fatalf("it took %+v, goes on at %d, %v", took, next, err)
	}
	cmd := redaction{ID: "c2", Actor: "human:era", Eraser: true, Author: bob, Request: "e"}
	if cmd.held, _, err = s.history.holders(t.Context(), key("c2"), 1, bob); err != nil {
		t.Fatal(err)
	}
	_, err = s.history.loop.Do(t.Context(), key("c2"), func(c conversation, _ time.Time) (*conversationv1.Event, error) {
		return decideRedactAuthor(c, cmd)
	})
	if err != nil {
		t.Fatal(err)
	}
	// One that takes too long says where it goes on.
	if took, next, err := p.redactAll(t.Context(), key("c3"), asked.State, 0, time.Time{}); err != nil || next != 1 || took != (counts{}) {
		t.Fatalf("without time it took %+v, goes on at %d, %v", took, next, err)
	}
	end()

	r = w.start(w.config)
	got := w.forgotten(r, "e").GetCounts()
	wantEqual(t, "the counts", got, &conversationv1.ErasureCounts{
		Conversations: 4, Messages: 16, JournalEvents: 8, HotDocuments: 4, IndexEntries: 16,
	})
	w.wantErased("quuxbob")
	if files := inFiles(t, w.nats.Dir(), "quuxbob"); len(files) > 0 {
		t.Errorf("it is in %v", files)
	}
}

func TestHowFarAnErasureIsIsRecordedOnce(t *testing.T) {
	p := participantErasure{Request: "e", Subject: bob, At: progress{After: 5}, Conversations: 1, Counts: counts{Messages: 2}}
	part := stint{from: p.At, to: progress{After: 5, Conversation: "c", Position: 9}}
	event := decideAdvance(p, part)
	if it := event.GetParticipantErasureAdvanced(); it.GetAfter() != 5 || it.GetConversationId() != "c" || it.GetPosition() != 9 || it.GetCounts().GetMessages() != 2 {
		t.Fatalf("a part of a conversation is recorded as %v", event)
	}
	follow := func(p participantErasure, event *conversationv1.Event) participantErasure {
		return evolveErasure(p, recordedAt(event))
	}
	p = follow(p, event)
	if again := decideAdvance(p, part); again != nil {
		t.Errorf("the same stint by another replica is recorded as %v", again)
	}
	last := stint{from: p.At, finished: true, conversations: 1, took: counts{Messages: 3}}
	event = decideAdvance(p, last)
	if it := event.GetParticipantErasureFinished().GetCounts(); it.GetConversations() != 2 || it.GetMessages() != 5 {
		t.Errorf("the end is %v", event)
	}
	if p = follow(p, event); !p.Finished || decideAdvance(p, last) != nil {
		t.Errorf("it ends more than once: %+v", p)
	}
}

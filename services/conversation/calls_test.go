package conversation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/aggregate"
	"weir/internal/backend"
	"weir/internal/fault"
	"weir/internal/journal"
)

func requestedEvent(invocation, caller, conversation string) *registryv1.Event {
	return &registryv1.Event{Actor: caller, Event: &registryv1.Event_InvocationRequested{
		InvocationRequested: &registryv1.InvocationRequested{
			InvocationId: invocation, Operation: "tool/run", InputJson: proto.String(`{"n":1}`),
			ConversationId: conversation, Caller: caller,
		},
	}}
}

func succeededEvent(invocation, conversation string) *registryv1.Event {
	return &registryv1.Event{Actor: registrySubject, Event: &registryv1.Event_InvocationSucceeded{
		InvocationSucceeded: &registryv1.InvocationSucceeded{
			InvocationId: invocation, OutputJson: proto.String(`{"n":2}`), ConversationId: conversation,
		},
	}}
}

func TestAnInvocationShowsAsACallAndItsResult(t *testing.T) {
	m := newMesh(t)
	r := m.start() // before the registry's stream exists
	m.create(r, "c")
	reg := newRegistry(m)
	failure := &registryv1.InvocationError{Reason: "SOME_REASON", Message: "it did not work", Note: "a note"}
	ends := map[string]struct {
		event *registryv1.Event
		want  *conversationv1.Result
	}{
		"ok": {
			succeededEvent("ok", "c"),
			&conversationv1.Result{InvocationId: "ok", State: "SUCCEEDED", OutputJson: proto.String(`{"n":2}`)},
		},
		"failed": {
			&registryv1.Event{Event: &registryv1.Event_InvocationFailed{
				InvocationFailed: &registryv1.InvocationFailed{InvocationId: "failed", Error: failure, ConversationId: "c"},
			}},
			&conversationv1.Result{InvocationId: "failed", State: "FAILED", Reason: "SOME_REASON", Message: "it did not work"},
		},
		"denied": {
			&registryv1.Event{Event: &registryv1.Event_InvocationRefused{InvocationRefused: &registryv1.InvocationRefused{
				InvocationId: "denied", State: registryv1.InvocationState_INVOCATION_STATE_DENIED, Error: failure, ConversationId: "c",
			}}},
			&conversationv1.Result{InvocationId: "denied", State: "DENIED", Reason: "SOME_REASON", Message: "it did not work"},
		},
		"lost": {
			&registryv1.Event{Event: &registryv1.Event_InvocationOutcomeUnknown{
				InvocationOutcomeUnknown: &registryv1.InvocationOutcomeUnknown{InvocationId: "lost", ConversationId: "c"},
			}},
			&conversationv1.Result{
				InvocationId: "lost", State: "OUTCOME_UNKNOWN",
				Message: "the operation began, and nobody knows how it ended",
			},
		},
	}
	for invocation, end := range ends {
		reg.tell(invocation, requestedEvent(invocation, bob, "c"))
		reg.tell(invocation, &registryv1.Event{Event: &registryv1.Event_InvocationStarted{
			InvocationStarted: &registryv1.InvocationStarted{InvocationId: invocation},
		}})
		reg.tell(invocation, end.event)
	}
	reg.listened()

	if head := m.get(r, "c").GetHead(); head != int64(2*len(ends)) {
		t.Fatalf("%d messages appeared, want %d", head, 2*len(ends))
	}
	message := func(id string) *conversationv1.Message {
		t.Helper()
		got, err := r.messages.GetMessage(m.as(ann), &conversationv1.GetMessageRequest{ConversationId: "c", MessageId: id})
		if err != nil {
			t.Fatal(err)
		}
		return got.GetMessage()
	}
	for invocation, end := range ends {
		called, ended := message(callID(invocation)), message(resultID(invocation))
		wantEqual(t, "the call", called, &conversationv1.Message{
			ConversationId: "c", MessageId: callID(invocation), Position: called.GetPosition(), Author: bob, CreateTime: called.GetCreateTime(),
			Parts: []*conversationv1.Part{{Part: &conversationv1.Part_Call{Call: &conversationv1.Call{
				InvocationId: invocation, Operation: "tool/run", InputJson: proto.String(`{"n":1}`),
			}}}},
		})
		wantEqual(t, "the result", ended, &conversationv1.Message{
			ConversationId: "c", MessageId: resultID(invocation), Position: ended.GetPosition(), Author: registrySubject,
			ReplyTo: callID(invocation), CreateTime: ended.GetCreateTime(),
			Parts: []*conversationv1.Part{{Part: &conversationv1.Part_Result{Result: end.want}}},
		})
		if ended.GetPosition() < called.GetPosition() {
			t.Errorf("the result of %s is before its call", invocation)
		}
	}
}

func TestEventsThatComeTwiceShowOnce(t *testing.T) {
	m := newMesh(t)
	reg := newRegistry(m)
	r := m.start()
	m.start() // a second replica shares the work
	m.create(r, "c")
	for _, invocation := range []string{"i1", "i2", "i3"} {
		reg.tell(invocation, requestedEvent(invocation, bob, "c"))
		reg.tell(invocation, succeededEvent(invocation, "c"))
	}
	reg.listened()
	want := m.ids(r, "c")
	if len(want) != 6 {
		t.Fatalf("%v appeared, want 3 calls and 3 results", want)
	}

	// Its place in the stream is lost, so the service hears all of it again.
	if err := reg.js.DeleteConsumer(t.Context(), journal.StreamName(registryService), callsConsumer); err != nil {
		t.Fatal(err)
	}
	m.redis.Flush()
	reg.listened()
	reg.tell("i4", requestedEvent("i4", bob, "c"))
	reg.listened()
	if got := m.ids(r, "c"); !slices.Equal(got, append(want, callID("i4"))) {
		t.Fatalf("after the second time there is %v, want %v and one more", got, want)
	}
}

// hear is the consumer without its stream: a test gives it events.
func hear(m *mesh) calls {
	m.t.Helper()
	cfg := m.stores()
	cfg.Erasable = true
	stores, err := backend.Open(m.t.Context(), serviceName, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(stores.Close)
	heard, err := newTeller(stores, aggregate.New(kind(), stores.Journal, stores.Hot, stores.Log))
	if err != nil {
		m.t.Fatal(err)
	}
	return calls{heard}
}

func TestEventsInTheWrongOrderShowTheCallBeforeItsResult(t *testing.T) {
	m := newMesh(t)
	reg := newRegistry(m)
	r := m.start()
	m.create(r, "c")
	reg.tell("other", requestedEvent("other", bob, "c"))
	reg.listened()

	// Two replicas that each got one of the two events, with the result first.
	asked := reg.tell("i", requestedEvent("i", bob, "c"))
	ended := reg.tell("i", succeededEvent("i", "c"))
	a, b := hear(m), hear(m)
	for _, step := range []struct {
		replica calls
		event   journal.Event
	}{{b, ended}, {a, asked}, {b, ended}, {a, ended}, {b, asked}} {
		if err := step.replica.handle(t.Context(), step.event); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{callID("other"), callID("i"), resultID("i")}
	if got := m.ids(r, "c"); !slices.Equal(got, want) {
		t.Fatalf("there is %v, want %v", got, want)
	}
}

func TestCallsOfStrangersAndToNowhereDoNotShow(t *testing.T) {
	m := newMesh(t)
	reg := newRegistry(m)
	r := m.start()
	m.create(r, "c")
	for invocation, event := range map[string]*registryv1.Event{
		"a stranger's":          requestedEvent("a stranger's", eve, "c"),
		"to no conversation":    requestedEvent("to no conversation", bob, "nothing"),
		"of no conversation":    requestedEvent("of no conversation", bob, ""),
		"to a subject":          requestedEvent("to a subject", bob, ">"),
		"by the registry alone": requestedEvent("by the registry alone", registrySubject, "c"),
	} {
		reg.tell(invocation, event)
		// Its result has no call to answer and never will; it must not wait for one.
		reg.tell(invocation, succeededEvent(invocation, event.GetInvocationRequested().GetConversationId()))
	}
	// A stranger's result under an id like a real one's is not the real one's.
	reg.tell("i", requestedEvent("i", bob, "c"))
	reg.tell("j", requestedEvent("j", eve, "c"))
	reg.tell("j", succeededEvent("j", "c"))
	reg.listened()
	if got := m.ids(r, "c"); !slices.Equal(got, []string{callID("i")}) {
		t.Fatalf("there is %v, want one call", got)
	}
	_, err := r.conversations.GetConversation(m.as(bob), &conversationv1.GetConversationRequest{ConversationId: "nothing"})
	wantReason(t, err, fault.ConversationNotFound)
}

// silent finds no request.
type silent struct{ err error }

func (s silent) start(context.Context, string, journal.Key) (journal.Event, error) {
	return journal.Event{}, s.err
}

func TestAResultWaitsWhileItsRequestCannotBeRead(t *testing.T) {
	m := newMesh(t)
	reg := newRegistry(m)
	r := m.start()
	m.create(r, "c")
	reg.tell("i", requestedEvent("i", bob, "elsewhere")) // keeps the running replica out of it
	ended := reg.tell("i", succeededEvent("i", ""))
	ended.Data, _ = proto.Marshal(succeededEvent("i", "c"))

	away := errors.New("away")
	heard := hear(m)
	heard.starts = silent{away}
	if err := heard.handle(t.Context(), ended); !errors.Is(err, away) {
		t.Fatalf("handled with %v, want that it comes again", err)
	}
	if ids := m.ids(r, "c"); len(ids) != 0 {
		t.Fatalf("there is %v", ids)
	}
}

func TestAnEventThatCannotBeReadIsNotPassedOver(t *testing.T) {
	heard := calls{teller{log: slog.New(slog.DiscardHandler)}}
	for _, data := range [][]byte{[]byte("\xff\xff"), nil} {
		err := heard.handle(t.Context(), journal.Event{Key: journal.Key{Tenant: "acme", Kind: "invocation", ID: "i"}, Data: data})
		wantReason(t, err, fault.EventUnreadable)
	}
}

// A call that is open when its conversation closes has its result by that, and what the
// registry tells later changes nothing.
func TestClosingEndsOpenCallsAndNoneBeginsAfter(t *testing.T) {
	m := newMesh(t)
	reg := newRegistry(m)
	r := m.start()
	for id, end := range map[string]func(id string){
		"closed": func(id string) {
			m.must(r.conversations.CloseConversation(m.as(ann), &conversationv1.CloseConversationRequest{ConversationId: id}))
		},
		"archived": func(id string) {
			m.must(r.conversations.ArchiveConversation(m.as(ann), &conversationv1.ArchiveConversationRequest{ConversationId: id}))
		},
	} {
		m.create(r, id)
		open, late, never := "open-"+id, "late-"+id, "never-"+id
		reg.tell(open, requestedEvent(open, bob, id))
		reg.listened()
		tools := func(message string, part *conversationv1.Part) error {
			_, err := r.messages.AppendMessage(m.as(ann), &conversationv1.AppendMessageRequest{ConversationId: id, MessageId: message, Parts: []*conversationv1.Part{part}})
			return err
		}
		m.must(nil, tools("m1", toolCall("t")))
		if n := m.get(r, id).GetOpenCalls(); n != 2 {
			t.Fatalf("%d calls are open, want 2", n)
		}
		end(id)
		ended := []string{callID(open), "m1", resultID(open), closingID(openCall{callKey: callKey{Call: "t"}, Position: 2})}
		check := func() {
			t.Helper()
			if got := m.ids(r, id); !slices.Equal(got, ended) || m.get(r, id).GetOpenCalls() != 0 {
				t.Fatalf("%s: there is %v, want %v", id, got, ended)
			}
		}
		check()
		for _, said := range m.all(r, id, 10, conversationv1.Order_ORDER_UNSPECIFIED)[2:] {
			if result := said.GetParts()[0].GetResult(); said.GetAuthor() != self || result.GetState() != conversationClosed || result.GetReason() != conversationClosed {
				t.Fatalf("a call ended by %v", said)
			}
		}
		reg.tell(open, succeededEvent(open, id))
		reg.tell(late, requestedEvent(late, bob, id))
		reg.tell(late, succeededEvent(late, id))
		reg.tell(never, requestedEvent(never, bob, id))
		reg.listened()
		check()

		m.must(r.conversations.ReopenConversation(m.as(ann), &conversationv1.ReopenConversationRequest{ConversationId: id}))
		check()
		wantReason(t, tools("m2", toolResult("t")), fault.CallNotFound)
		m.must(nil, tools("m3", toolCall("t"))) // a tool may use its id again
		m.must(nil, tools("m4", toolResult("t")))
		// What ends after it was opened again is there as a whole.
		reg.tell(never, succeededEvent(never, id))
		reg.listened()
		ended = append(ended, "m3", "m4", callID(never), resultID(never))
		check()
	}
}

func TestCallsBeyondTheOpenOnesDoNotShow(t *testing.T) {
	m := newMesh(t)
	reg := newRegistry(m)
	r := m.start()
	m.create(r, "c")
	for n := range maxOpenCalls / 64 {
		var parts []*conversationv1.Part
		for i := range 64 {
			parts = append(parts, toolCall(fmt.Sprint(n, "-", i)))
		}
		m.must(r.messages.AppendMessage(m.as(ann), &conversationv1.AppendMessageRequest{ConversationId: "c", MessageId: fmt.Sprint("m", n), Parts: parts}))
	}
	full := m.ids(r, "c")
	for _, invocation := range []string{"ends", "goes on"} {
		reg.tell(invocation, requestedEvent(invocation, bob, "c"))
	}
	reg.tell("ends", succeededEvent("ends", "c"))
	reg.listened()
	if got := m.ids(r, "c"); !slices.Equal(got, full) {
		t.Fatalf("there is %v, want %v", got, full)
	}
	_, err := r.messages.AppendMessage(m.as(ann), &conversationv1.AppendMessageRequest{ConversationId: "c", MessageId: "over", Parts: []*conversationv1.Part{toolCall("over")}})
	wantReason(t, err, fault.LimitReached)

	// With room again, one that ends is there as a whole, and one that ended before is not.
	m.must(r.messages.AppendMessage(m.as(ann), &conversationv1.AppendMessageRequest{ConversationId: "c", MessageId: "end", Parts: []*conversationv1.Part{toolResult("0-0")}}))
	reg.tell("goes on", succeededEvent("goes on", "c"))
	reg.listened()
	if got, want := m.ids(r, "c"), append(full, "end", callID("goes on"), resultID("goes on")); !slices.Equal(got, want) {
		t.Fatalf("there is %v, want %v", got, want)
	}
	if n := m.get(r, "c").GetOpenCalls(); n != maxOpenCalls-1 {
		t.Fatalf("%d calls are open", n)
	}
}

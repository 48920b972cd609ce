package conversation

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/journal"
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
	// journal is the events that are there, by sequence, each with its predecessor.
	journal map[uint64]kept
}

type kept struct {
	aggregate.Recorded[*conversationv1.Event]
	previous uint64
}

func newScript(t rapid.TB) *script {
	return &script{
		t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		document: map[string]string{}, journal: map[uint64]kept{},
	}
}

func creating(title, owner string, participants ...string) creation {
	return creation{ID: "c", Title: title, Owner: owner, Participants: participants}.normal()
}

// started is a conversation that ann owns and bob takes part in.
func started(t rapid.TB) *script {
	s := newScript(t)
	s.must(decideCreate(s.state, creating("plans", ann, bob)))
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
	previous := s.version
	s.version += 1 + s.version%3 // others write to the stream too
	s.now = s.now.Add(time.Second)
	event = proto.CloneOf(event)
	recorded := aggregate.Recorded[*conversationv1.Event]{Event: event, Time: s.now, Sequence: s.version}
	s.journal[s.version] = kept{recorded, previous}
	next := evolve(s.state, recorded)
	if !maps.Equal(before, document(s.t, s.state)) {
		s.t.Fatal("evolve changed the state that it was given")
	}
	s.state = next
	touched := (codec{}).Touched(next, event)
	if touched == nil {
		s.document, touched = map[string]string{}, (codec{}).Names(next)
	}
	for _, name := range touched {
		s.document[name] = encoded(s.t, next, name)
	}
	if whole := document(s.t, next); !maps.Equal(s.document, whole) {
		s.t.Fatalf("the document written by fields is %q, whole it is %q", s.document, whole)
	}
	s.erase()
	s.closes()
}

// erase takes out of the journal what the state names.
func (s *script) erase() {
	for _, sequence := range s.state.Erasing.Events {
		delete(s.journal, sequence)
	}
	maps.DeleteFunc(s.journal, func(sequence uint64, _ kept) bool { return sequence < s.state.Erasing.Past })
}

// closes fails unless the events that are left, and those that they name as erased,
// make one chain, as a replay wants it.
func (s *script) closes() {
	s.t.Helper()
	links := map[uint64]uint64{}
	for sequence, e := range s.journal {
		gone, _ := erases(e.Event)
		before := uint64(0)
		for _, it := range gone {
			if it.Previous < before || it.Previous >= it.Sequence || it.Sequence >= sequence || len(gone) > journal.MaxErases {
				s.t.Fatalf("event %d erases %v", sequence, gone)
			}
			before = it.Sequence
			links[it.Sequence] = it.Previous
		}
	}
	at := uint64(0)
	for _, sequence := range slices.Sorted(maps.Keys(s.journal)) {
		back, known := s.journal[sequence].previous, true
		for known && back > at {
			back, known = links[back]
		}
		if back != at && sequence != s.state.Erasing.Past {
			s.t.Fatalf("event %d does not follow on %d", sequence, at)
		}
		at = sequence
	}
}

// replay follows what is left in the journal, from nothing.
func (s *script) replay() conversation {
	var c conversation
	for _, sequence := range slices.Sorted(maps.Keys(s.journal)) {
		c = evolve(c, s.journal[sequence].Recorded)
	}
	return c
}

// run decides an appendage and answers what it must look up, as history does.
func (s *script) run(cmd appendage) (*conversationv1.Event, error) {
	s.t.Helper()
	cmd.found = make(map[int64]stored)
	for range 10 {
		event, err := decideAppend(s.state, cmd, s.now.Add(time.Second))
		wanted, ok := errors.AsType[lookup](err)
		if !ok {
			return event, err
		}
		at, _ := s.state.place(wanted.position)
		m, found := s.holder(at.Sequence).at(wanted.position)
		if !found {
			s.t.Fatalf("position %d is not where the state says", wanted.position)
		}
		cmd.found[wanted.position] = stored{m.GetMessageId(), fingerprint(m.GetFingerprint())}
	}
	s.t.Fatal("it must be looked up without end")
	return nil, nil
}

func (s *script) holder(sequence uint64) holder {
	e := s.journal[sequence]
	e.Event = proto.CloneOf(e.Event)
	return heldBy(e.Recorded, e.previous)
}

// redact decides a redaction and answers what it must look up.
func (s *script) redact(cmd redaction) (*conversationv1.Event, error) {
	s.t.Helper()
	cmd.ID = "c"
	event, err := decideRedact(s.state, cmd)
	if wanted, ok := errors.AsType[lookup](err); ok {
		at, _ := s.state.place(wanted.position)
		cmd.held = []holder{s.holder(at.Sequence)}
		event, err = decideRedact(s.state, cmd)
	}
	return event, err
}

func document(t rapid.TB, c conversation) map[string]string {
	t.Helper()
	all := map[string]string{}
	if c.Owner == "" {
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

// toolCall and toolResult are those of a tool that is none of weir's.
func toolCall(id string) *conversationv1.Part {
	return &conversationv1.Part{Part: &conversationv1.Part_Call{Call: &conversationv1.Call{CallId: id, Operation: "tool"}}}
}

func toolResult(id string) *conversationv1.Part {
	return &conversationv1.Part{Part: &conversationv1.Part_Result{Result: &conversationv1.Result{CallId: id, State: succeeded}}}
}

// saying is what author says under an id; it is checked.
func saying(t rapid.TB, author, id string, change ...func(*conversationv1.NewMessage)) appendage {
	t.Helper()
	m := &conversationv1.NewMessage{MessageId: id, Parts: text("hello")}
	for _, c := range change {
		c(m)
	}
	one, err := saidBy(author, "", m)
	if err != nil {
		t.Fatal(err)
	}
	return appendage{Conversation: "c", Messages: []message{one}, Member: author, origin: said}
}

// telling is what weir writes: about a member, or, without one, about what is shown.
func telling(member string, m message) appendage {
	cmd := appendage{Conversation: "c", Messages: []message{m}, Member: member, origin: told}
	if member != "" {
		cmd.origin = called
	}
	return cmd
}

func wantReason(t rapid.TB, err error, want fault.Reason) {
	t.Helper()
	if got := fault.ReasonOf(err); got != want {
		t.Fatalf("got %v, want %q", err, want)
	}
}

// Whatever is done in whatever order: positions have no gap, a retry finds what was,
// the document shows the state, and what is left of the journal tells all of it.
func TestAnyHistoryKeepsWhatMustHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newScript(t)
		shown := map[string]fingerprint{}
		var order []string
		subjects := rapid.SampledFrom([]string{ann, bob, eve, "agent:g1", "agent:g2"})
		ids := rapid.SampledFrom([]string{"m1", "m2", "m3", "m4", "m5", "m6", "m7"})
		few := rapid.SampledFrom([]string{"i1", "i2", "i3"})
		services := rapid.SampledFrom([]string{gateSubject, registrySubject, self})
		var weirs []string
		for _, id := range []string{"i1", "i2", "i3"} {
			weirs = append(weirs, callID(id), resultID(id), askID(id), answerID(id))
		}
		team := group{ID: "g", Members: []string{"agent:g1", "agent:g2"}, Rule: conversationv1.TurnRule_TURN_RULE_ROUND_ROBIN, Timeout: 10 * time.Second, Revision: 1}

		note := func(event *conversationv1.Event) {
			if event == nil {
				return
			}
			s.follow(event)
			fresh := heldBy(aggregate.Recorded[*conversationv1.Event]{Event: event}, 0).Messages
			if event.GetMessagesRedacted() != nil {
				return
			}
			for _, r := range fresh {
				order = append(order, r.GetMessage().GetMessageId())
				if r.GetPosition() != int64(len(order)) {
					t.Fatalf("message %d has position %d", len(order), r.GetPosition())
				}
				if _, twice := shown[r.GetMessage().GetMessageId()]; twice {
					t.Fatalf("%s is there twice", r.GetMessage().GetMessageId())
				}
				shown[r.GetMessage().GetMessageId()] = fingerprint(r.GetMessage().GetFingerprint())
			}
		}
		append1 := func(cmd appendage) {
			event, err := s.run(cmd)
			if err == nil && event == nil {
				for _, m := range cmd.Messages {
					old, known := shown[m.ID]
					if !known || cmd.origin == said && old != m.fingerprint {
						t.Fatalf("%s counts as done", m.ID)
					}
				}
			}
			if err == nil {
				note(event)
			}
		}
		part := func(t *rapid.T) *conversationv1.Part {
			return rapid.SampledFrom([]*conversationv1.Part{
				text("x")[0], text("y")[0], toolCall("t1"), toolCall("t2"), toolResult("t1"), toolResult("t2"),
			}).Draw(t, "part")
		}
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				cmd := creating("plans", subjects.Draw(t, "owner"), ann, bob, "group:g")
				cmd.Groups = []group{team}
				event, err := decideCreate(s.state, cmd)
				if err == nil {
					note(event)
				}
			},
			"say": func(t *rapid.T) {
				author := subjects.Draw(t, "author")
				cmd := appendage{Conversation: "c", Member: author, origin: said}
				for _, id := range rapid.SliceOfNDistinct(ids, 1, 3, rapid.ID).Draw(t, "ids") {
					wanted := &conversationv1.NewMessage{
						MessageId: id, Parts: []*conversationv1.Part{part(t), part(t)}[:rapid.IntRange(1, 2).Draw(t, "parts")],
						To:      rapid.SliceOfNDistinct(rapid.SampledFrom([]string{ann, bob, "group:g"}), 0, 2, rapid.ID).Draw(t, "to"),
						ReplyTo: rapid.SampledFrom([]string{"", "", "m1", "m2"}).Draw(t, "reply to"),
					}
					wanted.Pinned = !hasCalls(wanted.GetParts()) && rapid.Bool().Draw(t, "pinned")
					one, err := saidBy(author, "", wanted)
					if err != nil {
						t.Fatal(err)
					}
					cmd.Messages = append(cmd.Messages, one)
				}
				append1(cmd)
			},
			"call": func(t *rapid.T) {
				caller := subjects.Draw(t, "caller")
				append1(telling(caller, callNote(caller, &conversationv1.Call{InvocationId: few.Draw(t, "invocation"), Operation: "a/b"})))
			},
			"end": func(t *rapid.T) {
				append1(telling("", resultNote(&conversationv1.Result{InvocationId: few.Draw(t, "invocation")})))
			},
			"ask": func(t *rapid.T) {
				append1(telling(bob, askNote(&conversationv1.ApprovalNote{ApprovalId: few.Draw(t, "approval"), State: pending})))
			},
			"answer": func(t *rapid.T) {
				append1(telling("", answerNote(&conversationv1.ApprovalNote{ApprovalId: few.Draw(t, "approval"), State: "DENIED"})))
			},
			"step": func(t *rapid.T) {
				event, err := decideStep(s.state, step{ID: "c", Actor: ann, To: rapid.SampledFrom([]state{open, open, closed, archived}).Draw(t, "to")})
				if err == nil {
					note(event)
				}
			},
			"late": func(*rapid.T) {
				s.now = s.now.Add(11 * time.Second)
				note(decideLate(s.state, "c", s.now))
			},
			"decline": func(t *rapid.T) {
				event, err := decideDecline(s.state, decline{ID: "c", MessageID: ids.Draw(t, "message"), Member: rapid.SampledFrom(team.Members).Draw(t, "member")})
				if err == nil {
					note(event)
				}
			},
			"regroup": func(t *rapid.T) {
				newer := team
				newer.Revision = s.revision() + int64(rapid.IntRange(0, 1).Draw(t, "newer"))
				newer.Members = rapid.SliceOfNDistinct(rapid.SampledFrom(team.Members), 0, 2, rapid.ID).Draw(t, "members")
				note(decideRegroup(s.state, "c", newer))
			},
			"redact": func(t *rapid.T) {
				event, err := s.redact(redaction{Actor: ann, Eraser: true, MessageID: rapid.OneOf(ids, rapid.SampledFrom(weirs)).Draw(t, "message")})
				if err == nil {
					note(event)
				}
			},
			"redact all of one": func(t *rapid.T) {
				cmd := redaction{ID: "c", Actor: ann, Eraser: true, Author: rapid.OneOf(subjects, services).Draw(t, "author"), Request: few.Draw(t, "request")}
				for _, sequence := range slices.Sorted(maps.Keys(s.journal)) {
					cmd.held = append(cmd.held, s.holder(sequence))
				}
				event, err := decideRedactAuthor(s.state, cmd)
				if err != nil {
					t.Fatal(err)
				}
				note(event)
			},
			"erased": func(*rapid.T) {
				note(decideErased(s.state, "c", s.state.Erasing, counts{Messages: s.state.Erasing.Messages}))
			},
			"": func(t *rapid.T) {
				if s.state.Head != int64(len(order)) {
					t.Fatalf("the head is %d after %d messages", s.state.Head, len(order))
				}
				for i, id := range order {
					position, known := s.state.ids.find(hashID(id))
					at, placed := s.state.place(int64(i + 1))
					m, held := s.holder(at.Sequence).at(int64(i + 1))
					if !known || !placed || !held || position != int64(i+1) || m.GetMessageId() != id {
						t.Fatalf("message %s at %d is known as %d, %+v, %v", id, i+1, position, at, m)
					}
				}
				if s.state.Owner == "" {
					return
				}
				back, err := codec{}.Decode(s.document)
				if err != nil || !maps.Equal(document(t, back), s.document) {
					t.Fatalf("the document does not read back: %v", err)
				}
				if told := document(t, s.replay()); !maps.Equal(told, s.document) {
					t.Fatalf("what is left of the journal tells %q, want %q", told, s.document)
				}
			},
		})
	})
}

func (s *script) revision() int64 {
	if at := s.state.group("g"); at >= 0 {
		return s.state.Groups[at].Revision
	}
	return 1
}

// Writers that race decide on one state, and each follows its own event.
func TestTwoFuturesOfOneStateDoNotMix(t *testing.T) {
	s := started(t)
	for i := range 3 {
		s.must(s.run(saying(t, ann, fmt.Sprint("m", i))))
	}
	future := func(id string, sequence uint64) conversation {
		event, err := s.run(saying(t, ann, id))
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

// What was erased is named in the event that erased it, with all that its chain
// needs to close.
func TestAnErasureNamesWhatItTakes(t *testing.T) {
	s := started(t)
	s.must(s.run(saying(t, ann, "m1")))
	first := s.version
	event := s.must(s.redact(redaction{Actor: ann, MessageID: "m1"}))
	events, past := erases(event)
	if past || len(events) != 1 || events[0] != (journal.Erased{Sequence: first, Previous: 1}) {
		t.Fatalf("it names %v, %v", events, past)
	}
	event = s.must(decideDelete(s.state, deletion{ID: "c", Actor: ann}))
	if events, past = erases(event); !past || events != nil {
		t.Fatalf("a deletion names %v, %v", events, past)
	}
}

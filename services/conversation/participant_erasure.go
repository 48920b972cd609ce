package conversation

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/journal"
)

// The erasure of all that a subject said, over all conversations of a tenant:
//
//	absent ── Requested ──→ ADVANCING ←─┐ ── Finished ──→ FINISHED
//	                            └───────┘ Advanced
//
// It is an intention in the journal. Any replica takes it up from the deadlines and
// goes on behind what it was recorded for. Conversations are gone through in the
// order in which they began, up to the request itself.

const (
	erasureKindName = "erasure"
	// erasurePage is how many conversations are looked at between two records of
	// how far it is, and erasureStint how long: a deadline is given to another
	// replica after some seconds.
	erasurePage  = 50
	erasureStint = time.Second
)

type participantErasure struct {
	Request  string
	Subject  string
	Actor    string
	Finished bool `json:",omitempty"`
	At       progress
	// Conversations and Counts are what was redacted so far.
	Conversations int64
	Counts        counts
	Created       time.Time
	Updated       time.Time
	First         uint64
}

// progress is how far an erasure is: behind the conversation that began by the event
// After, and in the one that follows, if that is Conversation, at Position.
type progress struct {
	After        uint64 `json:",omitempty"`
	Conversation string `json:",omitempty"`
	Position     int64  `json:",omitempty"`
}

type erasureLoop = aggregate.Loop[participantErasure, *conversationv1.Event]

func erasureKind() aggregate.Kind[participantErasure, *conversationv1.Event] {
	return aggregate.Kind[participantErasure, *conversationv1.Event]{
		Name:   erasureKindName,
		Evolve: evolveErasure,
		Codec: aggregate.RootCodec[participantErasure, *conversationv1.Event]{
			Bytes: func(participantErasure) int { return 512 },
		},
		Lists: func(p participantErasure, _ uint64) []hot.Entry { return []hot.Entry{{Set: allList, Score: p.First}} },
		Due: func(p participantErasure) time.Time {
			if p.Finished {
				return time.Time{}
			}
			return p.Updated
		},
	}
}

func decideErasure(p participantErasure, request, subject, actor string) (*conversationv1.Event, error) {
	switch {
	case p.Request == "":
		return &conversationv1.Event{Actor: actor, Event: &conversationv1.Event_ParticipantErasureRequested{
			ParticipantErasureRequested: &conversationv1.ParticipantErasureRequested{RequestId: request, Subject: subject},
		}}, nil
	case p.Subject != subject:
		return nil, fault.New(fault.IdempotencyMismatch, "the request id is taken by the erasure of another subject").
			Field("request_id", "names another erasure")
	}
	return nil, nil
}

// stint is what was done of an erasure in one go.
type stint struct {
	from, to      progress
	finished      bool
	conversations int64
	took          counts
}

// decideAdvance records a stint, unless somebody else recorded one from there.
func decideAdvance(p participantErasure, done stint) *conversationv1.Event {
	if p.Finished || p.At != done.from {
		return nil
	}
	total := p.Counts.plus(done.took).toProto()
	total.Conversations = p.Conversations + done.conversations
	if done.finished {
		return &conversationv1.Event{Actor: self, Event: &conversationv1.Event_ParticipantErasureFinished{
			ParticipantErasureFinished: &conversationv1.ParticipantErasureFinished{RequestId: p.Request, Counts: total},
		}}
	}
	return &conversationv1.Event{Actor: self, Event: &conversationv1.Event_ParticipantErasureAdvanced{
		ParticipantErasureAdvanced: &conversationv1.ParticipantErasureAdvanced{
			RequestId: p.Request, Counts: total,
			After: done.to.After, ConversationId: done.to.Conversation, Position: done.to.Position,
		},
	}}
}

func evolveErasure(p participantErasure, e aggregate.Recorded[*conversationv1.Event]) participantErasure {
	var total *conversationv1.ErasureCounts
	switch event := e.Event.GetEvent().(type) {
	case *conversationv1.Event_ParticipantErasureRequested:
		p = participantErasure{
			Request: event.ParticipantErasureRequested.GetRequestId(), Subject: event.ParticipantErasureRequested.GetSubject(),
			Actor: e.Event.GetActor(), Created: e.Time, First: e.Sequence,
		}
	case *conversationv1.Event_ParticipantErasureAdvanced:
		it := event.ParticipantErasureAdvanced
		p.At, total = progress{it.GetAfter(), it.GetConversationId(), it.GetPosition()}, it.GetCounts()
	case *conversationv1.Event_ParticipantErasureFinished:
		p.At, p.Finished, total = progress{}, true, event.ParticipantErasureFinished.GetCounts()
	}
	if total != nil {
		p.Conversations, p.Counts = total.GetConversations(), countsFromProto(total)
	}
	p.Updated = e.Time
	return p
}

func (p participantErasure) toProto() *conversationv1.ParticipantErasure {
	total := p.Counts.toProto()
	total.Conversations = p.Conversations
	return &conversationv1.ParticipantErasure{
		RequestId: p.Request, Subject: p.Subject, Finished: p.Finished, Counts: total,
		CreateTime: timeToProto(p.Created), UpdateTime: timeToProto(p.Updated),
	}
}

// participantEraser carries such erasures out.
type participantEraser struct {
	erasures *erasureLoop
	eraser   *eraser
}

// due does one stint of an erasure and records it.
func (p *participantEraser) due(ctx context.Context, key journal.Key) (time.Duration, error) {
	s, err := p.erasures.Newest(ctx, key)
	if err != nil || s.State.Finished || !s.Exists() {
		return 0, err
	}
	done, err := p.work(ctx, key.Tenant, s.State)
	if errors.Is(err, errStillShown) {
		return erasureRetry, nil
	}
	if err != nil {
		return 0, err
	}
	_, err = p.erasures.Do(ctx, key, func(now participantErasure, _ time.Time) (*conversationv1.Event, error) {
		return decideAdvance(now, done), nil
	})
	return 0, err
}

func (p *participantEraser) work(ctx context.Context, tenant string, of participantErasure) (stint, error) {
	done := stint{from: of.At, to: of.At}
	until := time.Now().Add(erasureStint)
	items, err := p.eraser.history.loop.Oldest(ctx, tenant, allList, of.At.After, erasurePage, aggregate.RootField)
	if err != nil {
		return stint{}, err
	}
	for _, item := range items {
		if item.Score > of.First {
			break
		}
		from := int64(0)
		if item.ID == done.to.Conversation {
			from = done.to.Position
		}
		took, next, err := p.redactAll(ctx, journal.Key{Tenant: tenant, Kind: kindName, ID: item.ID}, of, from, until)
		if err != nil {
			return stint{}, err
		}
		if next != 0 {
			done.to.Conversation, done.to.Position = item.ID, next
			return done, nil
		}
		done.to = progress{After: item.Score}
		if took != (counts{}) {
			done.conversations, done.took = done.conversations+1, done.took.plus(took)
		}
		if time.Now().After(until) {
			return done, nil
		}
	}
	done.finished = len(items) < erasurePage || items[len(items)-1].Score > of.First
	return done, nil
}

// redactAll erases what the subject said in one conversation, some events at a time,
// and gives what that took in all. Where it takes too long it gives the position to
// go on from.
func (p *participantEraser) redactAll(ctx context.Context, key journal.Key, of participantErasure, from int64, until time.Time) (counts, int64, error) {
	h := p.eraser.history
	s, err := h.loop.Newest(ctx, key)
	if err != nil || !s.State.exists() || !s.State.Authors.mayHold(of.Subject) {
		return counts{}, 0, err
	}
	cmd := redaction{ID: key.ID, Actor: of.Actor, Eraser: true, Author: of.Subject, Request: of.Request}
	for next := max(from, s.State.base()+1); next <= s.State.Head; {
		if time.Now().After(until) {
			return counts{}, next, nil
		}
		if cmd.held, next, err = h.holders(ctx, key, next, of.Subject); err != nil {
			return counts{}, 0, err
		}
		if len(cmd.held) == 0 {
			continue
		}
		s, err := h.loop.Do(ctx, key, func(c conversation, _ time.Time) (*conversationv1.Event, error) {
			return decideRedactAuthor(c, cmd)
		})
		if err == nil && len(s.State.Erasing.Events) >= journal.MaxErases {
			_, err = p.eraser.finish(ctx, key)
		}
		if err != nil {
			return counts{}, 0, err
		}
	}
	after, err := p.eraser.finish(ctx, key)
	return after.tookFor(of.Request), 0, err
}

// holdersWindow is how many positions are looked through at once.
const holdersWindow = 200

// holders gives events from a position on that hold an author's messages, as many as
// one redaction takes, and the position to go on from.
func (h *history) holders(ctx context.Context, key journal.Key, from int64, author string) ([]holder, int64, error) {
	s, err := h.loop.Newest(ctx, key)
	if err != nil || !s.State.exists() {
		return nil, math.MaxInt64, err
	}
	last := min(s.State.Head, from+holdersWindow-1)
	held := make(map[uint64]holder)
	for position := from; position <= last; position++ {
		at, ok := s.State.place(position)
		if !ok {
			return nil, 0, errHole
		}
		held[at.Sequence] = holder{}
	}
	err = h.journal.Events(ctx, key, sortedKeys(held), func(e journal.Event) error {
		recorded, err := aggregate.Decode[*conversationv1.Event](e)
		held[e.Sequence] = heldBy(recorded, e.Previous)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	var found []holder
	bytes, names := 0, 0
	for position := from; position <= last; position++ {
		at, _ := s.State.place(position)
		it, unseen := held[at.Sequence]
		if !unseen || !it.says(author) {
			continue
		}
		bytes, names = bytes+it.bytes(author), names+it.names(author)
		if len(found) > 0 && (bytes > maxKeptBytes || names > journal.MaxErases) {
			return found, position, nil
		}
		found = append(found, it)
		delete(held, at.Sequence)
	}
	return found, last + 1, nil
}

// says whether there is anything of an author to redact in an event.
func (h holder) says(author string) bool {
	return slices.ContainsFunc(h.Messages, func(r *conversationv1.Replaced) bool { return redactable(r, author) })
}

func redactable(r *conversationv1.Replaced, author string) bool {
	return r.GetMessage().GetAuthor() == author && r.GetMessage().GetErasure() == conversationv1.Erasure_ERASURE_UNSPECIFIED
}

// bytes is how large the messages are that stay once an author's are redacted.
func (h holder) bytes(author string) int {
	total := 0
	for _, r := range h.Messages {
		if redactable(r, author) {
			total += proto.Size(emptied(r.GetMessage()))
			continue
		}
		total += proto.Size(r)
	}
	return total
}

// names is how many events the redactions of an event name as erased at the most:
// its own, and one more for each message that can be redacted by itself later. One
// event names no more than journal.MaxErases, so with this within it, everything in
// it can be redacted in the end.
func (h holder) names(author string) int {
	names := len(h.Erased) + 1
	for _, r := range h.Messages {
		if r.GetMessage().GetErasure() == conversationv1.Erasure_ERASURE_UNSPECIFIED && !redactable(r, author) {
			names++
		}
	}
	return names
}

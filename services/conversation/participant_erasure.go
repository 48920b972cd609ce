package conversation

import (
	"context"
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
// goes on behind the last conversation that it was recorded for.

const erasureKindName = "erasure"

// erasurePage is how many conversations are done between two records of it.
const erasurePage = 20

type participantErasure struct {
	Request  string
	Subject  string
	Actor    string
	Token    string `json:",omitempty"`
	Finished bool   `json:",omitempty"`
	// Conversations and Counts are what was redacted so far.
	Conversations int64
	Counts        counts
	Created       time.Time
	Updated       time.Time
	First         uint64
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

// decideAdvance records one more page, or the end, unless somebody else recorded it.
func decideAdvance(p participantErasure, from, next string, conversations int64, erased counts) *conversationv1.Event {
	if p.Finished || p.Token != from {
		return nil
	}
	total := p.Counts.plus(erased).toProto()
	total.Conversations = p.Conversations + conversations
	if next == "" {
		return &conversationv1.Event{Actor: self, Event: &conversationv1.Event_ParticipantErasureFinished{
			ParticipantErasureFinished: &conversationv1.ParticipantErasureFinished{RequestId: p.Request, Counts: total},
		}}
	}
	return &conversationv1.Event{Actor: self, Event: &conversationv1.Event_ParticipantErasureAdvanced{
		ParticipantErasureAdvanced: &conversationv1.ParticipantErasureAdvanced{RequestId: p.Request, PageToken: next, Counts: total},
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
		p.Token, total = event.ParticipantErasureAdvanced.GetPageToken(), event.ParticipantErasureAdvanced.GetCounts()
	case *conversationv1.Event_ParticipantErasureFinished:
		p.Token, p.Finished, total = "", true, event.ParticipantErasureFinished.GetCounts()
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

// due does one page of an erasure.
func (p *participantEraser) due(ctx context.Context, key journal.Key) (time.Duration, error) {
	s, err := p.erasures.Newest(ctx, key)
	if err != nil || s.State.Finished || !s.Exists() {
		return 0, err
	}
	items, next, err := p.eraser.history.loop.List(ctx, aggregate.PageRequest[conversation]{
		Tenant: key.Tenant, Lists: []string{allList}, Size: erasurePage, Token: s.State.Token, Fields: []string{aggregate.RootField},
	})
	if err != nil {
		return 0, err
	}
	var conversations int64
	var erased counts
	for _, item := range items {
		if !item.State.Authors.mayHold(s.State.Subject) {
			continue
		}
		here, err := p.redactAll(ctx, journal.Key{Tenant: key.Tenant, Kind: kindName, ID: item.ID}, s.State)
		if err != nil {
			return 0, err
		}
		if here != (counts{}) {
			conversations, erased = conversations+1, erased.plus(here)
		}
	}
	_, err = p.erasures.Do(ctx, key, func(now participantErasure, _ time.Time) (*conversationv1.Event, error) {
		return decideAdvance(now, s.State.Token, next, conversations, erased), nil
	})
	return 0, err
}

// redactAll erases what the subject said in one conversation, some events at a time.
func (p *participantEraser) redactAll(ctx context.Context, key journal.Key, of participantErasure) (counts, error) {
	h := p.eraser.history
	before, err := p.eraser.finish(ctx, key)
	if err != nil {
		return counts{}, err
	}
	cmd := redaction{ID: key.ID, Actor: of.Actor, Eraser: true, Author: of.Subject}
	for next := before.base() + 1; next <= before.Head; {
		cmd.held, next, err = h.holders(ctx, key, next, of.Subject)
		if err != nil {
			return counts{}, err
		}
		_, err := h.loop.Do(ctx, key, func(c conversation, _ time.Time) (*conversationv1.Event, error) {
			return decideRedactAuthor(c, cmd)
		})
		if err != nil {
			return counts{}, err
		}
		if _, err := p.eraser.finish(ctx, key); err != nil {
			return counts{}, err
		}
	}
	after, err := h.loop.Newest(ctx, key)
	if err != nil {
		return counts{}, err
	}
	return after.State.Erasing.Counts.minus(before.Erasing.Counts), nil
}

// holdersWindow is how many positions are looked through at once.
const holdersWindow = 200

// holders gives events from a position on that hold an author's messages, as many as
// one redaction takes, and the position to go on from.
func (h *history) holders(ctx context.Context, key journal.Key, from int64, author string) ([]holder, int64, error) {
	s, err := h.loop.Newest(ctx, key)
	if err != nil {
		return nil, 0, err
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
	kept := 0
	for position := from; position <= last; position++ {
		at, _ := s.State.place(position)
		it, unseen := held[at.Sequence]
		by, others := it.bytesOf(author)
		if !unseen || by == 0 {
			continue
		}
		if kept += others; len(found) > 0 && (kept > maxKeptBytes || len(found) == maxRedactedEvents) {
			return found, position, nil
		}
		found = append(found, it)
		delete(held, at.Sequence)
	}
	return found, last + 1, nil
}

// bytesOf is how many messages an event holds of an author, and how large the
// others' are.
func (h holder) bytesOf(author string) (by, others int) {
	for _, r := range h.Messages {
		if r.GetMessage().GetAuthor() == author {
			by++
			continue
		}
		others += proto.Size(r)
	}
	return by, others
}

package conversation

import (
	"crypto/sha256"
	"hash/maphash"
	"slices"
	"strconv"
	"time"

	"github.com/benbjohnson/immutable"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/hot"
)

// A conversation and what may happen to it:
//
//	absent ── ConversationCreated ──→ ACTIVE ──┐
//	                                    ↑      │ MessageAppended
//	                                    └──────┘
//
// What always holds:
//
//   - The first event is ConversationCreated, and there is one.
//   - The n-th MessageAppended has position n, and head is the last one's.
//   - No two messages share an id, and an id's content never changes.
//   - A result stands behind the call that it ends.
//
// The state does not hold what was said. It knows of each message how to tell a
// retry, and where in the journal its event is.

const (
	kindName = "conversation"

	// maxMessages is how many messages a conversation takes. Results are let in
	// beyond it: each ends a call that had a place.
	maxMessages = 1_000_000
	// messageBytes estimates what one message costs in memory.
	messageBytes = 192
	// snapshotEvery bounds a replay to some ten milliseconds. A snapshot of ten
	// thousand messages has about 600 KiB.
	snapshotEvery = 1000
)

type conversation struct {
	root
	// messages is by message id.
	messages *immutable.Map[string, entry]
	// runs hold the places of runLength positions each, by number.
	runs *immutable.Map[int64, []place]
}

// root is what does not grow with what is said.
type root struct {
	Title string
	// Owner is empty while the conversation does not exist.
	Owner string
	// Participants are sorted, and the owner is not among them.
	Participants []string
	Created      time.Time
	Updated      time.Time
	// First is the sequence of the first event.
	First uint64
	// Head is the position of the last message, 0 when there is none.
	Head int64
}

// entry is what the state knows of one message.
type entry struct {
	Position int64
	// Sequence is where the journal holds it.
	Sequence    uint64
	Fingerprint fingerprint
}

func kind() aggregate.Kind[conversation, *conversationv1.Event] {
	return aggregate.Kind[conversation, *conversationv1.Event]{
		Name:          kindName,
		Evolve:        evolve,
		Codec:         codec{},
		Lists:         lists,
		SnapshotEvery: snapshotEvery,
	}
}

// lists puts a conversation into the list of each of its members, newest
// activity first.
func lists(c conversation, version uint64) []hot.Entry {
	entries := []hot.Entry{{Set: memberList(c.Owner), Score: version}}
	for _, participant := range c.Participants {
		entries = append(entries, hot.Entry{Set: memberList(participant), Score: version})
	}
	return entries
}

func memberList(subject string) string { return "member:" + subject }

// Refusals that are the same for many requests. Whether a conversation is not
// there or not the caller's to see must not be told apart: one error for both.
var (
	errConversationNotFound = fault.New(fault.ConversationNotFound, "there is no such conversation")
	errMessageNotFound      = fault.New(fault.MessageNotFound, "there is no such message in the conversation")
)

func (c conversation) exists() bool { return c.Owner != "" }

// isMember says who may read and append. Nothing else gives access, not even
// being a service.
func (c conversation) isMember(subject string) bool {
	if subject == c.Owner {
		return c.exists()
	}
	_, found := slices.BinarySearch(c.Participants, subject)
	return found
}

func (c conversation) message(id string) (entry, bool) {
	if c.messages == nil {
		return entry{}, false
	}
	return c.messages.Get(id)
}

// creation is the command that starts a conversation.
type creation struct {
	ID           string
	Title        string
	Owner        string
	Participants []string
}

// newCreation brings the participants into the form in which they are compared
// and kept: they are a set, and the owner takes part anyway.
func newCreation(id, title, owner string, participants []string) creation {
	set := slices.Compact(slices.Sorted(slices.Values(participants)))
	set = slices.DeleteFunc(set, func(p string) bool { return p == owner })
	return creation{ID: id, Title: title, Owner: owner, Participants: set}
}

func decideCreate(c conversation, cmd creation) (*conversationv1.Event, error) {
	switch {
	case !c.exists():
		return &conversationv1.Event{Actor: cmd.Owner, Event: &conversationv1.Event_ConversationCreated{
			ConversationCreated: &conversationv1.ConversationCreated{
				ConversationId: cmd.ID,
				Title:          cmd.Title,
				Owner:          cmd.Owner,
				Participants:   cmd.Participants,
			},
		}}, nil
	case c.Owner == cmd.Owner && c.Title == cmd.Title && slices.Equal(c.Participants, cmd.Participants):
		return nil, nil
	}
	// One answer whether or not the caller may see what holds the id, and
	// nothing about it.
	return nil, fault.New(fault.IdempotencyMismatch, "the conversation id is taken by other content")
}

func decideAppend(c conversation, m message) (*conversationv1.Event, error) {
	rules := m.origin.rules()
	if !c.exists() || rules.byMember && !c.isMember(m.Author) {
		return nil, errConversationNotFound
	}
	if known, ok := c.message(m.ID); ok {
		if rules.chosenID && known.Fingerprint != m.fingerprint {
			return nil, fault.New(fault.IdempotencyMismatch, "the message id is taken by other content").
				Field("message_id", "names a message with another author or content")
		}
		return nil, nil
	}
	if m.ReplyTo != "" {
		if _, ok := c.message(m.ReplyTo); !ok {
			return nil, errMessageNotFound.Field("reply_to", "names no message of this conversation")
		}
	}
	for i, subject := range m.To {
		if !c.isMember(subject) {
			return nil, fault.New(fault.FieldInvalid, "the message addresses somebody who takes no part in the conversation").
				Field("to["+strconv.Itoa(i)+"]", "is not a participant of this conversation")
		}
	}
	if m.ExpectedHead != nil && *m.ExpectedHead != c.Head {
		return nil, fault.New(fault.HeadMoved, "the head is %d, the request expects %d", c.Head, *m.ExpectedHead).
			With("head", strconv.FormatInt(c.Head, 10))
	}
	if rules.counted && c.Head >= maxMessages {
		return nil, fault.New(fault.ConversationFull, "a conversation holds at most %d messages", maxMessages).
			With("limit", strconv.Itoa(maxMessages))
	}
	return &conversationv1.Event{Actor: m.Author, Event: &conversationv1.Event_MessageAppended{
		MessageAppended: &conversationv1.MessageAppended{
			ConversationId: m.Conversation,
			MessageId:      m.ID,
			Position:       c.Head + 1,
			Author:         m.Author,
			Parts:          m.Parts,
			To:             m.To,
			ReplyTo:        m.ReplyTo,
			Fingerprint:    m.fingerprint[:],
		},
	}}, nil
}

func evolve(c conversation, e aggregate.Recorded[*conversationv1.Event]) conversation {
	switch event := e.Event.GetEvent().(type) {
	case *conversationv1.Event_ConversationCreated:
		created := event.ConversationCreated
		c.root = root{
			Title:        created.GetTitle(),
			Owner:        created.GetOwner(),
			Participants: created.GetParticipants(),
			Created:      e.Time,
			First:        e.Sequence,
		}
		c.messages = immutable.NewMap[string, entry](idHasher{})
		c.runs = immutable.NewMap[int64, []place](nil)
	case *conversationv1.Event_MessageAppended:
		appended := event.MessageAppended
		known := entry{Position: appended.GetPosition(), Sequence: e.Sequence}
		copy(known.Fingerprint[:], appended.GetFingerprint())
		c.Head = known.Position
		c.messages = c.messages.Set(appended.GetMessageId(), known)
		c.runs = withPlace(c.runs, known.Position, place{Sequence: e.Sequence, Bytes: uint32(proto.Size(e.Event))})
	}
	c.Updated = e.Time
	return c
}

// fingerprint is the SHA-256 over a message's author and content.
type fingerprint [sha256.Size]byte

// idHasher hashes message ids under a seed of the process. They are chosen by
// clients, who could otherwise make all of theirs collide.
type idHasher struct{}

var idSeed = maphash.MakeSeed()

func (idHasher) Hash(id string) uint32  { return uint32(maphash.String(idSeed, id)) }
func (idHasher) Equal(a, b string) bool { return a == b }

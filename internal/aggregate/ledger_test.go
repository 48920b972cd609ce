package aggregate

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/benbjohnson/immutable"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/hot"
	"weir/internal/journal"
)

// ledger is the tests' own kind of aggregate: a count and an entry for each
// message, over the conversation service's events, since the loop needs some
// real protobuf.
type ledger struct {
	ledgerRoot
	Entries *immutable.Map[string, int64]
}

type ledgerRoot struct {
	Count int64
	First uint64
	Due   time.Time
}

var errRefused = errors.New("refused")

// note adds one entry under an id, and is done already when it is there.
func note(id string) Decide[ledger, *conversationv1.Event] {
	return func(l ledger, _ time.Time) (*conversationv1.Event, error) {
		if l.has(id) {
			return nil, nil
		}
		return noteEvent(id, l.Count+1), nil
	}
}

// noteOnly adds an entry only while there are fewer than limit.
func noteOnly(id string, limit int64) Decide[ledger, *conversationv1.Event] {
	return func(l ledger, now time.Time) (*conversationv1.Event, error) {
		if l.Count >= limit && !l.has(id) {
			return nil, errRefused
		}
		return note(id)(l, now)
	}
}

func noteEvent(id string, position int64) *conversationv1.Event {
	return &conversationv1.Event{Actor: "agent:test", Event: &conversationv1.Event_MessagesAppended{
		MessagesAppended: &conversationv1.MessagesAppended{
			FirstPosition: position,
			Messages:      []*conversationv1.AppendedMessage{{MessageId: id}},
		},
	}}
}

// noted is the id of the entry that an event adds, "" if it adds none.
func noted(e *conversationv1.Event) string {
	for _, m := range e.GetMessagesAppended().GetMessages() {
		return m.GetMessageId()
	}
	return ""
}

// redact erases the event of an entry, which keeps its position under another id.
func redact(id string, gone ...journal.Erased) Decide[ledger, *conversationv1.Event] {
	return func(l ledger, _ time.Time) (*conversationv1.Event, error) {
		if !l.has(id) {
			return nil, errRefused
		}
		position, _ := l.Entries.Get(id)
		redacted := &conversationv1.MessagesRedacted{Messages: []*conversationv1.Replaced{
			{Position: position, Message: &conversationv1.AppendedMessage{MessageId: "redacted-" + strconv.FormatInt(position, 10)}},
		}}
		for _, e := range gone {
			redacted.Erased = append(redacted.Erased, &conversationv1.ErasedEvent{Sequence: e.Sequence, Previous: e.Previous})
		}
		return &conversationv1.Event{Event: &conversationv1.Event_MessagesRedacted{MessagesRedacted: redacted}}, nil
	}
}

// clearAll erases the past of a ledger, which goes on empty.
func clearAll(ledger, time.Time) (*conversationv1.Event, error) {
	return &conversationv1.Event{Event: &conversationv1.Event_ConversationDeleted{
		ConversationDeleted: &conversationv1.ConversationDeleted{},
	}}, nil
}

func ledgerErases(e *conversationv1.Event) ([]journal.Erased, bool) {
	var gone []journal.Erased
	for _, one := range e.GetMessagesRedacted().GetErased() {
		gone = append(gone, journal.Erased{Sequence: one.GetSequence(), Previous: one.GetPrevious()})
	}
	return gone, e.GetConversationDeleted() != nil
}

func (l ledger) has(id string) bool {
	if l.Entries == nil {
		return false
	}
	_, ok := l.Entries.Get(id)
	return ok
}

func evolveLedger(l ledger, e Recorded[*conversationv1.Event]) ledger {
	if l.Entries == nil {
		l.Entries = immutable.NewMap[string, int64](nil)
		l.First = e.Sequence
		l.Due = e.Time.Add(time.Hour)
	}
	appended := e.Event.GetMessagesAppended()
	for i, m := range appended.GetMessages() {
		l.Count = appended.GetFirstPosition() + int64(i)
		l.Entries = l.Entries.Set(m.GetMessageId(), l.Count)
	}
	for _, replaced := range e.Event.GetMessagesRedacted().GetMessages() {
		for itr := l.Entries.Iterator(); !itr.Done(); {
			if id, position, _ := itr.Next(); position == replaced.GetPosition() {
				l.Entries = l.Entries.Delete(id)
			}
		}
		l.Entries = l.Entries.Set(replaced.GetMessage().GetMessageId(), replaced.GetPosition())
		l.Count = max(l.Count, replaced.GetPosition())
	}
	return l
}

type ledgerCodec struct{}

func (ledgerCodec) Touched(_ ledger, e *conversationv1.Event) []string {
	if id := noted(e); id != "" {
		return []string{RootField, "e:" + id}
	}
	if e.GetConversationDeleted() != nil {
		return []string{RootField}
	}
	return nil
}

func (ledgerCodec) Names(l ledger) []string {
	names := []string{RootField}
	for itr := l.Entries.Iterator(); !itr.Done(); {
		id, _, _ := itr.Next()
		names = append(names, "e:"+id)
	}
	return names
}

func (ledgerCodec) Encode(l ledger, name string) ([]byte, error) {
	if name == RootField {
		return json.Marshal(l.ledgerRoot)
	}
	position, ok := l.Entries.Get(name[2:])
	if !ok {
		return nil, nil
	}
	return strconv.AppendInt(nil, position, 10), nil
}

func (ledgerCodec) Decode(fields map[string]string) (ledger, error) {
	root, err := DecodeRoot[ledgerRoot](fields)
	if err != nil {
		return ledger{}, err
	}
	l := ledger{ledgerRoot: root, Entries: immutable.NewMap[string, int64](nil)}
	for name, content := range fields {
		if name == RootField {
			continue
		}
		position, err := strconv.ParseInt(content, 10, 64)
		if err != nil {
			return ledger{}, err
		}
		l.Entries = l.Entries.Set(name[2:], position)
	}
	return l, nil
}

func (ledgerCodec) Size(l ledger) int { return 100 * (1 + int(l.Count)) }

func ledgerKind() Kind[ledger, *conversationv1.Event] {
	return Kind[ledger, *conversationv1.Event]{
		Name:   "ledger",
		Evolve: evolveLedger,
		Erases: ledgerErases,
		Codec:  ledgerCodec{},
		Lists: func(l ledger, version uint64) []hot.Entry {
			return []hot.Entry{{Set: "all", Score: l.First}, {Set: "active", Score: version}}
		},
		Due: func(l ledger) time.Time { return l.Due },
	}
}

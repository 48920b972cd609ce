package main

import (
	"crypto/sha256"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/benbjohnson/immutable"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/hot"
)

// ledger is the kind of aggregate that the loop is measured with: a root, and
// as many entries as one likes, over the conversation service's events. It
// stands in two lists and has a deadline, so its documents and indexes cost what
// those of the services cost.
type ledger struct {
	ledgerRoot
	entries *immutable.Map[string, int64]
}

type ledgerRoot struct {
	Count int64
	First uint64
	Due   time.Time
}

const ledgerKindName = "ledger"

func ledgerKind() aggregate.Kind[ledger, *conversationv1.Event] {
	return aggregate.Kind[ledger, *conversationv1.Event]{
		Name:   ledgerKindName,
		Evolve: evolveLedger,
		Codec:  ledgerCodec{},
		Lists: func(l ledger, version uint64) []hot.Entry {
			return []hot.Entry{{Set: "all", Score: l.First}, {Set: "active", Score: version}}
		},
		Due: func(l ledger) time.Time { return l.Due },
	}
}

// entryName names one of a ledger's entries.
func entryName(i int) string { return "entry-" + strconv.Itoa(i) }

// text is what every write in the tables says, so that all events are of about
// the same size.
var text = strings.Repeat("ten bytes ", 20)

// fingerprint is as long as those that the conversation service keeps.
var fingerprint = sha256.Sum256([]byte(text))

// said is the text as what a message says.
func said() []*conversationv1.Part {
	return []*conversationv1.Part{{Part: &conversationv1.Part_Text{Text: text}}}
}

// noted writes one entry anew. The ledger has it already, so it stays as large
// as it was made.
func noted(id, entry string, position int64) *conversationv1.Event {
	return &conversationv1.Event{Actor: agent, Event: &conversationv1.Event_MessagesAppended{
		MessagesAppended: &conversationv1.MessagesAppended{
			ConversationId: id,
			FirstPosition:  position,
			Messages: []*conversationv1.AppendedMessage{{
				MessageId:   entry,
				Author:      agent,
				Parts:       said(),
				Fingerprint: fingerprint[:],
			}},
		},
	}}
}

// filled adds entries to a ledger, many by one event.
func filled(id string, entries []string) *conversationv1.Event {
	return &conversationv1.Event{Actor: agent, Event: &conversationv1.Event_ConversationCreated{
		ConversationCreated: &conversationv1.ConversationCreated{ConversationId: id, Title: text, Participants: entries},
	}}
}

func evolveLedger(l ledger, e aggregate.Recorded[*conversationv1.Event]) ledger {
	if l.entries == nil {
		l.entries = immutable.NewMap[string, int64](nil)
		l.First, l.Due = e.Sequence, e.Time.Add(time.Hour)
	}
	switch event := e.Event.GetEvent().(type) {
	case *conversationv1.Event_ConversationCreated:
		for _, entry := range event.ConversationCreated.GetParticipants() {
			l.entries = l.entries.Set(entry, 0)
		}
	case *conversationv1.Event_MessagesAppended:
		l.Count = event.MessagesAppended.GetFirstPosition()
		for _, message := range event.MessagesAppended.GetMessages() {
			l.entries = l.entries.Set(message.GetMessageId(), l.Count)
		}
	}
	return l
}

// ledgerCodec keeps the root, and each entry in a field of its own.
type ledgerCodec struct{}

const entryPrefix = "e:"

func (ledgerCodec) Touched(_ ledger, e *conversationv1.Event) []string {
	fields := []string{aggregate.RootField}
	switch event := e.GetEvent().(type) {
	case *conversationv1.Event_ConversationCreated:
		for _, entry := range event.ConversationCreated.GetParticipants() {
			fields = append(fields, entryPrefix+entry)
		}
	case *conversationv1.Event_MessagesAppended:
		for _, message := range event.MessagesAppended.GetMessages() {
			fields = append(fields, entryPrefix+message.GetMessageId())
		}
	}
	return fields
}

func (ledgerCodec) Names(l ledger) []string {
	names := []string{aggregate.RootField}
	for itr := l.entries.Iterator(); !itr.Done(); {
		entry, _, _ := itr.Next()
		names = append(names, entryPrefix+entry)
	}
	return names
}

func (ledgerCodec) Encode(l ledger, name string) ([]byte, error) {
	if name == aggregate.RootField {
		return json.Marshal(l.ledgerRoot)
	}
	position, ok := l.entries.Get(name[len(entryPrefix):])
	if !ok {
		return nil, nil
	}
	return strconv.AppendInt(nil, position, 10), nil
}

func (ledgerCodec) Decode(fields map[string]string) (ledger, error) {
	root, err := aggregate.DecodeRoot[ledgerRoot](fields)
	if err != nil {
		return ledger{}, err
	}
	entries := immutable.NewMapBuilder[string, int64](nil)
	for name, content := range fields {
		if name == aggregate.RootField {
			continue
		}
		position, err := strconv.ParseInt(content, 10, 64)
		if err != nil {
			return ledger{}, err
		}
		entries.Set(name[len(entryPrefix):], position)
	}
	return ledger{ledgerRoot: root, entries: entries.Map()}, nil
}

func (ledgerCodec) Size(l ledger) int {
	if l.entries == nil {
		return 100
	}
	return 100 * (1 + l.entries.Len())
}

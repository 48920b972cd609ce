package transfer

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	conversationv1 "weir/gen/conversation/v1"
)

// What a conversation takes, so that a file is refused whole before any of it is sent.
const (
	maxParts        = 64
	maxMessageBytes = 256 << 10
	maxParticipants = 100
	maxPinned       = 32
	maxMessages     = 1_000_000
)

// Foreign is a file of another program's conversations, as records.
type Foreign struct {
	conversations [][]Line
	// Left counts what became part of no message, by its name in the file.
	Left map[string]int
	// Empty counts messages in which nobody said or called anything.
	Empty int
	// Unpinned counts messages with instructions that are beyond what can be pinned.
	Unpinned int
}

// Formats are the files of others that can be read.
var Formats = map[string]func(text []byte, o Options) (*Foreign, error){
	"openai":    OpenAI,
	"langgraph": LangGraph,
}

// Lines are the records of all conversations, one conversation after the other.
func (f *Foreign) Lines() iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		for _, lines := range f.conversations {
			for _, line := range lines {
				if !yield(line, nil) {
					return
				}
			}
		}
	}
}

func (f *Foreign) left(what string) { f.Left[what]++ }

// leaveFields counts those fields of a message that say something and weren't taken.
func (f *Foreign) leaveFields(prefix string, fields map[string]node) {
	for name, value := range fields {
		if !value.empty() {
			f.left(prefix + name)
		}
	}
}

// said is one message of a foreign format, before weir's names are given to anything.
type said struct {
	place  string
	id     string
	role   role
	name   string
	parts  []*conversationv1.Part
	calls  []foreignCall  // that are among the parts
	result *foreignResult // that is the part
}

// format is what reading differs in.
type format interface {
	// messages are the list of a conversation.
	messages(conversation node) (list node, err error)
	// message reads one.
	message(node) (said, error)
}

// convert reads every conversation of a file, or none.
func (f *Foreign) convert(text []byte, o Options, format format) (*Foreign, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	f.Left = make(map[string]int)
	document := newDocument(text)
	for value, err := range document.values() {
		if err != nil {
			return nil, err
		}
		place := fmt.Sprintf("line %d", document.line(value.at))
		if o.ID != "" && len(f.conversations) > 0 {
			return nil, fmt.Errorf("%s: is a second conversation, and --id names one", place)
		}
		list, err := format.messages(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", place, err)
		}
		var messages []said
		for i, element := range list.elements() {
			at := fmt.Sprintf("line %d, message %d", document.line(element.at), i+1)
			message, err := format.message(element)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", at, err)
			}
			if len(message.parts) == 0 {
				f.Empty++
				continue
			}
			message.place = at
			messages = append(messages, message)
		}
		lines, err := f.assemble(place, messages, o)
		if err != nil {
			return nil, err
		}
		f.conversations = append(f.conversations, lines)
	}
	if len(f.conversations) == 0 {
		return nil, errors.New("holds no conversation")
	}
	return f, nil
}

// assemble makes records of the messages of one conversation.
func (f *Foreign) assemble(place string, messages []said, o Options) ([]Line, error) {
	if len(messages) == 0 {
		return nil, fmt.Errorf("%s: nobody says anything in this conversation", place)
	}
	if len(messages) > maxMessages {
		return nil, fmt.Errorf("%s: a conversation has at most %d messages, this one %d", place, maxMessages, len(messages))
	}
	calls := newPairing()
	for i, m := range messages {
		if err := check(m.parts); err != nil {
			return nil, fmt.Errorf("%s: %w", m.place, err)
		}
		for _, c := range m.calls {
			calls.call(i, c)
		}
		if m.result != nil {
			if err := calls.result(*m.result); err != nil {
				return nil, fmt.Errorf("%s: %w", m.place, err)
			}
		}
	}
	calls.number()

	ids := newNames("msg-", idPattern)
	for i, m := range messages {
		if strings.HasPrefix(m.id, reservedPrefix) {
			messages[i].id = ""
		}
		ids.reserve(messages[i].id)
	}
	conversation := &conversationv1.Conversation{
		Title: o.Title, State: conversationv1.ConversationState_CONVERSATION_STATE_ACTIVE, Head: int64(len(messages)),
	}
	sum := newSummer()
	records := make([]*conversationv1.Message, len(messages))
	pinned := 0
	for i, m := range messages {
		author, named := o.author(m.role, m.name)
		if m.name != "" && !named && m.role != tool {
			f.left("name")
		}
		content := func(s summer) { s.message(i+1, author, m.parts) }
		record := &conversationv1.Message{Position: int64(i + 1), Author: author, Parts: m.parts, MessageId: ids.give(m.id, content)}
		if m.role == system {
			if pinned++; pinned <= maxPinned {
				record.Pinned = true
			} else {
				f.Unpinned++
			}
		}
		if m.role == user && conversation.Owner == "" {
			conversation.Owner = author
		}
		sum.text(record.GetMessageId())
		content(sum)
		records[i] = record
	}
	if conversation.Owner == "" {
		conversation.Owner, _ = o.author(user, "")
	}
	if conversation.ConversationId = o.ID; o.ID == "" {
		conversation.ConversationId = "imported-" + sum.hex(16)
	}
	if conversation.Participants = participants(records, conversation.GetOwner()); len(conversation.GetParticipants()) > maxParticipants {
		return nil, fmt.Errorf("%s: a conversation has at most %d participants, this one %d", place, maxParticipants, len(conversation.GetParticipants()))
	}
	return lines(place, conversation, messages, records)
}

// participants are the authors beside the owner, in the order in which they came in.
func participants(records []*conversationv1.Message, owner string) []string {
	var subjects []string
	for _, record := range records {
		if author := record.GetAuthor(); author != owner && !slices.Contains(subjects, author) {
			subjects = append(subjects, author)
		}
	}
	return subjects
}

func lines(place string, conversation *conversationv1.Conversation, messages []said, records []*conversationv1.Message) ([]Line, error) {
	all := []Line{{Place: place, Record: &conversationv1.Record{Record: &conversationv1.Record_Conversation{Conversation: conversation}}}}
	for i, record := range records {
		record.ConversationId = conversation.GetConversationId()
		all = append(all, Line{Place: messages[i].place, Record: &conversationv1.Record{Record: &conversationv1.Record_Message{Message: record}}})
	}
	for i, line := range all {
		text, err := render(line.Record)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", line.Place, err)
		}
		all[i].Text = text
	}
	return all, nil
}

// check refuses a message that is larger than one may be. Nothing is ever cut.
func check(parts []*conversationv1.Part) error {
	if len(parts) > maxParts {
		return fmt.Errorf("a message has at most %d parts, this one %d", maxParts, len(parts))
	}
	size := 0
	for _, part := range parts {
		switch p := part.GetPart().(type) {
		case *conversationv1.Part_Text:
			size += len(p.Text)
		case *conversationv1.Part_Data:
			size += len(p.Data.GetMediaType()) + len(p.Data.GetJson())
		case *conversationv1.Part_Call:
			size += len(p.Call.GetOperation()) + len(p.Call.GetInputJson())
		case *conversationv1.Part_Result:
			size += len(p.Result.GetOutputJson()) + len(p.Result.GetMessage())
		}
	}
	if size > maxMessageBytes {
		return fmt.Errorf("the parts of a message hold at most %d bytes, these hold %d", maxMessageBytes, size)
	}
	return nil
}

// Notes say what a person should know about what came in and what didn't, a line each.
func (f *Foreign) Notes() []string {
	var notes []string
	if f.Empty > 0 {
		notes = append(notes, fmt.Sprintf("empty messages passed over: %d", f.Empty))
	}
	if f.Unpinned > 0 {
		notes = append(notes, fmt.Sprintf("messages with instructions that are not pinned, since %d are: %d", maxPinned, f.Unpinned))
	}
	if len(f.Left) > 0 {
		var left []string
		for _, what := range slices.Sorted(maps.Keys(f.Left)) {
			left = append(left, fmt.Sprintf("%s (%d)", what, f.Left[what]))
		}
		notes = append(notes, "left out: "+strings.Join(left, ", "))
	}
	return notes
}

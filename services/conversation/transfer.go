package conversation

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

// Exports are lines of JSON: the conversation, then what was said in it, by
// position. The past that a fork shares is in its parent's export.

const (
	exportPage = 500
	// importBatch is how many messages one event of an import holds at most, and
	// importBytes how large they are together.
	importBatch = 100
	importBytes = 1 << 20
	// maxImported is how large an imported message is at most: what the registry let
	// through may have been larger than what a caller may say.
	maxImported = 2 << 20
)

var recordFormat = protojson.MarshalOptions{UseProtoNames: true}

func line(r *conversationv1.Record) (string, error) {
	text, err := recordFormat.Marshal(r)
	if err != nil {
		return "", fault.New(fault.Bug, "a record cannot be written as JSON").Wrap(err)
	}
	return string(text), nil
}

// export gives the lines of a conversation one by one.
func (h *history) export(ctx context.Context, key journal.Key, caller identity.Caller, send func(string) error) error {
	c, err := h.read(ctx, key, caller)
	if err != nil {
		return err
	}
	first, err := line(&conversationv1.Record{Record: &conversationv1.Record_Conversation{Conversation: toConversation(key.ID, c)}})
	if err == nil {
		err = send(first)
	}
	for from := c.base() + 1; err == nil && from <= c.Head; {
		var messages []*conversationv1.Message
		if messages, err = h.cut(ctx, key, c, span{from, min(c.Head, from+exportPage-1)}, false); err != nil {
			return err
		}
		for _, m := range messages {
			var text string
			if text, err = line(&conversationv1.Record{Record: &conversationv1.Record_Message{Message: m}}); err == nil {
				err = send(text)
			}
			if err != nil {
				return err
			}
		}
		from += int64(len(messages))
	}
	return err
}

// importing is one import that is under way.
type importing struct {
	history *history
	tenant  string
	key     journal.Key
	// next is the position that the next message must have.
	next     int64
	batch    []message
	bytes    int
	imported int64
	lines    int
}

// importAll reads the lines of one conversation and gives it as it is then.
func (h *history) importAll(ctx context.Context, tenant string, receive func() (string, error)) (*conversationv1.Conversation, int64, error) {
	i := &importing{history: h, tenant: tenant}
	for {
		text, err := receive()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, 0, err
		}
		i.lines++
		if err := i.take(ctx, text); err != nil {
			return nil, 0, i.placed(err)
		}
	}
	if i.lines == 0 {
		return nil, 0, fault.New(fault.FieldInvalid, "an import begins with a conversation").Field("line", "must come at least once")
	}
	if err := i.flush(ctx); err != nil {
		return nil, 0, i.placed(err)
	}
	s, err := h.loop.Newest(ctx, i.key)
	return toConversation(i.key.ID, s.State), i.imported, err
}

func (i *importing) take(ctx context.Context, text string) error {
	var record conversationv1.Record
	if err := protojson.Unmarshal([]byte(text), &record); err != nil {
		return i.refuse("is not a record in JSON")
	}
	switch r := record.GetRecord().(type) {
	case *conversationv1.Record_Conversation:
		if i.lines > 1 {
			return i.refuse("is a second conversation")
		}
		return i.begin(ctx, r.Conversation)
	case *conversationv1.Record_Message:
		if i.lines == 1 {
			return i.refuse("must be the conversation")
		}
		return i.add(ctx, r.Message)
	}
	return i.refuse("is neither a conversation nor a message")
}

// placed says in which line a refused message stands: the field of the violation
// begins with it. Otherwise it is the line that was read last.
func (i *importing) placed(err error) error {
	refusal := fault.From(err)
	if refusal.Metadata("line") != "" {
		return refusal
	}
	number := strconv.Itoa(i.lines)
	for _, v := range refusal.Violations() {
		if rest, ok := strings.CutPrefix(v.Field, "line "); ok {
			number, _, _ = strings.Cut(rest, ":")
		}
	}
	return refusal.With("line", number)
}

func (i *importing) refuse(why string) error {
	return fault.New(fault.FieldInvalid, "line %d of the import cannot be read", i.lines).
		Field("line", why).With("line", strconv.Itoa(i.lines))
}

// begin creates the conversation, unless it is there as it was.
func (i *importing) begin(ctx context.Context, p *conversationv1.Conversation) error {
	cmd := creation{
		ID: p.GetConversationId(), Title: p.GetTitle(), Owner: p.GetOwner(), Participants: p.GetParticipants(),
		Labels: p.GetLabels(), Imported: p.GetCreateTime().AsTime(), State: importedStates[p.GetState()],
	}
	if p.GetCreateTime() == nil {
		cmd.Imported = i.history.loop.Now().UTC().Truncate(time.Microsecond)
	}
	// What a caller could not say, an import cannot bring.
	err := protovalidate.Validate(&conversationv1.CreateConversationRequest{
		ConversationId: cmd.ID, Title: cmd.Title, Participants: cmd.Participants, Labels: cmd.Labels,
	})
	if err != nil || cmd.ID == "" {
		return i.refuse("is a conversation that breaks the rules of its fields")
	}
	if _, _, err := identity.ParseSubject(cmd.Owner); err != nil {
		return i.refuse("has an owner who is no subject")
	}
	cmd = cmd.normal()
	// Groups come by their names alone. Who is in a group of that name here was not
	// there when it was said, and takes part once the owner says so.
	i.key = journal.Key{Tenant: i.tenant, Kind: kindName, ID: cmd.ID}
	if parent := p.GetParent(); parent != nil {
		var err error
		if cmd.Ancestors, cmd.Marks, err = i.history.past(ctx, i.tenant, parent.GetConversationId(), parent.GetPosition()); err != nil {
			return err
		}
	}
	s, err := i.history.loop.Do(ctx, i.key, func(c conversation, _ time.Time) (*conversationv1.Event, error) {
		return decideCreate(c, cmd)
	})
	i.next = s.State.base() + 1
	return err
}

// past is what a fork of a conversation at a position begins with.
func (h *history) past(ctx context.Context, tenant, parent string, position int64) ([]ancestor, root, error) {
	key := journal.Key{Tenant: tenant, Kind: kindName, ID: parent}
	s, err := h.loop.Newest(ctx, key)
	if err != nil {
		return nil, root{}, err
	}
	if !s.State.exists() {
		return nil, root{}, errConversationNotFound.Field("parent_conversation_id", "names no conversation")
	}
	ancestors, err := s.State.forkedAt(parent, position)
	if err != nil {
		return nil, root{}, err
	}
	marks, err := h.marksAt(ctx, key, s.State, position)
	return ancestors, marks, err
}

func (i *importing) add(ctx context.Context, p *conversationv1.Message) error {
	if p.GetPosition() != 0 && p.GetPosition() != i.next {
		return i.refuse("has position " + strconv.FormatInt(p.GetPosition(), 10) + ", and " + strconv.FormatInt(i.next, 10) + " comes next")
	}
	i.next++
	m := message{
		ID: p.GetMessageId(), Author: p.GetAuthor(), Parts: p.GetParts(), To: p.GetTo(), ReplyTo: p.GetReplyTo(),
		Pinned: p.GetPinned(), Summarizes: p.GetSummarizes(), Erasure: p.GetErasure(), Addressed: p.GetAddressed(),
		field: "line " + strconv.Itoa(i.lines) + ": ",
	}.signed()
	// What is imported always has a time of its own: by that it is told from what is
	// said here, and neither asks for an answer nor waits for one.
	m.Time = i.history.loop.Now().UTC().Truncate(time.Microsecond)
	if p.GetCreateTime() != nil {
		m.Time = p.GetCreateTime().AsTime()
	}
	if err := i.check(m); err != nil {
		return err
	}
	size := proto.Size(p)
	if size > maxImported {
		return fault.New(fault.TooLarge, "an imported message has at most %d bytes", maxImported).
			Field("line", "is too large").With("limit", strconv.Itoa(maxImported)).With("line", strconv.Itoa(i.lines))
	}
	if len(i.batch) == importBatch || i.bytes+size > importBytes {
		if err := i.flush(ctx); err != nil {
			return err
		}
	}
	i.batch = append(i.batch, m)
	i.bytes += size
	return nil
}

func (i *importing) check(m message) error {
	rules := &conversationv1.NewMessage{MessageId: m.ID, Parts: m.Parts, To: m.To, ReplyTo: m.ReplyTo, Summarizes: m.Summarizes}
	erased := m.Erasure != conversationv1.Erasure_ERASURE_UNSPECIFIED
	if erased {
		rules.Parts = []*conversationv1.Part{{Part: &conversationv1.Part_Text{Text: "erased"}}}
	}
	if err := protovalidate.Validate(rules); err != nil || erased && len(m.Parts) > 0 {
		return i.refuse("is a message that breaks the rules of its fields")
	}
	if _, _, err := identity.ParseSubject(m.Author); err != nil {
		return i.refuse("has an author who is no subject")
	}
	for at, p := range m.Parts {
		if err := checkJSON(partField(m.field, at), p); err != nil {
			return err
		}
	}
	return nil
}

// flush appends what was collected, but what is there already.
func (i *importing) flush(ctx context.Context) error {
	if len(i.batch) == 0 {
		return nil
	}
	cmd := appendage{Conversation: i.key.ID, Messages: i.batch, origin: imported}
	before := int64(0)
	s, err := i.history.decided(ctx, i.key, &cmd, func(c conversation, now time.Time) (*conversationv1.Event, error) {
		before = c.Head
		return decideAppend(c, cmd, now)
	})
	if err != nil {
		return err
	}
	i.imported += s.State.Head - before
	i.batch, i.bytes = nil, 0
	return nil
}

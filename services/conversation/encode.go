package conversation

import (
	"encoding/base64"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	conversationv1 "weir/gen/conversation/v1"
)

// From state to proto, for answers and events.

var statesToProto = map[state]conversationv1.ConversationState{
	open:     conversationv1.ConversationState_CONVERSATION_STATE_ACTIVE,
	closed:   conversationv1.ConversationState_CONVERSATION_STATE_CLOSED,
	archived: conversationv1.ConversationState_CONVERSATION_STATE_ARCHIVED,
	deleted:  conversationv1.ConversationState_CONVERSATION_STATE_DELETED,
}

var stateNames = map[state]string{closed: "CLOSED", archived: "ARCHIVED", deleted: "DELETED"}

// importedStates are those that an import can bring. What waited for a person does
// not wait where it is imported.
var importedStates = map[conversationv1.ConversationState]state{
	conversationv1.ConversationState_CONVERSATION_STATE_CLOSED:   closed,
	conversationv1.ConversationState_CONVERSATION_STATE_ARCHIVED: archived,
}

// shownState is the state as everybody sees it.
func (r root) shownState() conversationv1.ConversationState {
	if r.State == open && len(r.Pauses) > 0 {
		return conversationv1.ConversationState_CONVERSATION_STATE_PAUSED
	}
	return statesToProto[r.State]
}

func toConversation(id string, c conversation) *conversationv1.Conversation {
	out := &conversationv1.Conversation{
		ConversationId: id,
		Title:          c.Title,
		Owner:          c.Owner,
		Participants:   c.Participants,
		State:          c.shownState(),
		Head:           c.Head,
		CreateTime:     timeToProto(c.Created),
		UpdateTime:     timeToProto(c.Updated),
		Labels:         c.Labels,
		OpenCalls:      int32(len(c.Calls)),
	}
	for _, p := range c.Pauses {
		out.Pauses = append(out.Pauses, &conversationv1.Pause{
			ApprovalId: p.Approval, Operation: p.Operation, Requester: p.Requester, CreateTime: timeToProto(p.Since),
		})
	}
	if n := len(c.Ancestors); n > 0 {
		out.Parent = &conversationv1.Parent{ConversationId: c.Ancestors[n-1].ID, Position: c.Ancestors[n-1].Last}
	}
	for _, t := range c.Turns {
		out.Turns = append(out.Turns, &conversationv1.Turn{
			Group: groupPrefix + t.Group, MessageId: t.MessageID, Members: t.Waiting, ExpireTime: timeToProto(t.Expires),
		})
	}
	return out
}

// shown is a message on its way to a reader.
type shown struct{ *conversationv1.Message }

// toMessage shows a message that was said at the time of its event, unless it has
// one of its own.
func toMessage(conversation string, position int64, m *conversationv1.AppendedMessage, at time.Time) shown {
	out := &conversationv1.Message{
		ConversationId: conversation,
		MessageId:      m.GetMessageId(),
		Position:       position,
		Author:         m.GetAuthor(),
		Parts:          m.GetParts(),
		To:             m.GetTo(),
		ReplyTo:        m.GetReplyTo(),
		CreateTime:     m.GetCreateTime(),
		Addressed:      m.GetAddressed(),
		Pinned:         m.GetPinned(),
		Summarizes:     m.GetSummarizes(),
		Erasure:        m.GetErasure(),
	}
	if out.CreateTime == nil {
		out.CreateTime = timeToProto(at)
	}
	return shown{out}
}

// from names the conversation that a message was said in, where it is another one.
func (s shown) from(origin string) *conversationv1.Message {
	if origin != s.ConversationId {
		s.OriginConversationId = origin
	}
	return s.Message
}

// goneMessage stands in the place of a message whose conversation was deleted.
func goneMessage(conversation string, at spot) *conversationv1.Message {
	return &conversationv1.Message{
		ConversationId: conversation, Position: at.position, OriginConversationId: at.origin,
		Erasure: conversationv1.Erasure_ERASURE_CONVERSATION_DELETED,
	}
}

func (c counts) toProto() *conversationv1.ErasureCounts {
	return &conversationv1.ErasureCounts{
		Messages: c.Messages, JournalEvents: c.Events, HotDocuments: c.Documents,
		Snapshots: c.Snapshots, IndexEntries: c.Entries,
	}
}

func countsFromProto(p *conversationv1.ErasureCounts) counts {
	return counts{p.GetMessages(), p.GetJournalEvents(), p.GetHotDocuments(), p.GetSnapshots(), p.GetIndexEntries()}
}

// timeToProto leaves the zero time out.
func timeToProto(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func sortedKeys[V any](m map[uint64]V) []uint64 { return slices.Sorted(maps.Keys(m)) }

// MarshalText makes fingerprints short where they stand in JSON.
func (f fingerprint) MarshalText() ([]byte, error) {
	return base64.RawStdEncoding.AppendEncode(nil, f[:]), nil
}

// UnmarshalText reads what MarshalText wrote.
func (f *fingerprint) UnmarshalText(text []byte) error {
	if len(text) != base64.RawStdEncoding.EncodedLen(len(f)) {
		return errTruncated
	}
	_, err := base64.RawStdEncoding.Decode(f[:], text)
	return err
}

package conversation

import (
	"context"
	"slices"
	"strconv"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/journal"
)

// A fork begins with its lineage, and with what holds of the past at its position:
// which messages are pinned, which stand for others, and which calls have no result
// by then.

// forkedAt is the ancestors of a fork of a conversation at a position.
func (c conversation) forkedAt(id string, position int64) ([]ancestor, error) {
	if position > c.Head {
		return nil, pastHead("position", position, c.Head)
	}
	var past []ancestor
	before := int64(0)
	for _, a := range append(slices.Clone(c.Ancestors), ancestor{id, c.Head}) {
		if position > before || a.ID == id && position == 0 {
			past = append(past, ancestor{a.ID, min(a.Last, position)})
		}
		before = a.Last
	}
	if len(past) > maxAncestors {
		return nil, fault.New(fault.LimitReached, "a fork has at most %d ancestors", maxAncestors).
			With("limit", strconv.Itoa(maxAncestors))
	}
	return past, nil
}

// marksAt is what holds of a conversation at a position. Calls that were open then
// are those that still are, and those that a later message ended.
func (h *history) marksAt(ctx context.Context, key journal.Key, c conversation, position int64) (root, error) {
	marks := root{
		Pinned:    slices.DeleteFunc(slices.Clone(c.Pinned), func(p int64) bool { return p > position }),
		Summaries: slices.DeleteFunc(slices.Clone(c.Summaries), func(s summary) bool { return s.Position > position }),
		Calls:     slices.DeleteFunc(slices.Clone(c.Calls), func(o openCall) bool { return o.Position > position }),
	}
	made := make(map[callKey]bool)
	for from := position + 1; from <= c.Head; {
		messages, err := h.cut(ctx, key, c, span{from, min(c.Head, from+exportPage-1)}, false)
		if err != nil {
			return root{}, err
		}
		for _, m := range messages {
			marks.Calls = append(marks.Calls, endedBy(m, made)...)
		}
		from += int64(len(messages))
	}
	return marks, nil
}

// endedBy is the calls that a message ends and that were made before those in made,
// to which the message's own are added.
func endedBy(m *conversationv1.Message, made map[callKey]bool) []openCall {
	var ended []openCall
	for _, p := range m.GetParts() {
		if call := p.GetCall(); call != nil {
			made[callKey{call.GetInvocationId(), call.GetCallId()}] = true
		}
		if result := p.GetResult(); result != nil {
			key := callKey{result.GetInvocationId(), result.GetCallId()}
			if !made[key] {
				ended = append(ended, openCall{callKey: key, MessageID: m.GetReplyTo()})
			}
			delete(made, key)
		}
	}
	return ended
}

package conversation

import (
	"context"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

// checkSummary refuses a summary whose range would part a call from its result: a
// window that has the summary in the range's place would show one of them alone.
// What the range holds never changes, so it is read before the decision; a call in
// it that is still open is refused by the decision.
func (h *history) checkSummary(ctx context.Context, key journal.Key, caller identity.Caller, field string, r *conversationv1.Range) error {
	c, err := h.read(ctx, key, caller)
	if err != nil {
		return err
	}
	if r.GetLast() > c.Head {
		return fault.New(fault.FieldInvalid, "a summary stands for messages that are there").
			Field(field+"summarizes.last", "is past the last position")
	}
	open := make(map[callKey]bool)
	for from := r.GetFirst(); from <= r.GetLast(); {
		messages, err := h.cut(ctx, key, c, span{from, min(r.GetLast(), from+exportPage-1)}, false)
		if err != nil {
			return err
		}
		for _, m := range messages {
			if len(endedBy(m, open)) > 0 {
				return parted(field)
			}
		}
		from += int64(len(messages))
	}
	if len(open) > 0 {
		return parted(field)
	}
	return nil
}

func parted(field string) error {
	return fault.New(fault.FieldInvalid, "the range of the summary parts a call from its result").
		Field(field+"summarizes", "holds a call without its result, or a result without its call")
}

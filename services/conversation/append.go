package conversation

import (
	"slices"
	"strconv"
	"time"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
)

// appendage is the command that adds messages at the end, all or none.
type appendage struct {
	Conversation string
	Messages     []message
	// Member is who must be one, "" where it is weir that writes.
	Member string
	// ExpectedHead is the head that the author saw, nil for any.
	ExpectedHead *int64
	origin       origin
	// found is what was read for ids that the state says are taken, by position.
	found map[int64]stored
	// inherited holds the ids, of those the command names, that are in the shared
	// past of a fork; nil where nobody looked yet.
	inherited map[string]bool
}

// stored is what the journal says of a message under a taken id.
type stored struct {
	ID          string
	Fingerprint fingerprint
}

// origin is how messages come about.
type origin int

const (
	// said: members' own words.
	said origin = iota
	// called: a member invoked an operation, or a person is asked whether it may.
	called
	// told: weir tells what became of something that is shown already.
	told
	// imported: they were said elsewhere.
	imported
)

// originRules are what origins differ in.
type originRules struct {
	// chosenID: somebody chose the id, so the same id may come with other content.
	// Weir's own ids name one thing that happened.
	chosenID bool
	// counted: needs a place below maxMessages.
	counted bool
	// beforeEnd: a conversation that is closed or archived takes it no more.
	beforeEnd bool
	// unpaused: nor does one that waits for somebody.
	unpaused bool
	// paired: a result must name a call that is open. Weir's own results name their
	// call by what they reply to, and an import may have lost a call to an erasure.
	paired bool
}

func (o origin) rules() originRules {
	return [...]originRules{
		said:     {chosenID: true, counted: true, beforeEnd: true, unpaused: true, paired: true},
		called:   {counted: true, beforeEnd: true},
		told:     {},
		imported: {chosenID: true, counted: true},
	}[o]
}

// lookup is the refusal of a decision that must know more first: what the journal
// holds at a position, or, with position 0, which ids the shared past holds.
type lookup struct{ position int64 }

// Error is never seen: who decides again answers it.
func (lookup) Error() string { return "something must be looked up first" }

// decideAppend adds the messages that are not there yet.
func decideAppend(c conversation, cmd appendage, now time.Time) (*conversationv1.Event, error) {
	rules := cmd.origin.rules()
	if !c.exists() || cmd.Member != "" && !c.isMember(cmd.Member) {
		return nil, errConversationNotFound
	}
	if len(c.Ancestors) > 0 && cmd.inherited == nil {
		return nil, lookup{}
	}
	fresh, err := c.fresh(cmd, rules)
	if err != nil || len(fresh) == 0 {
		return nil, err
	}
	if rules.beforeEnd && c.State != open {
		return nil, c.hasEnded()
	}
	if rules.unpaused {
		if err := c.takesWords(); err != nil {
			return nil, err
		}
	}
	if cmd.ExpectedHead != nil && *cmd.ExpectedHead != c.Head {
		return nil, fault.New(fault.HeadMoved, "the head is %d, the request expects %d", c.Head, *cmd.ExpectedHead).
			With("head", strconv.FormatInt(c.Head, 10))
	}
	if rules.counted && c.Head+int64(len(fresh)) > maxMessages {
		return nil, fault.New(fault.ConversationFull, "a conversation holds at most %d messages", maxMessages).
			With("limit", strconv.Itoa(maxMessages))
	}
	event := &conversationv1.MessagesAppended{ConversationId: cmd.Conversation, FirstPosition: c.Head + 1}
	// Each is looked at as if those before it were in.
	after, names := c.root, cmd.names()
	for i, m := range fresh {
		position := c.Head + 1 + int64(i)
		if err := c.checkReference(m, names[:slices.Index(names, m.ID)], cmd.inherited); err != nil {
			return nil, err
		}
		if err := after.check(m, position, rules); err != nil {
			return nil, err
		}
		appended := m.appended(m.Addressed)
		if cmd.origin == said {
			if appended.Addressed, err = after.address(m, position); err != nil {
				return nil, err
			}
		}
		event.Messages = append(event.Messages, appended)
		after = after.heard(position, appended, now)
	}
	return &conversationv1.Event{Actor: fresh[0].Author, Event: &conversationv1.Event_MessagesAppended{MessagesAppended: event}}, nil
}

func (cmd appendage) names() []string {
	names := make([]string, len(cmd.Messages))
	for i, m := range cmd.Messages {
		names[i] = m.ID
	}
	return names
}

// takesWords refuses what members say where the conversation waits or has ended.
func (r root) takesWords() error {
	if r.State != open {
		return r.hasEnded()
	}
	if len(r.Pauses) > 0 {
		p := r.Pauses[0]
		return fault.New(fault.ConversationPaused, "the conversation waits for a person to decide on %s", p.Operation).
			With("approval_id", p.Approval)
	}
	return nil
}

func (r root) hasEnded() error {
	return fault.New(fault.ConversationClosed, "the conversation is %s", stateNames[r.State]).
		With("state", stateNames[r.State])
}

// fresh gives the messages that are not there yet: all, or none, but of weir's own
// and of an import's also some.
func (c conversation) fresh(cmd appendage, rules originRules) ([]message, error) {
	var fresh []message
	for i, m := range cmd.Messages {
		if slices.ContainsFunc(cmd.Messages[:i], func(o message) bool { return o.ID == m.ID }) {
			return nil, fault.New(fault.FieldInvalid, "two of the messages have the same id").
				Field(m.field+"message_id", "stands there twice")
		}
		taken := cmd.inherited[m.ID]
		if position, known := c.ids.find(hashID(m.ID)); known && !taken {
			it, read := cmd.found[position]
			switch {
			case !rules.chosenID:
				continue
			case !read:
				return nil, lookup{position}
			case it.ID == m.ID && it.Fingerprint == m.fingerprint:
				continue
			}
			taken = true
		}
		if taken {
			return nil, fault.New(fault.IdempotencyMismatch, "the message id is taken by other content").
				Field(m.field+"message_id", "names a message with another author or content")
		}
		fresh = append(fresh, m)
	}
	if cmd.origin == said && len(fresh) > 0 && len(fresh) < len(cmd.Messages) {
		return nil, fault.New(fault.IdempotencyMismatch, "some of the messages are there already, without the others").
			Field(fresh[0].field+"message_id", "is not there yet")
	}
	return fresh, nil
}

// checkReference refuses an answer to nothing: what a message replies to is in the
// conversation, in its shared past, or before it in the command.
func (c conversation) checkReference(m message, before []string, inherited map[string]bool) error {
	if m.ReplyTo == "" || inherited[m.ReplyTo] || slices.Contains(before, m.ReplyTo) {
		return nil
	}
	if _, known := c.ids.find(hashID(m.ReplyTo)); known {
		return nil
	}
	return errMessageNotFound.Field(m.field+"reply_to", "names no message of this conversation")
}

// check refuses a message that does not fit what is open.
func (r root) check(m message, position int64, rules originRules) error {
	for i, p := range m.Parts {
		field := partField(m.field, i)
		switch part := p.GetPart().(type) {
		case *conversationv1.Part_Call:
			key := callKey{part.Call.GetInvocationId(), part.Call.GetCallId()}
			if r.isOpen(key) {
				return fault.New(fault.FieldInvalid, "a call of that id is open").
					Field(field+".call.call_id", "names a call that has no result yet")
			}
			if len(r.Calls) >= maxOpenCalls {
				return fault.New(fault.LimitReached, "a conversation has at most %d open calls", maxOpenCalls).
					With("limit", strconv.Itoa(maxOpenCalls))
			}
			r.Calls = append(slices.Clone(r.Calls), openCall{callKey: key})
		case *conversationv1.Part_Result:
			key := callKey{part.Result.GetInvocationId(), part.Result.GetCallId()}
			if rules.paired && !r.isOpen(key) {
				return fault.New(fault.CallNotFound, "no call of that id is open").
					Field(field+".result.call_id", "names no open call of this conversation")
			}
			r.Calls = without(r.Calls, func(c openCall) bool { return c.callKey == key })
		case *conversationv1.Part_Approval:
			if part.Approval.GetState() == pending && len(r.Pauses) >= maxPauses {
				return fault.New(fault.LimitReached, "a conversation waits for at most %d approvals", maxPauses).
					With("limit", strconv.Itoa(maxPauses))
			}
		}
	}
	if m.Pinned && len(r.Pinned) >= maxPinned {
		return fault.New(fault.LimitReached, "a conversation has at most %d pinned messages", maxPinned).
			Field(m.field+"pinned", "is one too many").With("limit", strconv.Itoa(maxPinned))
	}
	if s := m.Summarizes; s != nil {
		if s.GetLast() >= position {
			return fault.New(fault.FieldInvalid, "a summary stands for earlier messages").
				Field(m.field+"summarizes.last", "must be below the summary's own position, "+strconv.FormatInt(position, 10))
		}
		if i := slices.IndexFunc(r.Calls, func(c openCall) bool { return c.Position >= s.GetFirst() && c.Position <= s.GetLast() }); i >= 0 {
			return parted(m.field)
		}
		if len(r.Summaries) >= maxSummaries {
			return fault.New(fault.LimitReached, "a conversation has at most %d summaries", maxSummaries).
				Field(m.field+"summarizes", "is one too many").With("limit", strconv.Itoa(maxSummaries))
		}
	}
	return nil
}

func (r root) isOpen(key callKey) bool {
	return slices.ContainsFunc(r.Calls, func(c openCall) bool { return c.callKey == key })
}

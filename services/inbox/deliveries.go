package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	conversationv1 "weir/gen/conversation/v1"
	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

// deliveredPrefix begins the ids of messages that come from conversations, and
// workPrefix of those about dispatched work. No sender can choose such an id:
// whoever did so first would keep the true message out.
const (
	deliveredPrefix = "said-"
	workPrefix      = "work-"
)

var ownPrefixes = []string{deliveredPrefix, workPrefix}

// checkChosenID refuses ids that are not for senders to choose.
func checkChosenID(field, id string) error {
	for _, own := range ownPrefixes {
		if strings.HasPrefix(id, own) {
			return fault.New(fault.IDMalformed, "ids that begin with %s are those of weir's own messages", own).
				Field(field, "must not begin with "+own)
		}
	}
	return nil
}

// deliveries brings what is said to agents in conversations into their inboxes.
type deliveries struct {
	consumer *journal.Consumer
	inboxes  *inboxLoop
	rules    rules
}

func (d *deliveries) run(ctx context.Context) error { return d.consumer.Run(ctx, d.handle) }

// Of a conversation's events these address agents: what is said, and what hands a
// message to the next member of a group that another one left.
var (
	messagesAppended    = aggregate.TypeOf(&conversationv1.MessagesAppended{})
	groupMembersChanged = aggregate.TypeOf(&conversationv1.GroupMembersChanged{})
)

// handle enqueues what one event asks for. It fails unless everything is in,
// and the event comes again: a full inbox makes its message wait in the
// conversation's stream. One full inbox doesn't keep the message from others.
func (d *deliveries) handle(ctx context.Context, e journal.Event) error {
	if e.Type != messagesAppended && e.Type != groupMembersChanged {
		return nil
	}
	heard, err := aggregate.Decode[*conversationv1.Event](e)
	if err != nil {
		return err
	}
	appended, changed := heard.Event.GetMessagesAppended(), heard.Event.GetGroupMembersChanged()
	first := appended.GetFirstPosition() + changed.GetFirstPosition()
	var failed []error
	for i, said := range append(appended.GetMessages(), changed.GetMessages()...) {
		failed = append(failed, d.deliver(ctx, e.Key.Tenant, e.Key.ID, first+int64(i), said))
	}
	return errors.Join(failed...)
}

// deliver enqueues one message for each agent that it addresses.
func (d *deliveries) deliver(ctx context.Context, tenant, conversation string, position int64, said *conversationv1.AppendedMessage) error {
	addressed := addressedAgents(said)
	if len(addressed) == 0 || said.CreateTime != nil {
		return nil // what has a time of its own was said elsewhere, and imported
	}
	body, err := json.Marshal(delivered{
		ConversationID: conversation, MessageID: said.GetMessageId(), Position: position, Author: said.GetAuthor(),
	})
	if err != nil {
		return fault.New(fault.Bug, "a message cannot be written as JSON").Wrap(err)
	}
	var failed []error
	for _, goal := range addressed {
		failed = append(failed, enqueueOwn(ctx, d.inboxes, inboxKey(tenant, goal), d.rules, originOf(said.GetAuthor(), said), newMessage{
			ID:           deliveredID(conversation, said.GetMessageId()),
			Body:         string(body),
			Conversation: conversation,
		}))
	}
	return errors.Join(failed...)
}

// enqueueOwn enqueues a message of weir's own about a conversation, from who acted there.
func enqueueOwn(ctx context.Context, inboxes *inboxLoop, to journal.Key, r rules, from origin, m newMessage) error {
	m.Correlation, m.Policy = m.Conversation, inboxv1.BusyPolicy_BUSY_POLICY_ENQUEUE
	_, _, err := makingRoom(ctx, inboxes, to, decideEnqueue, enqueue{Goal: to.ID, Sender: from, Rules: r, Messages: []newMessage{m}})
	// Nobody else has such ids, so other content is this very message as another
	// version of weir wrote it down: it is there.
	if fault.Is(err, fault.IdempotencyMismatch) {
		return nil
	}
	return err
}

// addressedAgents are the goals that a message goes to. What an agent says to
// itself it knows already.
func addressedAgents(said *conversationv1.AppendedMessage) []string {
	var goals []string
	for _, to := range said.GetAddressed() {
		kind, name, err := identity.ParseSubject(to)
		if err == nil && kind == identity.Agent && to != said.GetAuthor() && !slices.Contains(goals, name) {
			goals = append(goals, name)
		}
	}
	return goals
}

// deliveredID is the same each time that an event is heard. The zero byte keeps
// pairs of ids apart; no id holds one.
func deliveredID(conversation, message string) string {
	sum := sha256.Sum256([]byte(conversation + "\x00" + message))
	return deliveredPrefix + base64.RawURLEncoding.EncodeToString(sum[:])
}

// delivered is the body of a message from a conversation: where it is, and none of
// what it says. So what is erased from a conversation is in no inbox either, and who
// reads it there still may.
type delivered struct {
	ConversationID string `json:"conversation_id"`
	MessageID      string `json:"message_id"`
	Position       int64  `json:"position"`
	Author         string `json:"author"`
}

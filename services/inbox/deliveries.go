package inbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

// deliveredPrefix begins the ids of messages that come from conversations. No
// sender can choose such an id: whoever did so first would keep the true
// message out.
const deliveredPrefix = "said-"

// checkChosenID refuses ids that are not for senders to choose.
func checkChosenID(id string) error {
	if !strings.HasPrefix(id, deliveredPrefix) {
		return nil
	}
	return fault.New(fault.IDMalformed, "ids that begin with %s are those of messages from conversations", deliveredPrefix).
		Field("message_id", "must not begin with "+deliveredPrefix)
}

// deliveries brings what is said to agents in conversations into their inboxes.
type deliveries struct {
	consumer *journal.Consumer
	inboxes  *inboxLoop
	limit    int
}

func (d *deliveries) run(ctx context.Context) error { return d.consumer.Run(ctx, d.handle) }

var messageAppended = string((&conversationv1.MessageAppended{}).ProtoReflect().Descriptor().FullName())

// handle enqueues what one event asks for. It fails unless everything is in,
// and the event comes again: a full inbox makes its message wait in the
// conversation's stream. One full inbox doesn't keep the message from others.
func (d *deliveries) handle(ctx context.Context, e journal.Event) error {
	if e.Type != messageAppended {
		return nil
	}
	heard, err := aggregate.Decode[*conversationv1.Event](e)
	if err != nil {
		return err
	}
	said := heard.Event.GetMessageAppended()
	addressed := addressedAgents(said)
	if len(addressed) == 0 {
		return nil
	}
	body, err := deliveredBody(said)
	if err != nil {
		return fault.New(fault.Bug, "a message cannot be written as JSON").Wrap(err)
	}
	var failed []error
	for _, goal := range addressed {
		_, _, err := do(ctx, d.inboxes, inboxKey(e.Key.Tenant, goal), decideEnqueue, enqueue{
			Goal:        goal,
			ID:          deliveredID(said.GetConversationId(), said.GetMessageId()),
			Sender:      said.GetAuthor(),
			Body:        body,
			Correlation: said.GetConversationId(),
			Limit:       d.limit,
		})
		// Only deliveries have such ids, so other content is this very message
		// as another version of weir wrote it down: it has been delivered.
		if err != nil && !fault.Is(err, fault.IdempotencyMismatch) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// addressedAgents are the goals that a message goes to. What an agent says to
// itself it knows already.
func addressedAgents(said *conversationv1.MessageAppended) []string {
	var goals []string
	for _, to := range said.GetTo() {
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

// delivered is the body of a message from a conversation.
type delivered struct {
	ConversationID string `json:"conversation_id"`
	MessageID      string `json:"message_id"`
	Position       int64  `json:"position"`
	Author         string `json:"author"`
	// Text is the text parts, one below the other.
	Text string `json:"text"`
	// LeftOut says what the conversation has of this message beyond the text.
	LeftOut *leftOut `json:"left_out,omitempty"`
}

type leftOut struct {
	// TextBytes is the size of a text that was too large for an inbox.
	TextBytes int `json:"text_bytes,omitempty"`
	// Parts is how many parts are no text.
	Parts int `json:"parts,omitempty"`
}

func deliveredBody(said *conversationv1.MessageAppended) (string, error) {
	d := delivered{
		ConversationID: said.GetConversationId(),
		MessageID:      said.GetMessageId(),
		Position:       said.GetPosition(),
		Author:         said.GetAuthor(),
	}
	var texts []string
	for _, part := range said.GetParts() {
		if text, ok := part.GetPart().(*conversationv1.Part_Text); ok {
			texts = append(texts, text.Text)
		}
	}
	d.Text = strings.Join(texts, "\n")
	if others := len(said.GetParts()) - len(texts); others > 0 {
		d.LeftOut = &leftOut{Parts: others}
	}
	body, err := compact(d)
	if err != nil || len(body) <= maxBody {
		return body, err
	}
	if d.LeftOut == nil {
		d.LeftOut = &leftOut{}
	}
	d.LeftOut.TextBytes, d.Text = len(d.Text), ""
	return compact(d)
}

// compact writes JSON as it is read by programs: < and & stay themselves.
func compact(v any) (string, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return "", err
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

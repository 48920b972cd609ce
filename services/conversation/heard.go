package conversation

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/backend"
	"weir/internal/fault"
	"weir/internal/journal"
)

// teller shows in conversations what happened elsewhere. Each thing shows once,
// however often it is heard, since its message id follows from its own id.
type teller struct {
	loop   *loop
	starts starts
	log    *slog.Logger
}

func newTeller(stores *backend.Backend, l *loop) (teller, error) {
	js, err := jetstream.New(stores.NATS)
	if err != nil {
		return teller{}, err
	}
	return teller{loop: l, starts: streams{js}, log: stores.Log}, nil
}

// show appends a message that weir writes about a member, or about what is shown
// already. It is not shown where the conversation isn't there, isn't the member's, has
// ended, or takes no more.
func (t teller) show(ctx context.Context, tenant, conversationID, member string, m message) (shown bool, err error) {
	from := told
	if member != "" {
		from = called
	}
	key := journal.Key{Tenant: tenant, Kind: kindName, ID: conversationID}
	_, err = t.loop.Do(ctx, key, func(c conversation, now time.Time) (*conversationv1.Event, error) {
		return decideAppend(c, appendage{
			Conversation: conversationID, Messages: []message{m}, Member: member, origin: from,
			// Weir's own messages reply to weir's own, which no past of a fork holds.
			inherited: map[string]bool{},
		}, now)
	})
	switch fault.ReasonOf(err) {
	case fault.ConversationNotFound, fault.ConversationClosed, fault.ConversationFull, fault.LimitReached:
		t.log.Debug("not shown", "conversation", key.String(), "author", m.Author, "reason", fault.ReasonOf(err))
		return false, nil
	}
	return err == nil, err
}

// showEnd shows the end of something behind its beginning. A beginning that is not
// there was kept out; or its event failed, or is still with another replica. The
// state can't tell which, so begin looks up how it began and shows that first, or
// finds it kept out, and then so is its end. What was kept out for want of room and
// finds room now shows as a pair.
func (t teller) showEnd(ctx context.Context, tenant, conversationID string, end message, begin func() (bool, error)) error {
	_, err := t.show(ctx, tenant, conversationID, "", end)
	if !fault.Is(err, fault.MessageNotFound) {
		return err
	}
	if shown, err := begin(); !shown {
		return err
	}
	_, err = t.show(ctx, tenant, conversationID, "", end)
	return err
}

// starts finds the first event of another service's aggregate.
type starts interface {
	start(ctx context.Context, service string, key journal.Key) (journal.Event, error)
}

// streams reads other services' events directly, from where a consumer may be past.
type streams struct{ js jetstream.JetStream }

func (s streams) start(ctx context.Context, service string, key journal.Key) (journal.Event, error) {
	stream, err := s.js.Stream(ctx, journal.StreamName(service))
	if err != nil {
		return journal.Event{}, fmt.Errorf("the beginning of %s: %w", key, err)
	}
	first, err := stream.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(key.Subject(service)))
	if err != nil {
		return journal.Event{}, fmt.Errorf("the beginning of %s: %w", key, err)
	}
	return journal.Event{Key: key, Data: first.Data, Sequence: first.Sequence}, nil
}

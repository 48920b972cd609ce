package conversation

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/identity"
	"weir/internal/journal"
)

// draftLimits bound what is being written in one conversation.
var draftLimits = hot.DraftLimits{Drafts: 16, Bytes: maxMessageBytes, Kept: 10 * time.Minute}

// drafts keeps what is being written and tells it to who tails the conversation.
// Nothing of it is in the journal: the message that is written in the end is.
type drafts struct {
	history *history
	hot     *hot.Store
	nats    *nats.Conn
	log     *slog.Logger
}

// liveSubject is where deltas of a conversation are published by plain NATS. No
// stream listens there.
func liveSubject(key journal.Key) string { return key.Subject("live") }

// add adds a piece to a draft and gives its length.
func (d *drafts) add(ctx context.Context, key journal.Key, caller identity.Caller, delta *conversationv1.Delta) (int64, error) {
	if strings.HasPrefix(delta.GetMessageId(), reservedPrefix) {
		return 0, fault.New(fault.IDMalformed, "the message id is one of weir's own").
			Field("message_id", "must not begin with "+reservedPrefix)
	}
	s, err := d.history.loop.Newest(ctx, key)
	if err != nil {
		return 0, err
	}
	c := s.State
	if !c.exists() || !c.isMember(caller.Subject) {
		return 0, errConversationNotFound
	}
	if _, landed := c.ids.find(hashID(delta.GetMessageId())); landed {
		return 0, fault.New(fault.AlreadyExists, "the message has been appended").
			Field("message_id", "names a message that is there")
	}
	if err := c.takesWords(); err != nil {
		return 0, err
	}
	length, err := d.hot.AppendDraft(ctx, key, hot.Draft{ID: delta.GetMessageId(), Author: delta.GetAuthor(), Text: delta.GetText()},
		delta.GetOffset(), draftLimits)
	if err != nil {
		return 0, err
	}
	data, err := proto.Marshal(delta)
	if err != nil {
		return 0, fault.New(fault.Bug, "a delta cannot be encoded").Wrap(err)
	}
	// One that is lost is found in the draft by whoever misses it.
	if err := d.nats.Publish(liveSubject(key), data); err != nil {
		d.log.Debug("a delta was not published", "conversation", key.String(), "error", err)
	}
	return length, nil
}

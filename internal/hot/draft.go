package hot

import (
	"context"
	_ "embed"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"weir/internal/fault"
	"weir/internal/journal"
)

//go:embed draft.lua
var draftSource string

var draftScript = redis.NewScript(draftSource)

// Draft is text that somebody is still writing. It is in Redis alone: what is lost
// with it, its author writes again.
type Draft struct {
	ID     string
	Author string
	Text   string
}

// DraftLimits bound the drafts of one aggregate.
type DraftLimits struct {
	Drafts int
	Bytes  int
	// Kept is how long one lasts after its last addition.
	Kept time.Duration
}

func (s *Store) draftKeys(key journal.Key) (index, prefix string) {
	document := s.documentKey(key)
	return document + ":drafts", document + ":draft:"
}

// AppendDraft adds text to a draft and gives its length after it. Text that is
// there already, by its offset, is not added again.
//
// Errors: OFFSET_MISMATCH with metadata length, LIMIT_REACHED, TOO_LARGE,
// ALREADY_EXISTS (another author's), HOT_UNAVAILABLE.
func (s *Store) AppendDraft(ctx context.Context, key journal.Key, d Draft, offset int64, limits DraftLimits) (length int64, err error) {
	if err := s.resting(); err != nil {
		return 0, err
	}
	index, prefix := s.draftKeys(key)
	reply, err := draftScript.Run(ctx, s.client, []string{index, prefix + d.ID},
		d.ID, d.Author, offset, d.Text, limits.Drafts, limits.Bytes, limits.Kept.Milliseconds(), prefix).Int64Slice()
	if err := s.check(ctx, err); err != nil {
		return 0, err
	}
	if len(reply) != 2 {
		return 0, fault.New(fault.Bug, "a script answered %v", reply)
	}
	switch reply[0] {
	case 1:
		return 0, fault.New(fault.OffsetMismatch, "the draft has %d bytes, the request goes on behind %d", reply[1], offset).
			Field("offset", "is not the draft's length").With("length", strconv.FormatInt(reply[1], 10))
	case 2:
		return 0, fault.New(fault.LimitReached, "at most %d drafts are written at once", limits.Drafts).
			With("limit", strconv.Itoa(limits.Drafts))
	case 3:
		return 0, fault.New(fault.TooLarge, "a draft holds at most %d bytes", limits.Bytes).
			Field("text", "makes the draft too long").With("limit", strconv.Itoa(limits.Bytes))
	case 4:
		return 0, fault.New(fault.AlreadyExists, "somebody else writes under this id").
			Field("message_id", "is taken by another author's draft")
	}
	return reply[1], nil
}

// Drafts gives the drafts of an aggregate.
func (s *Store) Drafts(ctx context.Context, key journal.Key) ([]Draft, error) {
	if err := s.resting(); err != nil {
		return nil, err
	}
	index, prefix := s.draftKeys(key)
	authors, err := s.shared.HGetAll(ctx, index).Result()
	if err := s.check(ctx, err); err != nil {
		return nil, err
	}
	var drafts []Draft
	for id, author := range authors {
		text, err := s.shared.Get(ctx, prefix+id).Result()
		if errors.Is(err, redis.Nil) {
			continue // it ran out
		}
		if err := s.check(ctx, err); err != nil {
			return nil, err
		}
		drafts = append(drafts, Draft{ID: id, Author: author, Text: text})
	}
	return drafts, nil
}

// DropDrafts removes the drafts of an aggregate.
func (s *Store) DropDrafts(ctx context.Context, key journal.Key) error {
	if err := s.resting(); err != nil {
		return err
	}
	index, prefix := s.draftKeys(key)
	ids, err := s.shared.HKeys(ctx, index).Result()
	if err := s.check(ctx, err); err != nil {
		return err
	}
	keys := []string{index}
	for _, id := range ids {
		keys = append(keys, prefix+id)
	}
	return s.check(ctx, s.shared.Del(ctx, keys...).Err())
}

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

// ErrMoved says that Redis shows a newer version of an aggregate than the one that
// allowed an addition to a draft.
var ErrMoved = errors.New("the aggregate has a newer version")

// AppendDraft adds text to a draft and gives its length after it. Text that is
// there already, by its offset, is not added again; other text with offset 0 begins
// the draft anew. The version is that of the aggregate as it was when somebody
// decided that a draft may be written: what Redis shows to be newer must be looked
// at again, so nothing is added behind the back of an erasure.
//
// Errors: ErrMoved, OFFSET_MISMATCH with metadata length, LIMIT_REACHED, TOO_LARGE,
// ALREADY_EXISTS (another author's), HOT_UNAVAILABLE.
func (s *Store) AppendDraft(ctx context.Context, key journal.Key, version uint64, d Draft, offset int64, limits DraftLimits) (length int64, err error) {
	if err := s.resting(); err != nil {
		return 0, err
	}
	index, prefix := s.draftKeys(key)
	reply, err := draftScript.Run(ctx, s.client, []string{index, prefix + d.ID, s.documentKey(key)},
		d.ID, d.Author, offset, d.Text, limits.Drafts, limits.Bytes, limits.Kept.Milliseconds(), prefix, version).Int64Slice()
	if err := s.check(ctx, err); err != nil {
		return 0, err
	}
	if len(reply) != 2 {
		return 0, fault.New(fault.Bug, "a script answered %v", reply)
	}
	switch reply[0] {
	case 1:
		return 0, fault.New(fault.OffsetMismatch, "the draft has %d bytes, the request does not go on from there at %d", reply[1], offset).
			Field("offset", "is not the draft's length, or the text differs from what is there").With("length", strconv.FormatInt(reply[1], 10))
	case 2:
		return 0, fault.New(fault.LimitReached, "at most %d drafts are written at once", limits.Drafts).
			With("limit", strconv.Itoa(limits.Drafts))
	case 3:
		return 0, fault.New(fault.TooLarge, "a draft holds at most %d bytes", limits.Bytes).
			Field("text", "makes the draft too long").With("limit", strconv.Itoa(limits.Bytes))
	case 4:
		return 0, fault.New(fault.AlreadyExists, "somebody else writes under this id").
			Field("message_id", "is taken by another author's draft")
	case 5:
		return 0, ErrMoved
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
	texts := make(map[string]*redis.StringCmd, len(authors))
	for id := range authors {
		texts[id] = s.shared.Get(ctx, prefix+id)
	}
	var drafts []Draft
	for id, text := range texts {
		got, err := text.Result()
		if errors.Is(err, redis.Nil) {
			continue // it ended, or ran out
		}
		if err := s.check(ctx, err); err != nil {
			return nil, err
		}
		drafts = append(drafts, Draft{ID: id, Author: authors[id], Text: got})
	}
	return drafts, nil
}

// EndDrafts removes drafts of an aggregate, and does not wait for it: one that stays
// because Redis failed runs out by itself.
func (s *Store) EndDrafts(ctx context.Context, key journal.Key, ids []string) {
	if s.resting() != nil {
		return
	}
	_, prefix := s.draftKeys(key)
	for _, id := range ids {
		s.shared.Unlink(ctx, prefix+id)
	}
}

// DropDrafts removes all drafts of an aggregate. Where Redis shows the version that
// ended them, none comes after it.
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

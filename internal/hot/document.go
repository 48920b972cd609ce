package hot

import (
	"context"
	_ "embed"
	"strconv"

	"github.com/redis/go-redis/v9"

	"weir/internal/fault"
	"weir/internal/journal"
)

// Reserved fields of a document's hash. No field of a state starts with a dot.
const (
	// fieldVersion is the version that the document shows.
	fieldVersion = ".version"
	// fieldFloor says that the document was dropped because an event was missing
	// in between: it must be loaded again, at this version or a newer one. It
	// keeps a slow replica from putting back what is older.
	fieldFloor = ".floor"
	// fieldUnreadable says that somebody could not decode the document. Nothing
	// writes over it any more, until an operator deletes the key.
	fieldUnreadable = ".unreadable"
)

// Change is what one event changes in its aggregate's document.
type Change struct {
	Set map[string][]byte
	Del []string
}

// Document is an aggregate as Redis holds it.
type Document struct {
	// Version is 0 when Redis does not have it, which says nothing about
	// whether it exists: ask the journal.
	Version uint64
	Fields  map[string]string
}

// Applied says what became of a write.
type Applied int

const (
	// Written: the document shows the version now.
	Written Applied = iota
	// Newer: the document shows this version or a newer one already.
	Newer
	// Gap: events in between are missing. The document was dropped; put it
	// whole.
	Gap
)

//go:embed apply.lua
var applySource string

//go:embed put.lua
var putSource string

var (
	applyScript = redis.NewScript(applySource)
	putScript   = redis.NewScript(putSource)
)

func (s *Store) documentKey(key journal.Key) string {
	return s.prefix + "{" + key.Escaped() + "}"
}

// Read gives the document of an aggregate: all fields, or only the named ones.
func (s *Store) Read(ctx context.Context, key journal.Key, fields ...string) (Document, error) {
	if err := s.resting(); err != nil {
		return Document{}, err
	}
	redisKey := s.documentKey(key)
	var all map[string]string
	var err error
	if len(fields) == 0 {
		all, err = s.shared.HGetAll(ctx, redisKey).Result()
	} else {
		all, err = s.readFields(ctx, redisKey, fields)
	}
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return Document{}, unreadable(key).Wrap(err)
	}
	if err := s.check(ctx, err); err != nil {
		return Document{}, err
	}
	if len(all) == 0 || all[fieldFloor] != "" {
		return Document{}, nil
	}
	version, err := strconv.ParseUint(all[fieldVersion], 10, 64)
	if err != nil || all[fieldUnreadable] != "" {
		return Document{}, unreadable(key).Wrap(err)
	}
	delete(all, fieldVersion)
	return Document{Version: version, Fields: all}, nil
}

// ReadSettled is Read for who takes the answer for the present. While the epoch
// is not complete, a document may show the past, as far as the projector has
// got; then there is none.
func (s *Store) ReadSettled(ctx context.Context, key journal.Key, fields ...string) (Document, error) {
	if err := s.resting(); err != nil {
		return Document{}, err
	}
	// Asked before the document, in the same pipeline: a document that is read
	// after its epoch was complete shows the present.
	epoch := s.shared.HMGet(ctx, s.epochKey(), epochID, epochComplete)
	document, err := s.Read(ctx, key, fields...)
	if err != nil {
		return Document{}, err
	}
	values, err := epoch.Result()
	if err := s.check(ctx, err); err != nil {
		return Document{}, err
	}
	if values[1] == nil {
		return Document{}, nil
	}
	return document, nil
}

func (s *Store) readFields(ctx context.Context, redisKey string, fields []string) (map[string]string, error) {
	names := append([]string{fieldVersion, fieldFloor, fieldUnreadable}, fields...)
	values, err := s.shared.HMGet(ctx, redisKey, names...).Result()
	if err != nil {
		return nil, err
	}
	out := make(map[string]string, len(names))
	for i, value := range values {
		if text, ok := value.(string); ok {
			out[names[i]] = text
		}
	}
	return out, nil
}

// MarkUnreadable keeps the bytes of a document that could not be decoded: from
// now on nothing writes over them.
func (s *Store) MarkUnreadable(ctx context.Context, key journal.Key) error {
	return s.check(ctx, s.shared.HSet(ctx, s.documentKey(key), fieldUnreadable, "1").Err())
}

// DropUnreadable removes a document that was marked so, for who must leave no bytes
// of it.
func (s *Store) DropUnreadable(ctx context.Context, key journal.Key) error {
	if err := s.resting(); err != nil {
		return err
	}
	redisKey := s.documentKey(key)
	marked, err := s.shared.HExists(ctx, redisKey, fieldUnreadable).Result()
	if err == nil && marked {
		err = s.shared.Del(ctx, redisKey).Err()
	}
	return s.check(ctx, err)
}

func (s *Store) applyCommand(ctx context.Context, key journal.Key, from, to uint64, change Change) *redis.Cmd {
	args := make([]any, 0, 3+len(change.Del)+2*len(change.Set))
	args = append(args, from, to, len(change.Del))
	for _, field := range change.Del {
		args = append(args, field)
	}
	for field, value := range change.Set {
		args = append(args, field, value)
	}
	return applyScript.EvalSha(ctx, s.shared, []string{s.documentKey(key)}, args...)
}

func (s *Store) putCommand(ctx context.Context, key journal.Key, version uint64, fields map[string][]byte) *redis.Cmd {
	args := make([]any, 0, 1+2*len(fields))
	args = append(args, version)
	for field, value := range fields {
		args = append(args, field, value)
	}
	return putScript.EvalSha(ctx, s.shared, []string{s.documentKey(key)}, args...)
}

func unreadable(key journal.Key) *fault.Error {
	return fault.New(fault.DocumentUnreadable, "the stored document of this %s cannot be read", key.Kind)
}

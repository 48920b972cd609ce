package hot

import (
	"context"
	"strconv"

	"github.com/redis/go-redis/v9"

	"weir/internal/journal"
)

// Refresh writes what one event changed, in the document and in the indexes, in
// one round trip that concurrent callers share.
func (s *Store) Refresh(ctx context.Context, key journal.Key, from, to uint64, change Change, row Row) (Applied, error) {
	replies, err := s.run(ctx, func() []*redis.Cmd {
		return append(s.rowCommands(ctx, key, to, row), s.applyCommand(ctx, key, from, to, change))
	})
	if err != nil {
		return 0, err
	}
	return Applied(replies[len(replies)-1]), nil
}

// Put writes a whole document and its rows, unless Redis shows a newer one.
func (s *Store) Put(ctx context.Context, key journal.Key, version uint64, fields map[string][]byte, row Row) error {
	_, err := s.run(ctx, func() []*redis.Cmd {
		return append(s.rowCommands(ctx, key, version, row), s.putCommand(ctx, key, version, fields))
	})
	return err
}

// Drop leaves a floor in place of a document older than a version, so that
// whoever reads it asks the journal.
func (s *Store) Drop(ctx context.Context, key journal.Key, version uint64) error {
	_, err := s.run(ctx, func() []*redis.Cmd {
		return []*redis.Cmd{s.applyCommand(ctx, key, noVersion, version, Change{})}
	})
	return err
}

// noVersion is one that no document shows.
const noVersion = 1<<53 - 1

// Shows says whether the document and the indexes show an aggregate at this
// version or a newer one.
func (s *Store) Shows(ctx context.Context, key journal.Key, version uint64, hasDue bool) (bool, error) {
	if err := s.resting(); err != nil {
		return false, err
	}
	document := s.shared.HMGet(ctx, s.documentKey(key), fieldVersion, fieldFloor, fieldUnreadable)
	rows := []*redis.StringCmd{s.shared.HGet(ctx, s.listPartition(key.Tenant, key.Kind)+"rows", key.ID)}
	if hasDue {
		member := key.Escaped()
		rows = append(rows, s.shared.HGet(ctx, s.duePartition(key.Kind, shardOf(member))+"rows", member))
	}
	fields, err := document.Result()
	if err := s.check(ctx, err); err != nil {
		return false, err
	}
	shown := fields[1] == nil && atLeast(fields[0], version) || fields[2] != nil
	for _, row := range rows {
		text, err := row.Result()
		if err := s.check(ctx, err); err != nil {
			return false, err
		}
		shown = shown && atLeast(text, version)
	}
	return shown, nil
}

// atLeast reads the version at the start of a stored value.
func atLeast(value any, version uint64) bool {
	text, _ := value.(string)
	end := 0
	for end < len(text) && '0' <= text[end] && text[end] <= '9' {
		end++
	}
	shown, err := strconv.ParseUint(text[:end], 10, 64)
	return err == nil && shown >= version
}

// run sends commands that call scripts by their hash, and loads the scripts
// where Redis does not know them, as after a restart.
func (s *Store) run(ctx context.Context, commands func() []*redis.Cmd) ([]int, error) {
	if err := s.resting(); err != nil {
		return nil, err
	}
	replies, err := collect(commands())
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		for _, script := range []*redis.Script{applyScript, putScript, rowScript} {
			if err := script.Load(ctx, s.client).Err(); err != nil {
				return nil, s.check(ctx, err)
			}
		}
		replies, err = collect(commands())
	}
	return replies, s.check(ctx, err)
}

// collect waits for all commands and gives the first error.
func collect(commands []*redis.Cmd) ([]int, error) {
	replies := make([]int, len(commands))
	var first error
	for i, cmd := range commands {
		reply, err := cmd.Int()
		if err != nil && first == nil {
			first = err
		}
		replies[i] = reply
	}
	return replies, first
}

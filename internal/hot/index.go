package hot

import (
	"context"
	_ "embed"
	"encoding/base64"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"weir/internal/fault"
	"weir/internal/journal"
)

// dueShards spreads deadlines over the slots of a Redis Cluster. Changing it
// orphans what is stored; flush Redis then.
const dueShards = 16

// Entry puts an aggregate into one of its tenant's lists. Lists are ordered by
// score. Scores of lists that are paged are stream sequences, so no two are
// equal; those of a Window are times.
type Entry struct {
	Set   string
	Score uint64
}

// Row is where one version of an aggregate stands in the indexes. It replaces
// the row of any older version whole, so the order in which replicas write
// rows does not matter.
type Row struct {
	Entries []Entry
	// Due is when the aggregate wants to be looked at, zero for never.
	Due time.Time
	// HasDue says that aggregates of this kind have deadlines at all.
	HasDue bool
}

//go:embed row.lua
var rowSource string

//go:embed take.lua
var takeSource string

//go:embed postpone.lua
var postponeSource string

var (
	rowScript  = redis.NewScript(rowSource)
	takeScript = redis.NewScript(takeSource)

	postponeScript = redis.NewScript(postponeSource)
)

// partition is the part of all keys that are written together; the braces make
// it the hash tag, so that they are in one slot.
func (s *Store) listPartition(tenant, kind string) string {
	return s.prefix + "{" + journal.Escape(tenant) + "." + journal.Escape(kind) + "}:"
}

func (s *Store) duePartition(kind string, shard uint32) string {
	return s.prefix + "{due." + journal.Escape(kind) + "." + strconv.FormatUint(uint64(shard), 10) + "}:"
}

func shardOf(member string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(member))
	return h.Sum32() % dueShards
}

func (s *Store) rowCommands(ctx context.Context, key journal.Key, version uint64, row Row) []*redis.Cmd {
	partition := s.listPartition(key.Tenant, key.Kind)
	args := make([]any, 0, 3+2*len(row.Entries))
	args = append(args, key.ID, version, partition)
	for _, entry := range row.Entries {
		args = append(args, journal.Escape(entry.Set), entry.Score)
	}
	commands := []*redis.Cmd{rowScript.EvalSha(ctx, s.shared, []string{partition + "rows"}, args...)}
	if row.HasDue {
		member := key.Escaped()
		partition := s.duePartition(key.Kind, shardOf(member))
		args := []any{member, version, partition}
		if !row.Due.IsZero() {
			args = append(args, "due", row.Due.UnixMilli())
		}
		commands = append(commands, rowScript.EvalSha(ctx, s.shared, []string{partition + "rows"}, args...))
	}
	return commands
}

// List gives a page of the ids in a tenant's list and the token of the next
// page, newest score first. A token belongs to the list that it came from.
//
// It is only right once the indexes are complete: call it inside of Complete.
func (s *Store) List(ctx context.Context, tenant, kind, set string, size int, token string) ([]string, string, error) {
	if err := s.resting(); err != nil {
		return nil, "", err
	}
	key := s.listPartition(tenant, kind) + journal.Escape(set)
	start := "+inf"
	if token != "" {
		score, err := openToken(key, token)
		if err != nil {
			return nil, "", err
		}
		start = "(" + strconv.FormatUint(score, 10)
	}
	found, err := s.shared.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
		Key: key, Start: start, Stop: "-inf", ByScore: true, Rev: true, Count: int64(size) + 1,
	}).Result()
	if err := s.check(ctx, err); err != nil {
		return nil, "", err
	}
	next := ""
	if len(found) > size {
		found = found[:size]
		next = sealToken(key, uint64(found[size-1].Score))
	}
	ids := make([]string, len(found))
	for i, z := range found {
		ids[i], _ = z.Member.(string)
	}
	return ids, next, nil
}

// sealToken makes the opaque page token: where to go on, bound to its list.
func sealToken(list string, score uint64) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(list))
	text := strconv.FormatUint(uint64(h.Sum32()), 36) + "." + strconv.FormatUint(score, 36)
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

func openToken(list, token string) (uint64, error) {
	if text, err := base64.RawURLEncoding.DecodeString(token); err == nil {
		if _, tail, ok := strings.Cut(string(text), "."); ok {
			score, err := strconv.ParseUint(tail, 36, 64)
			if err == nil && sealToken(list, score) == token {
				return score, nil
			}
		}
	}
	return 0, fault.New(fault.PageTokenInvalid, "the page token is not one that this list gave").
		Field("page_token", "must be a next_page_token of the same list, unchanged")
}

// TakeDue gives aggregates of a kind whose deadline has passed, at most limit
// from each shard, and moves their deadlines to `held`: until then no other
// replica gets them, and if this one dies they come again. What the caller
// appends sets the true deadline anew.
func (s *Store) TakeDue(ctx context.Context, kind string, now, held time.Time, limit int) ([]journal.Key, error) {
	if err := s.resting(); err != nil {
		return nil, err
	}
	// Mostly nothing is due, so one round trip asks which shards have anything.
	counts := make([]*redis.IntCmd, dueShards)
	upTo := strconv.FormatInt(now.UnixMilli(), 10)
	for shard := range counts {
		counts[shard] = s.shared.ZCount(ctx, s.duePartition(kind, uint32(shard))+"due", "-inf", upTo)
	}
	var keys []journal.Key
	for shard, count := range counts {
		waiting, err := count.Result()
		if err := s.check(ctx, err); err != nil {
			return nil, err
		}
		if waiting == 0 {
			continue
		}
		due := s.duePartition(kind, uint32(shard)) + "due"
		members, err := takeScript.Run(ctx, s.client, []string{due},
			now.UnixMilli(), held.UnixMilli(), limit).StringSlice()
		if err := s.check(ctx, err); err != nil {
			return nil, err
		}
		for _, member := range members {
			key, err := journal.ParseKey(member)
			if err != nil {
				return nil, fault.New(fault.Bug, "a deadline of kind %s has no key", kind).Wrap(err)
			}
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// Postpone moves a deadline that TakeDue moved to `held`, unless it was set anew
// since.
func (s *Store) Postpone(ctx context.Context, key journal.Key, held, until time.Time) error {
	if err := s.resting(); err != nil {
		return err
	}
	member := key.Escaped()
	due := s.duePartition(key.Kind, shardOf(member)) + "due"
	return s.check(ctx, postponeScript.Run(ctx, s.client, []string{due}, member, held.UnixMilli(), until.UnixMilli()).Err())
}

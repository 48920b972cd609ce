package hot

import (
	"context"
	_ "embed"
	"encoding/base64"
	"hash/fnv"
	"slices"
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

// List is one list of a tenant. What it gives is only right once the indexes are
// complete: read it inside of Complete.
type List struct {
	store *Store
	key   string
}

// Place is where an aggregate stands in a list.
type Place struct {
	ID    string
	Score uint64
}

// List names a list.
func (s *Store) List(tenant, kind, set string) List {
	return List{store: s, key: s.listPartition(tenant, kind) + journal.Escape(set)}
}

// Choose gives the list to page through, of several that each hold all that is
// wanted, in the same order: the shortest, or that which a token came from. It
// gives also the score that the token stands for, 0 without one.
func (s *Store) Choose(ctx context.Context, token string, lists ...List) (List, uint64, error) {
	if err := s.resting(); err != nil {
		return List{}, 0, err
	}
	if token != "" {
		for _, l := range lists {
			if score, ok := l.openToken(token); ok {
				return l, score, nil
			}
		}
		return List{}, 0, fault.BadPageToken()
	}
	switch len(lists) {
	case 0:
		return List{}, 0, fault.New(fault.Bug, "a page of no list")
	case 1:
		return lists[0], 0, nil
	}
	sizes, err := s.Sizes(ctx, lists...)
	if err != nil {
		return List{}, 0, err
	}
	return lists[slices.Index(sizes, slices.Min(sizes))], 0, nil
}

// Newest gives the first places of the list, newest score first, that are before
// a score in it; 0 is the beginning.
func (l List) Newest(ctx context.Context, before uint64, size int) ([]Place, error) {
	start := "+inf"
	if before > 0 {
		start = "(" + strconv.FormatUint(before, 10)
	}
	return l.places(ctx, redis.ZRangeArgs{Start: start, Stop: "-inf", Rev: true}, size)
}

// Oldest gives the first places from the list's other end whose score is greater
// than `after`.
func (l List) Oldest(ctx context.Context, after uint64, size int) ([]Place, error) {
	return l.places(ctx, redis.ZRangeArgs{Start: "(" + strconv.FormatUint(after, 10), Stop: "+inf"}, size)
}

func (l List) places(ctx context.Context, of redis.ZRangeArgs, size int) ([]Place, error) {
	if err := l.store.resting(); err != nil {
		return nil, err
	}
	of.Key, of.ByScore, of.Count = l.key, true, int64(size)
	found, err := l.store.shared.ZRangeArgsWithScores(ctx, of).Result()
	if err := l.store.check(ctx, err); err != nil {
		return nil, err
	}
	places := make([]Place, len(found))
	for i, z := range found {
		places[i].ID, _ = z.Member.(string)
		places[i].Score = uint64(z.Score)
	}
	return places, nil
}

// Sizes gives how many places lists have. It is one round trip for all of them.
func (s *Store) Sizes(ctx context.Context, lists ...List) ([]int, error) {
	if err := s.resting(); err != nil {
		return nil, err
	}
	counts := make([]*redis.IntCmd, len(lists))
	for i, l := range lists {
		counts[i] = s.shared.ZCard(ctx, l.key)
	}
	sizes := make([]int, len(lists))
	for i, count := range counts {
		n, err := count.Result()
		if err := s.check(ctx, err); err != nil {
			return nil, err
		}
		sizes[i] = int(n)
	}
	return sizes, nil
}

// Token is the opaque page token for what comes behind a score, bound to its list.
func (l List) Token(score uint64) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(l.key))
	text := strconv.FormatUint(uint64(h.Sum32()), 36) + "." + strconv.FormatUint(score, 36)
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

func (l List) openToken(token string) (uint64, bool) {
	if text, err := base64.RawURLEncoding.DecodeString(token); err == nil {
		if _, tail, ok := strings.Cut(string(text), "."); ok {
			score, err := strconv.ParseUint(tail, 36, 64)
			return score, err == nil && l.Token(score) == token
		}
	}
	return 0, false
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

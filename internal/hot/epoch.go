package hot

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/oklog/ulid/v2"
	"github.com/redis/go-redis/v9"

	"weir/internal/fault"
)

// Epoch is one life of the service's part of Redis, from empty to flushed. The
// projector's position belongs to an epoch, so it lives and dies with what it
// built.
type Epoch struct {
	ID string
	// Target is the stream's last sequence when the epoch began. Indexes are
	// complete once the projector has handled everything up to it.
	Target uint64
	// Complete says that it has.
	Complete bool
}

// Fields of the epoch's hash.
const (
	epochID       = "id"
	epochServers  = "servers"
	epochTarget   = "target"
	epochComplete = "complete"
)

func (s *Store) epochKey() string { return s.prefix + "epoch" }

// Epoch gives the current epoch; one with an empty ID when there is none,
// because Redis is new, was flushed, or was restarted: a restarted Redis may
// have come back with yesterday's snapshot, so what it shows is not believed
// until it was rebuilt.
func (s *Store) Epoch(ctx context.Context) (Epoch, error) {
	if err := s.resting(); err != nil {
		return Epoch{}, err
	}
	fields, err := s.client.HGetAll(ctx, s.epochKey()).Result()
	if err := s.check(ctx, err); err != nil {
		return Epoch{}, err
	}
	servers, err := s.servers(ctx)
	if err != nil {
		return Epoch{}, err
	}
	target, err := strconv.ParseUint(fields[epochTarget], 10, 64)
	if err != nil || fields[epochServers] != servers {
		return Epoch{}, nil
	}
	return Epoch{ID: fields[epochID], Target: target, Complete: fields[epochComplete] != ""}, nil
}

// KnowEpoch says which epoch the projector of this process is in. It is told
// before the projector handles the epoch's first event.
func (s *Store) KnowEpoch(id string) { s.known.Store(&id) }

// KnownEpoch is the epoch that KnowEpoch told last, empty at first. Redis may be
// in a newer one by now, never in an older one.
func (s *Store) KnownEpoch() string {
	if id := s.known.Load(); id != nil {
		return *id
	}
	return ""
}

// BeginEpoch starts a new epoch in place of the one with the old ID. Of several
// replicas that try, one wins, and all get the winner's.
func (s *Store) BeginEpoch(ctx context.Context, target uint64) (Epoch, error) {
	servers, err := s.servers(ctx)
	if err != nil {
		return Epoch{}, err
	}
	err = s.client.Watch(ctx, func(tx *redis.Tx) error {
		current, err := tx.HGet(ctx, s.epochKey(), epochServers).Result()
		if err != nil && err != redis.Nil {
			return err
		}
		if err == nil && current == servers {
			return nil // another replica was first
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Del(ctx, s.epochKey())
			p.HSet(ctx, s.epochKey(),
				epochID, strings.ToLower(ulid.Make().String()),
				epochServers, servers,
				epochTarget, target)
			return nil
		})
		return err
	}, s.epochKey())
	if err != nil && err != redis.TxFailedErr {
		return Epoch{}, s.check(ctx, err)
	}
	return s.Epoch(ctx)
}

// CompleteEpoch says that the indexes are complete, if the epoch is still the
// current one.
func (s *Store) CompleteEpoch(ctx context.Context, id string) error {
	err := s.client.Watch(ctx, func(tx *redis.Tx) error {
		current, err := tx.HGet(ctx, s.epochKey(), epochID).Result()
		if err != nil || current != id {
			return err
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.HSet(ctx, s.epochKey(), epochComplete, "1")
			return nil
		})
		return err
	}, s.epochKey())
	return s.check(ctx, err)
}

// Complete runs a read of the indexes and gives INDEX_REBUILDING unless they
// were complete, in one epoch, from before it to after it. A flush in the
// middle of the read, even one that is rebuilt by its end, is seen.
func (s *Store) Complete(ctx context.Context, read func() error) error {
	before, err := s.completeEpoch(ctx)
	if err != nil {
		return err
	}
	if err := read(); err != nil {
		return err
	}
	after, err := s.completeEpoch(ctx)
	if err != nil {
		return err
	}
	if before != after {
		return rebuilding()
	}
	return nil
}

func (s *Store) completeEpoch(ctx context.Context) (string, error) {
	if err := s.resting(); err != nil {
		return "", err
	}
	fields, err := s.shared.HMGet(ctx, s.epochKey(), epochID, epochComplete).Result()
	if err := s.check(ctx, err); err != nil {
		return "", err
	}
	id, _ := fields[0].(string)
	if complete, _ := fields[1].(string); id == "" || complete == "" {
		return "", rebuilding()
	}
	return id, nil
}

func rebuilding() error {
	return fault.New(fault.IndexRebuilding, "lists are being rebuilt from the journal").Retry(rebuildRetry)
}

// servers names the Redis processes behind the connection: a process that was
// restarted has a new run id. An embedded store has none, and nothing to come
// back with either.
func (s *Store) servers(ctx context.Context) (string, error) {
	var mu sync.Mutex
	var ids []string
	ask := func(ctx context.Context, node redis.Cmdable) error {
		info, err := node.Info(ctx, "server").Result()
		if err != nil && strings.HasSuffix(err.Error(), "is not supported") {
			return nil // miniredis has no such section
		}
		if err != nil {
			return err
		}
		for line := range strings.Lines(info) {
			if id, ok := strings.CutPrefix(line, "run_id:"); ok {
				mu.Lock()
				ids = append(ids, strings.TrimSpace(id))
				mu.Unlock()
			}
		}
		return nil
	}
	var err error
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return ask(ctx, node) })
	} else {
		err = ask(ctx, s.client)
	}
	if err := s.check(ctx, err); err != nil {
		return "", err
	}
	slices.Sort(ids)
	return strings.Join(ids, ","), nil
}

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/proto"
)

// streams is a redis-server that keeps what it has, as somebody would run it who
// has conversations in Redis Streams. It is not the hot store.
type streams struct {
	*process
	client *redis.Client
	filled bool // the long conversation
}

func (m *mesh) openStreams() (*streams, error) {
	if m.streams != nil {
		return m.streams, nil
	}
	// As JetStream does in the same column.
	sync := "everysec"
	if m.synced {
		sync = "always"
	}
	server, err := startRedis(m.ctx, filepath.Join(m.dir, "streams"), "--appendonly", "yes", "--appendfsync", sync)
	if err != nil {
		return nil, err
	}
	m.streams = &streams{process: server}
	options, err := redis.ParseURL(server.url)
	if err != nil {
		return nil, err
	}
	options.PoolSize = storeConnections
	m.streams.client = redis.NewClient(options)
	m.closers = append(m.closers, func() { _ = m.streams.client.Close() })
	return m.streams, nil
}

const (
	streamID    = "id"
	streamEvent = "event"
)

// entry is a message in a stream: what AppendMessage would append to the journal.
func (s *streams) entry(key, id, messageID string, position int64) (*redis.XAddArgs, error) {
	event, err := proto.Marshal(noted(key, messageID, position))
	if err != nil {
		return nil, err
	}
	return &redis.XAddArgs{Stream: key, ID: id, Values: []any{streamID, messageID, streamEvent, event}}, nil
}

// openXadd appends to many streams in Redis. Nothing is checked: neither that the
// message is new nor that its conversation is open.
func openXadd(m *mesh) (workload, error) {
	s, err := m.openStreams()
	if err != nil {
		return nil, err
	}
	appended := make([]int64, m.many)
	return func(callers int) ([]call, error) {
		calls := make([]call, callers)
		for i, mine := range shares(callers, m.many) {
			calls[i] = func(ctx context.Context) error {
				n := mine.next()
				appended[n]++
				entry, err := s.entry(talkID(n), "*", fmt.Sprintf("m%d", appended[n]), appended[n])
				if err != nil {
					return err
				}
				return s.client.XAdd(ctx, entry).Err()
			}
		}
		return calls, nil
	}, nil
}

// fillLong puts the long conversation there, with positions for ids.
func (s *streams) fillLong(m *mesh) error {
	if s.filled {
		return nil
	}
	s.filled = true
	for from := 0; from < m.long; from += fillAtOnce {
		_, err := s.client.Pipelined(m.ctx, func(pipe redis.Pipeliner) error {
			for i := range fillAtOnce {
				position := strconv.Itoa(from + i + 1)
				entry, err := s.entry(longTalk, position+"-0", "m"+position, int64(from+i+1))
				if err != nil {
					return err
				}
				pipe.XAdd(m.ctx, entry)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	// It has grown so much that it writes its log anew, beside the measurements.
	return eventually(m.ctx, "redis-server has rewritten its log", func() bool {
		state, err := s.client.Info(m.ctx, "persistence").Result()
		return err == nil && strings.Contains(state, "aof_rewrite_in_progress:0") &&
			strings.Contains(state, "aof_rewrite_scheduled:0")
	})
}

// openXrange reads the newest page of the long conversation in Redis.
func openXrange(m *mesh) (workload, error) {
	return openStreamPage(m, int64(m.long), func(ctx context.Context, c *redis.Client) *redis.XMessageSliceCmd {
		return c.XRevRangeN(ctx, longTalk, "+", "-", pageSize)
	})
}

// openXrangeOld reads an old page of it.
func openXrangeOld(m *mesh) (workload, error) {
	from := oldPage(m.long)
	start := strconv.FormatInt(from, 10)
	return openStreamPage(m, from, func(ctx context.Context, c *redis.Client) *redis.XMessageSliceCmd {
		return c.XRangeN(ctx, longTalk, start, "+", pageSize)
	})
}

// openStreamPage reads a page that begins at a position.
func openStreamPage(m *mesh, first int64, read func(context.Context, *redis.Client) *redis.XMessageSliceCmd) (workload, error) {
	s, err := m.openStreams()
	if err != nil {
		return nil, err
	}
	if err := s.fillLong(m); err != nil {
		return nil, err
	}
	return everyCaller(func(ctx context.Context) error {
		page, err := read(ctx, s.client).Result()
		if err != nil {
			return err
		}
		return isPage("redis", page, streamPosition, first)
	}), nil
}

// streamPosition is 0 where an id is none of fillLong's.
func streamPosition(m redis.XMessage) int64 {
	position, _, _ := strings.Cut(m.ID, "-")
	n, _ := strconv.ParseInt(position, 10, 64)
	return n
}

// Package hot keeps what the next request needs in Redis: the document of each
// aggregate, the indexes behind lists, and deadlines. Everything in it can be
// rebuilt from the journal; losing it costs time, never data.
//
// Every write carries the version of the aggregate it shows and is refused by
// what is newer, so replicas need no order among themselves.
package hot

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"weir/internal/fault"
)

const (
	dialTimeout = 500 * time.Millisecond
	ioTimeout   = time.Second
	// restPeriod is how long Redis is left alone after it failed. Requests go on
	// from the journal meanwhile instead of waiting out a timeout each.
	restPeriod = 500 * time.Millisecond
	// rebuildRetry is what clients of a list are told to wait while it is rebuilt.
	rebuildRetry = 500 * time.Millisecond
)

// Store is one service's part of Redis. It is safe for concurrent use.
type Store struct {
	client redis.UniversalClient
	// shared collects the commands of concurrent callers into one pipeline.
	// With 64 callers that is the difference between one round trip each and
	// one for all.
	shared *redis.AutoPipeliner
	prefix string
	// restUntil is when Redis may be asked again, in Unix nanoseconds.
	restUntil atomic.Int64
	known     atomic.Pointer[string]
}

// Open prepares the part of Redis that belongs to a service and to one journal
// stream. It does not wait for Redis: without it, services go on more slowly.
//
// The stream's identity is part of every key, so that documents which another
// stream left behind under the same name are never believed.
func Open(url, service, stream string) (*Store, error) {
	options, addrs, err := parseURL(url)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	quiet.Do(func() { redis.SetLogger(silence{}) })
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs:                 addrs,
		DB:                    options.DB,
		Username:              options.Username,
		Password:              options.Password,
		TLSConfig:             options.TLSConfig,
		DialTimeout:           dialTimeout,
		ReadTimeout:           ioTimeout,
		WriteTimeout:          ioTimeout,
		ContextTimeoutEnabled: true,
		MaxRetries:            1,
		DialerRetries:         1,
		DisableIdentity:       true,
	})
	shared, err := client.AsyncAutoPipeline()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("redis: %w", err), client.Close())
	}
	return &Store{client: client, shared: shared, prefix: "weir:" + service + "@" + stream + ":"}, nil
}

// silence keeps the client from writing lines of its own to stderr: every
// failure comes back as an error, to whoever can say what it means.
type silence struct{}

var quiet sync.Once

// Printf says nothing.
func (silence) Printf(context.Context, string, ...any) {}

// parseURL reads redis://host, or the address of a cluster, which names further
// nodes as redis://host?addr=host2&addr=host3.
func parseURL(url string) (*redis.Options, []string, error) {
	if cluster, err := redis.ParseClusterURL(url); err == nil && len(cluster.Addrs) > 1 {
		return &redis.Options{Username: cluster.Username, Password: cluster.Password, TLSConfig: cluster.TLSConfig}, cluster.Addrs, nil
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, nil, err
	}
	return options, []string{options.Addr}, nil
}

// Close ends the connections.
func (s *Store) Close() error {
	return errors.Join(s.shared.Close(), s.client.Close())
}

// errResting is the answer while Redis is left alone after a failure.
var errResting = errors.New("redis failed a moment ago")

// resting says whether Redis is being left alone.
func (s *Store) resting() error {
	if time.Now().UnixNano() < s.restUntil.Load() {
		return unavailable(errResting)
	}
	return nil
}

// check turns any error of Redis but Nil into HOT_UNAVAILABLE. Where Redis did
// not answer at all, it is left alone for a while.
func (s *Store) check(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, redis.Nil) {
		return nil
	}
	var reply redis.Error
	if !errors.As(err, &reply) && ctx.Err() == nil {
		s.restUntil.Store(time.Now().Add(restPeriod).UnixNano())
	}
	return unavailable(err)
}

func unavailable(cause error) error {
	return fault.New(fault.HotUnavailable, "the hot store cannot be reached").Retry(time.Second).Wrap(cause)
}

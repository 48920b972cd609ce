package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/alicebob/miniredis/v2"

	"weir/internal/hot"
)

// startRedis starts the store that stands in for Redis. It forgets everything when the
// process ends, and the services rebuild it from their journals.
func startRedis() (*miniredis.Miniredis, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true) // by itself it expires nothing
	return m, m.StartAddr("127.0.0.1:0")
}

// redisLog is the mesh's log as the Redis client knows it, which otherwise writes lines of
// its own. What it says the services say too, in their words.
type redisLog struct{ log *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, v ...any) {
	l.log.InfoContext(ctx, fmt.Sprintf(format, v...), "client", "redis")
}

// reach asks Redis something, opened the way that services open it. They start without
// it; whoever types its address wants to hear that it is wrong.
func reach(ctx context.Context, url string) error {
	store, err := hot.Open(url, "weir", "start")
	if err != nil {
		return err
	}
	_, err = store.Epoch(ctx)
	if cause := errors.Unwrap(err); cause != nil {
		err = cause // what Redis or the network said
	}
	return errors.Join(err, store.Close())
}

package hot

import (
	"context"
	_ "embed"
	"time"

	"github.com/redis/go-redis/v9"

	"weir/internal/journal"
)

//go:embed spend.lua
var spendSource string

var spendScript = redis.NewScript(spendSource)

// LongestWindow is the longest period that a Window may have.
const LongestWindow = 24 * time.Hour

// Window caps how many members a list takes in any period of a length. The list
// is one of those that rows keep, with times in Unix milliseconds as scores, so
// that a rebuild brings back what was counted. Limit is at least 1.
type Window struct {
	Set    string
	Limit  int
	Period time.Duration
}

// Spend counts a member in all windows, or in none where one is full; then wait
// is after how long there is room. A member that is counted already is not
// counted again.
//
// What was counted is in Redis only, until the row of the member's aggregate
// says the same. While lists are incomplete nothing can be counted, so nothing
// is let through: INDEX_REBUILDING.
func (s *Store) Spend(ctx context.Context, tenant, kind, member string, now time.Time, windows []Window) (wait time.Duration, err error) {
	partition := s.listPartition(tenant, kind)
	keys := make([]string, 0, len(windows))
	args := []any{member, now.UnixMilli(), now.Add(-LongestWindow).UnixMilli()}
	for _, w := range windows {
		keys = append(keys, partition+journal.Escape(w.Set))
		args = append(args, w.Limit, w.Period.Milliseconds())
	}
	err = s.Complete(ctx, func() error {
		millis, err := spendScript.Run(ctx, s.client, keys, args...).Int64()
		wait = time.Duration(millis) * time.Millisecond
		return s.check(ctx, err)
	})
	return wait, err
}

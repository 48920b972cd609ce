package inbox

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/backend"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

// A million: -timers 1000000 -timers-lead 4m.
var (
	timerCount = flag.Int("timers", 900, "how many timers are pending at once")
	timerLead  = flag.Duration("timers-lead", 10*time.Second, "how long before they end they are begun")
)

// Delays, leases and lives that are pending, many at once: they end at their time and
// no sooner, though the service and Redis were away meanwhile, and each is recorded once.
func TestTimersFireAtTheirTimeAndOnce(t *testing.T) {
	r := newRigWith(t, func(c *Config) { c.Limit = maxLimit })
	ends := time.Now().Add(*timerLead).Truncate(time.Millisecond)
	began := time.Now()
	due := r.timers(ends, *timerCount)
	if time.Now().After(ends.Add(-time.Second)) {
		t.Fatalf("it took %v to begin them: give a longer -timers-lead", time.Since(began))
	}
	t.Logf("%d timers begun in %v; %s", len(due), time.Since(began).Round(time.Millisecond), r.redisMemory())
	var memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory)
	t.Logf("heap with them pending: %d MiB, with the test's own", memory.HeapInuse>>20)
	b := r.backend()
	t.Logf("a sweep when nothing is due: %v", sweepCost(t, b))

	if err := r.inbox.Stop(); err != nil {
		t.Fatal(err)
	}
	r.redis.Flush()
	r.inbox = r.start()

	fired := make(map[string]time.Time, len(due))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	consumer, err := b.Consumer("inbox", "", "weir.inbox.acme.inbox.*")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	reading := make(chan error, 1)
	go func() {
		reading <- consumer.Tail(ctx, 1, func(s journal.Stored) error {
			e, err := s.Event()
			if err != nil {
				return err
			}
			read, err := aggregate.Decode[*inboxv1.Event](e)
			if err != nil {
				return err
			}
			p := read.Event.GetDeadlinesPassed()
			mu.Lock()
			defer mu.Unlock()
			for _, ids := range [][]string{p.GetDueMessageIds(), p.GetLapsedMessageIds(), p.GetDeadMessageIds(), p.GetExpiredMessageIds()} {
				for _, id := range ids {
					name := e.Key.ID + "/" + id
					if _, twice := fired[name]; twice {
						t.Errorf("%s ended twice", name)
					}
					fired[name] = e.Time
				}
			}
			return nil
		}, func() {})
	}()
	seen := -1
	all := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(fired) == len(due)
	}
	if err := journal.Pause(t.Context(), time.Until(ends)); err != nil { // their time has come
		t.Fatal(err)
	}
	for !all() { // as long as more and more do
		meshtest.Eventually(t, "more of them end", func() bool {
			mu.Lock()
			defer mu.Unlock()
			more := len(fired) > seen
			if more {
				seen = len(fired)
			}
			return more || len(fired) == len(due)
		})
	}
	stop()
	if err := <-reading; err != nil {
		t.Fatal(err)
	}
	var latest time.Duration
	for name, at := range due {
		was, ok := fired[name]
		if !ok || was.Before(at) {
			t.Errorf("%s was to end at %v, and ended at %v", name, at, was)
		}
		latest = max(latest, was.Sub(at))
	}
	t.Logf("all %d ended, the last %v after its time", len(due), latest.Round(time.Millisecond))
}

// timers begins so many: in each inbox one third are delayed, one third expire, and one
// third are claimed. It gives when each ends, by goal and id.
func (r *rig) timers(ends time.Time, count int) map[string]time.Time {
	r.t.Helper()
	const batch = 100
	perGoal := min(max(count/3, 3*batch), maxLimit/(3*batch)*3*batch)
	due := make(map[string]time.Time, count)
	var mu sync.Mutex
	note := func(goal, id string, at time.Time) {
		mu.Lock()
		defer mu.Unlock()
		due[goal+"/"+id] = at
	}
	w := r.as(worker)
	var group errgroup.Group
	group.SetLimit(4)
	for first := 0; first < count; first += perGoal {
		goal := "goal-" + strconv.Itoa(first/perGoal)
		group.Go(func() error {
			for from := 0; from < perGoal; from += batch {
				in := &inboxv1.EnqueueBatchRequest{Goal: goal}
				for i := from; i < from+batch; i++ {
					m := &inboxv1.NewMessage{MessageId: fmt.Sprint("m", i), Body: "x"}
					switch from / batch % 3 {
					case 0:
						m.NotBefore = timestamppb.New(ends)
						note(goal, m.GetMessageId(), ends)
					case 1:
						m.ExpireTime = timestamppb.New(ends)
						m.Priority = -1 // so that it is not what is claimed
						note(goal, m.GetMessageId(), ends)
					}
					in.Messages = append(in.Messages, m)
				}
				if _, err := w.EnqueueBatch(r.t.Context(), in); err != nil {
					return err
				}
				if from/batch%3 != 2 {
					continue
				}
				claimed, err := w.Claim(r.t.Context(), &inboxv1.ClaimRequest{
					Goal: goal, RequestId: fmt.Sprint("c", from), Max: batch, Lease: durationpb.New(time.Until(ends)),
				})
				if err != nil {
					return err
				}
				if len(claimed.GetMessages()) != batch {
					return fmt.Errorf("%d were claimed, of %d", len(claimed.GetMessages()), batch)
				}
				for _, m := range claimed.GetMessages() {
					note(goal, m.GetMessageId(), m.GetLeaseExpireTime().AsTime())
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		r.t.Fatal(err)
	}
	return due
}

func (r *rig) backend() *backend.Backend {
	r.t.Helper()
	b, err := backend.Open(r.t.Context(), "inbox", backend.Config{NATS: r.nats.URL(), Redis: r.redis.URL(), Replicas: 1}, slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(b.Close)
	return b
}

// sweepCost is what it takes to see that nothing is due.
func sweepCost(t *testing.T, b *backend.Backend) time.Duration {
	t.Helper()
	const sweeps = 100
	past := time.Now().Add(-time.Hour)
	began := time.Now()
	for range sweeps {
		keys, err := b.Hot.TakeDue(t.Context(), inboxKindName, past, past, 1)
		if err != nil || len(keys) != 0 {
			t.Fatalf("due an hour ago are %v, %v", keys, err)
		}
	}
	return time.Since(began) / sweeps
}

func (r *rig) redisMemory() string {
	r.t.Helper()
	client := r.redis.Client()
	info, err := client.Info(r.t.Context(), "memory").Result()
	if err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, "used_memory_human:"); ok {
			return "Redis holds " + strings.TrimSpace(value)
		}
	}
	return "Redis does not say what it holds"
}

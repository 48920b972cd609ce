package inbox

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/journal"
)

const (
	// maxWatches and maxWaiting are how many watches and waiting claims one replica
	// serves, and maxNamed how many goals its watches name together.
	maxWatches = 20_000
	maxWaiting = 20_000
	maxNamed   = 200_000
	// rereadEvery is how often the list of inboxes that are ready is read again, and
	// so how long a goal can be missed whose event was not heard.
	rereadEvery = 5 * time.Second
	rereadPage  = 1000
	// expireEvery bounds how late the end of an offer is noticed.
	expireEvery = 100 * time.Millisecond
)

// hub tells who waits in this process that an inbox may have work. One reader
// follows the stream for all of them.
//
// What it tells are hints. One may be lost, with a connection or a restart, and one
// may be wrong. So nothing rests on them: who hears one looks at the inbox, claims
// that wait look again by themselves, and boards are filled from the list of
// inboxes that are ready, too.
type hub struct {
	consumer *journal.Consumer
	journal  *journal.Journal
	hot      *hot.Store
	log      *slog.Logger
	// stopping ends with the service's order to stop.
	stopping context.Context

	mu      sync.Mutex
	claims  map[journal.Key]*waitingClaims
	waiting int
	pools   map[string]*pool // by tenant, those with watches
	watches int
	named   int

	// What the figures at /metrics count, since the start.
	offers, lapsed, found, empty prometheus.Counter
}

func newHub(stopping context.Context, consumer *journal.Consumer, j *journal.Journal, h *hot.Store, log *slog.Logger) *hub {
	count := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_inbox_" + name, Help: help})
	}
	return &hub{
		consumer: consumer, journal: j, hot: h, log: log, stopping: stopping,
		claims: make(map[journal.Key]*waitingClaims), pools: make(map[string]*pool),
		offers: count("offers_total", "Inboxes that watches were told of."),
		lapsed: count("offers_lapsed_total", "Of those, the ones that nobody claimed from in time."),
		found:  count("claims_served_total", "Claims that got messages."),
		empty:  count("claims_empty_total", "Claims that found nothing, each time that they looked."),
	}
}

// metrics are the figures of the hub at /metrics.
func (h *hub) metrics() []prometheus.Collector {
	level := func(name, help string, now *int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weir_inbox_" + name, Help: help}, func() float64 {
			h.mu.Lock()
			defer h.mu.Unlock()
			return float64(*now)
		})
	}
	return []prometheus.Collector{
		h.offers, h.lapsed, h.found, h.empty,
		level("watches", "Watches that are open.", &h.watches),
		level("waiting_claims", "Claims that wait for a message.", &h.waiting),
	}
}

// hint is what an event means to who waits.
type hint int

const (
	// noHint: nothing that could not be claimed before can be now.
	noHint hint = iota
	mayHaveWork
	wasClaimed
)

// hints has every event of an inbox.
var hints = map[string]hint{
	aggregate.TypeOf(&inboxv1.MessagesEnqueued{}):   mayHaveWork,
	aggregate.TypeOf(&inboxv1.MessagesClaimed{}):    wasClaimed,
	aggregate.TypeOf(&inboxv1.LeaseExtended{}):      noHint,
	aggregate.TypeOf(&inboxv1.MessagesDone{}):       noHint,
	aggregate.TypeOf(&inboxv1.MessagesReleased{}):   mayHaveWork,
	aggregate.TypeOf(&inboxv1.DeadlinesPassed{}):    mayHaveWork,
	aggregate.TypeOf(&inboxv1.MessagesRedriven{}):   mayHaveWork,
	aggregate.TypeOf(&inboxv1.MessagesDiscarded{}):  noHint,
	aggregate.TypeOf(&inboxv1.InboxStateChanged{}):  mayHaveWork,
	aggregate.TypeOf(&inboxv1.GoalImported{}):       mayHaveWork,
	aggregate.TypeOf(&inboxv1.GoalImportFinished{}): noHint,
}

// run follows the stream and the clock until ctx ends.
func (h *hub) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		// Who waited before the place in the stream was known looks once more.
		return h.consumer.Follow(ctx, h.journal, h.wakeAll, h.hear)
	})
	group.Go(func() error {
		for journal.Pause(ctx, expireEvery) == nil {
			now := time.Now()
			for _, p := range h.allPools() {
				p.do(func(b *board) { h.lapsed.Add(float64(b.expire(now))) })
			}
		}
		return nil
	})
	group.Go(func() error {
		for journal.Pause(ctx, rereadEvery) == nil {
			for _, p := range h.allPools() {
				if err := h.reread(ctx, p); err != nil && ctx.Err() == nil && !fault.Is(err, fault.IndexRebuilding) {
					h.log.Warn("the list of inboxes with work is not read, trying on", "error", err)
				}
			}
		}
		return nil
	})
	return group.Wait()
}

// hear takes an event of an inbox.
func (h *hub) hear(stored journal.Stored) {
	e, err := stored.Event()
	if err != nil {
		h.log.Error("an event cannot be told to those who wait", "subject", stored.Subject, "error", err)
		return
	}
	what := hints[e.Type]
	if what == noHint {
		return
	}
	if what == mayHaveWork {
		h.wake(e.Key)
	}
	h.mu.Lock()
	p := h.pools[e.Key.Tenant]
	h.mu.Unlock()
	if p == nil {
		return
	}
	p.do(func(b *board) {
		if what == wasClaimed {
			b.claimed(e.Key.ID, e.Sequence)
		} else {
			b.changed(e.Key.ID, e.Sequence)
		}
	})
}

// wakeAll has all that wait look again.
func (h *hub) wakeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, claims := range h.claims {
		for claims.wake() {
			continue
		}
	}
}

func (h *hub) allPools() []*pool {
	h.mu.Lock()
	defer h.mu.Unlock()
	pools := make([]*pool, 0, len(h.pools))
	for _, p := range h.pools {
		pools = append(pools, p)
	}
	return pools
}

// reread puts the inboxes that are ready onto a tenant's board, those that have not
// changed for longest first, as far as they fit.
func (h *hub) reread(ctx context.Context, p *pool) error {
	list := h.hot.List(p.tenant, inboxKindName, listReady)
	for after := uint64(0); ; {
		var places []hot.Place
		if err := h.hot.Complete(ctx, func() (err error) {
			places, err = list.Oldest(ctx, after, rereadPage)
			return err
		}); err != nil {
			return err
		}
		full := false
		p.do(func(b *board) {
			for _, place := range places {
				b.changed(place.ID, place.Score)
			}
			full = b.full()
		})
		if len(places) < rereadPage || full {
			break
		}
		after = places[len(places)-1].Score
	}
	return nil
}

// pool is the watches of one tenant.
type pool struct {
	tenant string

	mu    sync.Mutex
	board *board
	of    map[*watcher]*watch
	// complete is set once the board had all that was ready.
	complete bool
}

// do changes the board, and sets the watches to work that were given something.
func (p *pool) do(change func(*board)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p.board)
	for _, called := range p.board.calls() {
		if w := p.of[called]; w != nil {
			go w.look()
		}
	}
}

// enter adds a watch of some goals of a tenant, of all if there are none.
func (h *hub) enter(ctx context.Context, w *watch, tenant string, goals []string) error {
	h.mu.Lock()
	if h.watches >= maxWatches || h.named+len(goals) > maxNamed {
		h.mu.Unlock()
		return fault.New(fault.LimitReached, "this replica serves %d watches of %d goals already", maxWatches, maxNamed).Retry(time.Second)
	}
	h.watches++
	h.named += len(goals)
	p := h.pools[tenant]
	if p == nil {
		p = &pool{tenant: tenant, board: newBoard(), of: make(map[*watcher]*watch)}
		h.pools[tenant] = p
	}
	// Inside of both locks, so that the pool is not dropped for being empty.
	p.mu.Lock()
	w.hub, w.pool = h, p
	w.watcher = p.board.join(goals)
	p.of[w.watcher] = w
	complete := p.complete
	p.mu.Unlock()
	h.mu.Unlock()

	if len(goals) > 0 {
		// Each is looked at, which needs no list.
		p.do(func(b *board) {
			for _, goal := range goals {
				b.changed(goal, 0)
			}
		})
		return nil
	}
	if complete {
		return nil
	}
	// The watches before it named their goals, and the board had no others.
	if err := h.reread(ctx, p); err != nil {
		h.leave(w)
		return err
	}
	p.mu.Lock()
	p.complete = true
	p.mu.Unlock()
	return nil
}

func (h *hub) leave(w *watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watches--
	h.named -= len(w.watcher.goals)
	w.pool.do(func(b *board) {
		b.leave(w.watcher)
		delete(w.pool.of, w.watcher)
		if b.ofAll == 0 {
			w.pool.complete = false
		}
		if b.watchers == 0 {
			delete(h.pools, w.pool.tenant)
		}
	})
}

package gate

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/journal"
)

// grantList is the compiled patterns of one subject's grants.
type grantList []pattern

func (l grantList) match(operation string) bool {
	for _, p := range l {
		if p.match(operation) {
			return true
		}
	}
	return false
}

// holder is a subject of a tenant.
type holder struct{ tenant, subject string }

// grantView is this replica's view of all grants, kept up from the gate's own
// events, so that a check needs no store. Until it has caught up, and for a
// tenant one of whose grants cannot be read, nothing is allowed.
type grantView struct {
	consumer *journal.Consumer
	log      *slog.Logger

	mu      sync.RWMutex
	ready   bool
	grants  map[journal.Key]compiledGrant
	holders map[holder]map[journal.Key]bool // whose grants are which
	broken  map[string]journal.Key          // tenant → a grant that cannot be read
	applied uint64
	changed chan struct{} // closed and replaced when applied moves
}

type compiledGrant struct {
	holder   holder
	patterns grantList
}

func newGrantView(consumer *journal.Consumer, log *slog.Logger) *grantView {
	v := &grantView{consumer: consumer, log: log}
	v.reset()
	return v
}

func (v *grantView) reset() {
	v.grants = make(map[journal.Key]compiledGrant)
	v.holders = make(map[holder]map[journal.Key]bool)
	v.broken = make(map[string]journal.Key)
	v.changed = make(chan struct{})
}

// run keeps the view until ctx ends. What interrupts it leaves the view as it
// was and starts a new one beside it, so that a hiccup of NATS refuses nobody.
func (v *grantView) run(ctx context.Context) error {
	for ctx.Err() == nil {
		next := newGrantView(v.consumer, v.log)
		err := v.consumer.Watch(ctx, func(e journal.Event) error {
			target := next
			if next == nil {
				target = v
			}
			target.apply(e)
			return nil
		}, func() {
			v.replace(next)
			next = nil
		})
		if err != nil && ctx.Err() == nil {
			v.log.Warn("view of grants interrupted, starting over", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	return nil
}

// replace takes over another view, whole.
func (v *grantView) replace(next *grantView) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.grants, v.holders, v.broken = next.grants, next.holders, next.broken
	v.applied = max(v.applied, next.applied)
	v.ready = true
	v.announce()
}

func (v *grantView) announce() {
	close(v.changed)
	v.changed = make(chan struct{})
}

// apply follows one event. One that cannot be read closes its tenant.
func (v *grantView) apply(e journal.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.announce()
	v.applied = max(v.applied, e.Sequence)

	recorded, err := aggregate.Decode[*gatev1.Event](e)
	var compiled compiledGrant
	if put := recorded.Event.GetGrantPut(); err == nil && put != nil {
		compiled, err = compileGrant(e.Key.Tenant, put)
	}
	if err != nil {
		v.log.Error("a grant cannot be read, its tenant is refused everything", "key", e.Key.String(), "error", err)
		v.broken[e.Key.Tenant] = e.Key
		return
	}
	if v.broken[e.Key.Tenant] == e.Key {
		delete(v.broken, e.Key.Tenant)
	}
	if old, ok := v.grants[e.Key]; ok {
		delete(v.holders[old.holder], e.Key)
		delete(v.grants, e.Key)
	}
	if compiled.patterns != nil {
		if v.holders[compiled.holder] == nil {
			v.holders[compiled.holder] = make(map[journal.Key]bool)
		}
		v.holders[compiled.holder][e.Key] = true
		v.grants[e.Key] = compiled
	}
}

func compileGrant(tenant string, put *gatev1.GrantPut) (compiledGrant, error) {
	c := compiledGrant{holder: holder{tenant, put.GetSubject()}}
	for _, text := range put.GetOperations() {
		p, err := compilePattern(text)
		if err != nil {
			return compiledGrant{}, fmt.Errorf("grant %s: %w", put.GetGrantId(), err)
		}
		c.patterns = append(c.patterns, p)
	}
	return c, nil
}

// of gives the grants of a subject as they are now.
func (v *grantView) of(tenant, subject string) (grantList, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if !v.ready {
		return nil, fault.New(fault.PolicyUnreadable, "grants are not loaded yet").Retry(time.Second)
	}
	if key, broken := v.broken[tenant]; broken {
		return nil, fault.New(fault.PolicyUnreadable, "grant %s cannot be read, so nothing is allowed", key.ID)
	}
	var list grantList
	for key := range v.holders[holder{tenant, subject}] {
		list = append(list, v.grants[key].patterns...)
	}
	return list, nil
}

// await waits until the view has followed an event, so that who put a grant
// finds it in force. A view that is late is no reason to fail what is done.
func (v *grantView) await(ctx context.Context, sequence uint64) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for {
		v.mu.RLock()
		applied, changed := v.applied, v.changed
		v.mu.RUnlock()
		if applied >= sequence {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

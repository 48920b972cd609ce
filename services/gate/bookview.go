package gate

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/journal"
	"weir/services/gate/policy"
)

// bookView is this replica's view of all grants and policies, compiled and kept
// up from the gate's own events, so that a check needs no store. Until it has
// caught up, and for a tenant of which something cannot be read or compiled,
// nothing is allowed.
//
// One goroutine writes it, in run. What an event changes is compiled beside what
// is in force, and takes its place whole.
type bookView struct {
	consumer *journal.Consumer
	log      *slog.Logger

	mu      sync.RWMutex
	ready   bool
	tenants map[string]*tenantView
	known   []string // operations that exist
	applied uint64
	changed chan struct{} // closed and replaced when applied moves
	// following says that events are being heard, and heard when that was last so.
	following bool
	heard     time.Time
}

// staleAfter is how long a replica that hears nothing of the journal goes on by
// what it knows. A denial that was put meanwhile would not be known to it.
const staleAfter = 10 * time.Second

// tenantView is one tenant's sources and what was compiled of them. It does not
// change once others can see it.
type tenantView struct {
	policies map[string]*gatev1.Policy
	grants   map[string]*gatev1.Grant
	revision uint64
	book     *policy.Book
	// unreadable are aggregates whose newest event cannot be read, uncompiled those
	// that do not compile. Either closes the tenant.
	unreadable map[journal.Key]error
	uncompiled map[journal.Key]error
}

func newTenantView() *tenantView {
	book, _ := policy.NewBook(0, nil, nil) // nothing in it can fail to compile
	return &tenantView{
		policies: make(map[string]*gatev1.Policy), grants: make(map[string]*gatev1.Grant), book: book,
		unreadable: make(map[journal.Key]error), uncompiled: make(map[journal.Key]error),
	}
}

func (t *tenantView) clone() *tenantView {
	next := *t
	next.policies, next.grants = maps.Clone(t.policies), maps.Clone(t.grants)
	next.unreadable, next.uncompiled = maps.Clone(t.unreadable), maps.Clone(t.uncompiled)
	return &next
}

func newBookView(consumer *journal.Consumer, log *slog.Logger) *bookView {
	return &bookView{consumer: consumer, log: log, tenants: make(map[string]*tenantView), changed: make(chan struct{})}
}

// bookSubjects are what the view listens to.
var bookSubjects = []string{
	"weir.gate.*." + grantKindName + ".*", "weir.gate.*." + policyKindName + ".*", "weir.gate.*." + catalogueKindName + ".*",
}

// run keeps the view until ctx ends. What interrupts it leaves the view as it
// was and starts a new one beside it, so that a hiccup of NATS refuses nobody.
func (v *bookView) run(ctx context.Context) error {
	for ctx.Err() == nil {
		next := newBookView(v.consumer, v.log)
		err := v.consumer.Watch(ctx, func(e journal.Event, unreadable error) error {
			recorded := aggregate.Recorded[*gatev1.Event]{}
			if unreadable == nil {
				recorded, unreadable = aggregate.Decode[*gatev1.Event](e)
			}
			if next != nil {
				next.load(e, recorded, unreadable)
			} else {
				v.apply(e, recorded, unreadable)
			}
			return nil
		}, func() {
			next.compileAll()
			v.replace(next)
			next = nil
		})
		v.mu.Lock()
		v.following = false
		v.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			v.log.Warn("view of policies interrupted, starting over", "error", err)
		}
		_ = journal.Pause(ctx, 200*time.Millisecond)
	}
	return nil
}

// replace takes over another view, whole.
func (v *bookView) replace(next *bookView) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.tenants, v.known = next.tenants, next.known
	v.applied = max(v.applied, next.applied)
	v.ready, v.following, v.heard = true, true, time.Now()
	v.announce()
}

// confirm notes that the journal is there; while it is followed, nothing that was
// put is unknown.
func (v *bookView) confirm() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.following {
		v.heard = time.Now()
	}
}

func (v *bookView) announce() {
	close(v.changed)
	v.changed = make(chan struct{})
}

// load takes in an event without compiling anything: at the start there are many.
func (v *bookView) load(e journal.Event, recorded aggregate.Recorded[*gatev1.Event], err error) {
	v.applied = max(v.applied, e.Sequence)
	if announced := recorded.Event.GetOperationsAnnounced(); announced != nil {
		v.known = announced.GetOperations()
	}
	if e.Key.Kind == catalogueKindName {
		return
	}
	t := v.tenants[e.Key.Tenant]
	if t == nil {
		t = newTenantView()
		v.tenants[e.Key.Tenant] = t
	}
	t.take(e, recorded, err)
}

// take follows one event in the sources.
func (t *tenantView) take(e journal.Event, recorded aggregate.Recorded[*gatev1.Event], err error) {
	t.revision = max(t.revision, e.Sequence)
	delete(t.unreadable, e.Key)
	if err != nil {
		t.unreadable[e.Key] = err
		return
	}
	switch event := recorded.Event.GetEvent().(type) {
	case *gatev1.Event_GrantPut:
		put := event.GrantPut
		t.grants[e.Key.ID] = &gatev1.Grant{GrantId: e.Key.ID, Subject: put.GetSubject(), Operations: put.GetOperations()}
	case *gatev1.Event_GrantDeleted:
		delete(t.grants, e.Key.ID)
	case *gatev1.Event_PolicyPut:
		t.policies[e.Key.ID] = event.PolicyPut.GetPolicy()
	case *gatev1.Event_PolicyDeleted:
		delete(t.policies, e.Key.ID)
	}
}

func (v *bookView) compileAll() {
	for tenant, t := range v.tenants {
		t.compile(tenant)
		t.report(v.log)
	}
}

// compile compiles all sources. Where that fails, each is compiled alone to tell
// which: its tenant is closed then, so nothing is made of the others.
func (t *tenantView) compile(tenant string) {
	clear(t.uncompiled)
	policies, grants := slices.Collect(maps.Values(t.policies)), slices.Collect(maps.Values(t.grants))
	book, err := policy.NewBook(t.revision, policies, grants)
	if err == nil {
		t.book = book
		return
	}
	for id, p := range t.policies {
		if _, err := policy.NewBook(0, []*gatev1.Policy{p}, nil); err != nil {
			t.uncompiled[policyKind().Key(tenant, id)] = err
		}
	}
	for id, g := range t.grants {
		if _, err := policy.NewBook(0, nil, []*gatev1.Grant{g}); err != nil {
			t.uncompiled[grantKind().Key(tenant, id)] = err
		}
	}
	if len(t.uncompiled) == 0 { // each compiles alone, and all do not
		t.uncompiled[policyKind().Key(tenant, "*")] = err
	}
}

func (t *tenantView) report(log *slog.Logger) {
	for _, failed := range []map[journal.Key]error{t.unreadable, t.uncompiled} {
		for key, err := range failed {
			log.Error("a grant or policy cannot be read, its tenant is refused everything", "key", key.String(), "error", err)
		}
	}
}

// apply follows one event once the view is in use.
func (v *bookView) apply(e journal.Event, recorded aggregate.Recorded[*gatev1.Event], err error) {
	known, next := v.known, (*tenantView)(nil)
	if announced := recorded.Event.GetOperationsAnnounced(); announced != nil {
		known = announced.GetOperations()
	}
	if e.Key.Kind != catalogueKindName {
		next = newTenantView()
		if old := v.tenants[e.Key.Tenant]; old != nil {
			next = old.clone()
		}
		next.follow(e, recorded, err)
		next.report(v.log)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if next != nil {
		v.tenants[e.Key.Tenant] = next
	}
	v.known, v.applied = known, max(v.applied, e.Sequence)
	v.announce()
}

// follow takes in an event and compiles anew what it concerns: the targets that
// a policy had and has, or the subjects of a grant. Where something does not
// compile, all of the tenant is compiled, to tell which.
func (t *tenantView) follow(e journal.Event, recorded aggregate.Recorded[*gatev1.Event], err error) {
	hadPolicy, hadGrant := t.policies[e.Key.ID], t.grants[e.Key.ID]
	t.take(e, recorded, err)
	if err != nil {
		return
	}
	var book *policy.Book
	if e.Key.Kind == policyKindName {
		book, err = t.withPolicies(hadPolicy, t.policies[e.Key.ID])
	} else {
		book, err = t.withGrants(hadGrant, t.grants[e.Key.ID])
	}
	if err != nil || len(t.uncompiled) > 0 {
		t.compile(e.Key.Tenant)
		return
	}
	t.book = book
}

func (t *tenantView) withPolicies(versions ...*gatev1.Policy) (*policy.Book, error) {
	book, err := t.book, error(nil)
	for _, version := range versions {
		if version == nil {
			continue
		}
		var same []*gatev1.Policy
		for _, p := range t.policies {
			if p.GetLayer() == version.GetLayer() && p.GetTarget() == version.GetTarget() {
				same = append(same, p)
			}
		}
		if book, err = book.WithPolicies(t.revision, version.GetLayer(), version.GetTarget(), same); err != nil {
			return nil, err
		}
	}
	return book, nil
}

func (t *tenantView) withGrants(versions ...*gatev1.Grant) (*policy.Book, error) {
	book, err := t.book, error(nil)
	for _, version := range versions {
		if version == nil {
			continue
		}
		var same []*gatev1.Grant
		for _, g := range t.grants {
			if g.GetSubject() == version.GetSubject() {
				same = append(same, g)
			}
		}
		if book, err = book.WithGrants(t.revision, version.GetSubject(), same); err != nil {
			return nil, err
		}
	}
	return book, nil
}

// of gives what a tenant's checks are decided by now.
func (v *bookView) of(tenant string) (*policy.Book, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if !v.ready {
		return nil, fault.New(fault.PolicyUnreadable, "grants and policies are not loaded yet").Retry(time.Second)
	}
	if silent := time.Since(v.heard); silent > staleAfter {
		return nil, fault.New(fault.PolicyUnreadable, "changes of grants and policies have not been heard of for %s", silent.Truncate(time.Second)).Retry(time.Second)
	}
	t := v.tenants[tenant]
	if t == nil {
		return noTenant.book, nil
	}
	for _, failed := range []map[journal.Key]error{t.unreadable, t.uncompiled} {
		for key := range failed {
			return nil, fault.New(fault.PolicyUnreadable, "%s %s cannot be read, so nothing is allowed", key.Kind, key.ID)
		}
	}
	return t.book, nil
}

// noTenant is that of a tenant that has nothing: nothing is granted.
var noTenant = newTenantView()

// tenant gives a tenant's sources as they are now, for reading.
func (v *bookView) tenant(name string) *tenantView {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if t := v.tenants[name]; t != nil {
		return t
	}
	return noTenant
}

// operations gives the operations that exist, nil where nobody has said.
func (v *bookView) operations() []string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.known
}

// await waits until the view has followed an event, so that who put a policy
// finds it in force. A view that is late is no reason to fail what is done.
func (v *bookView) await(ctx context.Context, sequence uint64) {
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

package gate

import (
	"context"
	"log/slog"
	"sync"
	"time"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/services/gate/policy"
)

// bookView is this replica's view of all grants and policies, compiled and kept
// up from the gate's own events, so that a check needs no store. Until it has
// caught up, and for a tenant of which something cannot be read or compiled,
// nothing is allowed.
type bookView struct {
	consumer *journal.Consumer
	log      *slog.Logger

	mu      sync.RWMutex
	ready   bool
	tenants map[string]*tenantView
	known   []string // operations that exist
	applied uint64
	changed chan struct{} // closed and replaced when applied moves
}

// tenantView is one tenant's sources and what was compiled of them.
type tenantView struct {
	policies map[string]*gatev1.Policy
	grants   map[string]*gatev1.Grant
	revision uint64
	book     *policy.Book
	// broken holds, by aggregate, why something cannot be read or compiled.
	broken map[journal.Key]error
}

func newTenantView() *tenantView {
	book, _ := policy.NewBook(0, nil, nil) // nothing in it can fail to compile
	return &tenantView{
		policies: make(map[string]*gatev1.Policy), grants: make(map[string]*gatev1.Grant), broken: make(map[journal.Key]error), book: book,
	}
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
		err := v.consumer.Watch(ctx, func(e journal.Event) error {
			if next != nil {
				next.load(e)
			} else {
				v.apply(e)
			}
			return nil
		}, func() {
			next.compileAll()
			v.replace(next)
			next = nil
		})
		if err != nil && ctx.Err() == nil {
			v.log.Warn("view of policies interrupted, starting over", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	return nil
}

// replace takes over another view, whole.
func (v *bookView) replace(next *bookView) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.tenants, v.known = next.tenants, next.known
	v.applied = max(v.applied, next.applied)
	v.ready = true
	v.announce()
}

func (v *bookView) announce() {
	close(v.changed)
	v.changed = make(chan struct{})
}

// load takes in an event without compiling anything: at the start there are many.
func (v *bookView) load(e journal.Event) {
	v.applied = max(v.applied, e.Sequence)
	recorded, err := aggregate.Decode[*gatev1.Event](e)
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
	delete(t.broken, e.Key)
	if err != nil {
		t.broken[e.Key] = err
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
		t.compileWhole(v.log, tenant)
	}
}

// compileWhole compiles all sources. What fails is found by compiling each alone.
func (t *tenantView) compileWhole(log *slog.Logger, tenant string) {
	var policies []*gatev1.Policy
	for id, p := range t.policies {
		if _, err := policy.NewBook(0, []*gatev1.Policy{p}, nil); err != nil {
			t.fail(log, policyKind().Key(tenant, id), err)
			continue
		}
		policies = append(policies, p)
	}
	var grants []*gatev1.Grant
	for id, g := range t.grants {
		if err := policy.CheckGrant(g); err != nil {
			t.fail(log, grantKind().Key(tenant, id), err)
			continue
		}
		grants = append(grants, g)
	}
	book, err := policy.NewBook(t.revision, policies, grants)
	if err != nil {
		t.fail(log, policyKind().Key(tenant, "*"), err)
		return
	}
	t.book = book
}

func (t *tenantView) fail(log *slog.Logger, key journal.Key, err error) {
	log.Error("a grant or policy cannot be read, its tenant is refused everything", "key", key.String(), "error", err)
	t.broken[key] = err
}

// apply follows one event. What it changes is compiled beside what is in force
// and takes its place whole, or not at all.
func (v *bookView) apply(e journal.Event) {
	recorded, err := aggregate.Decode[*gatev1.Event](e)
	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.announce()
	v.applied = max(v.applied, e.Sequence)
	if e.Key.Kind == catalogueKindName {
		if announced := recorded.Event.GetOperationsAnnounced(); announced != nil {
			v.known = announced.GetOperations()
		}
		return
	}
	old := v.tenants[e.Key.Tenant]
	if old == nil {
		old = newTenantView()
		v.tenants[e.Key.Tenant] = old
	}
	wasPolicy, wasGrant := old.policies[e.Key.ID], old.grants[e.Key.ID]
	old.take(e, recorded, err)
	if err != nil {
		old.fail(v.log, e.Key, err)
		return
	}
	if e.Key.Kind == policyKindName {
		old.replacePolicies(v.log, e.Key, wasPolicy, old.policies[e.Key.ID])
	} else {
		old.replaceGrants(v.log, e.Key, wasGrant, old.grants[e.Key.ID])
	}
}

// replacePolicies compiles anew the targets that a policy had and has.
func (t *tenantView) replacePolicies(log *slog.Logger, key journal.Key, versions ...*gatev1.Policy) {
	book := t.book
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
		next, err := book.WithPolicies(t.revision, version.GetLayer(), version.GetTarget(), same)
		if err != nil {
			t.fail(log, key, err)
			return
		}
		book = next
	}
	t.book = book
}

func (t *tenantView) replaceGrants(log *slog.Logger, key journal.Key, versions ...*gatev1.Grant) {
	book := t.book
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
		next, err := book.WithGrants(t.revision, version.GetSubject(), same)
		if err != nil {
			t.fail(log, key, err)
			return
		}
		book = next
	}
	t.book = book
}

// of gives what a tenant's checks are decided by now.
func (v *bookView) of(tenant string) (*policy.Book, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if !v.ready {
		return nil, fault.New(fault.PolicyUnreadable, "grants and policies are not loaded yet").Retry(time.Second)
	}
	t := v.tenants[tenant]
	if t == nil {
		return noBook, nil
	}
	for key := range t.broken {
		return nil, fault.New(fault.PolicyUnreadable, "%s %s cannot be read, so nothing is allowed", key.Kind, key.ID)
	}
	return t.book, nil
}

// noBook is that of a tenant that has nothing: nothing is granted.
var noBook = newTenantView().book

// sources gives a tenant's policies and grants as they are now.
func (v *bookView) sources(tenant string) (policies []*gatev1.Policy, grants []*gatev1.Grant) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if t := v.tenants[tenant]; t != nil {
		for _, p := range t.policies {
			policies = append(policies, p)
		}
		for _, g := range t.grants {
			grants = append(grants, g)
		}
	}
	return policies, grants
}

// operations gives the operations that exist, nil where nobody has said.
func (v *bookView) operations() []string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.known
}

// ask decides a question of a caller.
func (v *bookView) ask(caller identity.Caller, q *policy.Question) (policy.Answer, *policy.Book, error) {
	book, err := v.of(caller.Tenant)
	if err != nil {
		return policy.Answer{}, nil, err
	}
	return book.Decide(q), book, nil
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

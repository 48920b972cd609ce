package inbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

func TestEveryEventOfAnInboxIsAHintOrNone(t *testing.T) {
	events := (&inboxv1.Event{}).ProtoReflect().Descriptor().Oneofs().ByName("event").Fields()
	inboxes := 0
	for i := range events.Len() {
		name := events.Get(i).Message().FullName()
		if strings.HasPrefix(string(name.Name()), "Dispatch") {
			continue
		}
		inboxes++
		if _, ok := hints[string(name)]; !ok {
			t.Errorf("nothing is said of %s", name)
		}
	}
	if inboxes != len(hints) {
		t.Errorf("%d hints for %d events", len(hints), inboxes)
	}
}

// waitClaim claims, and waits for it.
func (c client) waitClaim(ctx context.Context, goal, request string, wait time.Duration) (*inboxv1.ClaimResponse, error) {
	return c.Claim(ctx, &inboxv1.ClaimRequest{Goal: goal, RequestId: request, Max: 10, Lease: durationpb.New(time.Minute), Wait: durationpb.New(wait)})
}

// measured is a replica with metrics.
type measured struct {
	*meshtest.Service
	t       testing.TB
	metrics *prometheus.Registry
}

func (r *rig) measured() measured {
	r.t.Helper()
	m := measured{t: r.t, metrics: prometheus.NewRegistry()}
	m.Service = r.startWith(func(cfg *Config) { cfg.Serve.Registry, cfg.Limit = m.metrics, maxLimit })
	return m
}

// figure is what /metrics says now.
func (m measured) figure(name string) float64 {
	m.t.Helper()
	families, err := m.metrics.Gather()
	if err != nil {
		m.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "weir_inbox_"+name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	m.t.Fatalf("there is no figure %s", name)
	return 0
}

func (m measured) shows(name string, want float64) {
	m.t.Helper()
	meshtest.Eventually(m.t, fmt.Sprint(name, " is ", want), func() bool { return m.figure(name) == want })
}

// wantWaiting waits until so many claims wait at the hub.
func (h *hub) wantWaiting(t *testing.T, n int) {
	t.Helper()
	meshtest.Eventually(t, fmt.Sprint(n, " claims wait"), func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		asleep := 0
		for _, c := range h.claims {
			asleep += c.asleep.Len()
		}
		return asleep == n
	})
}

func TestAClaimWaitsForAMessage(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	w.enqueue("build", "before") // and the claim finds a goal that exists
	w.mustDone("build", w.claim("build", "0", 1, time.Minute).GetClaimToken(), "before")
	var claimed *inboxv1.ClaimResponse
	var took time.Duration
	var waiting sync.WaitGroup
	began := time.Now()
	waiting.Go(func() {
		var err error
		if claimed, err = w.waitClaim(t.Context(), "build", "1", 20*time.Second); err != nil {
			t.Errorf("claim: %v", err)
		}
		took = time.Since(began)
	})
	// At another replica, so that only the journal can tell.
	r.at(r.start(), worker).enqueue("build", "m")
	waiting.Wait()
	wantIDs(t, claimed.GetMessages(), "m")
	if took > lookAgain {
		t.Errorf("it took %v", took)
	}
	// The same request again converges, and has no need to wait.
	again, err := w.waitClaim(t.Context(), "build", "1", 20*time.Second)
	if err != nil || again.GetClaimToken() != claimed.GetClaimToken() {
		t.Fatalf("a retry gave %v, %v", again, err)
	}
}

func TestAClaimWaitsForWhatTimeAloneServes(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	w.enqueue("held", "m")
	held := w.claim("held", "1", 1, time.Second).GetMessages()[0].GetLeaseExpireTime().AsTime()
	delayed := time.Now().Add(time.Second)
	_, err := w.Enqueue(t.Context(), &inboxv1.EnqueueRequest{Goal: "delayed", MessageId: "m", Body: "x", NotBefore: timestamppb.New(delayed)})
	if err != nil {
		t.Fatal(err)
	}
	var waiting sync.WaitGroup
	for goal, due := range map[string]time.Time{"held": held, "delayed": delayed} {
		waiting.Go(func() {
			out, err := w.waitClaim(t.Context(), goal, "2", 20*time.Second)
			if late := time.Since(due); err != nil || len(out.GetMessages()) != 1 || late < 0 || late > lookAgain/2 {
				t.Errorf("%s: %v, %v, %v after its time", goal, out, err, late)
			}
		})
	}
	waiting.Wait()
}

func TestAWaitEndsEmptyBeforeItsCallDoes(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	for name, limit := range map[string]struct{ deadline, wait time.Duration }{
		"the wait is over":         {20 * time.Second, 300 * time.Millisecond},
		"the deadline comes first": {2 * time.Second, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limit.deadline)
			defer cancel()
			began := time.Now()
			out, err := w.waitClaim(ctx, "nobody", "1", limit.wait)
			if err != nil || len(out.GetMessages()) != 0 || out.GetClaimToken() != "" {
				t.Fatalf("it gave %v, %v", out, err)
			}
			if took := time.Since(began); took < 250*time.Millisecond || took > 5*time.Second {
				t.Fatalf("it took %v", took)
			}
		})
	}
	for _, wait := range []*durationpb.Duration{{Seconds: -1}, {Seconds: 26}, {Nanos: 2_000_000_000}} {
		_, err := w.Claim(t.Context(), &inboxv1.ClaimRequest{Goal: "build", RequestId: "r", Wait: wait})
		wantField(t, fmt.Sprint("wait ", wait), err, "wait")
	}
}

func TestAServiceThatStopsEndsWaitsEmpty(t *testing.T) {
	r := newRig(t)
	stops := r.measured()
	w := r.at(stops.Service, worker)
	const claims = 5
	var waiting sync.WaitGroup
	for i := range claims {
		waiting.Go(func() {
			out, err := w.waitClaim(t.Context(), "build", fmt.Sprint(i), 25*time.Second)
			if err != nil || len(out.GetMessages()) != 0 {
				t.Errorf("it gave %v, %v", out, err)
			}
		})
	}
	// One that was told something is not tried again by the client by itself.
	watch := w.watches(1000, "other")
	w.enqueue("other", "m")
	watch.hears("other")
	w.claim("other", "1", 1, time.Minute)
	stops.shows("waiting_claims", claims)
	stops.shows("watches", 1)
	began := time.Now()
	if err := stops.Stop(); err != nil {
		t.Fatal(err)
	}
	waiting.Wait()
	wantReason(t, watch.ends(), fault.ShuttingDown)
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("stopping took %v", took)
	}
}

func TestWhoLeavesTakesNothing(t *testing.T) {
	r := newRig(t)
	left := r.measured()
	w := r.at(left.Service, worker)
	ctx, leave := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	waiting.Go(func() {
		_, err := w.waitClaim(ctx, "build", "1", 20*time.Second)
		wantReason(t, err, fault.Cancelled)
	})
	left.shows("waiting_claims", 1)
	leave()
	waiting.Wait()
	left.shows("waiting_claims", 0)
	w.enqueue("build", "m")
	if in := w.inbox("build"); in.GetPending() != 1 || in.GetClaimed() != 0 {
		t.Fatalf("the inbox is %v", in)
	}
}

// lone is a hub that hears nothing but what the test says.
func lone() *hub {
	return newHub(context.Background(), nil, nil, nil, slog.New(slog.DiscardHandler))
}

// mailbox is an inbox for waiting claims, as a number.
type mailbox struct {
	mu                sync.Mutex
	messages, entered int
}

// attempt takes one, whoever comes, and counts who came.
func (m *mailbox) attempt(request string) attempt {
	return func(context.Context) (served, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.entered++
		now := time.Unix(1, 0)
		if m.messages == 0 {
			return served{at: now}, nil
		}
		m.messages--
		state := newInbox().set("m", message{
			State: claimed, Hold: hold{Request: request, Token: "t", Until: now.Add(time.Minute)},
		})
		return served{state.held(request, now), state, now}, nil
	}
}

func TestOneMessageWakesOneClaim(t *testing.T) {
	const claims = 50
	h, m, key := lone(), &mailbox{}, journal.Key{Tenant: "acme", Kind: "inbox", ID: "g"}
	var waiting sync.WaitGroup
	for i := range claims {
		waiting.Go(func() {
			request := fmt.Sprint(i)
			got, err := h.claim(t.Context(), key, 25*time.Second, m.attempt(request))
			if err != nil || len(got.ids) != 1 {
				t.Errorf("it gave %v, %v", got.ids, err)
			}
		})
	}
	h.wantWaiting(t, claims)
	add := func(n int) {
		m.mu.Lock()
		m.messages += n
		m.mu.Unlock()
		h.wake(key)
	}
	add(1)
	h.wantWaiting(t, claims-1)
	// The one that took something had the next one look.
	meshtest.Eventually(t, "it is quiet", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.entered == claims+2
	})
	h.wantWaiting(t, claims-1)
	add(claims - 1) // of which the hub hears once
	waiting.Wait()
	if h.waiting != 0 || len(h.claims) != 0 {
		t.Errorf("%d claims of %d inboxes are left", h.waiting, len(h.claims))
	}
}

func TestAClaimThatWasWokenAndLeftWakesTheNext(t *testing.T) {
	h, key := lone(), journal.Key{Tenant: "acme", Kind: "inbox", ID: "g"}
	one, err := h.fallAsleep(key)
	if err != nil {
		t.Fatal(err)
	}
	two, err := h.fallAsleep(key)
	if err != nil {
		t.Fatal(err)
	}
	h.wake(key)
	h.awake(key, one, false)
	select {
	case <-two.woken:
	default:
		t.Fatal("nobody looks")
	}
}

func TestWaitingClaimsAreBounded(t *testing.T) {
	h, m, key := lone(), &mailbox{messages: 1}, journal.Key{Tenant: "acme", Kind: "inbox", ID: "g"}
	h.waiting = maxWaiting
	// What is there is served all the same.
	if _, err := h.claim(t.Context(), key, time.Minute, m.attempt("1")); err != nil {
		t.Fatal(err)
	}
	_, err := h.claim(t.Context(), key, time.Minute, m.attempt("2"))
	wantReason(t, err, fault.LimitReached)
}

// watching is a stream of WatchInboxes, with what it gives read beside.
type watching struct {
	t *testing.T
	inboxv1.InboxService_WatchInboxesClient
	told chan string
	err  error // why it ended, once told is closed
}

// watch opens a stream without wanting anything yet.
func (c client) watch() inboxv1.InboxService_WatchInboxesClient {
	c.t.Helper()
	stream, err := c.WatchInboxes(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return stream
}

func (c client) watches(want int32, goals ...string) *watching {
	c.t.Helper()
	w := &watching{t: c.t, InboxService_WatchInboxesClient: c.watch(), told: make(chan string, 1000)}
	w.want(want, goals...)
	go func() {
		defer close(w.told)
		for {
			out, err := w.Recv()
			if err != nil {
				w.err = err
				return
			}
			w.told <- out.GetInbox().GetGoal()
		}
	}()
	return w
}

func (w *watching) want(n int32, goals ...string) {
	w.t.Helper()
	if err := w.Send(&inboxv1.WatchInboxesRequest{Want: n, Goals: goals}); err != nil {
		w.t.Fatalf("want %d: %v", n, err)
	}
}

// hears waits for so many goals, in order.
func (w *watching) hears(goals ...string) {
	w.t.Helper()
	for i, goal := range goals {
		select {
		case got, ok := <-w.told:
			if !ok {
				w.t.Fatalf("the watch ended with %v, want %v", w.err, goals[i:])
			}
			if got != goal {
				w.t.Fatalf("told %s, want %v", got, goals[i:])
			}
		case <-time.After(meshtest.Patience):
			w.t.Fatalf("told nothing, want %v", goals[i:])
		}
	}
}

// ends waits for the end, with nothing told before.
func (w *watching) ends() error {
	w.t.Helper()
	if goal, ok := <-w.told; ok {
		w.t.Fatalf("told %s", goal)
	}
	return w.err
}

func TestAWatchIsToldAsManyAsItWants(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	for _, goal := range []string{"a", "b", "c"} {
		w.enqueue(goal, "m")
	}
	var watch *watching
	meshtest.Eventually(t, "lists are there", func() bool {
		watch = w.watches(2)
		select {
		case goal, ok := <-watch.told:
			if !ok && !fault.Is(watch.err, fault.IndexRebuilding) {
				t.Fatal(watch.err)
			}
			return ok && goal == "a"
		case <-time.After(meshtest.Patience):
			return false
		}
	})
	watch.hears("b")
	// What was claimed from is not told again, and the others wait until it is wanted.
	for _, goal := range []string{"a", "b"} {
		w.claim(goal, "1", 1, time.Minute)
	}
	watch.want(0) // one if unset
	watch.hears("c")
	w.claim("c", "1", 1, time.Minute)
	watch.want(1)
	w.enqueue("d", "m")
	watch.hears("d")
}

func TestAWatchGoesOnUntilAllThatWasWantedIsTold(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	watch := w.watches(2, "a", "b")
	if err := watch.CloseSend(); err != nil {
		t.Fatal(err)
	}
	w.enqueue("c", "m")
	w.enqueue("b", "m")
	watch.hears("b")
	w.enqueue("a", "m")
	watch.hears("a")
	if err := watch.ends(); !errors.Is(err, io.EOF) {
		t.Fatalf("it ended with %v", err)
	}
	// One that never wanted anything has nothing to wait for.
	nothing := w.watch()
	if err := nothing.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if out, err := nothing.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("it gave %v, %v", out, err)
	}
}

func TestAnOfferThatNobodyTakesIsToldToAnother(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	// By name, since lists may still be built.
	one, two := w.watches(1, "a"), w.watches(5, "a", "b")
	w.enqueue("b", "m")
	two.hears("b") // so the other is there, too, or will be next
	w.claim("b", "1", 1, time.Minute)
	w.enqueue("a", "m")
	first := ""
	select {
	case <-one.told:
		first = "one"
	case <-two.told:
		first = "two"
	}
	began := time.Now()
	if first == "one" {
		two.hears("a")
	} else {
		one.hears("a")
	}
	if took := time.Since(began); took < offerPatience-200*time.Millisecond {
		t.Fatalf("it was told again after %v", took)
	}
	w.claim("a", "1", 1, time.Minute)
}

func TestAnOfferWhoseStreamEndedIsToldToAnotherAtOnce(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	conn := r.issuer.Dial(r.inbox.Addr, worker)
	gone := client{t: t, InboxServiceClient: inboxv1.NewInboxServiceClient(conn)}.watches(1, "a")
	w.enqueue("a", "m")
	gone.hears("a")
	began := time.Now()
	other := w.watches(1, "a")
	_ = conn.Close()
	other.hears("a")
	if took := time.Since(began); took > offerPatience-200*time.Millisecond {
		t.Errorf("it took %v", took)
	}
}

func TestAWatchHearsOfWhatItsCallerServes(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	all, foreign := r.as(bob).watches(5), r.as(alien).watches(5, "eve", "bob")
	w.enqueue("eve", "m")
	w.enqueue("bob", "m")
	all.hears("bob")
	err := r.as(bob).watches(1, "bob", "eve").ends()
	wantReason(t, err, fault.InboxNotFound)
	wantReason(t, r.as(sender).watches(1, "bob").ends(), fault.ScopeMissing)
	r.as(alien).enqueue("bob", "theirs")
	foreign.hears("bob")
}

func TestWhatAWatchMayNotWantIsRefused(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	for name, ask := range map[string]func() (*watching, string){
		"too many at once":    func() (*watching, string) { return w.watches(1001, "a"), "want" },
		"fewer than none":     func() (*watching, string) { return w.watches(-1, "a"), "want" },
		"a goal that is none": func() (*watching, string) { return w.watches(1, "a", "../x"), "goals[1]" },
		"a goal twice":        func() (*watching, string) { return w.watches(1, "a", "a"), "goals" },
		"too many in all": func() (*watching, string) {
			watch := w.watches(1000, "a")
			watch.want(1)
			return watch, "want"
		},
		"other goals later": func() (*watching, string) {
			watch := w.watches(1, "a")
			watch.want(1, "b")
			return watch, "goals"
		},
	} {
		t.Run(name, func(t *testing.T) {
			watch, field := ask()
			wantField(t, name, watch.ends(), field)
		})
	}
	many := make([]string, 1001)
	for i := range many {
		many[i] = fmt.Sprint("g", i)
	}
	wantField(t, "too many goals", w.watches(1, many...).ends(), "goals")
}

func TestWatchesAreBounded(t *testing.T) {
	for name, fill := range map[string]func(*hub){
		"watches":      func(h *hub) { h.watches = maxWatches },
		"named goals":  func(h *hub) { h.named = maxNamed },
		"not counting": func(*hub) {},
	} {
		h := lone()
		fill(h)
		w := &watch{}
		err := h.enter(t.Context(), w, "acme", []string{"a"})
		if name == "not counting" {
			if err != nil {
				t.Fatal(err)
			}
			h.leave(w)
			if h.watches != 0 || h.named != 0 || len(h.pools) != 0 {
				t.Errorf("%d watches of %d goals in %d pools are left", h.watches, h.named, len(h.pools))
			}
			continue
		}
		wantReason(t, err, fault.LimitReached)
	}
}

// What a leave gives back is served in the order it was told in.
func TestWhatALeaverWasToldKeepsItsPlace(t *testing.T) {
	b := newBoard()
	gone := b.join(nil)
	for _, goal := range []string{"a", "b", "c", "d"} {
		b.changed(goal, 1)
	}
	b.wants(gone, 3)
	lookAll(b, time.Time{}, always)
	b.leave(gone)
	stays := b.join(nil)
	for _, goal := range []string{"a", "b", "c", "d"} { // the last to leave cleared the board
		b.changed(goal, 1)
	}
	b.wants(stays, 4)
	if told, _ := lookAll(b, time.Time{}, always); !slices.Equal(told, []string{"a", "b", "c", "d"}) {
		t.Fatalf("told %v", told)
	}
}

package inbox

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

// How large the pool is that is watched. In full, some minutes with -race:
//
//	go test ./services/inbox -run TestAFlood -v -goals 10000 -workers 100 -flood 5000
var (
	poolGoals   = flag.Int("goals", 60, "goals that a pool of workers serves")
	poolWorkers = flag.Int("workers", 10, "workers of the pool")
	poolFlood   = flag.Int("flood", 100, "messages of the one goal that floods")
	poolFaults  = flag.Int("faults", 1, "times that each thing goes wrong while a pool works")
)

// pond is a pool of workers over many goals, each of which watches, claims what it is
// told of, and finishes it.
type pond struct {
	t *testing.T
	// claimed hears of each message with the answer of its claim; finished once it
	// is done.
	claimed, finished func(goal, id string)
	lease             time.Duration
	empty             atomic.Int64
	requests          atomic.Int64
}

// work is one worker, until ctx ends. Whatever fails it tries again, at the place that
// client gives then.
func (p *pond) work(ctx context.Context, client func() client) {
	for ctx.Err() == nil {
		c := client()
		if err := p.watch(ctx, c); err != nil {
			_ = journal.Pause(ctx, 20*time.Millisecond)
		}
	}
}

func (p *pond) watch(ctx context.Context, c client) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	stream, err := c.WatchInboxes(ctx)
	if err != nil {
		return err
	}
	for {
		if err := stream.Send(&inboxv1.WatchInboxesRequest{Want: 1}); err != nil {
			return err
		}
		told, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := p.serve(ctx, c, told.GetInbox().GetGoal()); err != nil {
			return err
		}
	}
}

// serve claims one message and finishes it. A claim whose answer was lost is asked for
// again, as its request id is for.
func (p *pond) serve(ctx context.Context, c client, goal string) error {
	in := &inboxv1.ClaimRequest{Goal: goal, RequestId: fmt.Sprint("r", p.requests.Add(1)), Max: 1, Lease: durationpb.New(p.lease)}
	var out *inboxv1.ClaimResponse
	if err := again(ctx, func() (err error) {
		out, err = c.Claim(ctx, in)
		return err
	}); err != nil {
		return err
	}
	if len(out.GetMessages()) == 0 {
		p.empty.Add(1)
		return nil
	}
	id := out.GetMessages()[0].GetMessageId()
	p.claimed(goal, id)
	done := &inboxv1.DoneRequest{Goal: goal, ClaimToken: out.GetClaimToken(), MessageIds: []string{id}}
	err := again(ctx, func() error {
		_, err := c.Done(ctx, done)
		return err
	})
	if err == nil {
		p.finished(goal, id)
	}
	return err
}

// again tries what may pass, for some seconds beyond a call's own patience.
func again(ctx context.Context, try func() error) error {
	for until := time.Now().Add(15 * time.Second); ; {
		err := try()
		if err == nil || time.Now().After(until) || fault.From(err).Kind() == fault.KindPrecondition {
			return err
		}
		if journal.Pause(ctx, 20*time.Millisecond) != nil {
			return err
		}
	}
}

// waited is how long the messages of a phase, one in each goal, waited for a claim.
type waited struct {
	mu   sync.Mutex
	sent map[string]time.Time // by goal
	took []time.Duration
}

func (w *waited) claimed(goal string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at, ok := w.sent[goal]; ok {
		w.took = append(w.took, time.Since(at))
		delete(w.sent, goal)
	}
}

func (w *waited) at(share float64) time.Duration {
	slices.Sort(w.took)
	return w.took[int(share*float64(len(w.took)-1))].Round(10 * time.Microsecond)
}

func (w *waited) String() string {
	return fmt.Sprintf("%d waits: median %v, p99 %v, longest %v", len(w.took), w.at(.5), w.at(.99), w.at(1))
}

// The floor below which waits are not told apart on a machine that does other things.
const waitFloor = 50 * time.Millisecond

// Where one goal floods, the others wait at most twice as long as without. So it must
// be both where the workers have time, and where all of them always have work.
func TestAFloodDoesNotHoldUpTheOthers(t *testing.T) {
	r := newAloneRig(t)
	replica := r.measured()
	for name, outstanding := range map[string]int{"workers wait for work": *poolWorkers / 2, "work waits for workers": 4 * *poolWorkers} {
		t.Run(name, func(t *testing.T) {
			f := &flooding{t: t, to: r.at(replica.Service, worker), outstanding: outstanding, name: strings.ReplaceAll(name, " ", "-")}
			for range *poolGoals {
				f.served = append(f.served, make(chan struct{}, 1))
			}
			p := &pond{t: t, lease: time.Minute, claimed: f.claimed, finished: f.finished}
			ctx, stop := context.WithCancel(t.Context())
			var working sync.WaitGroup
			defer working.Wait()
			defer stop()
			for range (*poolWorkers + 49) / 50 {
				at := r.at(replica.Service, worker)
				for range min(*poolWorkers, 50) {
					working.Go(func() { p.work(ctx, func() client { return at }) })
				}
			}
			// In turns, so that what else the machine does falls on both.
			quiet, flooded := &waited{}, &waited{}
			f.phase("new", &waited{}) // the first time all goals are new
			ofFlood := int64(0)
			for round := range 2 {
				f.phase(fmt.Sprint("quiet", round), quiet)
				f.flood(*poolFlood)
				before := f.ofFlood.Load()
				f.phase(fmt.Sprint("flooded", round), flooded)
				ofFlood += f.ofFlood.Load() - before
				if f.to.inbox(f.name).GetDepth() == 0 {
					t.Error("the flood was over before the end")
				}
				// What is left of it is served, as fast as one after the other can be.
				for now := f.ofFlood.Load(); now < f.sent.Load(); now = f.ofFlood.Load() {
					meshtest.Eventually(t, "more of the flood is served", func() bool { return f.ofFlood.Load() > now })
				}
			}

			t.Logf("%d workers, %d goals, %d messages outstanding", *poolWorkers, *poolGoals, outstanding)
			t.Logf("quiet:   %v", quiet)
			t.Logf("flooded: %v; %d of the flood were served meanwhile", flooded, ofFlood)
			t.Logf("%.0f offers, %.0f lapsed; %d empty claims", replica.figure("offers_total"), replica.figure("offers_lapsed_total"), p.empty.Load())
			if limit := max(2*quiet.at(.5), waitFloor); flooded.at(.5) > limit {
				t.Errorf("the median wait went from %v to %v", quiet.at(.5), flooded.at(.5))
			}
			if ofFlood == 0 {
				t.Error("the flood itself was not served")
			}
		})
	}
}

// newAloneRig is a rig for what is measured, beside which no other test runs.
func newAloneRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, nats: meshtest.StartNATS(t), redis: meshtest.StartRedis(t), issuer: meshtest.NewIssuer(t)}
	r.peers = startPeers(r.issuer)
	return r
}

// flooding sends to a pond.
type flooding struct {
	t           *testing.T
	to          client
	name        string // of the goal that floods, and what the others begin with
	outstanding int
	now         atomic.Pointer[waited]
	served      []chan struct{}
	ofFlood     atomic.Int64
	sent        atomic.Int64
}

func (f *flooding) claimed(goal, _ string) { f.now.Load().claimed(goal) }

func (f *flooding) finished(goal, _ string) {
	var i int
	if _, err := fmt.Sscanf(goal, f.name+"%d", &i); err != nil {
		f.ofFlood.Add(1)
		return
	}
	f.served[i] <- struct{}{}
}

// phase has one message in each goal, so many of them at a time, and adds what they
// waited.
func (f *flooding) phase(id string, w *waited) {
	f.t.Helper()
	w.sent = make(map[string]time.Time)
	f.now.Store(w)
	var sending errgroup.Group
	sending.SetLimit(f.outstanding)
	for _, i := range rand.Perm(len(f.served)) {
		sending.Go(func() error {
			goal := fmt.Sprint(f.name, i)
			w.mu.Lock()
			w.sent[goal] = time.Now()
			w.mu.Unlock()
			err := f.to.sends(f.t.Context(), goal, id)
			if err == nil {
				<-f.served[i]
			}
			return err
		})
	}
	if err := sending.Wait(); err != nil {
		f.t.Fatal(err)
	}
}

func (f *flooding) flood(messages int) {
	f.t.Helper()
	var filling errgroup.Group
	filling.SetLimit(16)
	for range messages {
		filling.Go(func() error { return f.to.sends(f.t.Context(), f.name, fmt.Sprint("m", f.sent.Add(1))) })
	}
	if err := filling.Wait(); err != nil {
		f.t.Fatal(err)
	}
}

// sends enqueues, and tries again where writers were too many or the machine too slow.
func (c client) sends(ctx context.Context, goal, id string) error {
	return again(ctx, func() error {
		_, err := c.Enqueue(ctx, &inboxv1.EnqueueRequest{Goal: goal, MessageId: id, Body: "x"})
		return err
	})
}

// tally is what became of messages, by goal and id.
type tally struct {
	mu              sync.Mutex
	claims, dones   map[string]int
	claimed, doneds int
}

func newTally() *tally { return &tally{claims: make(map[string]int), dones: make(map[string]int)} }

func (c *tally) claim(goal, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims[goal+"/"+id]++
	c.claimed++
}

func (c *tally) done(goal, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dones[goal+"/"+id]++
	c.doneds++
}

func (c *tally) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.dones)
}

// reaches waits until so many messages are done, as long as any are.
func (c *tally) reaches(t *testing.T, n int, what string) {
	t.Helper()
	for now := c.count(); now < n; now = c.count() {
		meshtest.Eventually(t, fmt.Sprintf("more than %d of %d are done: %s", now, n, what), func() bool { return c.count() > now })
	}
}

// Each replica offers for itself, so two workers may be told of one message; one of
// them gets it.
func TestTwoReplicasServeEachMessageOnce(t *testing.T) {
	const goals, each, workers = 10, 10, 6
	r := newRig(t)
	replicas := []measured{r.measured(), r.measured()}
	c := newTally()
	p := &pond{t: t, lease: time.Minute, claimed: c.claim, finished: c.done}
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	defer working.Wait()
	defer stop()
	for i := range workers {
		at := r.at(replicas[i%2].Service, worker)
		working.Go(func() { p.work(ctx, func() client { return at }) })
	}
	for _, replica := range replicas {
		replica.shows("watches", workers/2)
	}
	var sending errgroup.Group
	sending.SetLimit(8)
	from := r.as(sender)
	for i := range goals * each {
		sending.Go(func() error {
			return from.sends(t.Context(), fmt.Sprint("g", i%goals), fmt.Sprint("m", i))
		})
	}
	if err := sending.Wait(); err != nil {
		t.Fatal(err)
	}
	c.reaches(t, goals*each, "all")
	for what, n := range c.claims {
		if n != 1 || c.dones[what] != 1 {
			t.Errorf("%s was claimed %d and done %d times", what, n, c.dones[what])
		}
	}
	offers := replicas[0].figure("offers_total") + replicas[1].figure("offers_total")
	t.Logf("%d messages, %.0f offers, %d claims found nothing", goals*each, offers, p.empty.Load())
}

// What goes wrong while a pool works, besides what the workers suffer by it.
func TestNoGoalIsForgotten(t *testing.T) {
	const goals, workers, senders = 12, 6, 3
	r := newRig(t)
	type place struct {
		proxy   *meshtest.Proxy
		service measured
		client  client
	}
	at := make([]atomic.Pointer[place], 2)
	start := func(i int) {
		s := r.measured()
		proxy := meshtest.StartProxy(t, s.Addr)
		conn := r.issuer.Dial(proxy.Addr(), worker)
		at[i].Store(&place{proxy, s, client{t, inboxv1.NewInboxServiceClient(conn), inboxv1.NewDispatchServiceClient(conn)}})
	}
	for i := range at {
		start(i)
	}
	c := newTally()
	p := &pond{t: t, lease: 2 * time.Second, claimed: c.claim, finished: c.done}
	ctx, stop := context.WithCancel(t.Context())
	var working, sending sync.WaitGroup
	defer working.Wait()
	defer stop()
	for i := range workers {
		working.Go(func() { p.work(ctx, func() client { return at[i%2].Load().client }) })
	}
	var acknowledged atomic.Int64
	enough := make(chan struct{})
	for i := range senders {
		sending.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-enough:
					return
				default:
				}
				in := &inboxv1.EnqueueRequest{Goal: fmt.Sprint("g", rand.N(goals)), MessageId: fmt.Sprintf("m%d-%d", i, n), Body: "x"}
				for { // until it is acknowledged, whatever happens
					if _, err := at[i%2].Load().client.Enqueue(ctx, in); err == nil {
						acknowledged.Add(1)
						break
					}
					if journal.Pause(ctx, 20*time.Millisecond) != nil {
						return
					}
				}
			}
		})
	}
	faults := map[string]func(){
		"cut connections":   func() { at[rand.N(2)].Load().proxy.Cut() },
		"lose answers":      func() { i := rand.N(2); at[i].Load().proxy.Swallow(); at[i].Load().proxy.Cut() },
		"flush redis":       r.redis.Flush,
		"restart redis":     func() { r.redis.Kill(); r.redis.Start() },
		"restart nats":      func() { r.nats.Stop(); r.nats.Start() },
		"restart a replica": func() { i := rand.N(2); _ = at[i].Load().service.Stop(); start(i) },
	}
	for range *poolFaults {
		for name, fail := range faults { // in any order
			fail()
			c.reaches(t, c.count()+5, "after: "+name)
		}
	}
	close(enough)
	sending.Wait()
	c.reaches(t, int(acknowledged.Load()), "all")
	w := at[0].Load().client
	for i := range goals {
		if in := w.inbox(fmt.Sprint("g", i)); in.GetDepth() != 0 || in.GetDead() != 0 {
			t.Errorf("the inbox is %v", in)
		}
	}
	t.Logf("%d messages, %d claims, %d found nothing", acknowledged.Load(), c.claimed, p.empty.Load())
}

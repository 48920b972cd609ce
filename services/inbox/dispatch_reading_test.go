package inbox

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

func (c client) list(in *inboxv1.ListDispatchesRequest) []string {
	c.t.Helper()
	var items []string
	for in.PageSize = 2; ; {
		out, err := c.ListDispatches(c.t.Context(), in)
		if err != nil {
			c.t.Fatalf("list %v: %v", in, err)
		}
		for _, d := range out.GetDispatches() {
			items = append(items, d.GetGoal()+"/"+d.GetItem())
		}
		if in.PageToken = out.GetNextPageToken(); in.PageToken == "" {
			slices.Sort(items)
			return items
		}
	}
}

// agent is an agent as the registry acts for it.
func (r *workRig) agent(name string) client {
	r.t.Helper()
	return r.as(identity.Caller{Tenant: "acme", Subject: "agent:" + name, Scopes: []string{"dispatch.report", "dispatch.send", "dispatch.write"}})
}

func TestAnAgentSeesWhatItOwnsOrWorksOnAndOthersSeeAll(t *testing.T) {
	r := newWorkRig(t)
	al, o := r.agent("alice"), r.as(operator)
	al.dispatch(order("1", "a"))
	al.begin("2")
	b := r.as(boss)
	b.dispatch(order("3", "a"))
	b.begin("4")
	elsewhere := order("1", "a")
	elsewhere.Goal, elsewhere.Worker = "docs", "eve"
	b.dispatch(elsewhere)
	const begun, sent = inboxv1.DispatchState_DISPATCH_STATE_BEGUN, inboxv1.DispatchState_DISPATCH_STATE_SENT
	states := func(s ...inboxv1.DispatchState) *inboxv1.ListDispatchesRequest {
		return &inboxv1.ListDispatchesRequest{States: s}
	}
	for _, c := range []struct {
		who  client
		in   *inboxv1.ListDispatchesRequest
		want []string
	}{
		{o, states(), []string{"build/1", "build/2", "build/3", "build/4", "docs/1"}},
		{o, states(begun), []string{"build/2", "build/4"}},
		{o, states(begun, sent), []string{"build/1", "build/2", "build/3", "build/4", "docs/1"}},
		{o, &inboxv1.ListDispatchesRequest{Goal: "build", States: []inboxv1.DispatchState{sent}}, []string{"build/1", "build/3"}},
		{o, &inboxv1.ListDispatchesRequest{Goal: "docs"}, []string{"docs/1"}},
		{o, &inboxv1.ListDispatchesRequest{Worker: "bob"}, []string{"build/1", "build/3"}},
		{o, &inboxv1.ListDispatchesRequest{Worker: "bob", Goal: "docs"}, nil},
		{al, states(), []string{"build/1", "build/2"}},
		{al, states(begun), []string{"build/2"}},
		{al, &inboxv1.ListDispatchesRequest{Goal: "docs"}, nil},
		{r.agent("bob"), states(), []string{"build/1", "build/3"}},
		{r.agent("eve"), states(), []string{"docs/1"}},
		{r.agent("dave"), states(), nil},
		{r.as(identity.Caller{Tenant: "other", Subject: "human:x", Scopes: operator.Scopes}), states(), nil},
	} {
		if got := c.who.list(c.in); !slices.Equal(got, c.want) {
			t.Errorf("%v: got %v, want %v", c.in, got, c.want)
		}
	}
	for name, sees := range map[string]bool{"alice": true, "bob": true, "eve": false} {
		_, err := r.agent(name).GetDispatch(t.Context(), &inboxv1.GetDispatchRequest{Goal: "build", Item: "1"})
		if sees != (err == nil) || !sees && !fault.Is(err, fault.DispatchNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Whoever begins it too is told that it was, and by whom, and no more.
	got, err := r.agent("eve").Begin(t.Context(), &inboxv1.BeginRequest{Goal: "build", Item: "1"})
	if d := got.GetDispatch(); err != nil || !got.GetReplay() || d.GetOwner() != "agent:alice" || d.GetWorker() != "" || d.GetReport() != nil {
		t.Errorf("eve begins it: %v, %v", got, err)
	}

	al.abandon("1")
	b.abandon("4")
	out, err := o.GetGoal(t.Context(), &inboxv1.GetGoalRequest{Goal: "build"})
	if err != nil || out.GetGoal().GetOpen() != 2 || out.GetGoal().GetLimit() != maxOpen ||
		fmt.Sprint(counted(out)) != "map[DISPATCH_STATE_ABANDONED:2 DISPATCH_STATE_BEGUN:1 DISPATCH_STATE_SENT:1]" {
		t.Fatalf("the goal is %v, %v", out, err)
	}
}

func counted(out *inboxv1.GetGoalResponse) map[string]int32 {
	counts := map[string]int32{}
	for _, c := range out.GetGoal().GetCounts() {
		counts[c.GetState().String()] = c.GetCount()
	}
	return counts
}

// watched gives changes as "change item state", until it has so many.
func watched(t *testing.T, stream inboxv1.DispatchService_WatchDispatchesClient, want int) (seen []string, token string) {
	t.Helper()
	for len(seen) < want {
		got, err := stream.Recv()
		if err != nil {
			t.Fatalf("after %v: %v", seen, err)
		}
		if token = got.GetResumeToken(); got.GetChange() == "" {
			continue
		}
		if got.GetActor() == "" || got.GetChangeTime() == nil {
			t.Errorf("a change without an actor or a time: %v", got)
		}
		seen = append(seen, fmt.Sprint(got.GetChange(), " ", got.GetDispatch().GetItem(), " ", got.GetDispatch().GetState()))
	}
	return seen, token
}

func TestAWatchGivesEachChangeOnceAlsoAfterADisconnect(t *testing.T) {
	r := newWorkRig(t)
	b := r.as(boss)
	b.dispatch(order("before", "a"))
	watch := func(c client, in *inboxv1.WatchDispatchesRequest) (inboxv1.DispatchService_WatchDispatchesClient, context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := c.WatchDispatches(ctx, in)
		if err != nil {
			t.Fatal(err)
		}
		return stream, cancel
	}
	stream, cancel := watch(b, &inboxv1.WatchDispatchesRequest{Goal: "build"})
	first, err := stream.Recv()
	if err != nil || first.GetResumeToken() == "" || first.GetChange() != "" {
		t.Fatalf("first %v, %v", first, err)
	}
	eves, stop := watch(r.agent("eve"), &inboxv1.WatchDispatchesRequest{})
	defer stop()
	if _, err := eves.Recv(); err != nil {
		t.Fatal(err)
	}
	other := order("x", "a")
	other.Goal, other.Worker = "docs", "eve"
	b.dispatch(other)
	b.dispatch(order("1", "a"))
	seen, token := watched(t, stream, 2)
	if !slices.Equal(seen, []string{"DispatchBegun 1 DISPATCH_STATE_BEGUN", "DispatchSent 1 DISPATCH_STATE_SENT"}) {
		t.Fatalf("seen %v", seen)
	}
	cancel()
	b.abandon("1")
	b.begin("2")
	// The states are those that the changes left, though the items are further by now.
	for from, want := range map[string][]string{
		token: {"DispatchAbandoned 1 DISPATCH_STATE_ABANDONED", "DispatchBegun 2 DISPATCH_STATE_BEGUN"},
		first.GetResumeToken(): {
			"DispatchBegun 1 DISPATCH_STATE_BEGUN", "DispatchSent 1 DISPATCH_STATE_SENT",
			"DispatchAbandoned 1 DISPATCH_STATE_ABANDONED", "DispatchBegun 2 DISPATCH_STATE_BEGUN",
		},
	} {
		again, cancel := watch(r.at(r.replica(nil), boss), &inboxv1.WatchDispatchesRequest{Goal: "build", ResumeToken: from})
		if seen, _ := watched(t, again, len(want)); !slices.Equal(seen, want) {
			t.Fatalf("seen %v, want %v", seen, want)
		}
		cancel()
	}
	if seen, _ := watched(t, eves, 2); !slices.Equal(seen, []string{"DispatchBegun x DISPATCH_STATE_BEGUN", "DispatchSent x DISPATCH_STATE_SENT"}) {
		t.Fatalf("eve saw %v", seen)
	}
	for what, token := range map[string]string{"made up": "x", "another tenant's": journal.SealToken("other", 1), "beyond the end": journal.SealToken("acme", 1<<40)} {
		stream, cancel := watch(b, &inboxv1.WatchDispatchesRequest{ResumeToken: token})
		_, err := stream.Recv()
		if cancel(); !fault.Is(err, fault.CursorUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Redis loses everything: what was deferred, refused and counted is there again.
func TestDispatchesComeBackFromTheJournal(t *testing.T) {
	r := newWorkRig(t)
	b := r.as(boss)
	b.begin("1")
	b.dispatch(order("2", "a", "1"))
	before := b.item("2")
	r.redis.Flush()
	meshtest.Eventually(t, "lists are complete", func() bool {
		_, err := b.GetGoal(t.Context(), &inboxv1.GetGoalRequest{Goal: "build"})
		return err == nil
	})
	if got := b.list(&inboxv1.ListDispatchesRequest{Goal: "build"}); !slices.Equal(got, []string{"build/1", "build/2"}) {
		t.Fatalf("listed %v", got)
	}
	if after := b.item("2"); !proto.Equal(after, before) {
		t.Fatalf("it was %v and is %v", before, after)
	}
	b.abandon("1")
	b.becomes("2", inboxv1.DispatchState_DISPATCH_STATE_SENT)
}

// Work that was sent by hand has the worker that takes part in its conversation.
func TestAnAgentReportsOnWorkSentByHandWhereItTakesPart(t *testing.T) {
	r := newWorkRig(t)
	b := r.as(boss)
	if _, err := b.MarkSent(t.Context(), &inboxv1.MarkSentRequest{Goal: "build", Item: "1", ConversationId: "talk"}); err != nil {
		t.Fatal(err)
	}
	report := &inboxv1.ReportRequest{Goal: "build", Item: "1", RequestId: "r", Kind: inboxv1.ReportKind_REPORT_KIND_PROGRESS}
	_, err := r.agent("bob").Report(t.Context(), report)
	wantReason(t, err, fault.NotWorker)
	r.talks.mu.Lock()
	r.talks.talks["acme/talk"] = &talk{members: []string{"agent:bob", "agent:dave"}}
	r.talks.mu.Unlock()
	_, err = r.agent("eve").Report(t.Context(), report)
	wantReason(t, err, fault.NotWorker)
	out, err := r.agent("bob").Report(t.Context(), report)
	if err != nil || out.GetDispatch().GetWorker() != "bob" {
		t.Fatalf("bob reports: %v, %v", out, err)
	}
	report.RequestId = "r2"
	_, err = r.agent("dave").Report(t.Context(), report) // there is a worker now
	wantReason(t, err, fault.NotWorker)
}

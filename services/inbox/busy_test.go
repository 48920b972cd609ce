package inbox

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
	"weir/internal/meshtest"
)

// crash takes Redis away with all that is in it, ends the service, and starts both
// anew.
func (r *rig) crash() {
	r.t.Helper()
	r.redis.Kill()
	if err := r.inbox.Stop(); err != nil {
		r.t.Fatal(err)
	}
	r.redis.Start()
	r.redis.Flush()
	r.inbox = r.start()
}

// Each busy policy while a claim runs, its enqueue sent twice, and all of it again
// after a crash: the answers are the same, and so is what is served in the end.
func TestBusyPoliciesWhileAClaimRunsAlsoAfterACrash(t *testing.T) {
	r := newRig(t)
	policies := map[string]struct {
		policy      inboxv1.BusyPolicy
		key         string
		reason      fault.Reason // of the second message
		interrupted bool
		replaced    string // by the third
		served      []string
	}{
		"enqueue":    {policy: inboxv1.BusyPolicy_BUSY_POLICY_ENQUEUE, served: []string{"second", "third"}},
		"none":       {served: []string{"second", "third"}},
		"reject":     {policy: inboxv1.BusyPolicy_BUSY_POLICY_REJECT, key: "k", reason: fault.InboxBusy},
		"reject-any": {policy: inboxv1.BusyPolicy_BUSY_POLICY_REJECT, reason: fault.InboxBusy},
		"replace":    {policy: inboxv1.BusyPolicy_BUSY_POLICY_REPLACE, key: "k", replaced: "second", served: []string{"third", "other"}},
		"interrupt": {
			policy: inboxv1.BusyPolicy_BUSY_POLICY_INTERRUPT, interrupted: true, served: []string{"second", "third", "other"},
		},
	}
	tokens := map[string]string{}
	check := func(goal string) {
		t.Helper()
		p, w := policies[goal], r.as(worker)
		enqueue := func(id string) *inboxv1.EnqueueResponse {
			t.Helper()
			out, err := w.Enqueue(t.Context(), &inboxv1.EnqueueRequest{
				Goal: goal, MessageId: id, Body: id, BusyPolicy: p.policy, BusyKey: p.key,
			})
			if p.reason != "" && id != "first" {
				wantReason(t, err, p.reason)
				if got := fault.From(err).Metadata("message_id"); got != "first" {
					t.Errorf("%s: %s is busy with %q", goal, id, got)
				}
			} else if err != nil {
				t.Fatalf("%s: enqueue %s: %v", goal, id, err)
			}
			return out
		}
		if out := enqueue("first"); tokens[goal] != "" && out.GetState() != inboxv1.MessageState_MESSAGE_STATE_CLAIMED {
			t.Errorf("%s: a retry of what is claimed gives %v", goal, out)
		}
		if tokens[goal] == "" {
			tokens[goal] = w.claim(goal, "1", 1, time.Minute).GetClaimToken()
		}
		if out := enqueue("second"); out.GetReplacedMessageId() != "" {
			t.Errorf("%s: the claimed message was replaced: %v", goal, out)
		}
		if p.policy == inboxv1.BusyPolicy_BUSY_POLICY_REPLACE || p.policy == inboxv1.BusyPolicy_BUSY_POLICY_INTERRUPT {
			w.enqueue(goal, "other")
		}
		if out := enqueue("third"); out.GetReplacedMessageId() != p.replaced {
			t.Errorf("%s: the third answers %v", goal, out)
		}
		if p.replaced != "" {
			if out := enqueue(p.replaced); out.GetState() != inboxv1.MessageState_MESSAGE_STATE_REPLACED {
				t.Errorf("%s: a retry of what was replaced gives %v", goal, out)
			}
		}
		extended, err := w.Extend(t.Context(), &inboxv1.ExtendRequest{
			Goal: goal, MessageIds: []string{"first"}, ClaimToken: tokens[goal], Lease: durationpb.New(time.Minute),
		})
		if err != nil || extended.GetInterrupted() != p.interrupted {
			t.Errorf("%s: extend gives %v, %v", goal, extended, err)
		}
	}
	for goal := range policies {
		check(goal)
		check(goal)
	}
	r.crash()
	for goal, p := range policies {
		check(goal)
		w := r.as(worker)
		w.mustDone(goal, tokens[goal], "first")
		wantIDs(t, w.claim(goal, "2", 10, time.Minute).GetMessages(), p.served...)
	}
}

func TestABatchIsTakenWholeOrNotAtAll(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	batch := func(ids ...string) (*inboxv1.EnqueueBatchResponse, error) {
		in := &inboxv1.EnqueueBatchRequest{Goal: "build"}
		for _, id := range ids {
			in.Messages = append(in.Messages, &inboxv1.NewMessage{MessageId: id, Body: "body of " + id})
		}
		return w.EnqueueBatch(t.Context(), in)
	}
	w.enqueue("build", "b")
	w.mustDone("build", w.claim("build", "1", 1, time.Minute).GetClaimToken(), "b")
	for range 2 { // the second is a retry
		out, err := batch("a", "b", "c")
		if err != nil || len(out.GetResults()) != 3 || out.GetResults()[1].GetState() != inboxv1.MessageState_MESSAGE_STATE_DONE ||
			out.GetResults()[2].GetState() != inboxv1.MessageState_MESSAGE_STATE_PENDING || out.GetResults()[0].GetDepth() != 2 {
			t.Fatalf("the batch answers %v, %v", out, err)
		}
		r.redis.Flush()
	}
	if events := r.events("weir.inbox.acme.inbox.build")(); len(events) != 4 {
		t.Fatalf("there are %d events: %v", len(events), events)
	}
	var many []string
	for i := range 59 {
		many = append(many, fmt.Sprint("n", i))
	}
	_, err := batch(many...)
	wantReason(t, err, fault.InboxFull)
	if full := fault.From(err); full.Metadata("depth") != "2" || full.Metadata("limit") != "60" {
		t.Errorf("the refusal does not say limit and depth: %v", full)
	}
	if got := w.peek("build"); len(got) != 2 {
		t.Fatalf("of a refused batch there is %v", messageIDs(got))
	}
}

func TestWhatIsNotClaimedInTimeExpires(t *testing.T) {
	r := newRigWith(t, func(c *Config) { c.Limit = 1 })
	w := r.as(worker)
	in := &inboxv1.EnqueueRequest{Goal: "build", MessageId: "a", Body: "x", ExpireTime: soon(time.Second)}
	if _, err := w.Enqueue(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	next := &inboxv1.EnqueueRequest{Goal: "build", MessageId: "b", Body: "x"}
	_, err := w.Enqueue(t.Context(), next)
	wantReason(t, err, fault.InboxFull)
	meshtest.Eventually(t, "it made room", func() bool { _, err := w.Enqueue(t.Context(), next); return err == nil })
	if time.Now().Before(in.GetExpireTime().AsTime()) {
		t.Fatal("it expired before its time")
	}
	out, err := w.Enqueue(t.Context(), in)
	if err != nil || out.GetState() != inboxv1.MessageState_MESSAGE_STATE_EXPIRED {
		t.Fatalf("a retry gives %v, %v", out, err)
	}
	wantIDs(t, w.peek("build"), "b")
}

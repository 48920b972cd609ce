package inbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
	"weir/internal/meshtest"
)

func TestAnAgentServesItsOwnGoalOnly(t *testing.T) {
	r := newRig(t)
	w, b, e := r.as(worker), r.as(bob), r.as(eve)
	w.enqueue("bob", "m")
	w.enqueue("build", "n")
	token := b.claim("bob", "1", 1, time.Minute).GetClaimToken()

	// To eve, bob's inbox and one that never was are the same.
	ask := func(goal string) map[string]error {
		errs := map[string]error{}
		_, errs["claim"] = e.Claim(t.Context(), &inboxv1.ClaimRequest{Goal: goal, RequestId: "r"})
		_, errs["extend"] = e.Extend(t.Context(), &inboxv1.ExtendRequest{Goal: goal, MessageIds: []string{"m"}, ClaimToken: token})
		errs["done"] = e.done(goal, token, "m")
		_, errs["release"] = e.Release(t.Context(), &inboxv1.ReleaseRequest{Goal: goal, MessageIds: []string{"m"}, ClaimToken: token})
		_, errs["peek"] = e.Peek(t.Context(), &inboxv1.PeekRequest{Goal: goal})
		_, errs["get"] = e.GetInbox(t.Context(), &inboxv1.GetInboxRequest{Goal: goal})
		return errs
	}
	never := ask("nobody")
	for method, err := range ask("bob") {
		wantReason(t, err, fault.InboxNotFound)
		if got, want := strings.ReplaceAll(err.Error(), "bob", "nobody"), never[method].Error(); got != want {
			t.Errorf("%s tells %q of bob's inbox and %q of one that never was", method, got, want)
		}
	}
	list := func(c client) (goals []string) {
		out, err := c.ListInboxes(t.Context(), &inboxv1.ListInboxesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range out.GetInboxes() {
			goals = append(goals, in.GetGoal())
		}
		return goals
	}
	if got := list(b); !slices.Equal(got, []string{"bob"}) {
		t.Errorf("bob is shown %v", got)
	}
	if got := list(e); len(got) != 0 {
		t.Errorf("eve is shown %v", got)
	}
	if got := e.claim("eve", "1", 1, time.Minute); len(got.GetMessages()) != 0 {
		t.Errorf("an inbox that nobody wrote to served %v", got)
	}
	for method, err := range ask("eve") {
		if method != "claim" {
			wantReason(t, err, fault.InboxNotFound)
		}
	}
	_, err := e.ListInboxes(t.Context(), &inboxv1.ListInboxesRequest{PageToken: "x"})
	wantReason(t, err, fault.PageTokenInvalid)

	// A service serves every goal of its tenant, and none of another.
	b.mustDone("bob", token, "m")
	w.peek("bob")
	_, err = r.as(alien).GetInbox(t.Context(), &inboxv1.GetInboxRequest{Goal: "bob"})
	wantReason(t, err, fault.InboxNotFound)
	_, err = r.as(sender).Peek(t.Context(), &inboxv1.PeekRequest{Goal: "bob"})
	wantReason(t, err, fault.ScopeMissing)
	_, err = b.Enqueue(t.Context(), &inboxv1.EnqueueRequest{Goal: "eve", MessageId: "m", Body: "x"})
	wantReason(t, err, fault.ScopeMissing)
}

func TestInboxesAreListedByActivity(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	for n, goal := range []string{"a", "b", "c", "a"} {
		w.enqueue(goal, fmt.Sprint("m", n))
	}
	list := func(size int32, token string) (*inboxv1.ListInboxesResponse, error) {
		return w.ListInboxes(t.Context(), &inboxv1.ListInboxesRequest{PageSize: size, PageToken: token})
	}
	listed := func() []string {
		var goals []string
		token := ""
		for {
			page, err := list(2, token)
			if fault.Is(err, fault.IndexRebuilding) {
				return nil
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, in := range page.GetInboxes() {
				goals = append(goals, fmt.Sprint(in.GetGoal(), in.GetDepth()))
			}
			if token = page.GetNextPageToken(); token == "" {
				return goals
			}
		}
	}
	whole := []string{"a2", "c1", "b1"}
	meshtest.Eventually(t, "the list is complete", func() bool { return slices.Equal(listed(), whole) })
	// A flushed Redis gives no list or the whole one, never a shorter one.
	r.redis.Flush()
	meshtest.Eventually(t, "the list is complete again", func() bool {
		got := listed()
		if got != nil && !slices.Equal(got, whole) {
			t.Fatalf("the list is %v", got)
		}
		return got != nil
	})
}

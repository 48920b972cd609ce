package inbox

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	conversationv1 "weir/gen/conversation/v1"
	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/backend"
	"weir/internal/fault"
	"weir/internal/meshtest"
)

func soon(after time.Duration) *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(after)) }

// die delivers messages once, which is as often as this service delivers.
func (c client) die(goal string, ids ...string) {
	c.t.Helper()
	claimed := c.claim(goal, "die", 100, time.Minute)
	wantIDs(c.t, claimed.GetMessages(), ids...)
	for _, id := range ids { // one after the other, so that their order is known
		_, err := c.Release(c.t.Context(), &inboxv1.ReleaseRequest{Goal: goal, ClaimToken: claimed.GetClaimToken(), MessageIds: []string{id}})
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

func TestDeadMessagesAreListedRedrivenAndDiscarded(t *testing.T) {
	r := newRigWith(t, func(c *Config) { c.MaxDeliveries, c.Limit = 1, 3 })
	w := r.as(worker)
	for _, id := range []string{"a", "b", "c"} {
		w.enqueue("build", id)
	}
	w.die("build", "a", "b", "c")
	var found []*inboxv1.DeadMessage
	token := ""
	for {
		page, err := w.ListDead(t.Context(), &inboxv1.ListDeadRequest{Goal: "build", PageSize: 2, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, page.GetMessages()...)
		if token = page.GetNextPageToken(); token == "" {
			break
		}
		_, err = w.ListDead(t.Context(), &inboxv1.ListDeadRequest{Goal: "other", PageToken: token})
		wantField(t, "a token of another inbox", err, "page_token")
		_, err = w.Peek(t.Context(), &inboxv1.PeekRequest{Goal: "build", PageToken: token})
		wantField(t, "a token of another list", err, "page_token")
	}
	var ids []string
	for _, m := range found {
		ids = append(ids, m.GetMessage().GetMessageId())
		d := m.GetDeliveries()
		if len(d) != 1 || d[0].GetClaimant() != worker.Subject || d[0].GetEnd() != inboxv1.DeliveryEnd_DELIVERY_END_RELEASED ||
			!d[0].GetEndTime().AsTime().Equal(m.GetDeathTime().AsTime()) || d[0].GetClaimTime().AsTime().After(m.GetDeathTime().AsTime()) ||
			m.GetMessage().GetBody() != "body of "+m.GetMessage().GetMessageId() {
			t.Errorf("listed as %v", m)
		}
	}
	if !slices.Equal(ids, []string{"c", "b", "a"}) {
		t.Fatalf("listed are %v", ids)
	}
	w.enqueue("build", "d")
	_, err := w.Redrive(t.Context(), &inboxv1.RedriveRequest{Goal: "build", MessageIds: []string{"a", "b", "c"}})
	wantReason(t, err, fault.InboxFull)
	redrive := &inboxv1.RedriveRequest{Goal: "build", MessageIds: []string{"a", "c"}}
	for range 2 { // the second is a retry
		out, err := w.Redrive(t.Context(), redrive)
		if err != nil || out.GetInbox().GetPending() != 3 || out.GetInbox().GetDead() != 1 {
			t.Fatalf("redrive: %v, %v", out, err)
		}
		r.redis.Flush()
	}
	wantIDs(t, w.peek("build"), "a", "c", "d")
	discard := &inboxv1.DiscardDeadRequest{Goal: "build", MessageIds: []string{"b"}}
	for range 2 {
		out, err := w.DiscardDead(t.Context(), discard)
		if err != nil || out.GetInbox().GetDead() != 0 {
			t.Fatalf("discard: %v, %v", out, err)
		}
		r.redis.Flush()
	}
	if out := w.enqueue("build", "b"); out.GetState() != inboxv1.MessageState_MESSAGE_STATE_DISCARDED {
		t.Fatalf("a retry of what was discarded gives %v", out)
	}
	_, err = w.DiscardDead(t.Context(), &inboxv1.DiscardDeadRequest{Goal: "build", MessageIds: []string{"a"}})
	wantReason(t, err, fault.StateConflict)
	_, err = w.Redrive(t.Context(), &inboxv1.RedriveRequest{Goal: "build", MessageIds: []string{"nobody"}})
	wantReason(t, err, fault.MessageNotFound)
	_, err = w.Redrive(t.Context(), &inboxv1.RedriveRequest{Goal: "never", MessageIds: []string{"a"}})
	wantReason(t, err, fault.InboxNotFound)
	_, err = r.as(bob).Redrive(t.Context(), redrive)
	wantReason(t, err, fault.ScopeMissing)
}

func TestAPausedInboxServesNothingAndADrainingOneTakesNothing(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	paused, err := w.PauseInbox(t.Context(), &inboxv1.PauseInboxRequest{Goal: "bob", Note: "later"})
	if in := paused.GetInbox(); err != nil || in.GetState() != inboxv1.InboxState_INBOX_STATE_PAUSED || in.GetStateNote() != "later" {
		t.Fatalf("pause: %v, %v", paused, err)
	}
	w.enqueue("bob", "a")
	if out := w.claim("bob", "1", 1, time.Minute); len(out.GetMessages()) != 0 || out.GetInboxState() != inboxv1.InboxState_INBOX_STATE_PAUSED {
		t.Fatalf("a paused inbox gives %v", out)
	}
	if _, err := w.DrainInbox(t.Context(), &inboxv1.DrainInboxRequest{Goal: "bob"}); err != nil {
		t.Fatal(err)
	}
	r.crash()
	w = r.as(worker)
	if in := w.inbox("bob"); in.GetState() != inboxv1.InboxState_INBOX_STATE_DRAINING || in.GetStateNote() != "" {
		t.Fatalf("after a crash it is %v", in)
	}
	_, err = w.Enqueue(t.Context(), &inboxv1.EnqueueRequest{Goal: "bob", MessageId: "b", Body: "x"})
	wantReason(t, err, fault.InboxDraining)
	w.enqueue("bob", "a") // a retry
	claimed := w.claim("bob", "2", 1, time.Minute)
	wantIDs(t, claimed.GetMessages(), "a")
	w.mustDone("bob", claimed.GetClaimToken(), "a")

	// What is said to its agent waits in the conversation's stream; that to others does not.
	r.conversations().append("plans", 1, &conversationv1.AppendedMessage{
		MessageId: "m1", Author: "human:ann", Parts: text("hello"), Addressed: []string{"agent:bob", "agent:eve"},
	})
	meshtest.Eventually(t, "eve has it", func() bool {
		_, err := w.GetInbox(t.Context(), &inboxv1.GetInboxRequest{Goal: "eve"})
		return err == nil
	})
	if in := w.inbox("bob"); in.GetDepth() != 0 {
		t.Fatalf("a draining inbox took %v", in)
	}
	resumed, err := w.ResumeInbox(t.Context(), &inboxv1.ResumeInboxRequest{Goal: "bob"})
	if err != nil || resumed.GetInbox().GetState() != inboxv1.InboxState_INBOX_STATE_OPEN {
		t.Fatalf("resume: %v, %v", resumed, err)
	}
	meshtest.Eventually(t, "bob has it", func() bool { return w.inbox("bob").GetDepth() == 1 })

	never, err := w.ResumeInbox(t.Context(), &inboxv1.ResumeInboxRequest{Goal: "never"})
	if err != nil || never.GetInbox().GetState() != inboxv1.InboxState_INBOX_STATE_OPEN {
		t.Fatalf("resume of one that nobody wrote to: %v, %v", never, err)
	}
	_, err = w.GetInbox(t.Context(), &inboxv1.GetInboxRequest{Goal: "never"})
	wantReason(t, err, fault.InboxNotFound)
}

// Deadlines pass while no replica runs and Redis is empty. They are recorded once, and
// what they did counts from their own times.
func TestDeadlinesThatPassedDuringARestartAreRecordedOnce(t *testing.T) {
	r := newRigWith(t, func(c *Config) { c.MaxDeliveries = 1 })
	w := r.as(worker)
	w.enqueue("build", "dies")
	died := w.claim("build", "1", 1, time.Second).GetMessages()[0].GetLeaseExpireTime().AsTime()
	for id, in := range map[string]*inboxv1.EnqueueRequest{
		"expires": {ExpireTime: soon(time.Second)}, "due": {NotBefore: soon(time.Second)},
	} {
		in.Goal, in.MessageId, in.Body = "build", id, "x"
		if _, err := w.Enqueue(t.Context(), in); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.inbox.Stop(); err != nil {
		t.Fatal(err)
	}
	r.redis.Flush()
	meshtest.Eventually(t, "all is over", func() bool { return time.Now().After(died.Add(300 * time.Millisecond)) })
	r.inbox = r.start()
	w = r.as(worker)
	events := r.events("weir.inbox.acme.inbox.build")
	passed := func() (all []string) {
		for _, e := range events() {
			if p := e.GetDeadlinesPassed(); p != nil {
				all = append(all, fmt.Sprint("due ", p.GetDueMessageIds(), " dead ", p.GetDeadMessageIds(), " expired ", p.GetExpiredMessageIds()))
			}
		}
		return all
	}
	meshtest.Eventually(t, "they are recorded", func() bool { return len(passed()) > 0 })
	if got := passed(); !slices.Equal(got, []string{"due [due] dead [dies] expired [expires]"}) {
		t.Fatalf("recorded are %v", got)
	}
	dead, err := w.ListDead(t.Context(), &inboxv1.ListDeadRequest{Goal: "build"})
	if err != nil || len(dead.GetMessages()) != 1 || !dead.GetMessages()[0].GetDeathTime().AsTime().Equal(died) {
		t.Fatalf("dead are %v, %v", dead, err)
	}
	// Who has something to serve is in a list of its own, without anybody having asked.
	b, err := backend.Open(t.Context(), "inbox", backend.Config{NATS: r.nats.URL(), Redis: r.redis.URL(), Replicas: 1}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	inboxes := newInboxLoop(b)
	ready := func() int {
		items, _, err := inboxes.List(t.Context(), aggregate.PageRequest[inbox]{Tenant: "acme", Lists: []string{listReady}})
		if err != nil {
			return -1
		}
		return len(items)
	}
	meshtest.Eventually(t, "the inbox is ready", func() bool { return ready() == 1 })
	if _, err := w.PauseInbox(t.Context(), &inboxv1.PauseInboxRequest{Goal: "build"}); err != nil {
		t.Fatal(err)
	}
	meshtest.Eventually(t, "a paused one is not", func() bool { return ready() == 0 })
}

func TestPagesOfWhatWaitsAreInOrderAndWhole(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	for i := range 5 {
		w.enqueue("build", fmt.Sprint("m", i))
	}
	if _, err := w.Enqueue(t.Context(), &inboxv1.EnqueueRequest{Goal: "build", MessageId: "later", Body: "x", NotBefore: soon(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	w.claim("build", "1", 2, time.Minute)
	page := func(token string) *inboxv1.PeekResponse {
		t.Helper()
		out, err := w.Peek(t.Context(), &inboxv1.PeekRequest{Goal: "build", PageSize: 2, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	first := page("")
	wantIDs(t, first.GetMessages(), "m0", "m1")
	// What is done or comes meanwhile moves nothing that is still to be shown.
	w.mustDone("build", w.claim("build", "1", 2, time.Minute).GetClaimToken(), "m0", "m1")
	second := page(first.GetNextPageToken())
	wantIDs(t, second.GetMessages(), "m2", "m3")
	third := page(second.GetNextPageToken())
	wantIDs(t, third.GetMessages(), "m4", "later")
	if third.GetNextPageToken() != "" {
		t.Fatalf("there is another page: %v", page(third.GetNextPageToken()))
	}
	for _, goal := range []string{"other", "never"} {
		_, err := w.Peek(t.Context(), &inboxv1.PeekRequest{Goal: goal, PageToken: first.GetNextPageToken()})
		wantReason(t, err, fault.PageTokenInvalid)
	}
	if in := w.inbox("build"); !in.GetOldestPendingTime().AsTime().Equal(second.GetMessages()[0].GetEnqueueTime().AsTime()) {
		t.Fatalf("the oldest is of %v, it should be m2", in.GetOldestPendingTime().AsTime())
	}
}

package inbox

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	conversationv1 "weir/gen/conversation/v1"
	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/meshtest"
)

// allie sends by the registry's operation inbox/send, for ann.
var allie = identity.Caller{
	Tenant: "acme", Subject: "agent:allie", Session: "run-1", OnBehalfOf: []string{"human:ann"}, Operation: "inbox/send",
}

// byRegistry enqueues for allie, as the registry does.
func (r *rig) byRegistry(goal, id string) {
	r.t.Helper()
	registry := identity.Caller{Tenant: identity.AnyTenant, Subject: "service:registry", Scopes: []string{"inbox.enqueue"}}
	_, err := r.as(registry).Enqueue(identity.ActFor(r.t.Context(), allie), &inboxv1.EnqueueRequest{Goal: goal, MessageId: id, Body: "body of " + id})
	if err != nil {
		r.t.Fatalf("enqueue %s for allie: %v", id, err)
	}
}

// bySpeech says something to bob in a conversation, and waits until he has it.
func (r *rig) bySpeech(conversation string) (id string) {
	r.t.Helper()
	depth := r.as(bob).inbox("bob").GetDepth()
	r.conversations().append(conversation, 1, &conversationv1.AppendedMessage{
		MessageId: "m", Author: allie.Subject, OnBehalfOf: allie.OnBehalfOf, Session: allie.Session, Operation: "conversation/say",
		Parts: text("hello"), Addressed: []string{"agent:bob"},
	})
	meshtest.Eventually(r.t, "bob is told", func() bool { return r.as(bob).inbox("bob").GetDepth() > depth })
	return deliveredID(conversation, "m")
}

func TestAMessageFromWhoMayNotSendAnyMoreIsANoticeInItsPlace(t *testing.T) {
	sent := func(r *rig) string { r.byRegistry("bob", "b"); return "b" }
	said := func(r *rig) string { return r.bySpeech("plans") }
	for name, c := range map[string]struct {
		send func(*rig) string
		stop func(*peers)
		want inboxv1.RefusalReason
	}{
		"the sender is disabled":              {sent, func(p *peers) { p.disabled = []string{"agent:allie"} }, inboxv1.RefusalReason_REFUSAL_REASON_SENDER_DISABLED},
		"one for whom it sent is disabled":    {sent, func(p *peers) { p.disabled = []string{"human:ann"} }, inboxv1.RefusalReason_REFUSAL_REASON_SENDER_DISABLED},
		"the sender is confined":              {sent, func(p *peers) { p.confined = []string{"agent:allie"} }, inboxv1.RefusalReason_REFUSAL_REASON_SENDER_CONFINED},
		"the sender's session is confined":    {sent, func(p *peers) { p.confined = []string{"run-1"} }, inboxv1.RefusalReason_REFUSAL_REASON_SENDER_CONFINED},
		"the operation is granted no more":    {sent, func(p *peers) { p.ungranted = []string{"agent:allie inbox/send"} }, inboxv1.RefusalReason_REFUSAL_REASON_SENDER_NOT_GRANTED},
		"the conversation is deleted":         {said, func(p *peers) { p.gone = []string{"plans"} }, inboxv1.RefusalReason_REFUSAL_REASON_CONVERSATION_GONE},
		"who spoke is disabled":               {said, func(p *peers) { p.disabled = []string{"agent:allie"} }, inboxv1.RefusalReason_REFUSAL_REASON_SENDER_DISABLED},
		"what it spoke by is granted no more": {said, func(p *peers) { p.ungranted = []string{"agent:allie conversation/say"} }, inboxv1.RefusalReason_REFUSAL_REASON_SENDER_NOT_GRANTED},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			from, to := r.as(sender), r.as(bob)
			from.enqueue("bob", "a")
			id := c.send(r)
			from.enqueue("bob", "c")
			r.peers.tell(func() { c.stop(r.peers) })

			claimed := to.claim("bob", "1", 10, time.Minute)
			wantIDs(t, claimed.GetMessages(), "a", id, "c")
			notice := claimed.GetMessages()[1]
			if notice.GetRefusal().GetReason() != c.want || notice.GetBody() != "" || notice.GetSender() != "agent:allie" ||
				!slices.Equal(notice.GetOnBehalfOf(), allie.OnBehalfOf) || notice.GetOperation() == "" {
				t.Fatalf("the notice is %v", notice)
			}
			if since := time.Since(notice.GetRefusal().GetRefuseTime().AsTime()); since < 0 || since > time.Minute {
				t.Fatalf("refused %v ago", since)
			}
			for _, i := range []int{0, 2} {
				if m := claimed.GetMessages()[i]; m.GetRefusal() != nil || m.GetBody() == "" {
					t.Fatalf("beside the notice is %v", m)
				}
			}

			// Once refused is always refused: whatever becomes of the sender, of the
			// claim, and of Redis.
			r.peers.tell(func() { r.peers.disabled, r.peers.confined, r.peers.ungranted, r.peers.gone = nil, nil, nil, nil })
			same := func(when string, m *inboxv1.Message) {
				t.Helper()
				if m.GetMessageId() != id || m.GetBody() != "" || !m.GetRefusal().GetRefuseTime().AsTime().Equal(notice.GetRefusal().GetRefuseTime().AsTime()) ||
					m.GetRefusal().GetReason() != c.want {
					t.Fatalf("%s the notice is %v", when, m)
				}
			}
			same("while it is claimed", to.peek("bob")[1])
			if _, err := to.Release(t.Context(), &inboxv1.ReleaseRequest{Goal: "bob", ClaimToken: claimed.GetClaimToken(), MessageIds: []string{id}}); err != nil {
				t.Fatal(err)
			}
			same("given back", to.peek("bob")[1])
			r.redis.Flush()
			again := to.claim("bob", "2", 10, time.Minute)
			wantIDs(t, again.GetMessages(), id)
			same("claimed again", again.GetMessages()[0])
			to.mustDone("bob", again.GetClaimToken(), id)
			to.mustDone("bob", claimed.GetClaimToken(), "a", "c")
			if in := to.inbox("bob"); in.GetDepth() != 0 {
				t.Fatalf("the inbox is %v after the end", in)
			}
		})
	}
}

func TestANoticeThatDiedAndWasRedrivenIsOneStill(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	r.byRegistry("build", "m")
	r.peers.tell(func() { r.peers.disabled = []string{allie.Subject} })
	withheld := func(when string, m *inboxv1.Message) {
		t.Helper()
		if m.GetBody() != "" || m.GetRefusal().GetReason() != inboxv1.RefusalReason_REFUSAL_REASON_SENDER_DISABLED {
			t.Fatalf("%s it is %v", when, m)
		}
	}
	for n := range 5 {
		claimed := w.claim("build", fmt.Sprint(n), 1, time.Minute)
		withheld("claimed", claimed.GetMessages()[0])
		r.peers.tell(func() { r.peers.disabled = nil })
		if _, err := w.Release(t.Context(), &inboxv1.ReleaseRequest{Goal: "build", ClaimToken: claimed.GetClaimToken(), MessageIds: []string{"m"}}); err != nil {
			t.Fatal(err)
		}
	}
	dead, err := w.ListDead(t.Context(), &inboxv1.ListDeadRequest{Goal: "build"})
	if err != nil || len(dead.GetMessages()) != 1 {
		t.Fatalf("dead are %v, %v", dead, err)
	}
	withheld("dead", dead.GetMessages()[0].GetMessage())
	if _, err := w.Redrive(t.Context(), &inboxv1.RedriveRequest{Goal: "build", MessageIds: []string{"m"}}); err != nil {
		t.Fatal(err)
	}
	withheld("redriven", w.claim("build", "again", 1, time.Minute).GetMessages()[0])
}

func TestAboutANoticeNobodyIsAsked(t *testing.T) {
	p := newScript(t)
	p.must(start)(decideEnqueue(p.state, enqueue{
		Goal: "g", Sender: origin{Subject: "agent:a"}, Rules: ruled(10), Messages: []newMessage{{ID: "m", Body: "x"}},
	}, start))
	c := checkedClaim{claim{Goal: "g", Request: "r", Claimant: "agent:g", Token: "t", Rules: ruled(10), Max: 1, Lease: time.Minute}, func(question) (verdict, bool) {
		return inboxv1.RefusalReason_REFUSAL_REASON_SENDER_CONFINED, true
	}}
	p.must(start)(decideDelivery(p.state, c, start))
	later := start.Add(time.Hour)
	c.Request, c.Known = "later", func(question) (verdict, bool) { return goodStanding, false }
	again := p.must(later)(decideDelivery(p.state, c, later)).GetMessagesClaimed()
	if len(again.GetMessageIds()) != 1 || len(again.GetRefusals()) != 0 || !p.messages()["m"].isNotice() {
		t.Fatalf("claimed again as %v", again)
	}
}

func TestAMessageWhoseSenderIsBackBeforeItsDeliveryIsDelivered(t *testing.T) {
	r := newRig(t)
	r.byRegistry("bob", "m")
	r.peers.tell(func() { r.peers.disabled = []string{"agent:allie"} })
	wantIDs(t, r.as(bob).peek("bob"), "m") // to look is not to deliver
	r.peers.tell(func() { r.peers.disabled = nil })
	m := r.as(bob).claim("bob", "1", 1, time.Minute).GetMessages()[0]
	if m.GetRefusal() != nil || m.GetBody() != "body of m" {
		t.Fatalf("bob got %v", m)
	}
}

func TestNothingIsClaimedWhileSendersCannotBeChecked(t *testing.T) {
	away := fault.New(fault.JournalUnavailable, "away")
	ofInbox := fault.New(fault.CallerDisabled, "disabled").With("subject", self)
	for name, c := range map[string]struct {
		stop func(*peers)
		want fault.Reason
		// others says whether mail without a conversation gets through.
		others bool
	}{
		"the gate is away":                 {func(p *peers) { p.gateDown = away }, fault.PeerUnavailable, false},
		"the gate refuses the inbox":       {func(p *peers) { p.gateDown = ofInbox }, fault.PeerUnavailable, false},
		"the conversation service is away": {func(p *peers) { p.conversationDown = away }, fault.PeerUnavailable, true},
		"the receiver is disabled":         {func(p *peers) { p.disabled = []string{"agent:bob"} }, fault.CallerDisabled, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			w := r.as(worker)
			w.enqueue("bob", "a")
			id := r.bySpeech("plans")
			r.peers.tell(func() { c.stop(r.peers) })
			_, err := w.Claim(t.Context(), &inboxv1.ClaimRequest{Goal: "bob", RequestId: "1", Max: 2})
			wantReason(t, err, c.want)
			if in := w.inbox("bob"); in.GetPending() != 2 || in.GetClaimed() != 0 {
				t.Fatalf("the inbox is %v", in)
			}
			first, err := w.Claim(t.Context(), &inboxv1.ClaimRequest{Goal: "bob", RequestId: "2", Max: 1})
			if c.others != (err == nil) {
				t.Fatalf("claiming the one that was not said in a conversation: %v, %v", first, err)
			}
			r.peers.tell(func() { r.peers.gateDown, r.peers.conversationDown, r.peers.disabled = nil, nil, nil })
			rest := append(first.GetMessages(), w.claim("bob", "3", 2, time.Minute).GetMessages()...)
			wantIDs(t, rest, "a", id)
			for _, m := range rest {
				if m.GetRefusal() != nil || m.GetDeliveries() != 1 {
					t.Fatalf("then %v was claimed", m)
				}
			}
		})
	}
}

func TestAnAnswerAboutASenderCountsForASecond(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	const claims = 30
	for n := range claims {
		w.enqueue("build", fmt.Sprint("m", n))
	}
	begun := time.Now()
	for n := range claims {
		w.claim("build", fmt.Sprint(n), 1, time.Minute)
	}
	gate, conversation := r.peers.asked()
	if most := 1 + int(time.Since(begun)/checkKept); gate < 1 || gate > most || conversation != 0 {
		t.Fatalf("%d claims in %v asked the gate %d times, at most %d were to be, and the conversation service %d times",
			claims, time.Since(begun), gate, most, conversation)
	}
	// And no longer.
	r.peers.tell(func() { r.peers.disabled = []string{worker.Subject} })
	n := 0
	meshtest.Eventually(t, "the worker's own mail is refused", func() bool {
		n++
		w.enqueue("build", fmt.Sprint("x", n))
		claimed := w.claim("build", fmt.Sprint("x", n), 1, time.Minute)
		w.mustDone("build", claimed.GetClaimToken(), fmt.Sprint("x", n))
		return claimed.GetMessages()[0].GetRefusal() != nil
	})
}

func TestWhatComesToTheFrontDuringTheCheckIsCheckedToo(t *testing.T) {
	r := newRig(t)
	w := r.as(worker)
	r.byRegistry("build", "m")
	r.peers.tell(func() {
		r.peers.disabled = []string{sender.Subject}
		r.peers.before = func() {
			r.peers.before = nil
			_, err := r.as(sender).Enqueue(t.Context(), &inboxv1.EnqueueRequest{Goal: "build", MessageId: "first", Body: "x", Priority: 1})
			if err != nil {
				t.Errorf("enqueue: %v", err)
			}
		}
	})
	got := w.claim("build", "1", 1, time.Minute).GetMessages()
	wantIDs(t, got, "first")
	if got[0].GetRefusal() == nil {
		t.Fatalf("it came unchecked: %v", got)
	}
}

// Whatever is known of the senders: a delivery has no message whose questions are not
// all answered, and its notices are those that an answer is against.
func TestADeliveryIsOfCheckedMessagesOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newScript(t)
		subjects := []string{"agent:a", "agent:b", self}
		conversations := []string{"", "c", "d"}
		for n := range rapid.IntRange(1, 8).Draw(t, "messages") {
			c := enqueue{Goal: "g", Sender: origin{Subject: rapid.SampledFrom(subjects).Draw(t, "sender")}, Rules: ruled(100), Messages: []newMessage{{
				ID: fmt.Sprint("m", n), Body: "x", Conversation: rapid.SampledFrom(conversations).Draw(t, "conversation"),
			}}}
			p.must(start)(decideEnqueue(p.state, c, start))
		}
		known := make(map[question]verdict)
		for _, id := range slices.Sorted(maps.Keys(p.messages())) {
			for _, q := range p.messages()[id].Origin.questions() {
				if rapid.Bool().Draw(t, "known") {
					known[q] = rapid.SampledFrom([]verdict{goodStanding, 1, 4}).Draw(t, "verdict")
				}
			}
		}
		d := checkedClaim{claim{Goal: "g", Request: "r", Claimant: "agent:g", Token: "t", Rules: ruled(100), Max: rapid.IntRange(1, 8).Draw(t, "max"), Lease: time.Minute}, func(q question) (verdict, bool) {
			v, ok := known[q]
			return v, ok
		}}
		whole, err := decideClaim(p.state, d.claim, start)
		if err != nil {
			t.Fatal(err)
		}
		event, err := p.run(start)(decideDelivery(p.state, d, start))
		var missing []question
		against := map[string]verdict{}
		for _, id := range whole.GetMessagesClaimed().GetMessageIds() {
			m, _ := p.state.messages.Get(id)
			for _, q := range m.Origin.questions() {
				v, ok := known[q]
				if !ok && !slices.Contains(missing, q) {
					missing = append(missing, q)
				}
				if v != goodStanding && against[id] == goodStanding {
					against[id] = v
				}
			}
		}
		if len(missing) > 0 {
			got, ok := errors.AsType[unchecked](err)
			if !ok || !slices.Equal(got, missing) {
				t.Fatalf("got %v, %v; want to ask %v", event, err, missing)
			}
			return
		}
		if err != nil || !slices.Equal(event.GetMessagesClaimed().GetMessageIds(), whole.GetMessagesClaimed().GetMessageIds()) {
			t.Fatalf("got %v, %v; want the messages of %v", event, err, whole)
		}
		refused := map[string]verdict{}
		for _, r := range event.GetMessagesClaimed().GetRefusals() {
			refused[r.GetMessageId()] = r.GetReason()
		}
		for id, m := range p.messages() {
			if refused[id] != against[id] || m.Refusal.Reason != against[id] || m.isNotice() != (against[id] != goodStanding) {
				t.Fatalf("%s is refused for %v, its state says %v, want %v", id, refused[id], m.Refusal, against[id])
			}
		}
		p.check()
	})
}

// messages are all of a script's.
func (p *script) messages() map[string]message {
	found := make(map[string]message)
	for itr := p.state.messages.Iterator(); !itr.Done(); {
		id, m, _ := itr.Next()
		found[id] = m
	}
	return found
}

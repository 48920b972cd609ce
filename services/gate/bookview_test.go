package gate

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/journal"
	"weir/internal/meshtest"
	"weir/services/gate/policy"
)

// stored is an event as the journal gives it.
func stored(kind, id string, sequence uint64, event *gatev1.Event) (journal.Event, aggregate.Recorded[*gatev1.Event]) {
	key := journal.Key{Tenant: "acme", Kind: kind, ID: id}
	return journal.Event{Key: key, Sequence: sequence}, aggregate.Recorded[*gatev1.Event]{Event: event, Sequence: sequence}
}

func policyPut(p *gatev1.Policy) *gatev1.Event {
	return &gatev1.Event{Event: &gatev1.Event_PolicyPut{PolicyPut: &gatev1.PolicyPut{Policy: p}}}
}

func newTestView() *bookView {
	v := newBookView(nil, slog.New(slog.NewJSONHandler(io.Discard, nil)))
	v.ready, v.heard = true, time.Now()
	return v
}

// A policy that cannot be compiled, or an event that cannot be read, closes its
// tenant whole until it is mended, whatever else is put meanwhile.
func TestWhatCannotBeReadClosesItsTenantUntilItIsMended(t *testing.T) {
	bad := tenantPolicy("bad", rule("r", gatev1.Verdict_VERDICT_DENY, "a/b"))
	bad.Rules[0].When = "this is no CEL"
	good := tenantPolicy("bad", rule("r", gatev1.Verdict_VERDICT_DENY, "a/b"))
	other := tenantPolicy("other", rule("r", gatev1.Verdict_VERDICT_DENY, "c/d"))
	broken := errors.New("cannot be read")
	for name, breaking := range map[string]func(*bookView){
		"a policy that does not compile": func(v *bookView) {
			e, r := stored(policyKindName, "bad", 2, policyPut(bad))
			v.apply(e, r, nil)
		},
		"a policy that cannot be read": func(v *bookView) {
			e, _ := stored(policyKindName, "bad", 2, nil)
			v.apply(e, aggregate.Recorded[*gatev1.Event]{}, broken)
		},
		"a grant that cannot be read": func(v *bookView) {
			e, _ := stored(grantKindName, "bad", 2, nil)
			v.apply(e, aggregate.Recorded[*gatev1.Event]{}, broken)
		},
	} {
		v := newTestView()
		breaking(v)
		if _, err := v.of("acme"); fault.ReasonOf(err) != fault.PolicyUnreadable {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := v.of("elsewhere"); err != nil {
			t.Errorf("%s closes another tenant: %v", name, err)
		}
		e, r := stored(policyKindName, "other", 3, policyPut(other))
		v.apply(e, r, nil)
		if _, err := v.of("acme"); fault.ReasonOf(err) != fault.PolicyUnreadable {
			t.Fatalf("%s, and another policy is put: %v", name, err)
		}
		e, r = stored(policyKindName, "bad", 4, policyPut(good))
		if name == "a grant that cannot be read" {
			e, r = stored(grantKindName, "bad", 4, &gatev1.Event{Event: &gatev1.Event_GrantPut{GrantPut: &gatev1.GrantPut{Subject: "agent:a", Operations: []string{"a/*"}}}})
		}
		v.apply(e, r, nil)
		book, err := v.of("acme")
		if err != nil || book.Revision != 4 {
			t.Fatalf("%s, mended: %v, %v", name, book, err)
		}
	}
}

// What a view makes of events one by one is what it makes of all at a start.
func TestAViewThatStartsSeesWhatOneThatFollowedSees(t *testing.T) {
	followed, started := newTestView(), newTestView()
	sequence := uint64(0)
	do := func(kind, id string, event *gatev1.Event) {
		sequence++
		e, r := stored(kind, id, sequence, event)
		followed.apply(e, r, nil)
		started.load(e, r, nil)
	}
	moved := tenantPolicy("p", rule("r", gatev1.Verdict_VERDICT_DENY, "a/b"))
	moved.Layer, moved.Target = gatev1.Layer_LAYER_AGENT, "agent:a"
	do(grantKindName, "g", &gatev1.Event{Event: &gatev1.Event_GrantPut{GrantPut: &gatev1.GrantPut{Subject: "agent:a", Operations: []string{"a/*"}}}})
	do(policyKindName, "p", policyPut(tenantPolicy("p", rule("r", gatev1.Verdict_VERDICT_DENY, "a/*"))))
	do(policyKindName, "q", policyPut(tenantPolicy("q", rule("r", gatev1.Verdict_VERDICT_ASK, "a/c"))))
	do(policyKindName, "p", policyPut(moved))
	do(policyKindName, "q", &gatev1.Event{Event: &gatev1.Event_PolicyDeleted{PolicyDeleted: &gatev1.PolicyDeleted{}}})
	do(grantKindName, "h", &gatev1.Event{Event: &gatev1.Event_GrantPut{GrantPut: &gatev1.GrantPut{Subject: "agent:b", Operations: []string{"a/*"}}}})
	do(grantKindName, "g", &gatev1.Event{Event: &gatev1.Event_GrantDeleted{GrantDeleted: &gatev1.GrantDeleted{}}})
	do(grantKindName, "g", &gatev1.Event{Event: &gatev1.Event_GrantPut{GrantPut: &gatev1.GrantPut{Subject: "agent:a", Operations: []string{"a/b", "a/c"}}}})
	started.compileAll()
	for _, subject := range []string{"agent:a", "agent:b"} {
		for _, operation := range []string{"a/b", "a/c", "a/d"} {
			q := policy.Question{Subject: subject, Operation: operation}
			one, err := followed.of("acme")
			if err != nil {
				t.Fatal(err)
			}
			two, err := started.of("acme")
			if err != nil {
				t.Fatal(err)
			}
			if a, b := fmt.Sprint(one.Decide(&q)), fmt.Sprint(two.Decide(&q)); a != b {
				t.Errorf("%s %s: %s, and %s", subject, operation, a, b)
			}
		}
	}
}

// The same through the journal: garbage on a policy's subject.
func TestGarbageOnAPolicysSubjectAllowsNothing(t *testing.T) {
	r := newRig(t)
	if got := r.check(say("inv-1", "hi")); got.GetVerdict() != gatev1.Verdict_VERDICT_ASK {
		t.Fatal(got)
	}
	nc := r.nats.Connect()
	if err := nc.Publish("weir.gate.acme.policy.garbage", []byte("garbage")); err != nil {
		t.Fatal(err)
	}
	closed := func(client gatev1.GateServiceClient) func() bool {
		return func() bool {
			_, err := client.Check(as(t.Context(), alice), say("inv-2", "hi"))
			return fault.ReasonOf(err) == fault.PolicyUnreadable
		}
	}
	meshtest.Eventually(t, "the replica that follows allows nothing", closed(r.checks()))
	second := gatev1.NewGateServiceClient(r.issuer.Dial(r.start(0).Addr, registry))
	meshtest.Eventually(t, "one that starts allows nothing", closed(second))
	other := alice
	other.Tenant = "other"
	answer, err := second.Check(as(t.Context(), other), say("inv-3", "hi"))
	if err != nil || answer.GetReason() != policy.ReasonNotGranted {
		t.Errorf("another tenant: %v, %v", answer, err)
	}
}

// What is shown and stored is the policy alone: what only the gate sets is the gate's.
func TestAPolicyIsStoredWithoutWhatAClientMadeUp(t *testing.T) {
	p := tenantPolicy("p", rule("r", gatev1.Verdict_VERDICT_DENY, "a/b"))
	forged := proto.CloneOf(p)
	forged.Revision, forged.Updater = 99, "human:nobody"
	if got := stripped(forged); !proto.Equal(got, p) {
		t.Errorf("stored is %v", got)
	}
}

// A replica that hears nothing does not know of the denial that was put meanwhile.
func TestAViewThatHearsNothingAllowsNothing(t *testing.T) {
	v := newTestView()
	v.heard = time.Now().Add(-staleAfter - time.Second)
	if _, err := v.of("acme"); fault.ReasonOf(err) != fault.PolicyUnreadable {
		t.Errorf("after a silence: %v", err)
	}
	v.heard = time.Now().Add(-staleAfter / 2)
	if _, err := v.of("acme"); err != nil {
		t.Errorf("after a short one: %v", err)
	}
}

func TestWithoutTheJournalChecksAreRefusedBeforeLong(t *testing.T) {
	r := newRig(t)
	read := say("inv-1", "x")
	read.Operation, read.Effect = "conversation/read", registryv1.Effect_EFFECT_READ
	if got := r.check(read); got.GetVerdict() != gatev1.Verdict_VERDICT_ALLOW {
		t.Fatal(got)
	}
	r.nats.Stop()
	meshtest.Eventually(t, "the replica notices that it hears nothing", func() bool {
		_, err := r.checks().Check(as(t.Context(), alice), read)
		return fault.ReasonOf(err) == fault.PolicyUnreadable
	})
	r.nats.Start()
	meshtest.Eventually(t, "and goes on when the journal is back", func() bool {
		got, err := r.checks().Check(as(t.Context(), alice), read)
		return err == nil && got.GetVerdict() == gatev1.Verdict_VERDICT_ALLOW
	})
}

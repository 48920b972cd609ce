package registry

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
	"weir/internal/meshtest"
)

func TestTheCatalogueIsAnnouncedAtEachStart(t *testing.T) {
	r := newRig(t)
	own, err := loadCatalogue(ownCatalogue)
	if err != nil {
		t.Fatal(err)
	}
	meshtest.Eventually(t, "the gate heard it", func() bool { return r.gate.heard() == 1 })
	r.restart()
	meshtest.Eventually(t, "the gate heard it again", func() bool { return r.gate.heard() == 2 })
	if err := r.registry.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, heard := range r.gate.announced {
		if heard.GetDigest() != own.digest || !slices.Equal(heard.GetOperations(), own.names) {
			t.Errorf("the gate heard %v", heard)
		}
	}
}

// Whatever the gate makes of it, nothing waits for it.
func TestARegistryThatIsNotHeardServes(t *testing.T) {
	r := newRig(t)
	for _, reason := range []fault.Reason{fault.FieldInvalid, fault.ScopeMissing, fault.JournalUnavailable} {
		before := r.gate.heard()
		r.gate.steer(func() { r.gate.deaf = fault.New(reason, "not now") })
		r.restart()
		meshtest.Eventually(t, "it was refused", func() bool { return r.gate.heard() > before })
		if got := r.invoke(say(string(reason), "hi")); got.GetState() != awaiting {
			t.Errorf("%s: an invocation is %v", reason, got)
		}
	}
	refused := r.gate.heard()
	r.gate.steer(func() { r.gate.deaf = nil })
	meshtest.Eventually(t, "the gate heard it after all", func() bool { return r.gate.heard() > refused })
}

// listener is a gate that only hears announcements.
type listener struct {
	gatev1.GateServiceClient
	answers []error // one after the other, then none
	heard   []time.Time
}

func (l *listener) AnnounceOperations(ctx context.Context, _ *gatev1.AnnounceOperationsRequest, _ ...grpc.CallOption) (*gatev1.AnnounceOperationsResponse, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		return nil, fault.New(fault.Bug, "a gate that never answers would be waited for forever")
	}
	l.heard = append(l.heard, time.Now())
	if len(l.answers) == 0 {
		return &gatev1.AnnounceOperationsResponse{}, nil
	}
	err := l.answers[0]
	l.answers = l.answers[1:]
	return &gatev1.AnnounceOperationsResponse{}, err
}

func TestAnnouncingGoesOnUntilTheGateAnswers(t *testing.T) {
	away := fault.New(fault.PeerUnavailable, "away")
	for name, tc := range map[string]struct {
		answers []error
		heard   int
	}{
		"at once":             {nil, 1},
		"the gate is away":    {[]error{away, fault.New(fault.DeadlineExceeded, "slow"), fault.New(fault.Contention, "busy")}, 4},
		"the gate refuses":    {[]error{fault.New(fault.FieldInvalid, "too many")}, 1},
		"away, then it tells": {[]error{away, fault.New(fault.ScopeMissing, "you may not")}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := &listener{answers: tc.answers}
				d := &driver{gate: gate, log: slog.New(slog.DiscardHandler)}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- d.announce(&catalogue{})(ctx) }()
				time.Sleep(24 * time.Hour) // by the test's own clock
				synctest.Wait()
				if len(gate.heard) != tc.heard {
					t.Errorf("the gate heard it %d times in a day, want %d", len(gate.heard), tc.heard)
				}
				for i := 1; i < len(gate.heard); i++ {
					if pause := gate.heard[i].Sub(gate.heard[i-1]); pause != announceRetry {
						t.Errorf("it tried again after %v", pause)
					}
				}
				select {
				case err := <-ended:
					t.Fatalf("the worker ended while the service runs: %v", err)
				default:
				}
				cancel()
				if err := <-ended; err != nil {
					t.Errorf("it ended with %v", err)
				}
			})
		})
	}
}

package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

// driver moves invocations on, from wherever they stand to where nothing more
// can be done now. Whoever calls it, and however often: a caller that waits,
// the gate's events, or the clock after somebody died. Each step is journaled
// before the next one, and the journal lets one driver win each.
type driver struct {
	env         Env
	gate        gatev1.GateServiceClient
	peers       peers
	invocations *aggregate.Loop[Invocation, *registryv1.Event]
	log         *slog.Logger
	// runs are the runs of this process; shutting down waits for them.
	runs sync.WaitGroup
}

// maxSteps bounds how far one call drives: awaiting, starting and, where
// somebody else used up the approval, awaiting another one.
const maxSteps = 6

// drive moves an invocation on. Where it wins the right to run the operation,
// it starts the run; done is closed when that run is over, and nil when nothing
// was started.
func (d *driver) drive(ctx context.Context, key journal.Key) (_ Invocation, done <-chan struct{}, err error) {
	found, err := d.invocations.Read(ctx, key)
	if err != nil {
		return Invocation{}, nil, err
	}
	current := found.State
	for range maxSteps {
		next, err := d.next(ctx, key, current)
		if err != nil || next == nil {
			return current, nil, err
		}
		if next.To == stateRunning {
			next.RunID = ulid.Make().String()
		}
		moved, err := d.move(ctx, key, current, *next)
		if err != nil {
			return current, nil, err
		}
		current = moved
		if next.To == stateRunning && current.State == stateRunning && current.RunID == next.RunID {
			return current, d.start(ctx, key, current), nil
		}
	}
	return current, nil, nil
}

// move journals a step and gives the invocation as it is then, whoever moved it.
func (d *driver) move(ctx context.Context, key journal.Key, from Invocation, s step) (Invocation, error) {
	after, err := d.invocations.Do(ctx, key, func(i Invocation, _ time.Time) (*registryv1.Event, error) {
		return decideStep(i, from, s)
	})
	return after.State, err
}

// next says what follows now; nil when that is for others to say.
func (d *driver) next(ctx context.Context, key journal.Key, i Invocation) (*step, error) {
	if i.State != stateRequested && i.State != stateAwaiting {
		return nil, nil
	}
	operation, ok := d.env.Lookup(i.Operation)
	if !ok || operation.Digest != i.SpecDigest {
		return &step{To: stateFailed, Failure: failure{
			Reason: string(fault.DigestMismatch), Message: "the operation is not the one that was asked for any more",
		}}, nil
	}
	ctx = identity.ActFor(ctx, i.actor(key.Tenant))
	if i.State == stateRequested {
		return d.check(ctx, operation, i)
	}
	return d.redeem(ctx, operation, i)
}

// actor is the recorded caller, for whom the registry calls, through the operation.
func (i Invocation) actor(tenant string) identity.Caller {
	return identity.Caller{
		Tenant: tenant, Subject: i.Caller.Subject, Session: i.Caller.Session,
		Confined: i.Caller.Confined, OnBehalfOf: i.Caller.OnBehalfOf, Operation: i.Operation,
	}
}

// check asks the gate. A retry finds the approval that the first one made.
func (d *driver) check(ctx context.Context, o *Operation, i Invocation) (*step, error) {
	request := checkRequest(i.ID, o, i.Input, i.InputDigest, i.RunningIn)
	answer, err := d.gate.Check(ctx, request)
	if s := refusedBy(err); s != nil {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	switch answer.GetVerdict() {
	case gatev1.Verdict_VERDICT_ALLOW:
		return &step{To: stateRunning, Repeatable: o.Binding.repeatable()}, nil
	case gatev1.Verdict_VERDICT_ASK:
		if answer.GetApprovalId() == i.ApprovalID {
			return nil, nil
		}
		return &step{To: stateAwaiting, ApprovalID: answer.GetApprovalId()}, nil
	default:
		return &step{To: stateDenied, Failure: denial(answer)}, nil
	}
}

// denial says why the gate does not allow something.
func denial(answer *gatev1.CheckResponse) failure {
	f := failure{Reason: answer.GetReason(), Message: "the gate does not allow it"}
	if answer.GetRule() != "" {
		f.Message = "the gate does not allow it: rule " + answer.GetRule()
	}
	return f
}

// failureFor keeps of a refusal what its caller should know.
func failureFor(err error) failure {
	refusal := fault.From(err)
	message := refusal.Detail()
	if after := refusal.RetryAfter(); refusal.Reason() == fault.RateLimited && after > 0 {
		message += fmt.Sprintf("; there is room in %s", (after + time.Second - 1).Truncate(time.Second))
	}
	return failure{Reason: string(refusal.Reason()), Message: message, Note: refusal.Metadata("note")}
}

func checkRequest(id string, o *Operation, input *string, digest, runningIn string) *gatev1.CheckRequest {
	schema := o.Input.Text()
	if len(schema) > maxShownSchema {
		schema = nil // then nobody can amend
	}
	return &gatev1.CheckRequest{
		InputSchema:          string(schema),
		RequestId:            id,
		Operation:            o.Name,
		Effect:               effectToProto[o.Effect],
		SpecDigest:           o.Digest,
		InputJson:            input,
		InputDigest:          digest,
		ConversationId:       runningIn,
		TargetConversationId: o.targetOf(input),
	}
}

// maxShownSchema is the largest schema that the gate takes.
const maxShownSchema = 64 << 10

// refusedBy is the step that a refusal of the gate leads to, nil where asking again
// may help.
func refusedBy(err error) *step {
	if err == nil {
		return nil
	}
	refusal := fault.From(err)
	to, ends := refusals[refusal.Reason()]
	if !ends && refusal.Kind() == fault.KindInvalid {
		to, ends = stateFailed, true // it will not be valid later either
	}
	if !ends {
		return nil
	}
	return &step{To: to, Failure: failureFor(err)}
}

// refusals says which of the gate's refusals end an invocation, and how. Nothing
// of a caller that was refused runs by itself later: that would be a surprise, be
// it that a budget has room or that a disabled caller is enabled again.
var refusals = map[fault.Reason]state{
	fault.ApprovalDenied:    stateDenied,
	fault.NotGranted:        stateDenied,
	fault.PolicyDenied:      stateDenied,
	fault.CallerDisabled:    stateDenied,
	fault.RateLimited:       stateDenied,
	fault.ApprovalExpired:   stateExpired,
	fault.ApprovalCancelled: stateCancelled,
	fault.ApprovalNotFound:  stateFailed,
	fault.DigestMismatch:    stateFailed,
}

// redeem uses the approval, if it is there to be used.
func (d *driver) redeem(ctx context.Context, o *Operation, i Invocation) (*step, error) {
	redeemed, err := d.gate.Redeem(ctx, &gatev1.RedeemRequest{
		ApprovalId: i.ApprovalID, RequestId: i.ID, Operation: i.Operation, SpecDigest: i.SpecDigest, InputDigest: i.InputDigest,
		InputJson: i.Input,
	})
	if err == nil {
		return started(o, i, redeemed), nil
	}
	if s := refusedBy(err); s != nil {
		return s, nil
	}
	switch fault.ReasonOf(err) {
	case fault.ApprovalPending:
		return nil, nil
	case fault.ApprovalRedeemed, fault.ApprovalSuperseded:
		// Another invocation of the same request was asked together with this
		// one and was first: an approval is for one run. Or it was given on terms
		// that do not hold any more. Ask again.
		return d.check(ctx, o, i)
	default:
		return nil, err
	}
}

// started is the step of an invocation whose approval was used. What an approver
// amended is looked at like what a caller asks for: it must fit the schema, and
// must not act on the conversation that the caller is running in.
func started(o *Operation, i Invocation, redeemed *gatev1.RedeemResponse) *step {
	s := &step{To: stateRunning, ApprovalID: i.ApprovalID, Repeatable: o.Binding.repeatable()}
	if redeemed.AmendedInputJson == nil {
		return s
	}
	amended := redeemed.GetAmendedInputJson()
	if _, err := o.Input.Validate("amended_input_json", []byte(amended)); err != nil {
		return &step{To: stateFailed, Failure: failureFor(err)}
	}
	agent := identity.ByAgent(i.Caller.Subject, i.Caller.OnBehalfOf)
	if target := o.targetOf(&amended); agent && target != "" && (target == i.RunningIn || target == i.Caller.Session) {
		return &step{To: stateDenied, Failure: failure{
			Reason: string(fault.SelfTarget), Message: "the amended input acts on the conversation that the caller is running in",
		}}
	}
	s.Amended, s.Digest = &amended, redeemed.GetAmendedInputDigest()
	return s
}

// start runs the operation beside the caller, who may not wait for it.
func (d *driver) start(ctx context.Context, key journal.Key, i Invocation) <-chan struct{} {
	done := make(chan struct{})
	ctx = context.WithoutCancel(ctx)
	d.runs.Go(func() {
		defer close(done)
		if err := d.run(ctx, key, i); err != nil {
			d.log.Warn("invocation not finished, it is driven again", "invocation", key.String(), "error", err)
		}
	})
	return done
}

// run makes the call and journals what came of it.
func (d *driver) run(ctx context.Context, key journal.Key, i Invocation) error {
	operation, ok := d.env.Lookup(i.Operation)
	if !ok {
		return fault.New(fault.Bug, "operation %s left the catalogue while it ran", i.Operation)
	}
	callCtx, cancel := context.WithTimeout(identity.ActFor(ctx, i.actor(key.Tenant)), runLimit)
	defer cancel()
	output, err := call(callCtx, d.peers, operation, retryKey(key.Tenant, i.ID), i.runs())
	outcome := outcomeOf(output, err, i.Repeatable)
	if outcome == nil {
		return err // left in RUNNING, and run again
	}
	_, err = d.move(ctx, key, i, *outcome)
	return err
}

// call runs an operation once, and lets no output out that its schema does not
// describe.
func call(ctx context.Context, peers peers, o *Operation, key string, input *string) ([]byte, error) {
	var canonical []byte
	if input != nil {
		canonical = []byte(*input)
	}
	output, err := o.Binding.run(ctx, peers, key, canonical)
	if err != nil {
		return nil, err
	}
	if _, err := o.Output.Validate("output", output); err != nil {
		return nil, errOutput
	}
	return output, nil
}

// errOutput is a target that answered what the operation does not declare.
var errOutput = fault.New(fault.SchemaMismatch, "the target's answer does not match the operation's output schema")

// outcomeOf turns what a run gave into a step. After an error that leaves open
// whether the target acted, the outcome is unknown; where running again is
// harmless there is no outcome yet.
func outcomeOf(output []byte, err error, repeatable bool) *step {
	if err == nil {
		text := string(output)
		return &step{To: stateSucceeded, Output: &text}
	}
	refusal := fault.From(err)
	switch refusal.Kind() {
	case fault.KindUnavailable, fault.KindContention, fault.KindCancelled, fault.KindDeadlineExceeded:
		if repeatable {
			return nil
		}
		return &step{To: stateUnknown}
	default:
		return &step{To: stateFailed, Failure: failure{Reason: string(refusal.Reason()), Message: refusal.Message()}}
	}
}

// giveUpAfter is how long a run that may be repeated is repeated.
const giveUpAfter = 10 * time.Minute

// wake is what the clock does: it drives an invocation that stood still, and
// takes care of runs whose runner died. It gives when to look again.
func (d *driver) wake(ctx context.Context, key journal.Key) (time.Duration, error) {
	current, _, err := d.drive(ctx, key)
	switch {
	case err != nil:
		return 0, err
	case current.State == stateAwaiting:
		return pollAfter, nil
	case current.State != stateRunning:
		return 0, nil
	case time.Since(current.due()) < 0:
		return 0, nil // somebody runs it
	case !current.Repeatable || time.Since(current.Updated) > giveUpAfter:
		_, err = d.move(ctx, key, current, step{To: stateUnknown})
		return 0, err
	default:
		return 0, d.run(ctx, key, current)
	}
}

// hear is what the gate's events do: it drives whatever waited for an approval
// that was decided, expired, was cancelled or superseded, or that its time
// approved.
func (d *driver) hear(ctx context.Context, e journal.Event) error {
	recorded, err := aggregate.Decode[*gatev1.Event](e)
	if err != nil {
		return err
	}
	var request string
	switch event := recorded.Event.GetEvent().(type) {
	case *gatev1.Event_ApprovalDecided:
		request = event.ApprovalDecided.GetRequestId()
	case *gatev1.Event_ApprovalExpired:
		request = event.ApprovalExpired.GetRequestId()
	case *gatev1.Event_ApprovalCancelled:
		request = event.ApprovalCancelled.GetRequestId()
	case *gatev1.Event_ApprovalTimedOut:
		request = event.ApprovalTimedOut.GetRequestId()
	case *gatev1.Event_ApprovalSuperseded:
		request = event.ApprovalSuperseded.GetRequestId()
	default:
		return nil
	}
	tenant, approval := e.Key.Tenant, e.Key.ID
	// The first asker is named in the event. Others that joined it stand in the
	// list of those that wait.
	_, _, err = d.drive(ctx, invocationKind().Key(tenant, request))
	for err == nil {
		var waiting []aggregate.Item[Invocation]
		waiting, _, err = d.invocations.List(ctx, aggregate.PageRequest[Invocation]{Tenant: tenant, Lists: []string{approvalList(approval)}})
		moved := false
		for _, item := range waiting {
			after, _, driveErr := d.drive(ctx, invocationKind().Key(tenant, item.ID))
			err = errors.Join(err, driveErr)
			moved = moved || after.State != stateAwaiting || after.ApprovalID != approval
		}
		if !moved {
			break
		}
	}
	return err
}

// drain waits for the runs of this process when the service stops.
func (d *driver) drain(ctx context.Context) error {
	<-ctx.Done()
	d.runs.Wait()
	return nil
}

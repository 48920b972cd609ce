package inbox

import (
	"context"
	"crypto/rand"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

// What a request gets that does not say.
const (
	defaultLease = 900 * time.Second
	defaultClaim = 1
)

// inboxServer is the inboxes of a tenant, for senders, workers and operators.
type inboxServer struct {
	inboxv1.UnimplementedInboxServiceServer
	inboxes *inboxLoop
	letters letters
	hub     *hub
	checks  *checks
	imports *importer
	rules   rules
}

func inboxKey(tenant, goal string) journal.Key {
	return journal.Key{Tenant: tenant, Kind: inboxKindName, ID: goal}
}

// serving gives the caller and the inbox of a goal that it may serve. To an
// agent all goals but its own look like ones that do not exist.
func serving(ctx context.Context, goal string) (identity.Caller, journal.Key, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return identity.Caller{}, journal.Key{}, err
	}
	if own, ok := ownGoal(caller); ok && own != goal {
		return identity.Caller{}, journal.Key{}, notFound(goal)
	}
	return caller, inboxKey(caller.Tenant, goal), nil
}

// ownGoal is the one goal that an agent serves. People and services serve all
// goals of their tenant.
func ownGoal(caller identity.Caller) (goal string, ok bool) {
	return agentName(caller.Subject)
}

// agentName is the name of an agent. A subject that cannot be read counts as an
// agent without one.
func agentName(subject string) (name string, ok bool) {
	kind, name, err := identity.ParseSubject(subject)
	if err != nil || kind == identity.Agent {
		return name, true
	}
	return "", false
}

func (s *inboxServer) Enqueue(ctx context.Context, in *inboxv1.EnqueueRequest) (*inboxv1.EnqueueResponse, error) {
	// One message has the same fields by itself and in a batch.
	results, err := s.enqueue(ctx, in.GetGoal(), []enqueued{in}, false)
	if err != nil {
		return nil, err
	}
	return results[0], nil
}

func (s *inboxServer) EnqueueBatch(ctx context.Context, in *inboxv1.EnqueueBatchRequest) (*inboxv1.EnqueueBatchResponse, error) {
	messages := make([]enqueued, len(in.GetMessages()))
	for i, m := range in.GetMessages() {
		messages[i] = m
	}
	results, err := s.enqueue(ctx, in.GetGoal(), messages, true)
	if err != nil {
		return nil, err
	}
	return &inboxv1.EnqueueBatchResponse{Results: results}, nil
}

// enqueued is a message as a request has it, by itself or in a batch.
type enqueued interface {
	GetMessageId() string
	GetBody() string
	GetPriority() int32
	GetCorrelationId() string
	GetNotBefore() *timestamppb.Timestamp
	GetExpireTime() *timestamppb.Timestamp
	GetBusyPolicy() inboxv1.BusyPolicy
	GetBusyKey() string
}

func (s *inboxServer) enqueue(ctx context.Context, goal string, messages []enqueued, batch bool) ([]*inboxv1.EnqueueResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	c := enqueue{
		Goal: goal, Rules: s.rules, Batch: batch,
		Sender: origin{Subject: caller.Subject, OnBehalfOf: chain(caller.OnBehalfOf), Session: caller.Session, Operation: caller.Operation},
	}
	for i, m := range messages {
		if err := checkChosenID(c.field(i, "message_id"), m.GetMessageId()); err != nil {
			return nil, err
		}
		notBefore, err := timeOf(c.field(i, "not_before"), m.GetNotBefore())
		if err != nil {
			return nil, err
		}
		expires, err := timeOf(c.field(i, "expire_time"), m.GetExpireTime())
		if err != nil {
			return nil, err
		}
		c.Messages = append(c.Messages, newMessage{
			ID:          m.GetMessageId(),
			Body:        m.GetBody(),
			Priority:    m.GetPriority(),
			Correlation: m.GetCorrelationId(),
			NotBefore:   notBefore,
			Expires:     expires,
			Policy:      busyPolicy(m.GetBusyPolicy()),
			BusyKey:     m.GetBusyKey(),
		})
	}
	after, at, err := makingRoom(ctx, s.inboxes, inboxKey(caller.Tenant, goal), decideEnqueue, c)
	if err != nil {
		return nil, err
	}
	results := make([]*inboxv1.EnqueueResponse, len(messages))
	for i, m := range messages {
		standing, _ := after.State.standing(m.GetMessageId(), "", at)
		live, _ := after.State.messages.Get(m.GetMessageId())
		results[i] = &inboxv1.EnqueueResponse{
			State:             messageStates[standing],
			Depth:             int32(after.State.countsAt(at).depth()),
			ReplacedMessageId: live.Replaces,
		}
	}
	return results, nil
}

// busyPolicy gives what is meant by none.
func busyPolicy(asked inboxv1.BusyPolicy) inboxv1.BusyPolicy {
	if asked == inboxv1.BusyPolicy_BUSY_POLICY_UNSPECIFIED {
		return inboxv1.BusyPolicy_BUSY_POLICY_ENQUEUE
	}
	return asked
}

// makingRoom runs a command that a full inbox refuses. Where what fills it has
// ended by time alone, that is recorded first.
func makingRoom[C any](ctx context.Context, inboxes *inboxLoop, key journal.Key,
	decide func(inbox, C, time.Time) (*inboxv1.Event, error), command C,
) (after aggregate.Snapshot[inbox], at time.Time, err error) {
	for {
		after, at, err = do(ctx, inboxes, key, decide, command)
		if !fault.Is(err, fault.InboxFull) || after.State.countsAt(at).depth() >= after.State.Counts.depth() {
			return after, at, err
		}
		if _, _, err := do(ctx, inboxes, key, decideDeadlines, key.ID); err != nil {
			return after, at, err
		}
	}
}

func (s *inboxServer) Claim(ctx context.Context, in *inboxv1.ClaimRequest) (*inboxv1.ClaimResponse, error) {
	caller, key, err := serving(ctx, in.GetGoal())
	if err != nil {
		return nil, err
	}
	lease, err := durationOf("lease", in.GetLease(), defaultLease)
	if err != nil {
		return nil, err
	}
	wait, err := durationOf("wait", in.GetWait(), 0)
	if err != nil {
		return nil, err
	}
	command := claim{
		Goal:     in.GetGoal(),
		Request:  in.GetRequestId(),
		Claimant: caller.Subject,
		Token:    rand.Text(),
		Max:      orDefault(in.GetMax(), defaultClaim),
		Lease:    lease,
		Rules:    s.rules,
	}
	got, err := s.hub.claim(ctx, key, wait, func(ctx context.Context) (served, error) {
		after, at, err := s.checks.deliver(ctx, s.inboxes, key, command)
		return served{after.State.held(command.Request, at), after.State, at}, err
	})
	if err != nil {
		return nil, err
	}
	out := &inboxv1.ClaimResponse{InboxState: modes[got.state.Mode]}
	if len(got.ids) == 0 {
		return out, nil
	}
	if out.Messages, err = s.messages(ctx, key, got.state, got.ids, got.at); err != nil {
		return nil, err // the claim stands, and the same request gets it
	}
	first, _ := got.state.messages.Get(got.ids[0])
	out.ClaimToken = first.Hold.Token
	return out, nil
}

func (s *inboxServer) Extend(ctx context.Context, in *inboxv1.ExtendRequest) (*inboxv1.ExtendResponse, error) {
	caller, key, err := serving(ctx, in.GetGoal())
	if err != nil {
		return nil, err
	}
	lease, err := durationOf("lease", in.GetLease(), defaultLease)
	if err != nil {
		return nil, err
	}
	after, _, err := do(ctx, s.inboxes, key, decideExtend, holding{
		Goal: in.GetGoal(), IDs: in.GetMessageIds(), Token: in.GetClaimToken(), Actor: caller.Subject, For: lease,
	})
	if err != nil {
		return nil, err
	}
	extended, _ := after.State.messages.Get(in.GetMessageIds()[0])
	return &inboxv1.ExtendResponse{
		LeaseExpireTime: timestamp(extended.Hold.Until),
		Interrupted:     after.State.interrupted(in.GetMessageIds()),
	}, nil
}

func (s *inboxServer) Done(ctx context.Context, in *inboxv1.DoneRequest) (*inboxv1.DoneResponse, error) {
	caller, key, err := serving(ctx, in.GetGoal())
	if err != nil {
		return nil, err
	}
	_, _, err = do(ctx, s.inboxes, key, decideDone, holding{
		Goal: in.GetGoal(), IDs: in.GetMessageIds(), Token: in.GetClaimToken(), Actor: caller.Subject,
	})
	if err != nil {
		return nil, err
	}
	return &inboxv1.DoneResponse{}, nil
}

func (s *inboxServer) Release(ctx context.Context, in *inboxv1.ReleaseRequest) (*inboxv1.ReleaseResponse, error) {
	caller, key, err := serving(ctx, in.GetGoal())
	if err != nil {
		return nil, err
	}
	delay, err := durationOf("delay", in.GetDelay(), 0)
	if err != nil {
		return nil, err
	}
	_, _, err = do(ctx, s.inboxes, key, decideRelease, holding{
		Goal: in.GetGoal(), IDs: in.GetMessageIds(), Token: in.GetClaimToken(), Actor: caller.Subject, For: delay,
	})
	if err != nil {
		return nil, err
	}
	return &inboxv1.ReleaseResponse{}, nil
}

func orDefault(n int32, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return int(n)
}

// timeOf and durationOf refuse what a protobuf timestamp or duration can hold
// but must not.
func timeOf(field string, t *timestamppb.Timestamp) (time.Time, error) {
	if t == nil {
		return time.Time{}, nil
	}
	if err := t.CheckValid(); err != nil {
		return time.Time{}, malformed(field, "must be a time").Wrap(err)
	}
	return t.AsTime(), nil
}

func durationOf(field string, d *durationpb.Duration, otherwise time.Duration) (time.Duration, error) {
	if d == nil {
		return otherwise, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, malformed(field, "must be a duration").Wrap(err)
	}
	return d.AsDuration(), nil
}

func malformed(field, description string) *fault.Error {
	return fault.New(fault.FieldInvalid, "the request breaks the rules of its fields").Field(field, description)
}

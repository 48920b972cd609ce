package inbox

import (
	"context"
	"crypto/rand"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
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
	defaultPeek  = 20
)

// inboxServer is the inboxes of a tenant, for senders, workers and operators.
type inboxServer struct {
	inboxv1.UnimplementedInboxServiceServer
	inboxes *inboxLoop
	letters letters
	limit   int
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
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkChosenID(in.GetMessageId()); err != nil {
		return nil, err
	}
	notBefore, err := timeOf("not_before", in.GetNotBefore())
	if err != nil {
		return nil, err
	}
	after, at, err := do(ctx, s.inboxes, inboxKey(caller.Tenant, in.GetGoal()), decideEnqueue, enqueue{
		Goal:        in.GetGoal(),
		ID:          in.GetMessageId(),
		Sender:      caller.Subject,
		Body:        in.GetBody(),
		Priority:    in.GetPriority(),
		Correlation: in.GetCorrelationId(),
		NotBefore:   notBefore,
		Limit:       s.limit,
	})
	if err != nil {
		return nil, err
	}
	standing, _ := after.State.standing(in.GetMessageId(), "", at)
	return &inboxv1.EnqueueResponse{
		State: messageStates[standing],
		Depth: int32(after.State.Counts.depth()),
	}, nil
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
	after, at, err := do(ctx, s.inboxes, key, decideClaim, claim{
		Goal:     in.GetGoal(),
		Request:  in.GetRequestId(),
		Claimant: caller.Subject,
		Token:    rand.Text(),
		Max:      orDefault(in.GetMax(), defaultClaim),
		Lease:    lease,
	})
	if err != nil {
		return nil, err
	}
	ids := after.State.held(in.GetRequestId(), at)
	if len(ids) == 0 {
		return &inboxv1.ClaimResponse{}, nil
	}
	messages, err := s.messages(ctx, key, after.State, ids, at)
	if err != nil {
		return nil, err // the claim stands, and the same request gets it
	}
	first, _ := after.State.messages.Get(ids[0])
	return &inboxv1.ClaimResponse{Messages: messages, ClaimToken: first.Hold.Token}, nil
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
	return &inboxv1.ExtendResponse{LeaseExpireTime: timestamp(extended.Hold.Until)}, nil
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

func (s *inboxServer) Peek(ctx context.Context, in *inboxv1.PeekRequest) (*inboxv1.PeekResponse, error) {
	_, key, err := serving(ctx, in.GetGoal())
	if err != nil {
		return nil, err
	}
	// Through the write path and not by Read: this replica may have the whole
	// state in memory, and then asks the journal only whether it is the newest.
	after, at, err := do(ctx, s.inboxes, key, look, struct{}{})
	if err != nil {
		return nil, err
	}
	if !after.Exists() {
		return nil, notFound(in.GetGoal())
	}
	ids := after.State.limited(after.State.waiting(), orDefault(in.GetPageSize(), defaultPeek))
	messages, err := s.messages(ctx, key, after.State, ids, at)
	if err != nil {
		return nil, err
	}
	return &inboxv1.PeekResponse{Messages: messages}, nil
}

func (s *inboxServer) GetInbox(ctx context.Context, in *inboxv1.GetInboxRequest) (*inboxv1.GetInboxResponse, error) {
	_, key, err := serving(ctx, in.GetGoal())
	if err != nil {
		return nil, err
	}
	found, err := s.inbox(ctx, key)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, notFound(in.GetGoal())
	}
	return &inboxv1.GetInboxResponse{Inbox: found}, nil
}

func (s *inboxServer) ListInboxes(ctx context.Context, in *inboxv1.ListInboxesRequest) (*inboxv1.ListInboxesResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	if own, ok := ownGoal(caller); ok {
		return s.listOwn(ctx, inboxKey(caller.Tenant, own), in.GetPageToken())
	}
	items, next, err := s.inboxes.List(ctx, aggregate.PageRequest[inbox]{
		Tenant: caller.Tenant,
		Lists:  []string{listAll},
		Size:   int(in.GetPageSize()),
		Token:  in.GetPageToken(),
		Fields: []string{aggregate.RootField},
	})
	if err != nil {
		return nil, err
	}
	listed := make([]*inboxv1.Inbox, len(items))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	for i, item := range items {
		group.Go(func() (err error) {
			listed[i], err = s.counted(ctx, inboxKey(caller.Tenant, item.ID), item.Snapshot)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return &inboxv1.ListInboxesResponse{Inboxes: slices.DeleteFunc(listed, absent), NextPageToken: next}, nil
}

func absent(in *inboxv1.Inbox) bool { return in == nil }

// listOwn is the list of an agent, which is one inbox long at the most.
func (s *inboxServer) listOwn(ctx context.Context, key journal.Key, token string) (*inboxv1.ListInboxesResponse, error) {
	if token != "" {
		return nil, fault.New(fault.PageTokenInvalid, "the page token is not one that this list gave").
			Field("page_token", "must be a next_page_token of the same list, unchanged")
	}
	found, err := s.inbox(ctx, key)
	if err != nil || found == nil {
		return &inboxv1.ListInboxesResponse{}, err
	}
	return &inboxv1.ListInboxesResponse{Inboxes: []*inboxv1.Inbox{found}}, nil
}

// inbox gives the counts of an inbox, nil for one that does not exist.
func (s *inboxServer) inbox(ctx context.Context, key journal.Key) (*inboxv1.Inbox, error) {
	read, err := s.inboxes.Read(ctx, key, aggregate.RootField)
	if err != nil {
		return nil, err
	}
	return s.counted(ctx, key, read)
}

// counted gives the counts as of now. The root tells them, until a delay or a
// lease has ended since its last event: then the messages do.
func (s *inboxServer) counted(ctx context.Context, key journal.Key, read aggregate.Snapshot[inbox]) (*inboxv1.Inbox, error) {
	now := s.inboxes.Now()
	if turns := read.State.Turns; !turns.IsZero() && !turns.After(now) {
		var err error
		if read, err = s.inboxes.Read(ctx, key); err != nil {
			return nil, err
		}
	}
	if !read.Exists() {
		return nil, nil
	}
	c := read.State.countsAt(now)
	return &inboxv1.Inbox{
		Goal:       key.ID,
		Depth:      int32(c.depth()),
		Limit:      int32(s.limit),
		Pending:    int32(c.Pending),
		Delayed:    int32(c.Delayed),
		Claimed:    int32(c.Claimed),
		Dead:       int32(c.Dead),
		UpdateTime: timestamppb.New(read.State.Updated),
	}, nil
}

// messageStates is how standings look from outside.
var messageStates = [standings]inboxv1.MessageState{
	delayed: inboxv1.MessageState_MESSAGE_STATE_PENDING,
	ready:   inboxv1.MessageState_MESSAGE_STATE_PENDING,
	held:    inboxv1.MessageState_MESSAGE_STATE_CLAIMED,
	lapsed:  inboxv1.MessageState_MESSAGE_STATE_PENDING,
	spent:   inboxv1.MessageState_MESSAGE_STATE_DEAD,
	buried:  inboxv1.MessageState_MESSAGE_STATE_DEAD,
	done:    inboxv1.MessageState_MESSAGE_STATE_DONE,
}

// messages shows live messages as they stand at a time, with what they say.
func (s *inboxServer) messages(ctx context.Context, key journal.Key, state inbox, ids []string, at time.Time) ([]*inboxv1.Message, error) {
	read, err := s.letters.read(ctx, key, state, ids)
	if err != nil {
		return nil, err
	}
	shown := make([]*inboxv1.Message, len(ids))
	for i, id := range ids {
		m, _ := state.messages.Get(id)
		shown[i] = toProto(m, read[i], at)
	}
	return shown, nil
}

func toProto(m message, l letter, at time.Time) *inboxv1.Message {
	standing := m.standing(at)
	shown := &inboxv1.Message{
		MessageId:     l.GetMessageId(),
		State:         messageStates[standing],
		Sender:        l.sender,
		Body:          l.GetBody(),
		Priority:      l.GetPriority(),
		CorrelationId: l.GetCorrelationId(),
		EnqueueTime:   timestamppb.New(l.at),
		NotBefore:     timestamp(m.NotBefore),
		Deliveries:    m.Deliveries,
		Reclaimed:     m.Reclaimed || standing == lapsed || standing == spent,
	}
	if standing == held {
		shown.Claimant, shown.LeaseExpireTime = m.Hold.Claimant, timestamp(m.Hold.Until)
	}
	return shown
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

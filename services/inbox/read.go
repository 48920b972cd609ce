package inbox

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

// defaultPage is how many messages a page has for a request that does not say.
const defaultPage = 20

func (s *inboxServer) Peek(ctx context.Context, in *inboxv1.PeekRequest) (*inboxv1.PeekResponse, error) {
	_, key, err := serving(ctx, in.GetGoal())
	if err != nil {
		return nil, err
	}
	behind, err := parsePlaceToken(key, in.GetPageToken())
	if err != nil {
		return nil, err
	}
	after, at, err := s.newest(ctx, key)
	if err != nil {
		return nil, err
	}
	// One more than the page holds: whether there is a next one.
	size := orDefault(in.GetPageSize(), defaultPage)
	ids := after.limited(after.openFrom(behind, at), size+1)
	more := len(ids) > size
	if !more && len(ids) > 0 { // the bodies may have cut it short
		for range after.openFrom(after.place(ids[len(ids)-1]), at) {
			more = true
			break
		}
	}
	ids = ids[:min(len(ids), size)]
	messages, err := s.messages(ctx, key, after, ids, at)
	if err != nil {
		return nil, err
	}
	out := &inboxv1.PeekResponse{Messages: messages}
	if more {
		out.NextPageToken = placeToken(key, after.place(ids[len(ids)-1]))
	}
	return out, nil
}

func (s *inboxServer) ListDead(ctx context.Context, in *inboxv1.ListDeadRequest) (*inboxv1.ListDeadResponse, error) {
	_, key, err := serving(ctx, in.GetGoal())
	if err != nil {
		return nil, err
	}
	behind, err := parseMomentToken(key, in.GetPageToken())
	if err != nil {
		return nil, err
	}
	after, at, err := s.newest(ctx, key)
	if err != nil {
		return nil, err
	}
	size := orDefault(in.GetPageSize(), defaultPage)
	found := after.deadAt(behind, size+1, at)
	ids := after.limited(slices.Values(found), size)
	messages, err := s.messages(ctx, key, after, ids, at)
	if err != nil {
		return nil, err
	}
	out := &inboxv1.ListDeadResponse{}
	for i, id := range ids {
		m, _ := after.messages.Get(id)
		out.Messages = append(out.Messages, m.toDead(messages[i]))
	}
	if len(found) > len(ids) {
		m, _ := after.messages.Get(ids[len(ids)-1])
		out.NextPageToken = momentToken(key, m.death())
	}
	return out, nil
}

// toDead adds to a message how its deliveries ended.
func (m message) toDead(shown *inboxv1.Message) *inboxv1.DeadMessage {
	at := m.death().at
	if m.State == claimed { // it is dead by time alone
		m = m.lapsed()
	}
	out := &inboxv1.DeadMessage{Message: shown, DeathTime: timestamp(at)}
	for _, d := range m.History {
		out.Deliveries = append(out.Deliveries, &inboxv1.Delivery{
			Claimant: d.Claimant, ClaimTime: timestamp(d.From), EndTime: timestamp(d.To), End: d.End,
		})
	}
	return out
}

// newest gives the whole of an inbox as it is now, and when that is. This replica may
// have it in memory, and then only asks the journal whether it is the newest.
func (s *inboxServer) newest(ctx context.Context, key journal.Key) (inbox, time.Time, error) {
	found, err := s.inboxes.Newest(ctx, key)
	if err != nil {
		return inbox{}, time.Time{}, err
	}
	if !found.Exists() {
		return inbox{}, time.Time{}, notFound(key.ID)
	}
	return found.State, s.inboxes.Now(), nil
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
		return nil, fault.BadPageToken()
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

// counted gives the counts as of now. The root tells them, until a deadline has
// passed that is not recorded: then the messages do.
func (s *inboxServer) counted(ctx context.Context, key journal.Key, read aggregate.Snapshot[inbox]) (*inboxv1.Inbox, error) {
	now := s.inboxes.Now()
	if due := read.State.Due; !due.IsZero() && !due.After(now) {
		var err error
		if read, err = s.inboxes.Read(ctx, key); err != nil {
			return nil, err
		}
	}
	if !read.Exists() {
		return nil, nil
	}
	return s.toInbox(key.ID, read.State, now), nil
}

// toInbox shows a whole state as it stands at a time.
func (s *inboxServer) toInbox(goal string, state inbox, now time.Time) *inboxv1.Inbox {
	c := state.countsAt(now)
	shown := &inboxv1.Inbox{
		Goal:              goal,
		Depth:             int32(c.depth()),
		Limit:             int32(s.rules.Limit),
		Pending:           int32(c.Pending),
		Delayed:           int32(c.Delayed),
		Claimed:           int32(c.Claimed),
		Dead:              int32(c.Dead),
		State:             modes[state.Mode],
		StateNote:         state.Note,
		OldestPendingTime: timestamp(state.oldestAt(now)),
	}
	if state.exists() {
		shown.UpdateTime = timestamppb.New(state.Updated)
	}
	return shown
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
		OnBehalfOf:    l.onBehalfOf,
		Operation:     l.operation,
		Body:          l.GetBody(),
		Priority:      l.GetPriority(),
		CorrelationId: l.GetCorrelationId(),
		EnqueueTime:   timestamppb.New(l.at),
		NotBefore:     timestamp(m.NotBefore),
		ExpireTime:    timestamp(m.Expires),
		BusyPolicy:    l.GetBusyPolicy(),
		BusyKey:       l.GetBusyKey(),
		Deliveries:    m.Deliveries,
		Reclaimed:     m.Reclaimed || standing == lapsed || standing == spent,
	}
	if standing == held {
		shown.Claimant, shown.LeaseExpireTime = m.Hold.Claimant, timestamp(m.Hold.Until)
	}
	if m.isNotice() {
		shown.Refusal, shown.Body = m.Refusal.proto(), ""
	}
	return shown
}

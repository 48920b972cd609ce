package inbox

import (
	"context"
	"crypto/rand"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	conversationv1 "weir/gen/conversation/v1"
	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/backend"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

// scopeOperate opens what others own, to be ended.
const scopeOperate = "inbox.operate"

// dispatchServer is the record of dispatched work, for whoever gives work away, and
// for who does it.
type dispatchServer struct {
	inboxv1.UnimplementedDispatchServiceServer
	backend    *backend.Backend
	dispatches *dispatchLoop
	dispatcher *dispatcher
}

func dispatchKey(tenant, goal, item string) journal.Key {
	return journal.Key{Tenant: tenant, Kind: dispatchKindName, ID: dispatchID(goal, item)}
}

func (s *dispatchServer) Begin(ctx context.Context, in *inboxv1.BeginRequest) (*inboxv1.BeginResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	command, err := s.beginning(ctx, caller, in.GetGoal(), in.GetItem())
	if err != nil {
		return nil, err
	}
	after, _, err := do(ctx, s.dispatches, dispatchKey(caller.Tenant, in.GetGoal(), in.GetItem()), decideBegin, command)
	if err != nil {
		return nil, err
	}
	return &inboxv1.BeginResponse{
		Dispatch: shownTo(caller, after.State),
		Replay:   after.State.replay(),
		Warning:  after.State.warning(),
	}, nil
}

// beginning counts the open items of the goal. Without lists there is no count, and
// no limit for so long: who comes back after a crash must not be turned away.
func (s *dispatchServer) beginning(ctx context.Context, caller identity.Caller, goal, item string) (begin, error) {
	command := begin{Goal: goal, Item: item, NewID: ulid.Make().String(), Actor: caller.Subject}
	counts, err := s.counts(ctx, caller.Tenant, goal)
	if err != nil && fault.From(err).Kind() != fault.KindUnavailable {
		return begin{}, err
	}
	command.Open = counts.open()
	return command, nil
}

func (s *dispatchServer) MarkSent(ctx context.Context, in *inboxv1.MarkSentRequest) (*inboxv1.MarkSentResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	after, _, err := do(ctx, s.dispatches, dispatchKey(caller.Tenant, in.GetGoal(), in.GetItem()), decideMark, markSent{
		Goal: in.GetGoal(), Item: in.GetItem(), NewID: ulid.Make().String(),
		ConversationID: in.GetConversationId(), Actor: caller.Subject,
	})
	if err != nil {
		return nil, err
	}
	return &inboxv1.MarkSentResponse{Dispatch: dispatchToProto(after.State)}, nil
}

func (s *dispatchServer) Dispatch(ctx context.Context, in *inboxv1.DispatchRequest) (*inboxv1.DispatchResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	if size := len(in.GetSeed()); size > maxSeed {
		return nil, fault.New(fault.TooLarge, "a seed of %d bytes is over the limit of %d", size, maxSeed).
			Field("seed", "must be at most "+strconv.Itoa(maxSeed)+" bytes").
			With("size", strconv.Itoa(size)).With("limit", strconv.Itoa(maxSeed))
	}
	key := dispatchKey(caller.Tenant, in.GetGoal(), in.GetItem())
	command := giving{
		Owner: caller, Request: in.GetRequestId(), NewConversation: "work-" + strings.ToLower(rand.Text()),
		Worker: in.GetWorker(), Seed: in.GetSeed(), Title: in.GetTitle(), Priority: in.GetPriority(), WaitsFor: in.GetWaitsFor(),
	}
	if command.begin, err = s.beginning(ctx, caller, in.GetGoal(), in.GetItem()); err != nil {
		return nil, err
	}
	if err := s.waitable(ctx, key, command); err != nil {
		return nil, err
	}
	replay := false
	after, _, err := do(ctx, s.dispatches, key, func(d dispatch, c giving, now time.Time) (*inboxv1.Event, error) {
		event, err := decideDispatch(d, c, now)
		replay = event == nil
		return event, err
	}, command)
	if err != nil {
		return nil, err
	}
	return &inboxv1.DispatchResponse{Dispatch: dispatchToProto(s.driven(ctx, key, after.State)), Replay: replay}, nil
}

// waitable checks what a new request waits for. One that was made before is not
// checked again: since then the items may have come to wait for this one.
func (s *dispatchServer) waitable(ctx context.Context, key journal.Key, c giving) error {
	if len(c.WaitsFor) == 0 {
		return nil
	}
	d, err := s.dispatcher.newest(ctx, key)
	if err != nil {
		return err
	}
	if known, _ := knows(d.Asked, c.Request, c.fingerprint()); known {
		return nil // what it comes to, the decision says
	}
	return s.dispatcher.checkWaits(ctx, key, c.Goal, c.Item, c.WaitsFor)
}

// driven drives as far as the caller's deadline allows, and gives what is true then.
// What is left is the clock's, so there is nothing to report to the caller.
func (s *dispatchServer) driven(ctx context.Context, key journal.Key, d dispatch) dispatch {
	driving := ctx
	if deadline, ok := ctx.Deadline(); ok {
		// The last quarter is for the answer.
		var cancel context.CancelFunc
		driving, cancel = context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/4))
		defer cancel()
	}
	now, err := s.dispatcher.drive(driving, key)
	if err == nil {
		return now
	}
	s.backend.Log.Warn("dispatch not finished, it is driven again", "key", key.String(), "error", err)
	if now, err := s.dispatcher.newest(ctx, key); err == nil {
		return now
	}
	return d
}

func (s *dispatchServer) Report(ctx context.Context, in *inboxv1.ReportRequest) (*inboxv1.ReportResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkReport(in); err != nil {
		return nil, err
	}
	key := dispatchKey(caller.Tenant, in.GetGoal(), in.GetItem())
	command := telling{
		Goal: in.GetGoal(), Item: in.GetItem(), Request: in.GetRequestId(), Kind: in.GetKind(), Text: in.GetText(),
		Evidence: in.GetEvidence(), WaitsFor: in.GetWaitsFor(), Reporter: caller,
	}
	found, err := s.dispatcher.newest(ctx, key)
	if err != nil {
		return nil, err
	}
	if command.Joined, err = s.joined(ctx, caller, found); err != nil {
		return nil, err
	}
	known, _ := knows(found.Told, command.Request, command.fingerprint())
	if command.byWorker(found) && !known {
		if err := s.dispatcher.checkWaits(ctx, key, command.Goal, command.Item, command.WaitsFor); err != nil {
			return nil, err
		}
	}
	after, _, err := do(ctx, s.dispatches, key, decideReport, command)
	if err != nil {
		return nil, err
	}
	d := after.State
	if d.waits() {
		d = s.driven(ctx, key, d) // they may be finished already
	}
	return &inboxv1.ReportResponse{Dispatch: dispatchToProto(d)}, nil
}

// checkReport refuses what a kind of report needs and lacks, or has and must not.
func checkReport(in *inboxv1.ReportRequest) error {
	rule := reportRules[in.GetKind()]
	switch {
	case rule.text && strings.TrimSpace(in.GetText()) == "":
		return malformed("text", "must say what is needed, for BLOCKED and QUESTION")
	case rule.evidence && len(in.GetEvidence()) == 0:
		return malformed("evidence", "must have 1 to 20 entries, for DONE")
	case !rule.evidence && len(in.GetEvidence()) > 0:
		return malformed("evidence", "is for DONE only")
	case !rule.waits && len(in.GetWaitsFor()) > 0:
		return malformed("waits_for", "is for BLOCKED only")
	}
	return nil
}

// reportRules say what a report needs, and of waits what it may have.
var reportRules = map[inboxv1.ReportKind]struct{ text, evidence, waits bool }{
	inboxv1.ReportKind_REPORT_KIND_PROGRESS: {},
	inboxv1.ReportKind_REPORT_KIND_BLOCKED:  {text: true, waits: true},
	inboxv1.ReportKind_REPORT_KIND_QUESTION: {text: true},
	inboxv1.ReportKind_REPORT_KIND_DONE:     {evidence: true},
}

// joined asks whether an agent takes part in the conversation of an item whose worker
// weir does not know.
func (s *dispatchServer) joined(ctx context.Context, caller identity.Caller, d dispatch) (bool, error) {
	if d.State == "" || d.Worker != "" || d.ConversationID == "" || !identity.Agent.Is(caller.Subject) {
		return false, nil
	}
	_, err := s.dispatcher.conversations.GetConversation(identity.ActFor(ctx, caller), &conversationv1.GetConversationRequest{
		ConversationId: d.ConversationID,
	})
	if fault.Is(err, fault.ConversationNotFound) {
		return false, nil
	}
	return err == nil, err
}

func (s *dispatchServer) Accept(ctx context.Context, in *inboxv1.AcceptRequest) (*inboxv1.AcceptResponse, error) {
	d, err := s.judge(ctx, judging{Goal: in.GetGoal(), Item: in.GetItem(), What: toAccept, Note: in.GetNote()})
	return &inboxv1.AcceptResponse{Dispatch: d}, err
}

func (s *dispatchServer) Reject(ctx context.Context, in *inboxv1.RejectRequest) (*inboxv1.RejectResponse, error) {
	d, err := s.judge(ctx, judging{Goal: in.GetGoal(), Item: in.GetItem(), What: toReject, Note: in.GetNote()})
	return &inboxv1.RejectResponse{Dispatch: d}, err
}

func (s *dispatchServer) Abandon(ctx context.Context, in *inboxv1.AbandonRequest) (*inboxv1.AbandonResponse, error) {
	d, err := s.judge(ctx, judging{Goal: in.GetGoal(), Item: in.GetItem(), What: toAbandon, Note: in.GetNote()})
	return &inboxv1.AbandonResponse{Dispatch: d}, err
}

func (s *dispatchServer) judge(ctx context.Context, c judging) (*inboxv1.Dispatch, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	c.Judge, c.Operator = caller, caller.HasScope(scopeOperate)
	after, _, err := do(ctx, s.dispatches, dispatchKey(caller.Tenant, c.Goal, c.Item), decideJudge, c)
	if err != nil {
		return nil, err
	}
	return dispatchToProto(after.State), nil
}

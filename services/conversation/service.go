package conversation

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"google.golang.org/grpc"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/backend"
	"weir/internal/journal"
	"weir/services/conversation/search"
)

// service is the parts of one running replica.
type service struct {
	stores   *backend.Backend
	history  *history
	groups   *groups
	feeds    *feeds
	drafts   *drafts
	search   *searcher
	eraser   *eraser
	erasures *erasureLoop
	rules    *retentionLoop
	keeper   *keeper
	teller   teller
	// heard are the durable consumers, and what each does with an event.
	heard []hearing
	// folder is that of a temporary index, removed in the end.
	folder string
}

type hearing struct {
	consumer *journal.Consumer
	handle   journal.Handler
}

func newService(stores *backend.Backend, cfg Config) (_ *service, err error) {
	conversations := aggregate.New(kind(), stores.Journal, stores.Hot, stores.Log)
	s := &service{
		stores:   stores,
		history:  &history{loop: conversations, journal: stores.Journal},
		erasures: aggregate.New(erasureKind(), stores.Journal, stores.Hot, stores.Log),
		rules:    aggregate.New(retentionKind(), stores.Journal, stores.Hot, stores.Log),
	}
	s.groups = &groups{loop: aggregate.New(groupKind(), stores.Journal, stores.Hot, stores.Log), conversations: conversations}
	s.drafts = &drafts{history: s.history, hot: stores.Hot, nats: stores.NATS, log: stores.Log}
	if s.teller, err = newTeller(stores, conversations); err != nil {
		return nil, err
	}
	for _, h := range []struct {
		service, name, filter string
		handle                journal.Handler
	}{
		{registryService, callsConsumer, callsFilter, calls{s.teller}.handle},
		{gateService, approvalsConsumer, approvalsFilter, approvals{s.teller}.handle},
		{serviceName, groupsConsumer, groupsFilter, s.groups.handle},
	} {
		consumer, err := stores.Consumer(h.service, h.name, h.filter)
		if err != nil {
			return nil, err
		}
		s.heard = append(s.heard, hearing{consumer, h.handle})
	}
	// Two readers of the service's own stream, each from a place of its own.
	followed := "weir." + serviceName + ".*." + kindName + ".*"
	tailed, err := stores.Consumer(serviceName, "", followed)
	if err != nil {
		return nil, err
	}
	indexed, err := stores.Consumer(serviceName, "", followed)
	if err != nil {
		return nil, err
	}
	s.feeds = newFeeds(tailed, stores.NATS, stores.Hot, conversations, stores.Log)
	folder := cfg.Index
	if folder == "" {
		if s.folder, err = os.MkdirTemp("", "weir-search-"); err != nil {
			return nil, fmt.Errorf("search index: %w", err)
		}
		folder = s.folder
	}
	s.search, err = newSearcher(func() (*search.Index, error) {
		return search.Open(folder, stores.Journal.Identity(), stores.Log)
	}, indexed, s.history, stores.Log)
	if err != nil {
		return nil, fmt.Errorf("--index: %w", err)
	}
	s.eraser = &eraser{history: s.history, hot: stores.Hot, search: s.search}
	s.keeper = &keeper{rules: s.rules, eraser: s.eraser, every: cmp.Or(cfg.RetentionEvery, retentionEvery)}
	return s, nil
}

func (s *service) close() {
	if err := s.search.close(); err != nil {
		s.stores.Log.Warn("search index not closed", "error", err)
	}
	if s.folder != "" {
		_ = os.RemoveAll(s.folder)
	}
}

// workers run beside the server.
func (s *service) workers() []func(context.Context) error {
	erasures := &participantEraser{erasures: s.erasures, eraser: s.eraser}
	workers := []func(context.Context) error{
		s.stores.Projector(s.history.loop, s.groups.loop, s.erasures, s.rules).Run,
		func(ctx context.Context) error { return s.feeds.run(ctx, s.stores.Journal) },
		s.search.run,
		func(ctx context.Context) error { return s.history.loop.Sweep(ctx, s.eraser.due) },
		func(ctx context.Context) error { return s.erasures.Sweep(ctx, erasures.due) },
		func(ctx context.Context) error { return s.rules.Sweep(ctx, s.keeper.due) },
	}
	for _, h := range s.heard {
		workers = append(workers, func(ctx context.Context) error { return h.consumer.Run(ctx, h.handle) })
	}
	return workers
}

func (s *service) register(server *grpc.Server) {
	conversationv1.RegisterConversationServiceServer(server, &conversationServer{history: s.history, groups: s.groups})
	conversationv1.RegisterMessageServiceServer(server, &messageServer{
		history: s.history, drafts: s.drafts, feeds: s.feeds, search: s.search, eraser: s.eraser,
	})
	conversationv1.RegisterGroupServiceServer(server, &groupServer{groups: s.groups})
	conversationv1.RegisterRetentionServiceServer(server, &retentionServer{
		history: s.history, eraser: s.eraser, erasures: s.erasures, rules: s.rules,
	})
}

// Package inbox keeps the messages that wait for agents, and the record of
// what was dispatched.
package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	conversationv1 "weir/gen/conversation/v1"
	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/backend"
	"weir/internal/serve"
)

// Config is what the inbox can be told.
type Config struct {
	Serve  serve.Config   `embed:""`
	Stores backend.Config `embed:""`
	// Peers: what is dispatched goes into conversations, and the gate knows who may
	// still send.
	Gate         string `help:"Address of the gate." default:"dns:///127.0.0.1:7001" placeholder:"TARGET"`
	Conversation string `help:"Address of the conversation service." default:"dns:///127.0.0.1:7003" placeholder:"TARGET"`

	Limit         int           `name:"inbox-limit" help:"Messages that one inbox may hold: 1 to 10,000." default:"200"`
	MaxBody       int           `help:"Bytes that the body of a message may have: 1 to 1,048,576." default:"65536"`
	MaxDeliveries int           `help:"How often a message is delivered before it is dead: 1 to 20." default:"5"`
	KeepIDs       time.Duration `name:"keep-ids" help:"How long the id of a finished message is known: 1h to 2160h." default:"168h"`

	// before is called with the name of each step that sends a dispatch, in tests.
	before func(step string)
}

// Validate reports the first setting that can't work, by its flag.
func (c *Config) Validate() error {
	switch {
	case c.Gate == "":
		return errors.New("--gate: must be set")
	case c.Conversation == "":
		return errors.New("--conversation: must be set")
	}
	switch {
	case c.Limit < 0 || c.Limit > maxLimit:
		return fmt.Errorf("--inbox-limit: %d: want 1 to %d", c.Limit, maxLimit)
	case c.MaxBody < 0 || c.MaxBody > maxBody:
		return fmt.Errorf("--max-body: %d: want 1 to %d", c.MaxBody, maxBody)
	case c.MaxDeliveries < 0 || c.MaxDeliveries > maxDeliveries:
		return fmt.Errorf("--max-deliveries: %d: want 1 to %d", c.MaxDeliveries, maxDeliveries)
	case c.KeepIDs != 0 && (c.KeepIDs < minKeepIDs || c.KeepIDs > maxKeepIDs):
		return fmt.Errorf("--keep-ids: %s: want %s to %s", c.KeepIDs, minKeepIDs, maxKeepIDs)
	}
	if err := c.Stores.Validate(); err != nil {
		return err
	}
	return c.Serve.Validate()
}

// rules are the limits, with those that were not set.
func (c *Config) rules() rules {
	return rules{
		Limit:      cmp.Or(c.Limit, defaultLimit),
		Body:       cmp.Or(c.MaxBody, defaultBody),
		Deliveries: cmp.Or(c.MaxDeliveries, defaultDeliveries),
		KeepIDs:    cmp.Or(c.KeepIDs, defaultKeepIDs),
	}
}

// Run serves the inbox until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	if l := cfg.Serve.Listener; l != nil {
		defer func() { _ = l.Close() }() // it is closed already unless we fail before we serve
	}
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("inbox: %w", err)
	}
	b, err := backend.Open(ctx, "inbox", cfg.Stores, cfg.Serve.Log())
	if err != nil {
		return backend.Interrupted(ctx, fmt.Errorf("inbox: %w", err))
	}
	defer b.Close()

	gate, err := serve.Dial(cfg.Gate, cfg.Serve.Peer)
	if err != nil {
		return fmt.Errorf("inbox: --gate: %w", err)
	}
	defer b.Closing(gate)
	conversation, err := serve.Dial(cfg.Conversation, cfg.Serve.Peer)
	if err != nil {
		return fmt.Errorf("inbox: --conversation: %w", err)
	}
	defer b.Closing(conversation)

	inboxes := newInboxLoop(b)
	dispatches := newDispatchLoop(b)
	consumer, err := b.Consumer("conversation", "inbox-deliveries", "weir.conversation.*.conversation.*")
	if err != nil {
		return fmt.Errorf("inbox: %w", err)
	}
	// A second reader, of the service's own stream, from a place of its own.
	followed, err := b.Consumer("inbox", "", "weir.inbox.*.inbox.*")
	if err != nil {
		return fmt.Errorf("inbox: %w", err)
	}
	hub := newHub(ctx, followed, b.Journal, b.Hot, b.Log)
	deliveries := &deliveries{consumer: consumer, inboxes: inboxes, rules: cfg.rules()}
	dispatcher := &dispatcher{
		dispatches: dispatches, inboxes: inboxes, journal: b.Journal, rules: cfg.rules(), before: cfg.before,
		conversations: conversationv1.NewConversationServiceClient(conversation),
		messages:      conversationv1.NewMessageServiceClient(conversation),
	}
	finished, err := b.Consumer("inbox", "inbox-dispatch-wakes", "weir.inbox.*."+dispatchKindName+".*")
	if err != nil {
		return fmt.Errorf("inbox: %w", err)
	}
	waker := &waker{consumer: finished, dispatcher: dispatcher}
	imports := &importer{inboxes: inboxes, dispatches: dispatches, journal: b.Journal, log: b.Log}

	return serve.Run(ctx, cfg.Serve, serve.Service{
		Name: "inbox",
		Register: func(s *grpc.Server) {
			register(s, &inboxServer{
				inboxes: inboxes, letters: letters{b.Journal}, hub: hub, imports: imports,
				checks: newChecks(gate, conversation), rules: cfg.rules(),
			}, &dispatchServer{backend: b, dispatches: dispatches, dispatcher: dispatcher})
		},
		Healthy: b.Journal.Healthy,
		Metrics: hub.metrics(),
		Workers: []func(context.Context) error{
			b.Projector(inboxes, dispatches).Run,
			deliveries.run,
			hub.run,
			func(ctx context.Context) error { return sweepDeadlines(ctx, inboxes, imports) },
			dispatcher.sweep,
			waker.run,
		},
	})
}

func register(s *grpc.Server, inboxes *inboxServer, dispatches *dispatchServer) {
	inboxv1.RegisterInboxServiceServer(s, inboxes)
	inboxv1.RegisterDispatchServiceServer(s, dispatches)
}

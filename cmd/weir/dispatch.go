package main

import (
	"context"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/grpc"

	"weir/cmd/internal/console"
	"weir/cmd/internal/dispatches"
	inboxv1 "weir/gen/inbox/v1"
)

type dispatchCommand struct {
	List    dispatchListCommand    `cmd:"" help:"List what was given away, newest activity first."`
	Show    dispatchShowCommand    `cmd:"" help:"Show all that is known of one item."`
	Status  dispatchStatusCommand  `cmd:"" help:"Count a goal's items by state."`
	Watch   dispatchWatchCommand   `cmd:"" help:"Show every change as it happens."`
	Start   dispatchStartCommand   `cmd:"" help:"Give an item away: a conversation begins, and the worker is told."`
	Accept  dispatchAcceptCommand  `cmd:"" help:"Say that an item is done."`
	Reject  dispatchRejectCommand  `cmd:"" help:"Send an item back; starting it again makes a new attempt."`
	Abandon dispatchAbandonCommand `cmd:"" help:"End an item that nobody waits for any more."`
}

// onDispatches calls with the token of an operator, and words what went wrong.
func onDispatches(c *console.Connection, do func(inboxv1.DispatchServiceClient) error) error {
	return connected(c, "operator", func(conn *grpc.ClientConn) error { return do(inboxv1.NewDispatchServiceClient(conn)) })
}

type dispatchListCommand struct {
	Goal   string   `help:"Only those that this goal gave away." placeholder:"GOAL"`
	State  []string `help:"Only those: begun (never sent), sent, progress, blocked, question, done (no verdict yet), accepted, rejected, abandoned. Repeat it, or separate by commas." enum:"begun,sent,progress,blocked,question,done,accepted,rejected,abandoned" placeholder:"STATE"`
	Worker string   `help:"Only those that this goal works on." placeholder:"GOAL"`
	console.Connection
}

func (c *dispatchListCommand) Run(ctx context.Context) error {
	which := &inboxv1.ListDispatchesRequest{Goal: c.Goal, Worker: c.Worker}
	for _, state := range c.State {
		which.States = append(which.States, dispatches.States[state])
	}
	return onDispatches(&c.Connection, func(client inboxv1.DispatchServiceClient) error {
		return dispatches.List(ctx, console.Stdio(), client, which)
	})
}

// itemFlags say which item, and how to reach the inbox.
type itemFlags struct {
	Goal string `arg:"" help:"Who gave it away."`
	Item string `arg:"" help:"Which item."`
	console.Connection
}

type dispatchShowCommand struct{ itemFlags }

func (c *dispatchShowCommand) Run(ctx context.Context) error {
	return onDispatches(&c.Connection, func(client inboxv1.DispatchServiceClient) error {
		got, err := client.GetDispatch(ctx, &inboxv1.GetDispatchRequest{Goal: c.Goal, Item: c.Item})
		if err == nil {
			dispatches.Show(console.Stdio(), got.GetDispatch(), time.Now())
		}
		return err
	})
}

type dispatchStatusCommand struct {
	Goal string `arg:"" help:"Whose."`
	console.Connection
}

func (c *dispatchStatusCommand) Run(ctx context.Context) error {
	return onDispatches(&c.Connection, func(client inboxv1.DispatchServiceClient) error {
		return dispatches.Status(ctx, console.Stdio(), client, c.Goal)
	})
}

type dispatchWatchCommand struct {
	Goal string `help:"Only what this goal gave away." placeholder:"GOAL"`
	console.Connection
}

func (c *dispatchWatchCommand) Run(ctx context.Context) error {
	return onDispatches(&c.Connection, func(client inboxv1.DispatchServiceClient) error {
		return dispatches.Watch(ctx, console.Stdio(), client, c.Goal)
	})
}

type dispatchStartCommand struct {
	Worker    string   `help:"In whose inbox the work is put." required:"" placeholder:"GOAL"`
	Seed      string   `help:"What is to be done, or the file that says it." required:"" placeholder:"TEXT|@FILE"`
	Title     string   `help:"Title of the conversation; the item by default." placeholder:"TEXT"`
	Priority  int32    `help:"Of the message to the worker, -100 to 100." default:"0"`
	WaitsFor  []string `help:"Items of the same goal that must be finished first; repeat it." sep:"none" placeholder:"ITEM"`
	RequestID string   `name:"request-id" help:"The same one again starts nothing twice. Made at random by default." placeholder:"ID"`
	itemFlags
}

func (c *dispatchStartCommand) Run(ctx context.Context) error {
	seed, err := dispatches.Seed(c.Seed)
	if err != nil {
		return err
	}
	work := &inboxv1.DispatchRequest{
		Goal: c.Goal, Item: c.Item, RequestId: c.RequestID, Worker: c.Worker, Seed: seed,
		Title: c.Title, Priority: c.Priority, WaitsFor: c.WaitsFor,
	}
	if c.RequestID == "" {
		work.RequestId = ulid.Make().String()
	}
	return onDispatches(&c.Connection, func(client inboxv1.DispatchServiceClient) error {
		return dispatches.Start(ctx, console.Stdio(), client, work)
	})
}

type dispatchAcceptCommand struct {
	Note string `help:"What to say about it." placeholder:"TEXT"`
	itemFlags
}

func (c *dispatchAcceptCommand) Run(ctx context.Context) error {
	return onDispatches(&c.Connection, func(client inboxv1.DispatchServiceClient) error {
		return dispatches.Accept(ctx, console.Stdio(), client, c.Goal, c.Item, c.Note)
	})
}

type dispatchRejectCommand struct {
	Note string `help:"What is missing." required:"" placeholder:"TEXT"`
	itemFlags
}

func (c *dispatchRejectCommand) Run(ctx context.Context) error {
	return onDispatches(&c.Connection, func(client inboxv1.DispatchServiceClient) error {
		return dispatches.Reject(ctx, console.Stdio(), client, c.Goal, c.Item, c.Note)
	})
}

type dispatchAbandonCommand struct {
	Note string `help:"Why." placeholder:"TEXT"`
	itemFlags
}

func (c *dispatchAbandonCommand) Run(ctx context.Context) error {
	return onDispatches(&c.Connection, func(client inboxv1.DispatchServiceClient) error {
		return dispatches.Abandon(ctx, console.Stdio(), client, c.Goal, c.Item, c.Note)
	})
}

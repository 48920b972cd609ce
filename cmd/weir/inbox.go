package main

import (
	"context"
	"errors"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"weir/cmd/internal/console"
	"weir/cmd/internal/inboxes"
	inboxv1 "weir/gen/inbox/v1"
)

type inboxCommand struct {
	List    inboxListCommand    `cmd:"" help:"List inboxes, newest activity first."`
	Status  inboxStatusCommand  `cmd:"" help:"Show the counts of one inbox."`
	Peek    inboxPeekCommand    `cmd:"" help:"Show what waits in an inbox and who has claimed what, in order."`
	Dead    inboxDeadCommand    `cmd:"" help:"Show messages that were delivered too often, and how each delivery ended."`
	Redrive inboxRedriveCommand `cmd:"" help:"Make dead messages pending again."`
	Discard inboxDiscardCommand `cmd:"" help:"End dead messages for good."`
	Pause   inboxPauseCommand   `cmd:"" help:"Serve no messages; those that come are kept."`
	Resume  inboxResumeCommand  `cmd:"" help:"Open a paused or draining inbox again."`
	Drain   inboxDrainCommand   `cmd:"" help:"Take no more messages, and wait until the inbox is empty."`
	Send    inboxSendCommand    `cmd:"" help:"Enqueue a message."`
	Import  inboxImportCommand  `cmd:"" help:"Take over the state file of a queue in a script."`
}

// onInboxes calls with the token of an operator, and words what went wrong.
func onInboxes(c *console.Connection, do func(inboxv1.InboxServiceClient) error) error {
	return connected(c, "operator", func(conn *grpc.ClientConn) error { return do(inboxv1.NewInboxServiceClient(conn)) })
}

type inboxListCommand struct {
	Watch bool `help:"Go on showing it: drawn again on a terminal, elsewhere what changes, a line each."`
	console.Connection
}

func (c *inboxListCommand) Run(ctx context.Context) error {
	return onInboxes(&c.Connection, func(client inboxv1.InboxServiceClient) error {
		return inboxes.List(ctx, console.Stdio(), client, c.Watch)
	})
}

type inboxStatusCommand struct {
	Goal string `arg:"" help:"Whose."`
	console.Connection
}

func (c *inboxStatusCommand) Run(ctx context.Context) error {
	return onInboxes(&c.Connection, func(client inboxv1.InboxServiceClient) error {
		return inboxes.Status(ctx, console.Stdio(), client, c.Goal)
	})
}

type inboxPeekCommand struct {
	Goal  string `arg:"" help:"Whose."`
	Watch bool   `help:"Go on showing it: drawn again on a terminal, elsewhere what changes, a line each."`
	console.Connection
}

func (c *inboxPeekCommand) Run(ctx context.Context) error {
	return onInboxes(&c.Connection, func(client inboxv1.InboxServiceClient) error {
		return inboxes.Peek(ctx, console.Stdio(), client, c.Goal, c.Watch)
	})
}

type inboxDeadCommand struct {
	Goal string `arg:"" help:"Whose."`
	console.Connection
}

func (c *inboxDeadCommand) Run(ctx context.Context) error {
	return onInboxes(&c.Connection, func(client inboxv1.InboxServiceClient) error {
		return inboxes.Dead(ctx, console.Stdio(), client, c.Goal)
	})
}

type inboxRedriveCommand struct {
	Goal string   `arg:"" help:"Whose."`
	IDs  []string `arg:"" optional:"" name:"id" help:"Which messages."`
	All  bool     `help:"All that are dead, instead."`
	console.Connection
}

func (c *inboxRedriveCommand) Validate() error {
	if c.All == (len(c.IDs) > 0) {
		return errors.New("ids or --all: want one of both")
	}
	return nil
}

func (c *inboxRedriveCommand) Run(ctx context.Context) error {
	return onInboxes(&c.Connection, func(client inboxv1.InboxServiceClient) error {
		return inboxes.Redrive(ctx, console.Stdio(), client, c.Goal, c.IDs)
	})
}

type inboxDiscardCommand struct {
	Goal string   `arg:"" help:"Whose."`
	IDs  []string `arg:"" name:"id" help:"Which messages."`
	Yes  bool     `help:"Discard without asking."`
	console.Connection
}

func (c *inboxDiscardCommand) Run(ctx context.Context) error {
	return onInboxes(&c.Connection, func(client inboxv1.InboxServiceClient) error {
		return inboxes.Discard(ctx, console.Stdio(), client, c.Goal, c.IDs, c.Yes)
	})
}

type inboxPauseCommand struct {
	Goal string `arg:"" help:"Whose."`
	Note string `help:"Why; whoever looks at the inbox is told." placeholder:"TEXT"`
	console.Connection
}

func (c *inboxPauseCommand) Run(ctx context.Context) error {
	return onInboxes(&c.Connection, func(client inboxv1.InboxServiceClient) error {
		return inboxes.Pause(ctx, console.Stdio(), client, c.Goal, c.Note)
	})
}

type inboxResumeCommand struct {
	Goal string `arg:"" help:"Whose."`
	console.Connection
}

func (c *inboxResumeCommand) Run(ctx context.Context) error {
	return onInboxes(&c.Connection, func(client inboxv1.InboxServiceClient) error {
		return inboxes.Resume(ctx, console.Stdio(), client, c.Goal)
	})
}

type inboxDrainCommand struct {
	Goal string `arg:"" help:"Whose."`
	Note string `help:"Why; whoever looks at the inbox is told." placeholder:"TEXT"`
	console.Connection
}

func (*inboxDrainCommand) Help() string {
	return `It waits until nothing is pending, delayed or claimed; dead messages may be left. Ctrl-C ends the waiting, and the inbox
stays draining until it is resumed.`
}

func (c *inboxDrainCommand) Run(ctx context.Context) error {
	return onInboxes(&c.Connection, func(client inboxv1.InboxServiceClient) error {
		return inboxes.Drain(ctx, console.Stdio(), client, c.Goal, c.Note)
	})
}

type inboxSendCommand struct {
	Goal        string        `arg:"" help:"To whom."`
	Text        string        `arg:"" help:"What to say."`
	ID          string        `name:"id" help:"Id of the message; the same message again is not sent twice (but --delay and --ttl count from now, which makes it another one). Made at random by default."`
	Priority    int32         `help:"-100 to 100; higher is served first." default:"0"`
	Correlation string        `help:"Handed through to the receiver." placeholder:"ID"`
	Delay       time.Duration `help:"Not served before this is over, at most 30 days." placeholder:"DURATION"`
	TTL         time.Duration `name:"ttl" help:"It expires if nobody has claimed it by then." placeholder:"DURATION"`
	Busy        string        `help:"Where others wait or are claimed: enqueue waits its turn, reject is refused, replace takes the place of the one with the same --key, interrupt goes before all others." enum:"enqueue,reject,replace,interrupt" default:"enqueue"`
	Key         string        `help:"With --busy reject or replace: the messages that it looks at." placeholder:"KEY"`
	console.Connection
}

var busyPolicies = map[string]inboxv1.BusyPolicy{
	"enqueue": inboxv1.BusyPolicy_BUSY_POLICY_ENQUEUE, "reject": inboxv1.BusyPolicy_BUSY_POLICY_REJECT,
	"replace": inboxv1.BusyPolicy_BUSY_POLICY_REPLACE, "interrupt": inboxv1.BusyPolicy_BUSY_POLICY_INTERRUPT,
}

func (c *inboxSendCommand) Validate() error {
	switch {
	case c.Delay < 0:
		return errors.New("--delay: must not be negative")
	case c.TTL < 0:
		return errors.New("--ttl: must not be negative")
	}
	return nil
}

func (c *inboxSendCommand) Run(ctx context.Context) error {
	message := &inboxv1.EnqueueRequest{
		Goal: c.Goal, MessageId: c.ID, Body: c.Text, Priority: c.Priority, CorrelationId: c.Correlation,
		BusyPolicy: busyPolicies[c.Busy], BusyKey: c.Key,
	}
	if c.ID == "" {
		message.MessageId = ulid.Make().String()
	}
	now := time.Now()
	if c.Delay > 0 {
		message.NotBefore = timestamppb.New(now.Add(c.Delay))
	}
	if c.TTL > 0 {
		message.ExpireTime = timestamppb.New(now.Add(c.TTL))
	}
	return onInboxes(&c.Connection, func(client inboxv1.InboxServiceClient) error {
		return inboxes.Send(ctx, console.Stdio(), client, message)
	})
}

type inboxImportCommand struct {
	File string `arg:"" help:"The state file, which is only read."`
	console.Connection
}

func (*inboxImportCommand) Help() string {
	return `The file is

    {"version": 1, "goal": "build",
     "inbox": [{"id": "m1", "text": "…", "enqueued_at": "2026-01-02T03:04:05Z", "state": "pending"}],
     "dispatch": {"issue 7": {"dispatch_id": "d1", "state": "sent", "attempts": 1}}}

It is taken over whole or not at all, into an inbox that nobody has written to. enqueued_at may be Unix seconds. Messages
are pending, claimed or done; those that were claimed wait again. Items are begun, sent, done, accepted, rejected or
abandoned. Run again with the same file it changes nothing.`
}

func (c *inboxImportCommand) Run(ctx context.Context) error {
	return onInboxes(&c.Connection, func(client inboxv1.InboxServiceClient) error {
		return inboxes.Import(ctx, console.Stdio(), client, c.File)
	})
}

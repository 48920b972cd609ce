package main

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"weir/cmd/internal/approvals"
	"weir/cmd/internal/console"
	gatev1 "weir/gen/gate/v1"
)

type approvalsCommand struct {
	List    approvalsListCommand    `cmd:"" help:"List approvals, newest first."`
	Show    approvalsShowCommand    `cmd:"" help:"Show all that a person needs to decide one."`
	Approve approvalsApproveCommand `cmd:"" help:"Show one, ask, and approve what was shown."`
	Deny    approvalsDenyCommand    `cmd:"" help:"Show one, ask, and deny it."`
	Watch   approvalsWatchCommand   `cmd:"" help:"List what is pending, and show every change as it happens."`
}

// onApprovals calls with the token of an approver, and words what went wrong.
func onApprovals(c *console.Connection, do func(gatev1.ApprovalServiceClient) error) error {
	return connected(c, "approver", func(conn *grpc.ClientConn) error { return do(gatev1.NewApprovalServiceClient(conn)) })
}

type approvalsListCommand struct {
	State string `help:"Which: pending, approved, redeemed, denied, expired, cancelled, superseded or all." enum:"pending,approved,redeemed,denied,expired,cancelled,superseded,all" default:"pending"`
	console.Connection
}

func (c *approvalsListCommand) Run(ctx context.Context) error {
	return onApprovals(&c.Connection, func(client gatev1.ApprovalServiceClient) error {
		return approvals.List(ctx, console.Stdio(), client, approvals.States[c.State])
	})
}

type approvalsShowCommand struct {
	ID   string `arg:"" help:"Which one."`
	Full bool   `help:"All of the input, however long it is."`
	console.Connection
}

func (c *approvalsShowCommand) Run(ctx context.Context) error {
	return onApprovals(&c.Connection, func(client gatev1.ApprovalServiceClient) error {
		got, err := client.GetApproval(ctx, &gatev1.GetApprovalRequest{ApprovalId: c.ID})
		if err == nil {
			approvals.Show(console.Stdio(), got.GetApproval(), time.Now(), c.Full)
		}
		return err
	})
}

// decideFlags are those of either decision.
type decideFlags struct {
	ID   string `arg:"" help:"Which one."`
	Yes  bool   `help:"Decide without asking."`
	Full bool   `help:"Show all of the input, however long it is."`
	console.Connection
}

func (c *decideFlags) decide(ctx context.Context, a approvals.Answer) error {
	a.Yes, a.Full = c.Yes, c.Full
	return onApprovals(&c.Connection, func(client gatev1.ApprovalServiceClient) error {
		return approvals.Decide(ctx, console.Stdio(), client, c.ID, a)
	})
}

type approvalsApproveCommand struct {
	Note     string        `help:"Why; the requester is told." placeholder:"TEXT"`
	Remember string        `help:"Allow the same again in this session: the operation with this very input, or with any input." enum:",input,operation" default:"" placeholder:"input|operation"`
	TTL      time.Duration `name:"ttl" help:"With --remember: for how long, 1s to 720h." default:"1h"`
	Amend    string        `help:"File of the input that should run instead, in JSON." placeholder:"FILE"`
	decideFlags
}

func (c *approvalsApproveCommand) Validate() error {
	if c.TTL < time.Second || c.TTL > 720*time.Hour {
		return errors.New("--ttl: must be 1s to 720h")
	}
	return nil
}

var rememberScopes = map[string]gatev1.RememberScope{
	"input": gatev1.RememberScope_REMEMBER_SCOPE_INPUT, "operation": gatev1.RememberScope_REMEMBER_SCOPE_OPERATION,
}

func (c *approvalsApproveCommand) Run(ctx context.Context) error {
	answer := approvals.Answer{Decision: gatev1.Decision_DECISION_APPROVE, Note: c.Note}
	if c.Remember != "" {
		answer.Remember = &gatev1.Remember{Scope: rememberScopes[c.Remember], Ttl: durationpb.New(c.TTL)}
	}
	if c.Amend != "" {
		var err error
		if answer.Amend, err = approvals.ReadAmendment(c.Amend); err != nil {
			return err
		}
	}
	return c.decide(ctx, answer)
}

type approvalsDenyCommand struct {
	Note string `help:"Why; the requester is told." required:"" placeholder:"TEXT"`
	decideFlags
}

func (c *approvalsDenyCommand) Run(ctx context.Context) error {
	return c.decide(ctx, approvals.Answer{Decision: gatev1.Decision_DECISION_DENY, Note: c.Note})
}

type approvalsWatchCommand struct{ console.Connection }

func (c *approvalsWatchCommand) Run(ctx context.Context) error {
	return onApprovals(&c.Connection, func(client gatev1.ApprovalServiceClient) error {
		return approvals.Watch(ctx, console.Stdio(), client)
	})
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"weir/cmd/internal/console"
	"weir/cmd/internal/policies"
	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/services/gate/policy"
)

type policyCommand struct {
	Verify  policyVerifyCommand  `cmd:"" help:"Say what is wrong with files, or with all that is stored."`
	Explain policyExplainCommand `cmd:"" help:"Say how one check comes out, and why."`
	Test    policyTestCommand    `cmd:"" help:"Decide the cases of files, without a mesh."`
	Apply   policyApplyCommand   `cmd:"" help:"Make the stored policies and grants those of files."`
	Export  policyExportCommand  `cmd:"" help:"Print what is stored, as a file to apply."`
	Schema  policySchemaCommand  `cmd:"" help:"Print the JSON Schema of the files, for editors."`
}

// onPolicies calls with the token of an administrator, and words what went wrong.
func onPolicies(c *console.Connection, do func(gatev1.PolicyServiceClient) error) error {
	return connected(c, "admin", func(conn *grpc.ClientConn) error { return do(gatev1.NewPolicyServiceClient(conn)) })
}

func connected(c *console.Connection, role string, do func(*grpc.ClientConn) error) error {
	conn, err := c.Dial(role)
	if err != nil {
		return err
	}
	defer conn.Close()
	return console.Explain(do(conn))
}

type policyVerifyCommand struct {
	Files  []string `arg:"" optional:"" name:"file" help:"Files of policies and grants."`
	Stored bool     `help:"Verify every revision that was ever stored of every policy in force, instead of files."`
	console.Connection
}

func (c *policyVerifyCommand) Validate() error {
	if c.Stored == (len(c.Files) > 0) {
		return errors.New("files or --stored: want one of both")
	}
	return nil
}

func (c *policyVerifyCommand) Run(ctx context.Context) error {
	if c.Stored {
		return onPolicies(&c.Connection, func(client gatev1.PolicyServiceClient) error {
			return policies.VerifyStored(ctx, console.Stdio(), client)
		})
	}
	files, err := policies.Load(c.Files)
	if err != nil {
		return err
	}
	return policies.Verify(console.Stdio(), files)
}

type policyExplainCommand struct {
	Files        []string `arg:"" optional:"" name:"file" help:"Files to decide by; without any, what is stored in the mesh."`
	Subject      string   `help:"Who asks, such as agent:alice." required:"" placeholder:"SUBJECT"`
	Operation    string   `help:"What for, such as pay/send." required:"" placeholder:"NAME"`
	Effect       string   `help:"The operation's effect: read, write or admin." enum:"read,write,admin" default:"write"`
	Input        string   `help:"Its input, as JSON, or in a file." placeholder:"JSON|@FILE"`
	Session      string   `help:"The session of who asks." placeholder:"ID"`
	OnBehalfOf   []string `help:"Whom they act for, the nearest first; repeat it, or separate by commas." placeholder:"SUBJECT"`
	Confined     bool     `help:"They were reached from an outside channel."`
	Conversation string   `help:"The conversation that they are running in." placeholder:"ID"`
	Target       string   `help:"The conversation that the operation acts on." placeholder:"ID"`
	Revision     uint64   `help:"Decide by what was in force at this revision; now if 0. Not with files." placeholder:"N"`
	console.Connection
}

func (c *policyExplainCommand) Validate() error {
	if c.Revision > 0 && len(c.Files) > 0 {
		return errors.New("--revision: not with files, which have none")
	}
	return nil
}

func (c *policyExplainCommand) Run(ctx context.Context) error {
	check, err := c.check()
	if err != nil {
		return err
	}
	if len(c.Files) == 0 {
		return onPolicies(&c.Connection, func(client gatev1.PolicyServiceClient) error {
			answer, err := client.ExplainCheck(ctx, &gatev1.ExplainCheckRequest{Check: check, Revision: c.Revision})
			if err == nil {
				policies.ShowExplanation(console.Stdio(), answer)
			}
			return err
		})
	}
	files, err := policies.Load(c.Files)
	if err != nil {
		return err
	}
	book, err := files.Book()
	if err != nil {
		return err
	}
	policies.ShowExplanation(console.Stdio(), book.Explain(check))
	return nil
}

// effects are the names of --effect.
var effects = map[string]registryv1.Effect{
	"read": registryv1.Effect_EFFECT_READ, "write": registryv1.Effect_EFFECT_WRITE, "admin": registryv1.Effect_EFFECT_ADMIN,
}

func (c *policyExplainCommand) check() (*gatev1.DryRun, error) {
	check := &gatev1.DryRun{
		Caller:    &gatev1.Caller{Subject: c.Subject, Session: c.Session, Confined: c.Confined, OnBehalfOf: c.OnBehalfOf},
		Operation: c.Operation, Effect: effects[c.Effect], ConversationId: c.Conversation, TargetConversationId: c.Target,
	}
	switch path, isFile := strings.CutPrefix(c.Input, "@"); {
	case isFile:
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--input: %w", err)
		}
		check.InputJson = proto.String(string(text))
	case c.Input != "":
		check.InputJson = &c.Input
	}
	return check, policies.CheckQuestion(check)
}

type policyTestCommand struct {
	Files   []string `arg:"" name:"file" help:"Files of policies, grants and cases, as if they were one."`
	Verbose bool     `short:"v" help:"Show the cases that pass too."`
}

func (c *policyTestCommand) Run() error {
	files, err := policies.Load(c.Files)
	if err != nil {
		return err
	}
	return policies.Test(console.Stdio(), files, c.Verbose)
}

type policyApplyCommand struct {
	Files []string `arg:"" name:"file" help:"Files of policies and grants, as if they were one."`
	Yes   bool     `help:"Go ahead without asking."`
	Prune bool     `help:"Delete stored policies and grants that are in no file."`
	console.Connection
}

func (*policyApplyCommand) Help() string {
	return `It shows what would change, has the gate verify it, and asks. Where nobody can be asked, since there is no
terminal, and without --yes, it changes nothing: the exit code is 0 if there is nothing to change, and 2 if there is.

What closes something is done before what opens something, so nothing is open in between that was not open before and
will not be. What somebody else changed since it was shown is not overwritten.`
}

func (c *policyApplyCommand) Run(ctx context.Context) error {
	files, err := policies.Load(c.Files)
	if err != nil {
		return err
	}
	return onPolicies(&c.Connection, func(client gatev1.PolicyServiceClient) error {
		return policies.Apply(ctx, console.Stdio(), client, files, policies.Options{Yes: c.Yes, Prune: c.Prune})
	})
}

type policyExportCommand struct{ console.Connection }

func (c *policyExportCommand) Run(ctx context.Context) error {
	return onPolicies(&c.Connection, func(client gatev1.PolicyServiceClient) error {
		return policies.Export(ctx, console.Stdio(), client)
	})
}

type policySchemaCommand struct{}

func (c *policySchemaCommand) Run() error {
	_, err := os.Stdout.Write(policy.Schema())
	return err
}

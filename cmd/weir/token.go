package main

import (
	"fmt"
	"time"

	"weir/cmd/internal/home"
	"weir/internal/identity"
)

type tokenCommand struct {
	Data     home.Folder   `help:"Data folder whose key signs." default:".weir"`
	Subject  string        `help:"Whom it proves: agent:, human: or service: and a name." required:"" placeholder:"SUBJECT"`
	Tenant   string        `help:"The tenant that they belong to." required:"" placeholder:"NAME"`
	Scope    []string      `help:"What they may do; repeat it, or separate by commas." placeholder:"SCOPE"`
	TTL      time.Duration `name:"ttl" help:"How long it is good." default:"24h"`
	Session  string        `help:"The conversation or run that it is for." placeholder:"ID"`
	Confined bool          `help:"They were reached from an outside channel."`
}

func (c *tokenCommand) Validate() error {
	if c.TTL <= 0 {
		return fmt.Errorf("--ttl: %s: must be positive", c.TTL)
	}
	return nil
}

func (c *tokenCommand) Run() error {
	signer, err := c.Data.Signer()
	if err != nil {
		return err
	}
	token, err := signer.Issue(identity.Caller{
		Tenant: c.Tenant, Subject: c.Subject, Scopes: c.Scope, Session: c.Session, Confined: c.Confined,
	}, home.Audience, c.TTL)
	if err != nil {
		return err
	}
	fmt.Println(token)
	return nil
}

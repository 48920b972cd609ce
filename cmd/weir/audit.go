package main

import (
	"context"
	"fmt"
	"os"

	"weir/cmd/internal/auditor"
	"weir/cmd/internal/console"
	gatev1 "weir/gen/gate/v1"
)

type auditCommand struct {
	Checkpoint auditCheckpoint `cmd:"" help:"Print the signed checkpoint of the audit log: what to keep elsewhere, to prove later that nothing before it was changed."`
	Verify     auditVerify     `cmd:"" help:"Prove that the audit log is a continuation of a checkpoint that was kept."`
	List       auditList       `cmd:"" help:"Print the audit log: one record a line, oldest first."`
}

// auditorToken is the ready-made token of who reads the audit log.
const auditorToken = "auditor"

type auditCheckpoint struct {
	console.Connection `embed:""`
	Out                string `help:"Put it into this new file instead." placeholder:"FILE"`
}

func (c *auditCheckpoint) Run(ctx context.Context) error {
	return asAuditor(&c.Connection, func(gate gatev1.AuditServiceClient) error {
		return auditor.Checkpoint(ctx, console.Stdio(), gate, c.Out)
	})
}

type auditVerify struct {
	console.Connection `embed:""`
	Kept               string `arg:"" name:"checkpoint" help:"File of the checkpoint that was kept."`
	Key                string `help:"Verifier key, or a file that holds it; audit.pub in the data folder by default. It proves most where it came another way than from the gate." placeholder:"KEY"`
	Out                string `help:"Keep the newer checkpoint in this new file, once it is proved." placeholder:"FILE"`
}

func (c *auditVerify) Run(ctx context.Context) error {
	kept, err := os.ReadFile(c.Kept)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if c.Key == "" {
		c.Key = c.Data.AuditVerifier()
	}
	key, err := auditor.Key(c.Key)
	if err != nil {
		return err
	}
	return asAuditor(&c.Connection, func(gate gatev1.AuditServiceClient) error {
		return auditor.Verify(ctx, console.Stdio(), gate, string(kept), key, c.Out)
	})
}

type auditList struct {
	console.Connection `embed:""`
	From               int64 `help:"Index of the first record to print." placeholder:"INDEX"`
}

func (c *auditList) Validate() error {
	if c.From < 0 {
		return fmt.Errorf("--from: %d: must not be negative", c.From)
	}
	return nil
}

func (c *auditList) Run(ctx context.Context) error {
	return asAuditor(&c.Connection, func(gate gatev1.AuditServiceClient) error {
		return auditor.List(ctx, console.Stdio(), gate, c.From)
	})
}

// asAuditor calls the gate with the connection's token, or else the auditor's.
func asAuditor(c *console.Connection, call func(gatev1.AuditServiceClient) error) error {
	conn, err := c.Dial(auditorToken)
	if err != nil {
		return err
	}
	defer conn.Close()
	return call(gatev1.NewAuditServiceClient(conn))
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"weir/cmd/internal/console"
	"weir/cmd/internal/transfer"
	conversationv1 "weir/gen/conversation/v1"
)

type conversationCommand struct {
	Export conversationExportCommand `cmd:"" help:"Write conversations as lines of JSON."`
	Import conversationImportCommand `cmd:"" help:"Read conversations back, or those of other programs."`
}

// asArchivist connects with the connection's token, or else an archivist's.
func asArchivist(c *console.Connection, do func(conversationv1.RetentionServiceClient) error) error {
	conn, err := c.Dial("archivist")
	if err != nil {
		return err
	}
	defer conn.Close()
	return do(conversationv1.NewRetentionServiceClient(conn))
}

type conversationExportCommand struct {
	IDs           []string `arg:"" name:"id" help:"Which ones."`
	Output        string   `help:"Put them into this new file instead." placeholder:"FILE"`
	WithAncestors bool     `help:"Before each fork, the conversations that it shares its past with."`
	console.Connection
}

func (*conversationExportCommand) Help() string {
	return `Each line is a record: first the conversation, then its own messages by position. The past that a fork shares with
its parent is in the parent's lines, and an import of the fork needs the parent to be there: --with-ancestors writes
all of it, in the order in which it can be imported.`
}

func (c *conversationExportCommand) Run(ctx context.Context) error {
	return asArchivist(&c.Connection, func(mesh conversationv1.RetentionServiceClient) error {
		return transfer.Export(ctx, console.Stdio(), mesh, c.IDs, c.Output, c.WithAncestors)
	})
}

type conversationImportCommand struct {
	Files  []string          `arg:"" name:"file" help:"Files to read, in this order."`
	Format string            `help:"What is in them: weir, an export; openai, messages of chat completions; langgraph, messages of LangChain or the state of a graph." enum:"weir,openai,langgraph" default:"weir"`
	ID     string            `name:"id" help:"Id of the one conversation that is imported; otherwise it is made of what was said. Not for exports."`
	Title  string            `help:"Title of what is imported. Not for exports." placeholder:"TEXT"`
	As     map[string]string `help:"Who a role is, such as user=human:ann; roles are user, assistant, system and tool. Repeat it. Not for exports." placeholder:"ROLE=SUBJECT"`
	console.Connection
}

func (*conversationImportCommand) Help() string {
	return `A conversation keeps its id, and messages their ids, authors, times and positions. An import that failed says where, and
can be run again: it goes on behind what is there. Other content under the same ids is refused.

Other programs' files are read as a whole before any of it is sent. Users become human:user, models agent:assistant,
instructions service:system and results of tools service:tool; a user or model with a name becomes human:NAME or
agent:NAME; --as says otherwise. The user owns the conversation, and the others take part. Instructions are pinned.
What has no place in a message is left out, and counted.`
}

func (c *conversationImportCommand) Validate() error {
	switch {
	case c.Format == "weir" && (c.ID != "" || c.Title != "" || len(c.As) > 0):
		return errors.New("--id, --title and --as: not for exports, which say all of it")
	case c.ID != "" && len(c.Files) > 1:
		return errors.New("--id: names one conversation, so want one file")
	}
	return nil
}

func (c *conversationImportCommand) Run(ctx context.Context) error {
	return asArchivist(&c.Connection, func(mesh conversationv1.RetentionServiceClient) error {
		for _, path := range c.Files {
			if err := c.read(ctx, console.Stdio(), mesh, path); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *conversationImportCommand) read(ctx context.Context, t *console.Terminal, mesh conversationv1.RetentionServiceClient, path string) error {
	if c.Format != "weir" {
		return transfer.ImportForeign(ctx, t, mesh, path, c.Format, transfer.Options{ID: c.ID, Title: c.Title, As: c.As})
	}
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("import: %w", err)
	}
	defer file.Close()
	return transfer.Import(ctx, t, mesh, path, transfer.Exported(file))
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc"

	"weir/cmd/internal/console"
	"weir/cmd/internal/home"
	"weir/cmd/internal/transfer"
	conversationv1 "weir/gen/conversation/v1"
)

type conversationCommand struct {
	Export conversationExportCommand `cmd:"" help:"Write conversations as lines of JSON."`
	Import conversationImportCommand `cmd:"" help:"Read conversations back, or those of other programs."`
}

// conversationConnection is a console.Connection to another service: it has the same
// fields.
type conversationConnection struct {
	Addr      string      `help:"Conversation service of the mesh, as host and port." default:"127.0.0.1:7003"`
	Data      home.Folder `help:"Data folder of the mesh, with the ready-made token to call with." default:".weir"`
	Token     string      `help:"File of a token to call with instead." placeholder:"FILE"`
	CA        string      `name:"ca" help:"Authorities that sign the service's certificate (PEM); the system's by default. On loopback there is no TLS without it." placeholder:"FILE"`
	Plaintext bool        `help:"Call without TLS, as is always done on loopback: for networks that encrypt by themselves."`
}

// dial calls with the token of an archivist.
func (c conversationConnection) dial() (*grpc.ClientConn, error) {
	connection := console.Connection(c)
	return connection.Dial("archivist")
}

type conversationExportCommand struct {
	IDs           []string `arg:"" name:"id" help:"Which ones."`
	Output        string   `help:"Put them into this new file instead." placeholder:"FILE"`
	WithAncestors bool     `help:"Before each fork, the conversations that it shares its past with."`
	conversationConnection
}

func (*conversationExportCommand) Help() string {
	return `Each line is a record: first the conversation, then its own messages by position. The past that a fork shares with
its parent is in the parent's lines, and an import of the fork needs the parent to be there: --with-ancestors writes
all of it, in the order in which it can be imported.`
}

func (c *conversationExportCommand) Run(ctx context.Context) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	return transfer.Export(ctx, console.Stdio(), conversationv1.NewRetentionServiceClient(conn), c.IDs, c.Output, c.WithAncestors)
}

type conversationImportCommand struct {
	Files  []string          `arg:"" name:"file" help:"Files to read, in this order."`
	Format string            `help:"What is in them: weir, an export; openai, messages of chat completions; langgraph, messages of LangChain or the state of a graph." enum:"weir,openai,langgraph" default:"weir"`
	ID     string            `name:"id" help:"Id of the one conversation that is imported; otherwise it is made of what was said. Not for exports."`
	Title  string            `help:"Title of what is imported. Not for exports." placeholder:"TEXT"`
	As     map[string]string `help:"Who a role is, such as user=human:ann; roles are user, assistant, system and tool. Repeat it. Not for exports." placeholder:"ROLE=SUBJECT"`
	conversationConnection
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
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	mesh := conversationv1.NewRetentionServiceClient(conn)
	for _, path := range c.Files {
		if err := c.read(ctx, console.Stdio(), mesh, path); err != nil {
			return err
		}
	}
	return nil
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

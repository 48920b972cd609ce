// Command weir runs a mesh, makes credentials for it, shows what happens in it, and is
// how people decide, write policies and check the audit log.
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"weir/cmd/internal/console"
)

// The groups of commands that call a service say where it is, for console.Connection.
type commands struct {
	Up           upCommand           `cmd:"" help:"Run the whole mesh in this process, for development."`
	Demo         demoCommand         `cmd:"" help:"Tell the story of one operation, and check every step of it."`
	Events       eventsCommand       `cmd:"" help:"Print what happens, as it does: one event a line, in JSON."`
	Policy       policyCommand       `cmd:"" set:"addr=127.0.0.1:7001" help:"Verify, explain, test and apply files of policies and grants."`
	Approvals    approvalsCommand    `cmd:"" set:"addr=127.0.0.1:7001" help:"See what waits for a person, and decide it."`
	Audit        auditCommand        `cmd:"" set:"addr=127.0.0.1:7001" help:"Keep, verify and read the gate's audit log."`
	Conversation conversationCommand `cmd:"" set:"addr=127.0.0.1:7003" help:"Export and import conversations."`
	Inbox        inboxCommand        `cmd:"" set:"addr=127.0.0.1:7004" help:"See what waits for agents, and help where it is stuck."`
	Dispatch     dispatchCommand     `cmd:"" set:"addr=127.0.0.1:7004" help:"Give work away, follow it, and judge what comes of it."`
	Token        tokenCommand        `cmd:"" help:"Print a token signed with the key of a data folder."`
	Keys         keysCommand         `cmd:"" help:"Make a data folder's key and tokens, without running anything."`
}

func main() {
	var cli commands
	// Once told to stop, stop: a second signal ends the process as if nobody listened.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)

	parsed := kong.Parse(&cli,
		kong.Name("weir"),
		kong.Description("A control plane for software agents."),
		kong.BindTo(ctx, (*context.Context)(nil)),
		// Whatever went wrong, the code is 1: kong has one of its own for flags.
		kong.Exit(func(code int) { os.Exit(min(code, 1)) }),
	)
	err := parsed.Run()
	if errors.Is(err, errTold) {
		os.Exit(1)
	}
	if code, said := errors.AsType[console.Exit](err); said {
		os.Exit(int(code))
	}
	parsed.FatalIfErrorf(err)
}

// Command weir runs a mesh, makes credentials for it, and shows what happens in it.
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

type commands struct {
	Up     upCommand     `cmd:"" help:"Run the whole mesh in this process, for development."`
	Demo   demoCommand   `cmd:"" help:"Tell the story of one operation, and check every step of it."`
	Events eventsCommand `cmd:"" help:"Print what happens, as it does: one event a line, in JSON."`
	Token  tokenCommand  `cmd:"" help:"Print a token signed with the key of a data folder."`
	Keys   keysCommand   `cmd:"" help:"Make a data folder's key and tokens, without running anything."`
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
	parsed.FatalIfErrorf(err)
}

// Command conversation serves the conversation service.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"weir/services/conversation"
)

func main() {
	var cfg conversation.Config
	cli := kong.Parse(&cfg,
		kong.Name("conversation"),
		kong.Description("Keeps what was said, and reads it back."),
		kong.Vars{"listen": "127.0.0.1:7003"},
		// Whatever went wrong, the code is 1: kong has one of its own for flags.
		kong.Exit(func(code int) { os.Exit(min(code, 1)) }),
	)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cli.FatalIfErrorf(conversation.Run(ctx, cfg))
}

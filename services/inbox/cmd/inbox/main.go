// Command inbox serves the inboxes of agents and the record of what was
// dispatched.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"weir/services/inbox"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var cfg inbox.Config
	parser, err := kong.New(&cfg,
		kong.Name("inbox"),
		kong.Description("Messages that wait for agents, and the record of what was dispatched."),
		kong.Vars{"listen": "127.0.0.1:7004"})
	if err != nil {
		return err
	}
	if _, err := parser.Parse(os.Args[1:]); err != nil {
		return fmt.Errorf("inbox: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return inbox.Run(ctx, cfg)
}

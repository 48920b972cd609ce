// Command gate serves the gate: who may run what, and who is asked.
package main

import (
	"context"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"weir/services/gate"
)

func main() {
	var cfg gate.Config
	cli := kong.Parse(&cfg, kong.Name("gate"), kong.Vars{"listen": "127.0.0.1:7001"},
		kong.Description("Who may run what, and who is asked."))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	cli.FatalIfErrorf(gate.Run(ctx, cfg))
}

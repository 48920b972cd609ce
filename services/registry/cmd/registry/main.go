// Command registry serves the registry: which operations exist, and running them.
package main

import (
	"context"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"weir/services/registry"
)

func main() {
	var cfg registry.Config
	cli := kong.Parse(&cfg, kong.Name("registry"), kong.Vars{"listen": "127.0.0.1:7002"},
		kong.Description("Which operations exist, and running them."))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	cli.FatalIfErrorf(registry.Run(ctx, cfg))
}

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"weir/cmd/internal/home"
	"weir/cmd/internal/mesh"
)

type upCommand struct {
	Data      home.Folder    `help:"Folder for the journal, the signing key and tokens." default:".weir"`
	Addresses mesh.Addresses `embed:""`
	Redis     string         `help:"Redis to keep hot state in, instead of in this process." placeholder:"URL"`
	LogLevel  slog.Level     `help:"Least level to log to standard error: debug, info, warn or error." default:"warn"`
}

func (c *upCommand) Run(ctx context.Context) error {
	stopped := context.AfterFunc(ctx, func() {
		fmt.Println("\nstopping; once more ends it at once")
	})
	defer stopped()
	return mesh.Run(ctx, mesh.Config(*c), func(at mesh.Addresses) {
		welcome(os.Stdout, c.Data, at, c.Redis)
	})
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"weir/cmd/internal/home"
	"weir/cmd/internal/stage"
	"weir/cmd/internal/story"
)

type demoCommand struct {
	Apart bool        `help:"Every service, NATS and Redis as a process of its own." xor:"mesh"`
	Addr  string      `help:"Gate of a mesh that runs already, with the other services and NATS on the ports that follow. Nothing is killed or flushed there." placeholder:"HOST:PORT" xor:"mesh"`
	Data  home.Folder `help:"With --addr: the data folder of that mesh." default:".weir"`
}

// errTold is that of a story that did not go as it should. It has told so itself.
var errTold = errors.New("the story failed")

const (
	// toldWithin bounds the story itself, which takes a minute at most.
	toldWithin = 5 * time.Minute
	// builtWithin bounds what comes before it, on a machine that has built nothing yet.
	builtWithin = 15 * time.Minute
)

func (c *demoCommand) Run(ctx context.Context) error {
	if c.Addr != "" {
		running, err := stage.NewRunning(ctx, c.Addr, c.Data)
		if err != nil {
			return err
		}
		fmt.Println("On a mesh that runs already, so nothing is killed or flushed between the steps.")
		return tell(ctx, running)
	}
	own, err := c.open(ctx)
	if err != nil {
		return err
	}
	err = tell(ctx, own)
	if errors.Is(err, errTold) && ctx.Err() == nil {
		fmt.Fprint(os.Stderr, "\nWhat the processes logged last:\n", own.LastWords())
	}
	return errors.Join(err, own.Close())
}

func (c *demoCommand) open(ctx context.Context) (*stage.Stage, error) {
	ctx, cancel := context.WithTimeout(ctx, builtWithin)
	defer cancel()
	if c.Apart {
		fmt.Println("Every service, nats-server and redis-server is a process of its own. Building them …")
		return stage.Apart(ctx)
	}
	own, err := stage.Together(ctx)
	if err == nil && !own.Flushes() {
		fmt.Println("There is no redis-server here, so flushing it is not shown. The embedded store is emptied whenever weir is killed.")
	}
	return own, err
}

func tell(ctx context.Context, on story.Stage) error {
	ctx, cancel := context.WithTimeout(ctx, toldWithin)
	defer cancel()
	passed, failed := story.Tell(ctx, os.Stdout, on)
	fmt.Printf("\n%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		return errTold
	}
	return nil
}

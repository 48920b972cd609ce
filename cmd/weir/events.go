package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/nats-io/nats.go"

	"weir/cmd/internal/events"
)

type eventsCommand struct {
	Subject   string `help:"Which: weir.<service>.<tenant>.<kind>.<id>, where * is any part and > all that follow." default:"weir.>"`
	FromStart bool   `help:"Those of the past first."`
	Count     uint64 `help:"End after so many." placeholder:"N"`
	NATS      string `name:"nats" help:"NATS server of the mesh." default:"nats://127.0.0.1:7005"`
}

// errEnough ends the reading after Count events.
var errEnough = errors.New("enough")

func (c *eventsCommand) Run(ctx context.Context) error {
	nc, err := nats.Connect(c.NATS, nats.Name("weir events"), nats.MaxReconnects(-1))
	if err != nil {
		return fmt.Errorf("--nats %s: %w", c.NATS, err)
	}
	defer nc.Close()
	lines := json.NewEncoder(os.Stdout)
	var printed uint64
	err = events.Read(ctx, nc, events.Query{Subject: c.Subject, FromStart: c.FromStart, Follow: true}, func(e events.Event) error {
		if err := lines.Encode(e); err != nil {
			return err
		}
		if printed++; printed == c.Count {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) || ctx.Err() != nil {
		return nil
	}
	return err
}

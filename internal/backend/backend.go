// Package backend opens the two stores behind a service: its journal on NATS
// and its hot store in Redis.
package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/nats-io/nats.go"

	"weir/internal/aggregate"
	"weir/internal/hot"
	"weir/internal/journal"
)

// Config says where the stores are. Services embed it; the tags are for kong.
type Config struct {
	NATS     string `name:"nats" help:"NATS servers, separated by commas." default:"nats://127.0.0.1:7005" placeholder:"URL"`
	Redis    string `help:"Redis; a cluster names more nodes by addr=HOST:PORT parameters." default:"redis://127.0.0.1:6379" placeholder:"URL"`
	Replicas int    `help:"Copies that NATS keeps of the journal: 1, 3 or 5." default:"1"`
	// Erasable says that the service erases events. It belongs to the service,
	// and no operator can choose it.
	Erasable bool `kong:"-"`
}

// Validate reports the first setting that can't work, by its flag.
func (c Config) Validate() error {
	switch {
	case c.NATS == "":
		return errors.New("--nats: must be set")
	case c.Redis == "":
		return errors.New("--redis: must be set")
	case c.Replicas != 1 && c.Replicas != 3 && c.Replicas != 5:
		return fmt.Errorf("--replicas: %d: want 1, 3 or 5", c.Replicas)
	}
	return nil
}

// Backend is what a service stands on. It owns the connections.
type Backend struct {
	NATS    *nats.Conn
	Journal *journal.Journal
	Hot     *hot.Store
	Log     *slog.Logger
}

// Open waits for NATS, and creates the service's stream where it is missing. One
// that is there but can't erase what the service must, or can though it must
// not, is an error at once. It does not wait for Redis.
func Open(ctx context.Context, service string, c Config, log *slog.Logger) (*Backend, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	log = log.With("service", service)
	nc, err := journal.Connect(c.NATS, service)
	if err != nil {
		return nil, fmt.Errorf("--nats: %w", err)
	}
	openJournal := journal.Open
	if c.Erasable {
		openJournal = journal.OpenErasable
	}
	j, err := openJournal(ctx, nc, service, c.Replicas, log)
	if err != nil {
		nc.Close()
		return nil, err
	}
	h, err := hot.Open(c.Redis, service, j.Identity())
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("--redis: %w", err)
	}
	return &Backend{NATS: nc, Journal: j, Hot: h, Log: log}, nil
}

// Close ends the connections.
func (b *Backend) Close() {
	if err := b.Hot.Close(); err != nil {
		b.Log.Warn("hot store not closed", "error", err)
	}
	b.NATS.Close()
}

// Closing closes a connection to a peer, at the end of the service that made it.
func (b *Backend) Closing(c io.Closer) {
	if err := c.Close(); err != nil {
		b.Log.Warn("connection not closed", "error", err)
	}
}

// Projector keeps the hot store showing what the journal holds for all kinds
// of the service.
func (b *Backend) Projector(loops ...aggregate.Projected) *aggregate.Projector {
	return aggregate.NewProjector(b.NATS, b.Journal, b.Hot, b.Log, loops...)
}

// Consumer is a durable place in the stream of a service, this one or another.
func (b *Backend) Consumer(service, name string, filters ...string) (*journal.Consumer, error) {
	return journal.NewConsumer(b.NATS, service, name, b.Log, filters...)
}

// Interrupted turns an error of Open into nil where ctx ended: who tells a
// service to stop while it waits for NATS is not told of a failure.
func Interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Package conversation keeps conversations: who takes part, what was said in
// which order, and which operations were called along the way.
package conversation

import (
	"context"
	"fmt"
	"time"

	"weir/internal/backend"
	"weir/internal/serve"
)

const serviceName = "conversation"

// Config is what the service can be told.
type Config struct {
	Serve  serve.Config   `embed:""`
	Stores backend.Config `embed:""`
	Index  string         `help:"Folder of the search index, which is built from the journal where it is missing; a temporary one by default." placeholder:"DIR"`

	// RetentionEvery is how often retention is looked after; 10 seconds if 0.
	RetentionEvery time.Duration `kong:"-"`
}

// Validate reports the first setting that can't work, by its flag.
func (c *Config) Validate() error {
	if err := c.Serve.Validate(); err != nil {
		return err
	}
	return c.Stores.Validate()
}

// Run serves until ctx ends or something fails that it can't mend.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Serve.Listener != nil {
		defer cfg.Serve.Listener.Close()
	}
	stores, err := connect(ctx, cfg)
	if err != nil {
		return backend.Interrupted(ctx, fmt.Errorf("%s: %w", serviceName, err))
	}
	defer stores.Close()
	s, err := newService(stores, cfg)
	if err != nil {
		return fmt.Errorf("%s: %w", serviceName, err)
	}
	defer s.close()
	return serve.Run(ctx, cfg.Serve, serve.Service{
		Name:     serviceName,
		Register: s.register,
		Healthy:  stores.Journal.Healthy,
		Workers:  s.workers(),
	})
}

// connect refuses a bad setting before it waits for anything.
func connect(ctx context.Context, cfg Config) (*backend.Backend, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Stores.Erasable = true
	return backend.Open(ctx, serviceName, cfg.Stores, cfg.Serve.Log())
}

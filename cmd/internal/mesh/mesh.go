// Package mesh runs a whole weir in one process: the four services, the NATS server that
// keeps their journals and, where no Redis is named, a store that stands in for it.
package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"weir/cmd/internal/home"
)

// Config is what a mesh can be told.
type Config struct {
	Data      home.Folder
	Addresses Addresses
	Redis     string // URL; an embedded store if empty
	LogLevel  slog.Level
}

// patience is how long the start may take. A large journal is read through once.
const patience = time.Minute

// renewEvery is far less than the lifetime of a token, so that a mesh that runs for months
// can still call itself.
const renewEvery = 24 * time.Hour

// Run runs a mesh until ctx ends or a part of it fails. Once all of it serves it calls
// ready with the addresses as they are. What the start needs is looked at before
// anything runs, and the end goes backward: services, hot store, journal.
func Run(ctx context.Context, cfg Config, ready func(Addresses)) error {
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: cfg.LogLevel}))

	unlock, err := cfg.Data.Open()
	if err != nil {
		return err
	}
	defer unlock()
	ports, err := bind(cfg.Addresses)
	if err != nil {
		return err
	}
	defer ports.close()
	redis.SetLogger(redisLog{log})
	if cfg.Redis != "" {
		if err := reach(ctx, cfg.Redis); err != nil {
			return fmt.Errorf("--redis: %w", err) // not the URL, which may hold a password
		}
	}

	nats, err := startNATS(cfg.Data.Journal(), ports.nats, log)
	if err != nil {
		return err
	}
	defer nats.stop()
	hot := cfg.Redis
	if hot == "" {
		embedded, err := startRedis()
		if err != nil {
			return fmt.Errorf("embedded hot store: %w", err)
		}
		defer embedded.Close()
		hot = "redis://" + embedded.Addr()
	}

	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	health, err := dialHealth(ports.addresses)
	if err != nil {
		return err
	}
	defer health.close()
	defer startWeb(ports.http, metrics, health, log).Close()

	running, runningCtx := errgroup.WithContext(ctx)
	for _, run := range services(cfg.Data, ports, hot, nats.url, metrics, log) {
		running.Go(func() error {
			err := run(runningCtx)
			if err == nil && ctx.Err() == nil && runningCtx.Err() == nil {
				err = errors.New("a service ended by itself")
			}
			return err
		})
	}
	running.Go(func() error {
		if err := begin(runningCtx, cfg.Data, ports.addresses, health); err != nil {
			if runningCtx.Err() != nil {
				return nil // told to stop, or stopped by the part that failed
			}
			return err
		}
		ready(ports.addresses)
		keepRenewing(runningCtx, cfg.Data, log)
		return nil
	})
	return running.Wait()
}

// begin waits until everything serves, and puts the first grants of a new journal.
func begin(ctx context.Context, data home.Folder, at Addresses, health health) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := health.await(ctx); err != nil {
		return err
	}
	return seed(ctx, data, at.Gate)
}

func keepRenewing(ctx context.Context, data home.Folder, log *slog.Logger) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := data.Renew(); err != nil {
				log.Error("tokens not renewed", "error", err)
			}
		}
	}
}

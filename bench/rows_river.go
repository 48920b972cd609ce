package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverJob is a message as a job.
type riverJob struct {
	MessageID string `json:"message_id"`
	Body      string `json:"body"`
}

func (riverJob) Kind() string { return "message" }

// openRiverCycle takes messages through River on PostgreSQL: a caller inserts a job
// and waits until its worker has run. As many workers as callers run, for the slice.
func openRiverCycle(m *mesh) (workload, error) {
	p, err := m.openPostgres()
	if err != nil {
		return nil, err
	}
	driver := riverpgxv5.New(p.pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(m.ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}
	var done handled
	series := 0
	return func(callers int) ([]call, error) {
		series++
		client, err := startRiver(m, driver, callers, &done)
		if err != nil {
			return nil, err
		}
		calls := make([]call, callers)
		for i := range calls {
			prefix, n := fmt.Sprintf("m-%d-%d-", series, i), 0
			calls[i] = func(ctx context.Context) error {
				n++
				job := riverJob{MessageID: prefix + fmt.Sprint(n), Body: text}
				ran := done.expect(job.MessageID)
				if _, err := client.Insert(ctx, job, nil); err != nil {
					return err
				}
				return await(ctx, ran)
			}
		}
		return calls, nil
	}, nil
}

func startRiver(m *mesh, driver *riverpgxv5.Driver, callers int, done *handled) (*river.Client[pgx.Tx], error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[riverJob]) error {
		if err := done.finish(job.Args.MessageID, job.Args.Body); err != nil {
			m.cancel(fmt.Errorf("river: %w", err))
		}
		return nil
	}))
	client, err := river.NewClient(driver, &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: callers}},
		Workers: workers,
		// It is told of what is inserted, and fetches as soon as it may.
		FetchCooldown:     river.FetchCooldownMin,
		FetchPollInterval: 10 * time.Millisecond,
		Logger:            slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	if err := client.Start(m.ctx); err != nil {
		return nil, err
	}
	// It waits for the workers that run, and until what they did is recorded.
	m.afterSlice(func() error { return client.Stop(m.ctx) })
	return client, nil
}

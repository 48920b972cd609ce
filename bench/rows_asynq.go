package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// asynqTask is the type of the tasks: one handler serves them all.
const asynqTask = "bench:message"

// handled tells callers that their message has been worked on, for queues whose
// workers are not their callers.
type handled struct{ waiting sync.Map }

// expect gives what is closed once the message is there.
func (h *handled) expect(id string) <-chan struct{} {
	done := make(chan struct{})
	h.waiting.Store(id, done)
	return done
}

func (h *handled) finish(id, body string) error {
	done, ok := h.waiting.LoadAndDelete(id)
	if !ok {
		return fmt.Errorf("message %s came twice, or from nowhere", id)
	}
	if body != text {
		return fmt.Errorf("message %s has %d bytes", id, len(body))
	}
	close(done.(chan struct{}))
	return nil
}

// await waits until it is closed.
func await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// openAsynqCycle takes messages through asynq, on a Redis that keeps what it has: a
// caller enqueues a task and waits until its handler has run. As many workers as
// callers run, for the slice.
func openAsynqCycle(m *mesh) (workload, error) {
	s, err := m.openStreams()
	if err != nil {
		return nil, err
	}
	options := func() *redis.Client {
		o := *s.client.Options()
		return redis.NewClient(&o)
	}
	// Two pools, as a sender and a worker in two processes would have.
	sender, receiver := options(), options()
	m.closers = append(m.closers, func() { _ = sender.Close() }, func() { _ = receiver.Close() })
	client := asynq.NewClientFromRedisClient(sender)
	var done handled
	series := 0
	return func(callers int) ([]call, error) {
		series++
		workers := asynq.NewServerFromRedisClient(receiver, asynq.Config{
			Concurrency: callers,
			// It polls where it has found nothing, once a second by default.
			TaskCheckInterval: time.Millisecond,
			LogLevel:          asynq.ErrorLevel,
		})
		err := workers.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
			id := task.ResultWriter().TaskID()
			if err := done.finish(id, string(task.Payload())); err != nil {
				m.cancel(fmt.Errorf("asynq: %w", err))
			}
			return nil
		}))
		if err != nil {
			return nil, err
		}
		// It waits for the handlers that run, and for what Redis is to be told of them.
		m.afterSlice(func() error {
			workers.Shutdown()
			return nil
		})
		calls := make([]call, callers)
		for i := range calls {
			prefix, n := fmt.Sprintf("m-%d-%d-", series, i), 0
			calls[i] = func(ctx context.Context) error {
				n++
				id := prefix + fmt.Sprint(n)
				ran := done.expect(id)
				if _, err := client.EnqueueContext(ctx, asynq.NewTask(asynqTask, []byte(text)), asynq.TaskID(id)); err != nil {
					return err
				}
				return await(ctx, ran)
			}
		}
		return calls, nil
	}, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// rounds is in how many slices a row's time is cut. Between two slices of a
	// row come all the others, so that what disturbs the machine meets all alike.
	rounds = 5
	// warmUp is the most that a row runs before its first slice.
	warmUp = 200 * time.Millisecond
)

// workload gets so many callers ready for one slice, unmeasured, and gives what
// each of them does over and over. Callers never touch each other's aggregates.
type workload func(callers int) ([]call, error)

// call is one operation of one caller, or as many as the stage says.
type call func(context.Context) error

// stage is where rows run.
type stage interface {
	// settle waits until the work is done that calls left behind, and says for how
	// long.
	settle() (time.Duration, error)
	cpu() cpuTimes
	// rest ends what runs for the slice alone that is over.
	rest() error
	// batch is how many operations one call makes.
	batch() int
}

// startedKey is where a call finds the time from which on it is timed.
type startedKey struct{}

// startsNow says that what a call did until now is not what its row times. It
// counts for the rate all the same.
func startsNow(ctx context.Context) {
	if started, ok := ctx.Value(startedKey{}).(*time.Time); ok {
		*started = time.Now()
	}
}

// errDry is what a call returns when it has nothing left to work on. The slice
// ends then for all callers; what was measured until then counts.
var errDry = errors.New("nothing left to work on")

// slice is what was measured of a row at a stretch.
type slice struct {
	took      time.Duration
	timed     time.Duration // in calls, after startsNow, summed over callers
	callers   int
	latencies histogram
	cpu       cpuTimes
}

func (s *slice) perSecond() float64 {
	return float64(s.latencies.total) / s.took.Seconds()
}

// perSecondTimed is the rate that there would be if callers did nothing before
// startsNow.
func (s *slice) perSecondTimed() float64 {
	return float64(s.latencies.total) * float64(s.callers) / s.timed.Seconds()
}

// cell is all that was measured of a row at one number of callers.
type cell struct {
	rates     []float64 // one a slice
	latencies histogram
	cpu       cpuTimes
	lag       time.Duration // until all events had been projected, summed over slices
}

// perSecond is the median of the slices: one that something disturbed does not
// move it.
func (c *cell) perSecond() float64 { return median(c.rates) }

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// measureRounds measures all rows at one number of callers, a slice at a time.
func measureRounds(ctx context.Context, on stage, rows []row, workloads []workload, callers int, each time.Duration) ([]cell, error) {
	cells := make([]cell, len(rows))
	for round := range rounds + 1 {
		length := each / rounds
		if round == 0 {
			length = min(length, warmUp)
		}
		for n := range rows {
			i := n
			if round%2 == 1 {
				i = len(rows) - 1 - n // A B C, C B A: no row always comes behind the same one
			}
			s, lag, err := measureSlice(ctx, on, workloads[i], callers, rows[i].batch(on), length)
			if err != nil {
				return nil, fmt.Errorf("%s, %d callers: %w", rows[i].name, callers, err)
			}
			if round == 0 {
				continue
			}
			c := &cells[i]
			rate := s.perSecond()
			if rows[i].between {
				rate = s.perSecondTimed()
			}
			c.rates = append(c.rates, rate)
			c.latencies.merge(&s.latencies)
			c.cpu = c.cpu.plus(s.cpu)
			c.lag += lag
		}
	}
	return cells, nil
}

// measureSlice measures one row once, and waits until the work that it left
// behind is done, so that no row pays for another.
func measureSlice(ctx context.Context, on stage, w workload, callers, batch int, length time.Duration) (*slice, time.Duration, error) {
	calls, err := w(callers)
	if err != nil {
		return nil, 0, err
	}
	if _, err := on.settle(); err != nil {
		return nil, 0, err
	}
	before := on.cpu()
	s, err := repeat(ctx, calls, batch, length)
	if err != nil {
		return nil, 0, err
	}
	s.cpu = on.cpu().minus(before)
	if err := on.rest(); err != nil {
		return nil, 0, err
	}
	lag, err := on.settle()
	return s, lag, err
}

// repeat lets every caller do its call over and over until the time is over. A
// call of several operations counts as so many, each as long as the others.
func repeat(ctx context.Context, calls []call, batch int, length time.Duration) (*slice, error) {
	var over atomic.Bool
	latencies := make([]histogram, len(calls))
	timed := make([]time.Duration, len(calls))
	group, ctx := errgroup.WithContext(ctx)
	started := time.Now()
	deadline := started.Add(length)
	for i, do := range calls {
		group.Go(func() error {
			before := time.Now()
			ctx := context.WithValue(ctx, startedKey{}, &before)
			for !over.Load() && before.Before(deadline) {
				err := do(ctx)
				if errors.Is(err, errDry) {
					over.Store(true)
					return nil
				}
				if err != nil {
					return err
				}
				after := time.Now()
				latencies[i].add(after.Sub(before)/time.Duration(batch), batch)
				timed[i] += after.Sub(before)
				before = after
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	s := &slice{took: time.Since(started), callers: len(calls)}
	for i := range latencies {
		s.latencies.merge(&latencies[i])
		s.timed += timed[i]
	}
	return s, nil
}

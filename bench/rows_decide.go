package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"weir/bench/engines"
)

const (
	decide          = "decide"
	decidePredicate = "decide_predicate"
	// decideCallers is how many ask at a time: deciding shares nothing, so more of
	// them would only measure the processors.
	decideCallers = 1
	// decideBatch is how many decisions are timed together. Reading the clock takes
	// a fifth of what weir's decision does.
	decideBatch = 32
)

// ruleCounts are the numbers of rules that engines are compared at.
var ruleCounts = []int{10, 100, 1000}

// decideRows are weir's decision and those of other engines by the same rules, by
// names only and with a predicate.
func decideRows() []row {
	var rows []row
	for _, n := range ruleCounts {
		for _, base := range []row{
			{name: decide, engine: "weir", rules: n},
			{name: decidePredicate, engine: "weir", rules: n, predicate: true},
		} {
			rows = append(rows, base)
			for _, engine := range []string{"opa", "cedar", "casbin"} {
				other := base
				other.name, other.ratioTo, other.engine = base.name+"_"+engine, base.name, engine
				rows = append(rows, other)
			}
		}
	}
	return rows
}

// alone is the stage of rows that need no servers.
type alone struct{}

func (alone) settle() (time.Duration, error) { return 0, nil }
func (alone) rest() error                    { return nil }
func (alone) batch() int                     { return decideBatch }
func (alone) cpu() cpuTimes                  { return cpuTimes{bench: cpuOf(os.Getpid())} }

// measureDecide measures the rows that decide, of one number of rules after the
// other.
func measureDecide(ctx context.Context, o options, rows []row, out io.Writer) ([]result, error) {
	var results []result
	for _, n := range ruleCounts {
		group := slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return r.rules != n })
		workloads := make([]workload, len(group))
		for i, r := range group {
			var err error
			if workloads[i], err = openDecide(&r); err != nil {
				return nil, fmt.Errorf("%s: %w", r.name, err)
			}
		}
		cells, err := measureRounds(ctx, alone{}, group, workloads, decideCallers, seconds(o.Seconds))
		if err != nil {
			return nil, err
		}
		measured := compare(group, cells, decideCallers, false)
		printGroup(out, rulesName(n)+", in this process alone", measured, cells)
		results = append(results, measured...)
	}
	return results, nil
}

// openDecide asks an engine for what the last of its rules allows, after it has
// proven that it decides by the rules and not by something easier.
func openDecide(r *row) (workload, error) {
	rules := engines.Rules(r.rules, r.predicate)
	e, err := engines.New(r.engine, rules)
	if err != nil {
		return nil, err
	}
	if err := engines.Prove(e, rules); err != nil {
		return nil, err
	}
	ask, err := e.Question(engines.LastOperation, engines.LastAmount)
	if err != nil {
		return nil, err
	}
	return everyCaller(func(ctx context.Context) error {
		for range decideBatch {
			allowed, err := ask()
			if err != nil {
				return err
			}
			if !allowed {
				return fmt.Errorf("%s is not allowed any more", engines.LastOperation)
			}
		}
		return ctx.Err()
	}), nil
}

// Command bench measures weir on this machine: its write path and its calls,
// each against the cheapest thing that it could have been. README.md says what
// the rows are and how to read the ratios.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

// options is what bench can be told.
type options struct {
	Seconds    float64  `help:"How long each row is measured at each number of callers." default:"2.5" placeholder:"S"`
	Only       []string `help:"Rows to measure, and with them what they are compared with." placeholder:"NAME,…"`
	Callers    []int    `help:"Numbers of callers at once." default:"1,16,64" placeholder:"N,…"`
	Aggregates int      `help:"How many aggregates of each kind the callers go around among." default:"1024" placeholder:"N"`
	Long       int      `help:"How many messages the long conversation has: whole thousands, at most a million." default:"1000000" placeholder:"N"`
	Sync       string   `help:"Whether nats-server syncs every write: both, on or off." enum:"both,on,off" default:"both"`
	Out        string   `help:"File to write the results to." default:"bench/latest.json" placeholder:"FILE"`
	Dir        string   `help:"Folder for the servers' data, which is removed at the end. Syncing is as fast as its disk." default:".weir" placeholder:"DIR"`
	CPUProfile string   `name:"cpuprofile" help:"File to write a CPU profile of this process to, which runs the callers and the services." placeholder:"FILE"`
}

// Validate reports the first setting that can't work. Kong calls it.
func (o *options) Validate() error {
	if o.Seconds <= 0 {
		return errors.New("--seconds: must be positive")
	}
	for _, n := range o.Callers {
		if n < 1 || n > o.Aggregates {
			return fmt.Errorf("--callers: %d: want 1 to %d, as many as there are --aggregates", n, o.Aggregates)
		}
	}
	if o.Long < 1000 || o.Long > 1_000_000 || o.Long%1000 != 0 {
		return fmt.Errorf("--long: %d: want 1000 to 1000000, whole thousands", o.Long)
	}
	_, err := chosen(o.Only)
	return err
}

func (o *options) syncs() []bool {
	switch o.Sync {
	case "on":
		return []bool{true}
	case "off":
		return []bool{false}
	default:
		return []bool{false, true}
	}
}

func main() {
	if dir, sync, ok := isNATS(); ok {
		exit(runNATS(dir, sync, os.Stdin, os.Stdout))
	}
	var o options
	kong.Parse(&o, kong.Name("bench"), kong.Description("Measures weir on this machine."))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, o, os.Stdout))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run measures everything that o asks for, prints tables as they come and
// writes the results to o.Out.
func run(ctx context.Context, o options, out io.Writer) error {
	rows, err := chosen(o.Only)
	if err != nil {
		return err
	}
	if o.CPUProfile != "" {
		file, err := os.Create(o.CPUProfile)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	fmt.Fprintln(out, machine())
	started := time.Now()
	var results []result
	for _, sync := range o.syncs() {
		for _, together := range meshes(rows) {
			measured, err := measureMesh(ctx, o, together, sync, out)
			if err != nil {
				return err
			}
			results = append(results, measured...)
		}
	}
	// These need no servers, so they come once, when there are none any more.
	decided, err := measureDecide(ctx, o, rows, out)
	if err != nil {
		return err
	}
	results = append(results, decided...)
	printAims(out, rows, results)
	fmt.Fprintf(out, "\n%d results in %s, measured in %s\n", len(results), o.Out, time.Since(started).Round(time.Second))
	return writeJSON(o.Out, results)
}

// measureMesh measures the rows on a mesh of their own.
func measureMesh(ctx context.Context, o options, rows []row, sync bool, out io.Writer) ([]result, error) {
	m, err := startMesh(ctx, o, sync)
	if err != nil {
		return nil, err
	}
	defer m.stop()
	workloads := make([]workload, len(rows))
	for i, r := range rows {
		if workloads[i], err = r.open(m); err != nil {
			return nil, m.explain(fmt.Errorf("%s: %w", r.name, err))
		}
	}
	var results []result
	for _, callers := range slices.Sorted(slices.Values(o.Callers)) {
		cells, err := measureRounds(m.ctx, m, rows, workloads, callers, seconds(o.Seconds))
		if err != nil {
			return nil, m.explain(err)
		}
		group := compare(rows, cells, callers, sync)
		printGroup(out, syncName(sync), group, cells)
		results = append(results, group...)
	}
	return results, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

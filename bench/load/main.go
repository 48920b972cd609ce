// Command load puts many writers and readers on one replica of the conversation
// service for a while, and counts: what was acknowledged, what every reader was
// given, and the service's memory. It stops by itself, and fails unless every
// reader was given every message once, in order, without any error.
//
//	make load ARGS='--conversations 1000 --writers 10 --tails 10 --rate 150 --for 1m'
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"
)

// options is what load can be told.
type options struct {
	Conversations int           `help:"How many conversations there are." default:"1000" placeholder:"N"`
	Writers       int           `help:"How many writers each conversation has." default:"10" placeholder:"N"`
	Tails         int           `help:"How many readers tail each conversation." default:"10" placeholder:"N"`
	Rate          float64       `help:"Messages a second that all writers say together, each at its turn." default:"150" placeholder:"N"`
	For           time.Duration `help:"How long they write." default:"1m" placeholder:"DURATION"`
	Dir           string        `help:"Folder for the servers' data, which is removed at the end." default:".weir" placeholder:"DIR"`
}

// Validate reports the first setting that can't work. Kong calls it.
func (o *options) Validate() error {
	switch {
	case o.Conversations < 1, o.Writers < 1, o.Tails < 1:
		return errors.New("--conversations, --writers, --tails: want at least 1")
	case o.Tails*o.Conversations > maxTails:
		return fmt.Errorf("--tails: one replica serves at most %d tails", maxTails)
	case o.Rate <= 0 || o.For <= 0:
		return errors.New("--rate, --for: must be positive")
	}
	return nil
}

// maxTails is what a replica of the service takes.
const maxTails = 20_000

func main() {
	if isRole, err := runRole(os.Stdin, os.Stdout); isRole {
		exit(err)
	}
	var o options
	kong.Parse(&o, kong.Name("load"), kong.Description("Puts many writers and readers on the conversation service."))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	r, err := run(ctx, o, os.Stderr)
	if err == nil {
		r.print(os.Stdout)
		err = r.verdict()
	}
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// result is what a run came to.
type result struct {
	options
	written, delivered      int64
	errors                  int64
	lost, repeated, strange int64
	// firstError is one of the errors.
	firstError error
	// append and delivery are how long it took until a message was acknowledged, and
	// until a reader had it: median and 99 of 100.
	append, delivery [2]time.Duration
	memory           []sample
	drained          time.Duration
}

// sample is the service's memory at a time.
type sample struct {
	at    time.Duration
	bytes int64
}

func (r *result) verdict() error {
	if r.errors+r.lost+r.repeated+r.strange > 0 {
		return fmt.Errorf("%d errors, %d lost, %d repeated, %d in the wrong place; one error: %w", r.errors, r.lost, r.repeated, r.strange, r.firstError)
	}
	return nil
}

func (r *result) print(out io.Writer) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(table, name+"\t"+format+"\n", args...) }
	row("conversations", "%d, %d writers and %d tails each", r.Conversations, r.Writers, r.Tails)
	row("for", "%v at %.0f messages/s", r.For, r.Rate)
	row("messages written", "%d", r.written)
	row("deliveries", "%d", r.delivered)
	row("errors", "%d", r.errors)
	row("lost", "%d", r.lost)
	row("repeated", "%d", r.repeated)
	row("in the wrong place", "%d", r.strange)
	row("append", "median %v, p99 %v", r.append[0], r.append[1])
	row("delivery", "median %v, p99 %v", r.delivery[0], r.delivery[1])
	row("drained after", "%v", r.drained.Round(time.Millisecond))
	for _, s := range r.memory {
		row("service's memory", "%d MiB after %v", s.bytes>>20, s.at.Round(time.Second))
	}
	_ = table.Flush()
}

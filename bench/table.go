package main

import (
	"fmt"
	"io"
	"strings"
)

const tableHead = `
%d callers, %s
                          per second       p50       p99    ratio                      CPU a call: bench   nats  redis
`

// printGroup prints what was measured side by side.
func printGroup(out io.Writer, results []result, cells []cell) {
	if len(results) == 0 {
		return
	}
	fmt.Fprintf(out, tableHead, results[0].Callers, syncName(results[0].Sync))
	for i, r := range results {
		ratio := strings.Repeat(" ", 32)
		if r.Ratio != nil {
			ratio = fmt.Sprintf("%8.2f %-23s", *r.Ratio, "of "+*r.RatioTo)
		}
		c := &cells[i]
		each := c.cpu.over(c.latencies.total)
		fmt.Fprintf(out, "  %-22s %11.0f  %8s  %8s %s %16s %6s %6s", r.Name, r.PerSecond, duration(r.P50), duration(r.P99), ratio,
			duration(each.bench), duration(each.nats), duration(each.redis))
		if lag := c.lag / rounds; lag > notableLag {
			fmt.Fprintf(out, "   projector %d ms behind", lag.Milliseconds())
		}
		fmt.Fprintln(out)
	}
}

// duration writes microseconds so that they can be read at a glance.
func duration(us float64) string {
	switch {
	case us >= 10_000:
		return fmt.Sprintf("%.0f ms", us/1000)
	case us >= 1000:
		return fmt.Sprintf("%.1f ms", us/1000)
	default:
		return fmt.Sprintf("%.0f µs", us)
	}
}

func syncName(sync bool) string {
	if sync {
		return "every write synced"
	}
	return "writes not synced"
}

// printAims says which aims were met, of those that were measured.
func printAims(out io.Writer, rows []row, results []result) {
	title := false
	for _, r := range results {
		aim := aimOf(rows, r.Name)
		if aim == 0 || r.Callers != aimCallers || r.Ratio == nil {
			continue
		}
		if !title {
			fmt.Fprintf(out, "\nAims at %d callers\n", aimCallers)
			title = true
		}
		verdict := "met   "
		if *r.Ratio < aim {
			verdict = "MISSED"
		}
		fmt.Fprintf(out, "  %s  %-22s %.2f of %s, aim %.2f (%s)\n", verdict, r.Name, *r.Ratio, *r.RatioTo, aim, syncName(r.Sync))
	}
}

func aimOf(rows []row, name string) float64 {
	for _, r := range rows {
		if r.name == name {
			return r.aim
		}
	}
	return 0
}

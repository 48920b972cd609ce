package main

import (
	"fmt"
	"io"
	"strings"
)

const tableHead = `
%s, %s
                            per second       p50       p99    ratio                      CPU a call: bench   nats  redis  postgres
`

// printGroup prints what was measured side by side.
func printGroup(out io.Writer, how string, results []result, cells []cell) {
	if len(results) == 0 {
		return
	}
	fmt.Fprintf(out, tableHead, callersName(results[0].Callers), how)
	for i, r := range results {
		ratio := strings.Repeat(" ", 32)
		if r.Ratio != nil {
			ratio = fmt.Sprintf("%8s %-23s", ratioName(*r.Ratio), "of "+*r.RatioTo)
		}
		c := &cells[i]
		each := c.cpu.over(c.latencies.total)
		fmt.Fprintf(out, "  %-24s %11.0f  %8s  %8s %s %16s %6s %6s %9s", r.Name, r.PerSecond, duration(r.P50), duration(r.P99), ratio,
			duration(each.bench), duration(each.nats), duration(each.redis), duration(each.postgres))
		if lag := c.lag / rounds; lag > notableLag {
			fmt.Fprintf(out, "   projector %d ms behind", lag.Milliseconds())
		}
		if r.Deliveries > 0 {
			fmt.Fprintf(out, "   %.0f deliveries a second", r.Deliveries)
		}
		fmt.Fprintln(out)
	}
}

// duration writes microseconds so that they can be read at a glance.
func duration(us float64) string {
	switch {
	case us > 0 && us < 1:
		return fmt.Sprintf("%.0f ns", us*1000)
	case us > 0 && us < 10:
		return fmt.Sprintf("%.1f µs", us)
	case us >= 10_000:
		return fmt.Sprintf("%.0f ms", us/1000)
	case us >= 1000:
		return fmt.Sprintf("%.1f ms", us/1000)
	default:
		return fmt.Sprintf("%.0f µs", us)
	}
}

// ratioName keeps two digits also of small ratios.
func ratioName(ratio float64) string {
	if ratio < 0.1 {
		return fmt.Sprintf("%.3f", ratio)
	}
	return fmt.Sprintf("%.2f", ratio)
}

func callersName(callers int) string {
	if callers == 1 {
		return "1 caller"
	}
	return fmt.Sprintf("%d callers", callers)
}

func rulesName(rules int) string { return fmt.Sprintf("%d rules", rules) }

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
		aiming := rowOf(rows, r.Name)
		if aiming == nil || !aiming.aimed(r.Callers) || r.Ratio == nil {
			continue
		}
		if !title {
			fmt.Fprintln(out, "\nAims")
			title = true
		}
		verdict := "met   "
		if !aiming.reaches(*r.Ratio) {
			verdict = "MISSED"
		}
		aim, how := fmt.Sprintf("%.2f", aiming.aim), syncName(r.Sync)
		if aiming.below {
			aim = "below " + aim
		}
		if aiming.inProcess() {
			aim, how = "below 1", rulesName(r.Rules)
		}
		fmt.Fprintf(out, "  %s  %-24s %s of %s, aim %s (%s, %s)\n",
			verdict, r.Name, ratioName(*r.Ratio), *r.RatioTo, aim, callersName(r.Callers), how)
	}
}

func rowOf(rows []row, name string) *row {
	for i := range rows {
		if rows[i].name == name {
			return &rows[i]
		}
	}
	return nil
}

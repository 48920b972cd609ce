package main

import (
	"encoding/json"
	"math"
	"os"
	"time"
)

// result is one line of the table as latest.json holds it.
type result struct {
	Name      string  `json:"name"`
	Callers   int     `json:"callers"`
	Sync      bool    `json:"sync"`
	Rules     int     `json:"rules,omitempty"` // that the row decides by
	PerSecond float64 `json:"per_second"`
	// P50 and P99 are of whole calls, or of what remains of them after startsNow.
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
	// Deliveries is how many messages a second came out of streams.
	Deliveries float64 `json:"deliveries_per_second,omitempty"`
	// Ratio is PerSecond over that of the row RatioTo; both are null in the rows
	// that others are compared with.
	Ratio   *float64 `json:"ratio"`
	RatioTo *string  `json:"ratio_to"`
}

// compare turns what was measured side by side into results.
func compare(rows []row, cells []cell, callers int, sync bool) []result {
	results := make([]result, len(rows))
	type side struct {
		name  string
		rules int
	}
	rates := make(map[side]float64, len(rows))
	for i, r := range rows {
		c := &cells[i]
		rates[side{r.name, r.rules}] = c.perSecond()
		results[i] = result{
			Name: r.name, Callers: callers, Sync: sync, Rules: r.rules,
			PerSecond: round(c.perSecond(), 1),
			P50:       latency(c.latencies.quantile(0.50)),
			P99:       latency(c.latencies.quantile(0.99)),

			Deliveries: round(c.perSecond()*float64(r.deliveries), 0),
		}
	}
	for i, r := range rows {
		if base := rates[side{r.ratioTo, r.rules}]; base > 0 {
			ratio := round(rates[side{r.name, r.rules}]/base, 3)
			results[i].Ratio, results[i].RatioTo = &ratio, &r.ratioTo
		}
	}
	return results
}

// latency is in microseconds to a tenth, the short ones to the nanosecond.
func latency(d time.Duration) float64 {
	if d < 10*time.Microsecond {
		return micros(d)
	}
	return round(micros(d), 1)
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func round(v float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(v*scale) / scale
}

// writeJSON writes results one to a line, so that two runs can be compared by diff.
func writeJSON(path string, results []result) error {
	text := []byte("[\n")
	for i, r := range results {
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if i > 0 {
			text = append(text, ",\n"...)
		}
		text = append(append(text, "  "...), line...)
	}
	return os.WriteFile(path, append(text, "\n]\n"...), 0o644)
}

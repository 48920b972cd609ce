package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestQuantiles(t *testing.T) {
	var h, other histogram
	for i := 1; i <= 1000; i++ {
		target := &h
		if i%2 == 0 {
			target = &other
		}
		target.add(time.Duration(i)*time.Microsecond, 1)
	}
	h.merge(&other)
	for q, want := range map[float64]time.Duration{
		0.5: 500 * time.Microsecond, 0.99: 990 * time.Microsecond, 1: time.Millisecond,
	} {
		if got := h.quantile(q); math.Abs(float64(got-want)) > 0.01*float64(want) {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
}

func TestQuantilesOfFewAndOfNone(t *testing.T) {
	var h histogram
	if got := h.quantile(0.99); got != 0 {
		t.Errorf("of none: %v", got)
	}
	h.add(10, 1)
	h.add(50, 1)
	if got := h.quantile(0.5); got != 10 {
		t.Errorf("the median of 10 and 50 ns is %v", got)
	}
	if got := h.quantile(0.99); got != 50 {
		t.Errorf("the 99 %% quantile of 10 and 50 ns is %v", got)
	}
}

func TestBucketsAreInOrderAndNarrow(t *testing.T) {
	last := -1
	for d := time.Duration(0); d < time.Hour; d += 1 + d/100 {
		b := bucketOf(d)
		if b < last {
			t.Fatalf("%v is in bucket %d, behind %d", d, b, last)
		}
		last = b
		if off := math.Abs(float64(middle(b) - d)); off > float64(d)/perDouble {
			t.Fatalf("%v is reported as %v", d, middle(b))
		}
	}
	if b := bucketOf(math.MaxInt64); b >= buckets {
		t.Errorf("the longest duration is in bucket %d of %d", b, buckets)
	}
	if b := bucketOf(-1); b != 0 {
		t.Errorf("a clock that stepped back is in bucket %d", b)
	}
}

func TestMedian(t *testing.T) {
	for want, values := range map[float64][]float64{0: nil, 2: {3, 1, 2}, 2.5: {4, 1, 2, 3}, 7: {7}} {
		if got := median(values); got != want {
			t.Errorf("the median of %v is %v, want %v", values, got, want)
		}
	}
}

func TestRepeatCountsEveryCall(t *testing.T) {
	counts := make([]uint64, 3)
	calls := make([]call, len(counts))
	for i := range calls {
		calls[i] = func(context.Context) error {
			counts[i]++
			time.Sleep(time.Millisecond)
			return nil
		}
	}
	s, err := repeat(t.Context(), calls, 1, 20*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if sum := counts[0] + counts[1] + counts[2]; s.latencies.total != sum {
		t.Errorf("%d calls counted, %d made", s.latencies.total, sum)
	}
	if s.took < 20*time.Millisecond || s.latencies.quantile(0.5) < time.Millisecond {
		t.Errorf("took %v, half of the calls at most %v", s.took, s.latencies.quantile(0.5))
	}
}

func TestACallOfManyCountsAsMany(t *testing.T) {
	calls := 0
	s, err := repeat(t.Context(), []call{func(context.Context) error {
		calls++
		time.Sleep(4 * time.Millisecond)
		return nil
	}}, 4, 20*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if want := uint64(4 * calls); s.latencies.total != want {
		t.Errorf("%d counted, want %d", s.latencies.total, want)
	}
	// The machine may be slow, but four in one call never took 4 ms each.
	if p1 := s.latencies.quantile(0.01); p1 < time.Millisecond || p1 >= 4*time.Millisecond {
		t.Errorf("each of four took %v", p1)
	}
}

func TestOnlyWhatComesAfterTheStartIsTimed(t *testing.T) {
	s, err := repeat(t.Context(), []call{func(ctx context.Context) error {
		time.Sleep(20 * time.Millisecond)
		startsNow(ctx)
		time.Sleep(time.Millisecond)
		return nil
	}}, 1, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if p := s.latencies.quantile(0.01); p < time.Millisecond || p >= 20*time.Millisecond {
		t.Errorf("a call took %v", p)
	}
	if rate := s.perSecond(); rate > 1000/21. {
		t.Errorf("%v calls of 21 ms a second", rate)
	}
	if rate := s.perSecondTimed(); rate < 1000/20. || rate > 1000 {
		t.Errorf("%v timed parts of 1 ms a second", rate)
	}
}

func TestRepeatEndsWhenACallerIsDry(t *testing.T) {
	left := 3
	calls, called := 0, make(chan struct{})
	s, err := repeat(t.Context(), []call{
		func(context.Context) error {
			if left == 0 {
				<-called // so that the other one has made a call, too
				return errDry
			}
			left--
			return nil
		},
		func(context.Context) error {
			if calls++; calls == 2 {
				close(called) // the first one is counted by now
			}
			return nil
		},
	}, 1, time.Hour)
	if err != nil || s.latencies.total < 4 {
		t.Errorf("%d calls, %v", s.latencies.total, err)
	}
}

func TestRepeatEndsWithTheFirstFailure(t *testing.T) {
	broken := errors.New("broken")
	_, err := repeat(t.Context(), []call{
		func(context.Context) error { return broken },
		func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	}, 1, time.Hour)
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func TestSharesAreDisjointAndWhole(t *testing.T) {
	seen := make(map[int]int)
	for i, s := range shares(3, 10) {
		for range 100 {
			n := s.next()
			if owner, ok := seen[n]; ok && owner != i {
				t.Fatalf("%d belongs to callers %d and %d", n, owner, i)
			}
			seen[n] = i
		}
	}
	if len(seen) != 10 {
		t.Errorf("%d of 10 are used", len(seen))
	}
}

// twoRows is a row at 1,000 calls a second and one that is compared with it.
func twoRows() ([]row, []cell) {
	cells := []cell{{rates: []float64{900, 1000, 5000}}, {rates: []float64{250, 200, 700}}}
	for i := range cells {
		cells[i].latencies.add(2*time.Millisecond, 1)
	}
	return []row{{name: "base"}, {name: "other", ratioTo: "base", aim: 0.3}}, cells
}

func TestCompare(t *testing.T) {
	rows, cells := twoRows()
	results := compare(rows, cells, 64, true)
	if r := results[0]; r.PerSecond != 1000 || r.Ratio != nil || r.RatioTo != nil {
		t.Errorf("base: %+v", r)
	}
	if r := results[1]; r.PerSecond != 250 || *r.Ratio != 0.25 || *r.RatioTo != "base" || r.Callers != 64 || !r.Sync {
		t.Errorf("other: %+v", r)
	}
	if got := results[1].P50; math.Abs(got-2000) > 20 {
		t.Errorf("p50 of 2 ms is %v µs", got)
	}
}

func TestEnginesAreComparedAtTheSameNumberOfRules(t *testing.T) {
	var rows []row
	var cells []cell
	for i, n := range ruleCounts {
		rate := 1000 * float64(i+1)
		rows = append(rows, row{name: decide, rules: n}, row{name: "decide_opa", ratioTo: decide, rules: n})
		cells = append(cells, cell{rates: []float64{rate}}, cell{rates: []float64{rate / 10}})
	}
	for _, r := range compare(rows, cells, 1, false) {
		if r.Name == "decide_opa" && *r.Ratio != 0.1 {
			t.Errorf("with %d rules: ratio %v, want 0.1", r.Rules, *r.Ratio)
		}
	}
}

func TestShortLatenciesKeepTheirNanoseconds(t *testing.T) {
	for d, want := range map[time.Duration]float64{377: 0.377, 23_456: 23.5} {
		if got := latency(d); got != want {
			t.Errorf("%v is written %v, want %v", d, got, want)
		}
	}
}

func TestCompareWithoutABase(t *testing.T) {
	results := compare([]row{{name: "other", ratioTo: "base"}}, make([]cell, 1), 1, false)
	if results[0].Ratio != nil {
		t.Errorf("a ratio to nothing: %v", *results[0].Ratio)
	}
}

func TestJSON(t *testing.T) {
	rows, cells := twoRows()
	path := filepath.Join(t.TempDir(), "latest.json")
	if err := writeJSON(path, compare(rows, cells, 64, false)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	p50 := 2007.0
	want := []any{
		map[string]any{
			"name": "base", "callers": 64.0, "sync": false, "per_second": 1000.0, "p50_us": p50, "p99_us": p50,
			"ratio": nil, "ratio_to": nil,
		},
		map[string]any{
			"name": "other", "callers": 64.0, "sync": false, "per_second": 250.0, "p50_us": p50, "p99_us": p50,
			"ratio": 0.25, "ratio_to": "base",
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestAimsAreToldAtTheirLoadOnly(t *testing.T) {
	rows, cells := twoRows()
	var out bytes.Buffer
	printAims(&out, rows, compare(rows, cells, 16, false))
	if out.Len() > 0 {
		t.Errorf("16 callers: %s", &out)
	}
	printAims(&out, rows, compare(rows, cells, 64, false))
	if !strings.Contains(out.String(), "MISSED  other") {
		t.Errorf("0.25 where 0.3 is the aim: %s", &out)
	}
	out.Reset()
	rows[1].aim = 0.2
	printAims(&out, rows, compare(rows, cells, 64, false))
	if !strings.Contains(out.String(), "met     other") {
		t.Errorf("0.25 where 0.2 is the aim: %s", &out)
	}
}

func TestAnotherEngineIsToStayBehind(t *testing.T) {
	rows := []row{{name: decide, engine: "weir", rules: 10}, {name: "decide_opa", ratioTo: decide, engine: "opa", rules: 10}}
	for rate, want := range map[float64]string{
		10:   "met     decide_opa               0.010 of decide, aim below 1 (1 caller, 10 rules)",
		1000: "MISSED  decide_opa               1.00 of decide, aim below 1 (1 caller, 10 rules)",
	} {
		var out bytes.Buffer
		printAims(&out, rows, compare(rows, []cell{{rates: []float64{1000}}, {rates: []float64{rate}}}, decideCallers, false))
		if !strings.Contains(out.String(), want) || strings.Contains(out.String(), " decide  ") {
			t.Errorf("got %s, want %s", &out, want)
		}
	}
}

func TestAQueueIsToStayBehind(t *testing.T) {
	rows := []row{{name: "base"}, {name: "queue", ratioTo: "base", aim: 1, below: true}}
	for rate, want := range map[float64]string{
		500:  "met     queue                    0.50 of base, aim below 1.00 (64 callers, every write synced)",
		1500: "MISSED  queue                    1.50 of base, aim below 1.00 (64 callers, every write synced)",
	} {
		var out bytes.Buffer
		printAims(&out, rows, compare(rows, []cell{{rates: []float64{1000}}, {rates: []float64{rate}}}, aimCallers, true))
		if !strings.Contains(out.String(), want) {
			t.Errorf("got %s, want %s", &out, want)
		}
	}
}

func TestDurationsAreReadable(t *testing.T) {
	for us, want := range map[float64]string{0: "0 µs", 0.377: "377 ns", 3.14: "3.1 µs", 12.4: "12 µs", 999: "999 µs", 1500: "1.5 ms", 12345: "12 ms"} {
		if got := duration(us); got != want {
			t.Errorf("%v µs is written %q, want %q", us, got, want)
		}
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The nats-server that bench measures is this very program, started again.
func TestMain(m *testing.M) {
	if dir, sync, ok := isNATS(); ok {
		exit(runNATS(dir, sync, os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

func quick(t *testing.T) options {
	dir := t.TempDir()
	// It is root's alone above that, where postgres's user could not get to.
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
		t.Fatal(err)
	}
	return options{
		Seconds: 0.01, Callers: []int{2}, Aggregates: 4, Long: 1000, Sync: "both",
		Dir: filepath.Join(dir, "data"), Out: filepath.Join(dir, "latest.json"),
		CPUProfile: filepath.Join(dir, "cpu.prof"),
	}
}

func TestEveryRowIsMeasuredAndWritten(t *testing.T) {
	o := quick(t)
	var out bytes.Buffer
	if err := run(t.Context(), o, &out); err != nil {
		t.Fatal(err)
	}

	text, err := os.ReadFile(o.Out)
	if err != nil {
		t.Fatal(err)
	}
	var lines []map[string]any
	if err := json.Unmarshal(text, &lines); err != nil {
		t.Fatal(err)
	}
	want := slices.Concat(meshRows, meshRows, decideRows())
	if len(lines) != len(want) {
		t.Fatalf("%d results, want %d: each row on a mesh with and without sync, the others once", len(lines), len(want))
	}
	rates := make(map[any]float64)
	for i, line := range lines {
		r, sync, callers, keys := want[i], i >= len(meshRows) && i < 2*len(meshRows), 2.0, 8
		if r.inProcess() {
			callers, keys = 1, 9
			if line["rules"] != float64(r.rules) {
				t.Errorf("%s: rules is %v, want %d", r.name, line["rules"], r.rules)
			}
		}
		if line["name"] != r.name || line["callers"] != callers || line["sync"] != sync {
			t.Errorf("result %d is %v, want %s with %v callers, sync %v", i, line, r.name, callers, sync)
		}
		for _, number := range []string{"per_second", "p50_us", "p99_us"} {
			if v, ok := line[number].(float64); !ok || v <= 0 {
				t.Errorf("%s: %s is %v", r.name, number, line[number])
			}
		}
		if r.deliveries > 0 {
			keys++
			rate, _ := line["per_second"].(float64)
			// The rate is rounded to a tenth, which is a hundred deliveries.
			if got, _ := line["deliveries_per_second"].(float64); math.Abs(got-rate*float64(r.deliveries)) > 51 {
				t.Errorf("%s: %v deliveries a second, %v calls", r.name, got, rate)
			}
		}
		if len(line) != keys {
			t.Errorf("%s has %d keys, want %d: %v", r.name, len(line), keys, line)
		}
		rates[r.name], _ = line["per_second"].(float64)
		if r.ratioTo == "" {
			if line["ratio"] != nil || line["ratio_to"] != nil {
				t.Errorf("%s is compared with %v", r.name, line["ratio_to"])
			}
			continue
		}
		ratio, _ := line["ratio"].(float64)
		if want := rates[r.name] / rates[r.ratioTo]; line["ratio_to"] != r.ratioTo || math.Abs(ratio-want) > 0.01*max(1, want) {
			t.Errorf("%s is %v of %v, want %.3f of %s", r.name, line["ratio"], line["ratio_to"], want, r.ratioTo)
		}
		if !strings.Contains(out.String(), r.name) {
			t.Errorf("%s is not in the table", r.name)
		}
	}
	leftNothing(t, o)
	if profile, err := os.Stat(o.CPUProfile); err != nil || profile.Size() == 0 {
		t.Errorf("no CPU profile: %v", err)
	}
}

func TestAnInterruptedRunLeavesNothing(t *testing.T) {
	// Each is interrupted when a file shows that it is at work.
	for row, sign := range map[string]string{
		rawPublish:         "nats/jetstream/*/streams/WEIR_RAW",
		"xadd":             "streams/appendonlydir",
		"pg_insert":        "postgres/postgres.log",
		"tail_fanout_1000": "nats/jetstream/*/streams/WEIR_CONVERSATION",
	} {
		o := quick(t)
		o.Seconds, o.Only = 3600, []string{row}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer cancel()
			err := eventually(ctx, sign+" is there", func() bool {
				found, _ := filepath.Glob(filepath.Join(o.Dir, "bench-*", sign))
				return len(found) > 0
			})
			if err != nil {
				t.Errorf("%s: %v", row, err)
			}
		}()
		if err := run(ctx, o, &bytes.Buffer{}); err == nil {
			t.Errorf("%s: it finished", row)
		}
		leftNothing(t, o)
	}
}

func TestWithoutRedisItSaysWhatToType(t *testing.T) {
	o := quick(t)
	t.Setenv("PATH", t.TempDir())
	err := run(t.Context(), o, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "apt-get install -y redis-server") {
		t.Errorf("got %v", err)
	}
	leftNothing(t, o)
}

func TestWithoutPostgresItSaysWhatToType(t *testing.T) {
	o := quick(t)
	o.Only = []string{"pg_insert"}
	redis, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatal(err)
	}
	hidePostgres(t)
	t.Setenv("PATH", filepath.Dir(linked(t, redis)))
	err = run(t.Context(), o, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "apt-get install -y postgresql") {
		t.Errorf("got %v", err)
	}
	leftNothing(t, o)
}

// linked is a link to a program in a folder without any other.
func linked(t *testing.T, program string) string {
	t.Helper()
	link := filepath.Join(t.TempDir(), filepath.Base(program))
	if err := os.Symlink(program, link); err != nil {
		t.Fatal(err)
	}
	return link
}

func TestDecidingNeedsNoServers(t *testing.T) {
	o := quick(t)
	o.Only = []string{"decide_opa", "decide_cedar", "decide_casbin"}
	t.Setenv("PATH", t.TempDir()) // with no redis-server in it
	var out bytes.Buffer
	if err := run(t.Context(), o, &out); err != nil {
		t.Fatal(err)
	}
	for _, n := range ruleCounts {
		if title := "1 caller, " + rulesName(n) + ","; strings.Count(out.String(), title) != 1 {
			t.Errorf("%q does not stand there once:\n%s", title, &out)
		}
	}
	if _, err := os.Stat(o.Dir); !os.IsNotExist(err) {
		t.Errorf("a folder was made for servers: %v", err)
	}
}

func leftNothing(t *testing.T, o options) {
	t.Helper()
	left, err := os.ReadDir(o.Dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	// Linux says which processes this one has started, by thread.
	threads, _ := filepath.Glob("/proc/self/task/*/children")
	for _, thread := range threads {
		if running, err := os.ReadFile(thread); err == nil && len(running) > 0 {
			t.Errorf("these processes still run: %s", running)
		}
	}
}

func TestOptionsThatCannotWork(t *testing.T) {
	for name, o := range map[string]options{
		"no time":               {Seconds: 0, Aggregates: 1, Callers: []int{1}, Long: 1000},
		"no callers":            {Seconds: 1, Aggregates: 1, Callers: []int{0}, Long: 1000},
		"more callers than can": {Seconds: 1, Aggregates: 10, Callers: []int{11}, Long: 1000},
		"unknown row":           {Seconds: 1, Aggregates: 1, Callers: []int{1}, Long: 1000, Only: []string{"raw"}},
		"too short to page":     {Seconds: 1, Aggregates: 1, Callers: []int{1}, Long: 0},
		"a broken page":         {Seconds: 1, Aggregates: 1, Callers: []int{1}, Long: 1001},
		"more than fits":        {Seconds: 1, Aggregates: 1, Callers: []int{1}, Long: 2_000_000},
	} {
		if err := o.Validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestARowBringsWhatItIsComparedWith(t *testing.T) {
	rows, err := chosen([]string{"check", "enqueue"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := rowNames(rows), []string{rawPublish, "enqueue", emptyRPC, "check"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, r := range table {
		base := slices.IndexFunc(table, func(other row) bool { return other.name == r.ratioTo })
		if r.ratioTo != "" && base < 0 || r.ratioTo == "" && r.aim != 0 {
			t.Errorf("%s has the aim %.2f of %q", r.name, r.aim, r.ratioTo)
		}
	}
}

package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// cpuTimes is the processor time that the processes have used.
type cpuTimes struct{ bench, nats, redis, postgres time.Duration }

func (t cpuTimes) plus(o cpuTimes) cpuTimes {
	return cpuTimes{t.bench + o.bench, t.nats + o.nats, t.redis + o.redis, t.postgres + o.postgres}
}

func (t cpuTimes) minus(o cpuTimes) cpuTimes {
	return cpuTimes{t.bench - o.bench, t.nats - o.nats, t.redis - o.redis, t.postgres - o.postgres}
}

// perCall is processor time in microseconds a call.
type perCall struct{ bench, nats, redis, postgres float64 }

func (t cpuTimes) over(calls uint64) perCall {
	n := float64(max(calls, 1))
	return perCall{micros(t.bench) / n, micros(t.nats) / n, micros(t.redis) / n, micros(t.postgres) / n}
}

// cpuOfAll is the processor time that a process and its children have used.
// PostgreSQL has one for each connection, all of which last.
func cpuOfAll(pid int) time.Duration {
	sum := cpuOf(pid)
	id := strconv.Itoa(pid)
	children, err := os.ReadFile("/proc/" + id + "/task/" + id + "/children")
	if err != nil {
		return sum
	}
	for child := range strings.FieldsSeq(string(children)) {
		if pid, err := strconv.Atoi(child); err == nil {
			sum += cpuOf(pid)
		}
	}
	return sum
}

// cpuOf is the processor time that a process has used, 0 where there is no
// Linux /proc to say so.
func cpuOf(pid int) time.Duration {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// The second field is the program's name in parentheses, spaces and all.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	const user, system, tick = 11, 12, 10 * time.Millisecond
	if len(fields) <= system {
		return 0
	}
	ticks := int64(0)
	for _, i := range []int{user, system} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * tick
}

// machine says in one line what the numbers were measured on.
func machine() string {
	model := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%d × %s, %s, %s", runtime.NumCPU(), model, runtime.GOOS, runtime.Version())
}

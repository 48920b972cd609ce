// Testsum reads `go test -json` on standard input and prints what a person reads of it:
// each package's closing line as it comes, what the failed tests printed, and last
//
//	N passed, N failed, N skipped
//
// Everything that the tests printed goes to the file named by -log. It exits 1 if
// anything failed or nothing ran, whatever go test itself exits with.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() {
	logPath := flag.String("log", "", "file for everything that the tests print")
	most := flag.Int("most", 150, "most lines shown of one failure's output")
	flag.Parse()

	log := io.Writer(io.Discard)
	if *logPath != "" {
		f, err := os.Create(*logPath)
		if err != nil {
			fmt.Fprintln(os.Stderr, "testsum:", err)
			os.Exit(2)
		}
		defer f.Close() // Unbuffered; nothing is lost if os.Exit skips this.
		log = f
	}
	total, err := summarize(os.Stdin, os.Stdout, log, *most)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(2)
	}
	if total.failed > 0 || total.passed == 0 {
		os.Exit(1)
	}
}

// event is a line of `go test -json`; see `go doc test2json` and, for the build's
// events, `go help buildjson`.
type event struct {
	Action      string
	Package     string
	Test        string
	Output      string
	ImportPath  string // Of build-output and build-fail.
	FailedBuild string // Of a package's fail: the ImportPath that did not build.
}

type name struct{ pkg, test string }

// run collects the stream. Output is kept for as long as it may still be needed:
// a test's until it passes, a package's until it ends.
type run struct {
	output  map[name][]string   // A package's own under test "".
	builds  map[string][]string // By ImportPath.
	parents map[name]bool       // Tests with subtests.
	failed  map[name]bool       // Tests, and packages under test "".
	running map[name]bool       // The same.
	total   counts
}

// counts counts a test with subtests by its subtests alone, so that nothing is counted
// twice; it counts itself only where it failed and no subtest did. A package that
// failed and no test of it did (it did not build, or panicked) is one failure.
type counts struct{ passed, failed, skipped int }

func summarize(in io.Reader, out, log io.Writer, most int) (counts, error) {
	r := run{
		output:  map[name][]string{},
		builds:  map[string][]string{},
		parents: map[name]bool{},
		failed:  map[name]bool{},
		running: map[name]bool{},
	}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				// Not go test speaking: a tool of its own, or a crash of it.
				fmt.Fprintf(log, "%s", line)
				fmt.Fprintf(out, "%s", line)
			} else {
				r.take(e, out, log, most)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return r.total, err
		}
	}
	r.abandon(out, most)
	t := r.total
	_, err := fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
	return t, err
}

func (r *run) take(e event, out, log io.Writer, most int) {
	n := name{e.Package, e.Test}
	switch e.Action {
	case "start":
		r.running[n] = true
	case "run":
		r.running[n] = true
		if parent, ok := n.parent(); ok {
			r.parents[parent] = true
		}
	case "build-output":
		fmt.Fprint(log, e.Output)
		r.builds[e.ImportPath] = append(r.builds[e.ImportPath], e.Output)
	case "output":
		fmt.Fprint(log, e.Output)
		r.output[n] = append(r.output[n], e.Output)
		// The closing lines, as go test without -v prints them.
		if e.Test == "" && (strings.HasPrefix(e.Output, "ok  \t") || strings.HasPrefix(e.Output, "FAIL\t")) {
			fmt.Fprint(out, e.Output)
		}
	case "pass", "skip":
		if e.Test != "" && !r.parents[n] {
			if e.Action == "pass" {
				r.total.passed++
			} else {
				r.total.skipped++
			}
		}
		delete(r.output, n)
		delete(r.running, n)
	case "fail":
		r.fail(n, e.FailedBuild, out, most)
	}
}

// fail counts n's failure, unless one inside n stands for it, and shows what n printed.
// go test ends a subtest before its parent and a test before its package, so
// what is inside n has been counted by now.
func (r *run) fail(n name, failedBuild string, out io.Writer, most int) {
	counted := r.failed[n]
	if !counted {
		r.total.failed++
	}
	for p, ok := n.parent(); ok; p, ok = p.parent() {
		r.failed[p] = true
	}
	output := r.output[n]
	delete(r.output, n)
	delete(r.running, n)
	if failedBuild != "" {
		output = r.builds[failedBuild]
	} else if counted && n.test == "" {
		return // Only "FAIL" and the exit status: the tests said more.
	}
	title := n.pkg
	if n.test != "" {
		title += " " + n.test
	}
	fmt.Fprintf(out, "\n=== failed: %s\n", title)
	if cut := len(output) - most; cut > 0 {
		// A panic says why at the start, a test at the end.
		head := most / 3
		left := fmt.Sprintf("    (%d lines more, in the log)\n", cut)
		output = slices.Replace(output, head, head+cut, left)
	}
	fmt.Fprint(out, strings.Join(output, ""))
	fmt.Fprintln(out)
}

// abandon fails what had begun when the stream ended, as when go test was killed: a
// run cut short must not read like a run that passed.
func (r *run) abandon(out io.Writer, most int) {
	for _, n := range slices.SortedFunc(maps.Keys(r.running), func(a, b name) int {
		// What is inside first, as go test ends it.
		return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(b.test, a.test))
	}) {
		r.output[n] = append(r.output[n], "still running at the end of the stream\n")
		r.fail(n, "", out, most)
	}
}

// parent is the test that n is a subtest of, or the package of a test.
func (n name) parent() (name, bool) {
	if n.test == "" {
		return name{}, false
	}
	i := strings.LastIndexByte(n.test, '/')
	return name{n.pkg, n.test[:max(i, 0)]}, true
}

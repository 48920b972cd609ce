package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A stream of go test's own, from packages that end in each way a package can.
func TestSummarize(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		test string // The body of a _test.go file.
		want counts
		out  []string // Printed, in this order.
		not  []string // Not printed.
	}{
		{
			name: "all pass",
			test: `func TestA(t *testing.T) { t.Log("quiet") }
			func TestB(t *testing.T) { t.Skip("not today") }`,
			want: counts{passed: 1, skipped: 1},
			out:  []string{"ok  \tp\t", "1 passed, 0 failed, 1 skipped\n"},
			not:  []string{"quiet", "=== failed"},
		},
		{
			name: "a subtest fails",
			test: `func TestA(t *testing.T) {
				t.Run("x", func(t *testing.T) { t.Log("quiet") })
				t.Run("y", func(t *testing.T) { t.Error("because") })
			}`,
			want: counts{passed: 1, failed: 1},
			out:  []string{"=== failed: p TestA/y\n", "because", "FAIL\tp\t", "1 passed, 1 failed, 0 skipped\n"},
			not:  []string{"quiet"},
		},
		{
			name: "a parent fails and its subtests do not",
			test: `func TestA(t *testing.T) {
				t.Run("x", func(t *testing.T) {})
				t.Error("because")
			}`,
			want: counts{passed: 1, failed: 1},
			out:  []string{"=== failed: p TestA\n", "because"},
		},
		{
			name: "a panic",
			test: `func TestA(t *testing.T) { panic("because") }`,
			want: counts{failed: 1},
			out:  []string{"=== failed: p TestA\n", "panic: because", "0 passed, 1 failed, 0 skipped\n"},
		},
		{
			name: "does not build",
			test: `func TestA(t *testing.T) { return 1 }`,
			want: counts{failed: 1},
			out:  []string{"=== failed: p\n", "too many return values", "0 passed, 1 failed, 0 skipped\n"},
		},
		{
			name: "the process exits under its tests",
			test: `func TestMain(m *testing.M) { m.Run(); println("because"); panic("done") }
			func TestA(t *testing.T) {}`,
			want: counts{passed: 1, failed: 1},
			out:  []string{"=== failed: p\n", "because", "1 passed, 1 failed, 0 skipped\n"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			total, out := summarizeString(t, goTest(t, c.test))
			if total != c.want {
				t.Errorf("counted %+v, want %+v", total, c.want)
			}
			rest := out
			for _, s := range c.out {
				_, after, found := strings.Cut(rest, s)
				if !found {
					t.Errorf("%q is missing, or out of order, in\n%s", s, out)
					break
				}
				rest = after
			}
			for _, s := range c.not {
				if strings.Contains(out, s) {
					t.Errorf("%q is in\n%s", s, out)
				}
			}
		})
	}
}

func TestStreamCutShortIsAFailure(t *testing.T) {
	stream := `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestB"}
`
	total, out := summarizeString(t, stream)
	if want := (counts{passed: 1, failed: 1}); total != want {
		t.Errorf("counted %+v, want %+v", total, want)
	}
	if want := "=== failed: p TestB\nstill running"; !strings.Contains(out, want) {
		t.Errorf("%q is not in\n%s", want, out)
	}
}

func TestLongOutputIsCut(t *testing.T) {
	stream := `{"Action":"run","Package":"p","Test":"TestA"}` + "\n"
	for i := range 100 {
		stream += fmt.Sprintf(`{"Action":"output","Package":"p","Test":"TestA","Output":"line %d.\n"}`+"\n", i)
	}
	stream += `{"Action":"fail","Package":"p","Test":"TestA"}` + "\n"
	_, out := summarizeString(t, stream)
	want := "line 9.\n    (70 lines more, in the log)\nline 80.\n"
	if !strings.Contains(out, want) || !strings.Contains(out, "line 99.\n") {
		t.Errorf("not the first 10 lines and the last 20:\n%s", out)
	}
}

func summarizeString(t *testing.T, stream string) (counts, string) {
	t.Helper()
	var out strings.Builder
	total, err := summarize(strings.NewReader(stream), &out, io.Discard, 30)
	if err != nil {
		t.Fatal(err)
	}
	return total, out.String()
}

func goTest(t *testing.T, body string) (stream string) {
	t.Helper()
	dir := t.TempDir()
	for file, text := range map[string]string{
		"go.mod":    "module p\n\ngo 1.26\n",
		"p_test.go": "package p\n\nimport \"testing\"\n\n" + body + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "test", "-json", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, _ := cmd.Output() // It fails where a test does.
	return string(out)
}

package policies

import (
	"fmt"
	"strings"
	"time"

	"weir/cmd/internal/console"
	gatev1 "weir/gen/gate/v1"
	"weir/internal/visible"
	"weir/services/gate/policy"
)

// Test decides the files' cases by the files' policies and grants, and shows what came
// out as `go test` does. It is console.Failed where a case failed.
func Test(t *console.Terminal, files *Files, verbose bool) error {
	book, err := files.Book()
	if err != nil {
		return err
	}
	if len(files.Cases) == 0 {
		return fmt.Errorf("there are no cases in these files; see `weir policy schema` for how to write them")
	}
	begun := time.Now()
	failed := 0
	for i, result := range policy.RunCases(book, files.Cases) {
		want := files.Cases[i]
		if result.GetPassed() {
			if verbose {
				t.Printf("%s %s\n", t.Green("--- PASS:"), visible.Text(result.GetName()))
			}
			continue
		}
		failed++
		t.Printf("%s %s\n    got  %s\n    want %s\n", t.Red("--- FAIL:"), visible.Text(result.GetName()),
			outcome(result.GetVerdict(), result.GetReason(), result.GetRule()), outcome(want.GetVerdict(), want.GetReason(), want.GetRule()))
	}
	took := time.Since(begun).Seconds()
	if failed > 0 {
		t.Printf("%s\t%d of %s failed\t%.3fs\n", t.Red("FAIL"), failed, count(len(files.Cases), "case", "cases"), took)
		return console.Failed
	}
	t.Printf("%s\t%s\t%.3fs\n", t.Green("ok"), count(len(files.Cases), "case", "cases"), took)
	return nil
}

func outcome(verdict gatev1.Verdict, reason, rule string) string {
	text := strings.ToLower(strings.TrimPrefix(verdict.String(), "VERDICT_"))
	if reason != "" {
		text += ", reason " + reason
	}
	if rule != "" {
		text += ", rule " + rule
	}
	return visible.Text(text)
}

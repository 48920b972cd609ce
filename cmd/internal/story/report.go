package story

import (
	"fmt"
	"io"

	"weir/internal/fault"
)

// report narrates and keeps count.
type report struct {
	out            io.Writer
	passed, failed int
}

func (r *report) title(text string) { fmt.Fprintf(r.out, "\n%s\n", text) }

// check says what is true, or should have been.
func (r *report) check(ok bool, format string, args ...any) {
	mark := "ok  "
	if ok {
		r.passed++
	} else {
		r.failed++
		mark = "FAIL"
	}
	fmt.Fprintf(r.out, "   %s %s\n", mark, fmt.Sprintf(format, args...))
}

// same checks that two things are one, and shows both where they are not.
func same[T comparable](r *report, got, want T, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if got != want {
		text += fmt.Sprintf(": got %v, want %v", got, want)
	}
	r.check(got == want, "%s", text)
}

// refused checks that a call was refused, for the reason that clients switch on.
func (r *report) refused(err error, reason fault.Reason, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	got := fault.ReasonOf(err)
	if got != reason {
		text += fmt.Sprintf(": %v", err)
	}
	r.check(got == reason, "%s: %s", text, reason)
}

package console

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Terminal is where a command shows things and asks. In tests it is a buffer.
type Terminal struct {
	Out io.Writer
	In  io.Reader
	// Colour says that Out shows it.
	Colour bool
	// Asks says that a person sits at both ends, so that Confirm can ask.
	Asks bool
	// Width and Height of what fits on one screen; 0 where all does.
	Width, Height int
}

// Stdio is the process's own terminal, or what stands in for one. NO_COLOR, set to
// anything, turns colours off (no-color.org).
func Stdio() *Terminal {
	t := &Terminal{Out: os.Stdout, In: os.Stdin}
	out := int(os.Stdout.Fd())
	if term.IsTerminal(out) {
		t.Colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
		t.Asks = term.IsTerminal(int(os.Stdin.Fd()))
		if width, height, err := term.GetSize(out); err == nil {
			t.Width, t.Height = width, height
		}
	}
	return t
}

// Printf shows text. What others wrote goes through Visible first: Printf can't tell it
// from the escapes of colours. A terminal that can't be written to is nobody to tell.
func (t *Terminal) Printf(format string, args ...any) { fmt.Fprintf(t.Out, format, args...) }

// Colours that mean the same in every command: what opens or is new, what closes or is
// gone, and what needs a look.
func (t *Terminal) Green(text string) string  { return t.paint("32", text) }
func (t *Terminal) Red(text string) string    { return t.paint("31", text) }
func (t *Terminal) Yellow(text string) string { return t.paint("33", text) }
func (t *Terminal) Bold(text string) string   { return t.paint("1", text) }
func (t *Terminal) Dim(text string) string    { return t.paint("2", text) }

// Alarm is for what must not be overlooked.
func (t *Terminal) Alarm(text string) string { return t.paint("1;97;41", text) }

func (t *Terminal) paint(code, text string) string {
	if !t.Colour || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// ErrNobodyToAsk is that of a question where no person sits at the terminal.
var ErrNobodyToAsk = errors.New("nobody can be asked here, since this is no terminal; --yes goes ahead without asking")

// Confirm asks a question that only `y` and `yes` answer with yes. An answer that never
// comes, since the person ended the program or the input, is no.
func (t *Terminal) Confirm(ctx context.Context, question string) (bool, error) {
	if !t.Asks {
		return false, ErrNobodyToAsk
	}
	t.Printf("%s [y/N] ", question)
	// Reading a terminal can't be interrupted: the goroutine stays behind until the
	// process ends, which a command does right after.
	answered := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(t.In).ReadString('\n')
		answered <- line
	}()
	select {
	case <-ctx.Done():
		t.Printf("\n")
		return false, ctx.Err()
	case line := <-answered:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return true, nil
		}
		return false, nil
	}
}

// Age words how long ago something was, and nothing for what never was.
func Age(at *timestamppb.Timestamp, now time.Time) string {
	if at == nil {
		return ""
	}
	return Remaining(max(0, now.Sub(at.AsTime()))) + " ago"
}

// Remaining words a length of time for people, to two units: `2d 3h`, `4m 10s`, `350ms`.
func Remaining(d time.Duration) string {
	const day = 24 * time.Hour
	two := func(many time.Duration, unit string, rest time.Duration, small string) string {
		if rest == 0 {
			return fmt.Sprintf("%d%s", many, unit)
		}
		return fmt.Sprintf("%d%s %d%s", many, unit, rest, small)
	}
	switch {
	case d >= day:
		return two(d/day, "d", d%day/time.Hour, "h")
	case d >= time.Hour:
		return two(d/time.Hour, "h", d%time.Hour/time.Minute, "m")
	case d >= time.Minute:
		return two(d/time.Minute, "m", d%time.Minute/time.Second, "s")
	case d >= time.Second:
		return fmt.Sprintf("%ds", d/time.Second)
	}
	return d.Round(time.Millisecond).String()
}

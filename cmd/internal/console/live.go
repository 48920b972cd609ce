package console

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// lookEvery is how often a live view looks again.
const lookEvery = time.Second

// Live shows rows as they are until ctx ends. On a terminal it draws them again in the
// same place; elsewhere each row that is new, changed or gone is a line with its time.
// While the service is away it goes on with what was there.
func (t *Terminal) Live(ctx context.Context, service string, look func(context.Context) (head Row, rows []Row, err error)) error {
	view := view{t: t, shown: map[string]string{}}
	follower := Follower{T: t, Service: service}
	return follower.Run(ctx, func(ctx context.Context) error {
		for {
			head, rows, err := look(ctx)
			if err != nil {
				view.height = 0 // what is said about it stays
				return err
			}
			follower.Heard()
			if t.Height > 0 {
				view.draw(head, rows)
			} else {
				view.tell(rows)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(lookEvery):
			}
		}
	})
}

type view struct {
	t *Terminal
	// height is how many lines stand there from the last time.
	height int
	shown  map[string]string
}

// Escapes: lines that are too long must not wrap, or more lines would stand there than
// are counted.
const (
	noWrap  = "\x1b[?7l"
	wrap    = "\x1b[?7h"
	erase   = "\x1b[J"
	upLines = "\x1b[%dA"
)

func (v *view) draw(head Row, rows []Row) {
	lines := Table(append([]Row{head}, rows...))
	if len(rows) == 0 {
		lines = []string{v.t.Dim("there are none")}
	}
	if room := v.t.Height - 2; len(lines) > room && room > 0 {
		left := len(lines) - room
		lines = append(lines[:room], v.t.Yellow(fmt.Sprintf("… %d more", left)))
	}
	up := ""
	if v.height > 0 {
		up = fmt.Sprintf(upLines, v.height)
	}
	v.t.Printf("%s%s%s%s\n%s", up, erase, noWrap, strings.Join(lines, "\n"), wrap)
	v.height = len(lines)
}

// tell prints what is new.
func (v *view) tell(rows []Row) {
	now := time.Now().Format(time.TimeOnly)
	lines := Table(rows)
	there := make(map[string]bool, len(rows))
	for i, row := range rows {
		there[row.Key] = true
		if before, known := v.shown[row.Key]; known && before == row.Facts {
			continue
		}
		v.shown[row.Key] = row.Facts
		v.t.Printf("%s  %s\n", now, lines[i])
	}
	for _, key := range slices.Sorted(maps.Keys(v.shown)) {
		if !there[key] {
			delete(v.shown, key)
			v.t.Printf("%s  %s is gone\n", now, key)
		}
	}
}

// LiveLine is one line that changes: in its place on a terminal, elsewhere below what it
// was.
type LiveLine struct {
	T    *Terminal
	said string
}

// Say shows a text, unless it stands there already.
func (l *LiveLine) Say(text string) {
	switch {
	case text == l.said:
	case l.T.Height > 0:
		l.T.Printf("\r%s%s%s%s", erase, noWrap, text, wrap)
	default:
		l.T.Printf("%s\n", text)
	}
	l.said = text
}

// End goes to a new line, for what is said next.
func (l *LiveLine) End() {
	if l.said != "" && l.T.Height > 0 {
		l.T.Printf("\n")
	}
	l.said = ""
}

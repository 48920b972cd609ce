package console

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/fault"
)

// The columns of a table stand below each other, whatever they are painted with.
func TestATable(t *testing.T) {
	paint := func(text string) string { return "<" + text + ">" }
	lines := Table([]Row{
		{Cells: []Cell{{Text: "A"}, {Text: "BB", Paint: paint}, {Text: "C"}}},
		{Cells: []Cell{{Text: "ööö", Paint: paint}, {Text: ""}, {Text: "a long last one"}}},
		{Cells: []Cell{{Text: "x"}, {Text: "y"}, {Text: ""}}},
		{},
	})
	want := "A    <BB>  C\n<ööö>      a long last one\nx    y\n"
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("laid out is\n%s\nwant\n%s", got, want)
	}
}

// On a terminal a view is drawn over itself, never higher than the screen; what is said
// while the service is away stays above it.
func TestALiveViewOnATerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var out strings.Builder
		looks := 0
		err := (&Terminal{Out: &out, Width: 80, Height: 5}).Live(ctx, "inbox", func(context.Context) (Row, []Row, error) {
			looks++
			var rows []Row
			switch looks {
			case 2:
				return Row{}, nil, fault.New(fault.JournalUnavailable, "away")
			case 3:
				for i := range 9 {
					rows = append(rows, Row{Cells: []Cell{{Text: fmt.Sprint(i)}}})
				}
			case 4:
				cancel()
			default:
				rows = []Row{{Cells: []Cell{{Text: "a"}}}}
			}
			return Row{Cells: []Cell{{Text: "HEAD"}}}, rows, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		want := strings.Join([]string{
			"^[J^[?7lHEAD\na\n^[?7h",
			"the inbox is away; trying again until it is back\nthe inbox is back\n",
			"^[J^[?7lHEAD\n0\n1\n… 7 more\n^[?7h",
			"^[4A^[J^[?7lthere are none\n^[?7h",
		}, "")
		if got := strings.ReplaceAll(out.String(), "\x1b", "^"); got != want {
			t.Errorf("drawn is\n%s\nwant\n%s", got, want)
		}
	})
}

func TestALiveViewEndsWithWhatStaysWrong(t *testing.T) {
	err := (&Terminal{Out: &strings.Builder{}}).Live(t.Context(), "inbox", func(context.Context) (Row, []Row, error) {
		return Row{}, nil, fault.New(fault.InboxNotFound, "there is no inbox bob")
	})
	if !fault.Is(err, fault.InboxNotFound) {
		t.Errorf("it gave %v", err)
	}
}

// A follower that finds nobody waits longer and longer, and says once that it does.
func TestAFollowerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var out strings.Builder
		follower := Follower{T: &Terminal{Out: &out}, Service: "gate"}
		began := time.Now()
		var waits []time.Duration
		err := follower.Run(ctx, func(context.Context) error {
			if waits = append(waits, time.Since(began)); len(waits) == 12 {
				cancel()
			}
			began = time.Now()
			return fault.New(fault.ShuttingDown, "away")
		})
		if err != nil || out.String() != "the gate is away; trying again until it is back\n" {
			t.Errorf("%v, and said was\n%s", err, &out)
		}
		for i, most := 1, firstWait; i < len(waits); i, most = i+1, min(2*most, maxWait) {
			if waits[i] < most/2 || waits[i] > most {
				t.Errorf("wait %d was %v, want at most %v", i, waits[i], most)
			}
		}
	})
}

func TestALineThatChanges(t *testing.T) {
	for height, want := range map[int]string{0: "a\nb\na\n", 24: "\r^[J^[?7la^[?7h\r^[J^[?7lb^[?7h\n\r^[J^[?7la^[?7h"} {
		var out strings.Builder
		line := LiveLine{T: &Terminal{Out: &out, Height: height}}
		for _, text := range []string{"a", "a", "b"} {
			line.Say(text)
		}
		line.End()
		line.Say("a")
		if got := strings.ReplaceAll(out.String(), "\x1b", "^"); got != want {
			t.Errorf("height %d: shown is %q, want %q", height, got, want)
		}
	}
}

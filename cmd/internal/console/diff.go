package console

import (
	"slices"
	"strings"

	"weir/internal/visible"
)

const (
	// around is how many lines that stay are shown around those that change.
	around = 3
	// maxCells bounds the work of comparing: two texts of 2,000 lines that share nothing.
	maxCells = 4_000_000
)

// edit is a line that stays (' '), goes ('-') or comes ('+').
type edit struct {
	kind byte
	line string
}

// edits turns one list of lines into another, by a longest common subsequence.
func edits(before, after []string) []edit {
	head := 0
	for head < len(before) && head < len(after) && before[head] == after[head] {
		head++
	}
	tail := 0
	for tail < len(before)-head && tail < len(after)-head && before[len(before)-1-tail] == after[len(after)-1-tail] {
		tail++
	}
	var all []edit
	add := func(kind byte, lines []string) {
		for _, line := range lines {
			all = append(all, edit{kind, line})
		}
	}
	add(' ', before[:head])
	a, b := before[head:len(before)-tail], after[head:len(after)-tail]
	if len(a)*len(b) > maxCells {
		add('-', a)
		add('+', b)
	} else {
		all = append(all, subsequence(a, b)...)
	}
	add(' ', before[len(before)-tail:])
	return all
}

func subsequence(a, b []string) []edit {
	// longest[i][j] is that of a[i:] and b[j:].
	longest := make([][]int32, len(a)+1)
	for i := range longest {
		longest[i] = make([]int32, len(b)+1)
	}
	for i, one := range slices.Backward(a) {
		for j, other := range slices.Backward(b) {
			if one == other {
				longest[i][j] = longest[i+1][j+1] + 1
			} else {
				longest[i][j] = max(longest[i+1][j], longest[i][j+1])
			}
		}
	}
	var all []edit
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			all = append(all, edit{' ', a[i]})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && longest[i+1][j] >= longest[i][j+1]:
			all = append(all, edit{'-', a[i]})
			i++
		default:
			all = append(all, edit{'+', b[j]})
			j++
		}
	}
	return all
}

// Diff shows what changes between two texts, with a few lines around it.
func (t *Terminal) Diff(before, after string) {
	all := edits(lines(before), lines(after))
	near := func(i int) bool {
		return slices.ContainsFunc(all[max(0, i-around):min(len(all), i+around+1)], func(e edit) bool { return e.kind != ' ' })
	}
	skipped := false
	for i, e := range all {
		line := string(e.kind) + " " + visible.Text(e.line)
		switch {
		case e.kind == '-':
			line = t.Red(line)
		case e.kind == '+':
			line = t.Green(line)
		case !near(i):
			skipped = true
			continue
		}
		if skipped {
			t.Printf("  %s\n", t.Dim("  ⋮"))
			skipped = false
		}
		t.Printf("  %s\n", line)
	}
	if skipped {
		t.Printf("  %s\n", t.Dim("  ⋮"))
	}
}

func lines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

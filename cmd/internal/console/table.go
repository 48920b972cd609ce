package console

import (
	"strings"
	"unicode/utf8"
)

// Cell is one text of a table. Paint colours it, if set, after it was made as wide as its
// column.
type Cell struct {
	Text  string
	Paint func(string) string
}

// Row is one line of a table or a live view.
type Row struct {
	// Key tells it from the others, and Facts hold all of it that is news when it
	// changes, unlike an age. Only live views need these.
	Key, Facts string
	Cells      []Cell
}

// Heads is the first row of a table, which names its columns.
func (t *Terminal) Heads(names ...string) Row {
	var row Row
	for _, name := range names {
		row.Cells = append(row.Cells, Cell{Text: name, Paint: t.Dim})
	}
	return row
}

// List shows a table once, and below it what is left out, if anything is; or that there
// is nothing.
func (t *Terminal) List(head Row, rows []Row, leftOut string) {
	if len(rows) == 0 {
		t.Printf("%s\n", t.Dim("there are none"))
		return
	}
	for _, line := range Table(append([]Row{head}, rows...)) {
		t.Printf("%s\n", line)
	}
	if leftOut != "" {
		t.Printf("%s\n", t.Yellow(leftOut))
	}
}

// Table lays rows out as lines whose columns stand below each other. A last cell is not
// filled up.
func Table(rows []Row) []string {
	var widths []int
	for _, row := range rows {
		for i, cell := range row.Cells[:max(0, len(row.Cells)-1)] {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell.Text))
		}
	}
	lines := make([]string, len(rows))
	for i, row := range rows {
		var b strings.Builder
		for j, cell := range row.Cells {
			text := cell.Text
			if j < len(row.Cells)-1 {
				text += strings.Repeat(" ", widths[j]-utf8.RuneCountInString(text))
			}
			if cell.Paint != nil {
				text = cell.Paint(text)
			}
			if j > 0 {
				b.WriteString("  ")
			}
			b.WriteString(text)
		}
		lines[i] = strings.TrimRight(b.String(), " ")
	}
	return lines
}

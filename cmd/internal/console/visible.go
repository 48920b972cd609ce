package console

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Visible makes one line of a text that somebody else wrote, safe to show: what a reader
// would not see, would see elsewhere than it is, or what would command a terminal,
// stands there as a \u escape. The gate escapes what it shows too; this holds whatever
// the gate did, or whoever it was that answered.
func Visible(text string) string { return escape(text, "") }

// VisibleLines is Visible for text of several lines. A tab becomes spaces.
func VisibleLines(text string) string { return escape(strings.ReplaceAll(text, "\t", "    "), "\n") }

func escape(text, keep string) string {
	// A byte that is no character is a C1 control to a terminal in Latin-1.
	if utf8.ValidString(text) && !strings.ContainsFunc(text, hidden) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case strings.ContainsRune(keep, r) || !hidden(r):
			b.WriteRune(r) // U+FFFD for a byte that is no character
		case r > 0xFFFF:
			// JSON writes characters beyond the first plane as two halves, so what
			// was JSON means the same still.
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xD800+(r>>10), 0xDC00+(r&0x3FF))
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// hidden is every character but the plain space that shows as nothing, or is not known to
// show as something: controls, formats, private use, other spaces, fillers and selectors.
func hidden(r rune) bool {
	return r != ' ' && (!unicode.IsGraphic(r) ||
		unicode.In(r, unicode.Zs, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) ||
		r == '\u2800') // a Braille cell without dots
}

// Package visible shows text that somebody else wrote to people who rely on what it
// looks like.
package visible

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text makes one line of a text, safe to show: what a reader would not see, would see
// elsewhere than it is, or what would command a terminal, stands there as a \u escape.
// JSON text means the same after it, since such characters can only stand inside of
// strings.
func Text(text string) string { return escape(text, "") }

// Lines is Text for text of several lines. A tab becomes spaces.
func Lines(text string) string { return escape(strings.ReplaceAll(text, "\t", "    "), "\n") }

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
			// JSON writes characters beyond the first plane as two halves.
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

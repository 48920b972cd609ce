package gate

import (
	"fmt"
	"strings"
	"unicode"
)

// visible shows as \u escapes what a reader would not see, or would see
// elsewhere than it is: control, bidirectional, zero-width and tag characters,
// and line and paragraph separators. In JSON text the result means the same,
// since such characters can only stand inside of strings.
func visible(text string) string {
	if !strings.ContainsFunc(text, hidden) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case !hidden(r):
			b.WriteRune(r)
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

// brailleBlank is a letter that is drawn as nothing.
const brailleBlank = 0x2800

// hidden is every character that is to be ignored in display, every format character (Cf holds the bidirectional, zero-width and
// tag ones), control character and separator other than the plain space.
func hidden(r rune) bool {
	return r != ' ' && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Zs) ||
		unicode.In(r, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) || r == brailleBlank
}

package visible

import (
	"testing"
	"unicode"
)

func TestNothingCommandsTheTerminal(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"plain":                    {"Grüße, 世界 €", "Grüße, 世界 €"},
		"escape sequence":          {"a\x1b[2Jb", `a\u001b[2Jb`},
		"C1 control":               {"a\u009b2Jb", `a\u009b2Jb`},
		"C1 control, as one byte":  {"a\x9b2Jb", "a\uFFFD2Jb"},
		"bell, backspace, newline": {"a\a\b\r\nb", `a\u0007\u0008\u000d\u000ab`},
		"right-to-left override":   {"gpj.\u202eexe", `gpj.\u202eexe`},
		"zero width":               {"pay\u200b/send", `pay\u200b/send`},
		"tag":                      {"x\U000E0041", `x\udb40\udc41`},
		"Hangul filler":            {"x\u3164", `x\u3164`},
		"no-break space":           {"a\u00a0b", `a\u00a0b`},
		"empty Braille cell":       {"\u2800", `\u2800`},
		"private use":              {"\ue0b0", `\ue0b0`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Text(c.text); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	if got := Lines("a\n\tb\x1bc"); got != "a\n    b\\u001bc" {
		t.Errorf("lines: %q", got)
	}
	for r := rune(0); r <= 0xE0FFF; r++ { // above are private use alone
		if r == 0x20000 {
			r = 0xE0000 // ideographs, and nothing
		}
		for _, shown := range Text(string(r)) {
			if shown != ' ' && unicode.In(shown, unicode.C, unicode.Z) || !unicode.IsGraphic(shown) {
				t.Fatalf("%U shows as %U", r, shown)
			}
		}
	}
}

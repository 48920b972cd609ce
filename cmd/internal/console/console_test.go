package console

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/cmd/internal/home"
	"weir/internal/fault"
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
			if got := Visible(c.text); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	if got := VisibleLines("a\n\tb\x1bc"); got != "a\n    b\\u001bc" {
		t.Errorf("lines: %q", got)
	}
	for r := rune(0); r <= 0xE0FFF; r++ { // above are private use alone
		if r == 0x20000 {
			r = 0xE0000 // ideographs, and nothing
		}
		for _, shown := range Visible(string(r)) {
			if shown != ' ' && unicode.In(shown, unicode.C, unicode.Z) || !unicode.IsGraphic(shown) {
				t.Fatalf("%U shows as %U", r, shown)
			}
		}
	}
}

func TestErrorsForPeople(t *testing.T) {
	refused := fault.New(fault.FieldInvalid, "this policy\x1b[2J does not compile").
		Field("policy.rules[0].when", "undeclared reference\u202e").GRPCStatus().Err()
	got := Explain(refused)
	want := "FIELD_INVALID: this policy\\u001b[2J does not compile\n  policy.rules[0].when: undeclared reference\\u202e"
	if got.Error() != want {
		t.Errorf("%q\nwant\n%q", got, want)
	}
	if !fault.Is(got, fault.FieldInvalid) {
		t.Error("the reason is lost")
	}

	token := fault.New(fault.TokenInvalid, "the token has expired").GRPCStatus().Err()
	hidden := fault.New(fault.PeerUnavailable, "a service weir needs could not be reached").Wrap(token)
	for name, err := range map[string]error{"of a stream": token, "of a call": hidden} {
		if got := Explain(err).Error(); !strings.HasPrefix(got, "TOKEN_INVALID: the token has expired") || !strings.Contains(got, "--token") {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := Explain(status.Error(codes.Unavailable, "connection refused")).Error(); !strings.Contains(got, "PEER_UNAVAILABLE") {
		t.Errorf("%q", got)
	}
	if Explain(nil) != nil || !errors.Is(Explain(io.EOF), io.EOF) || Explain(io.EOF).Error() != "EOF" {
		t.Error("what is no call's error was changed")
	}
}

func TestATokenThatIsNotThere(t *testing.T) {
	folder := t.TempDir()
	for want, c := range map[string]Connection{
		"weir keys":                             {Addr: "127.0.0.1:1", Data: home.Folder(folder)},
		filepath.Join(folder, "tokens"):         {Addr: "127.0.0.1:1", Data: home.Folder(folder)},
		"--token: stat " + folder + "/mine.jwt": {Addr: "127.0.0.1:1", Token: filepath.Join(folder, "mine.jwt")},
	} {
		if _, err := c.Dial("admin"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v is not about %s", err, want)
		}
	}
}

func TestConfirm(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "Yes\n": true, "n\n": false, "\n": false, "": false, "yeah\n": false} {
		var out strings.Builder
		terminal := &Terminal{Out: &out, In: strings.NewReader(answer), Asks: true}
		if got, err := terminal.Confirm(t.Context(), "Sure?"); got != want || err != nil {
			t.Errorf("%q: %v, %v", answer, got, err)
		}
		if out.String() != "Sure? [y/N] " {
			t.Errorf("asked %q", &out)
		}
	}
	if yes, err := (&Terminal{Out: io.Discard, In: strings.NewReader("y\n")}).Confirm(t.Context(), "Sure?"); yes || !errors.Is(err, ErrNobodyToAsk) {
		t.Errorf("without a terminal: %v, %v", yes, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	silent, _ := io.Pipe()
	if yes, err := (&Terminal{Out: io.Discard, In: silent, Asks: true}).Confirm(ended, "Sure?"); yes || !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v, %v", yes, err)
	}
}

func TestRemaining(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"2d 3h": 51*time.Hour + 59*time.Minute, "1h": time.Hour, "4m 10s": 250 * time.Second, "59s": 59900 * time.Millisecond, "50ms": 50 * time.Millisecond,
	} {
		if got := Remaining(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

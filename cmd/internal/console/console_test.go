package console

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/cmd/internal/home"
	"weir/internal/fault"
)

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

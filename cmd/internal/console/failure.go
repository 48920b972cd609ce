package console

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/status"

	"weir/internal/fault"
	"weir/internal/visible"
)

// Exit ends the program with its code. Whoever returns it has said why already, so main
// prints nothing more.
type Exit int

func (e Exit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Failed is an Exit for a command that did what it should and found something wrong.
const Failed Exit = 1

// Explain puts the error of a call in words for the person who typed the command: the
// reason to look up, the message, and each field that is at fault on a line of its own.
// An error that is no gRPC status comes back as it is, and nil as nil.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	if _, called := status.FromError(err); !called {
		return err
	}
	f := fault.From(err)
	// serve.Dial hides from a service's clients that its own token was refused. Here
	// there is nobody behind us, and that is the very thing to know.
	if cause := errors.Unwrap(f); f.Reason() == fault.PeerUnavailable && cause != nil {
		if inner := fault.From(cause); inner.Kind() == fault.KindUnauthenticated {
			f = inner
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", visible.Text(string(f.Reason())), visible.Lines(f.Message()))
	for _, v := range f.Violations() {
		fmt.Fprintf(&b, "\n  %s: %s", visible.Text(v.Field), visible.Text(v.Description))
	}
	if hint := hints[f.Kind()]; hint != "" {
		b.WriteString("\n  " + hint)
	}
	if wait := f.RetryAfter(); wait > 0 {
		fmt.Fprintf(&b, "\n  it may work again in %s", Remaining(wait))
	}
	return &explained{text: b.String(), cause: err}
}

// hints say what to do where the gate can't know what the person has in hand.
var hints = map[fault.Kind]string{
	fault.KindUnauthenticated: "another token: --data DIR for a ready-made one, --token FILE for your own; `weir token` signs one",
	fault.KindForbidden:       "--token FILE calls as somebody else",
}

// explained keeps the error that it words, for errors.Is and fault.Is.
type explained struct {
	text  string
	cause error
}

func (e *explained) Error() string { return e.text }

func (e *explained) Unwrap() error { return e.cause }

// Package fault is weir's one vocabulary of refusals and failures. Every error that
// leaves a service is an *Error: a reason that clients switch on, a message for
// people, and what the google.rpc details can carry.
package fault

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Domain is the ErrorInfo domain of every error made here. Reasons under another
// domain are somebody else's words.
const Domain = "weir"

// An error travels in HTTP/2 trailers, where proxies commonly allow 8 KiB for
// everything. What doesn't fit is cut, since an error must never be lost to its size.
const (
	maxMessage    = 512
	maxText       = 200 // one description, field path, metadata key or value
	maxViolations = 8
	maxMetadata   = 4
)

// Error is a refusal or failure. It is immutable: the chainable methods return
// changed copies, so an Error may be shared as a package variable.
type Error struct {
	reason     Reason
	kind       Kind // of reason; for a reason only a newer peer knows, of its code
	message    string
	violations []Violation
	metadata   map[string]string
	retry      time.Duration
	cause      error
}

// Violation names a field of the request and what is wrong with it.
type Violation struct{ Field, Description string }

// New makes an error whose message the client will read: it must not hold secrets,
// other tenants' ids or the text of internal errors (Wrap takes those).
func New(reason Reason, format string, args ...any) *Error {
	return &Error{
		reason:  reason,
		kind:    reason.Kind(),
		message: text(fmt.Sprintf(format, args...), maxMessage),
	}
}

// BadPageToken refuses a page token that the list in question did not give.
func BadPageToken() *Error {
	return New(PageTokenInvalid, "the page token is not one that this list gave").
		Field("page_token", "must be a next_page_token of the same list, unchanged")
}

// Field adds a field of the request that is at fault.
func (e *Error) Field(field, description string) *Error {
	c := *e
	if len(c.violations) < maxViolations {
		c.violations = append(slices.Clip(c.violations), Violation{text(field, maxText), text(description, maxText)})
	}
	return &c
}

// With adds a fact a program may want, such as the id of the approval that is pending.
func (e *Error) With(key, value string) *Error {
	c := *e
	key = text(key, maxText)
	c.metadata = maps.Clone(c.metadata)
	if c.metadata == nil {
		c.metadata = make(map[string]string, 1)
	}
	if _, there := c.metadata[key]; there || len(c.metadata) < maxMetadata {
		c.metadata[key] = text(value, maxText)
	}
	return &c
}

// Retry tells the client how long to wait before the same call may succeed.
func (e *Error) Retry(after time.Duration) *Error {
	c := *e
	c.retry = after
	return &c
}

// Wrap keeps what caused the error for the log and for errors.Is and errors.As.
// The client never sees it.
func (e *Error) Wrap(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// Error is the text for logs: unlike Message it includes the cause.
func (e *Error) Error() string {
	s := string(e.reason) + ": " + e.message
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.cause }

// Is makes errors.Is compare reasons, so a sentinel still matches after Field, With
// or Wrap made another copy of it.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.reason == e.reason
}

// Reason is what clients switch on.
func (e *Error) Reason() Reason { return e.reason }

// Kind is the sort of thing that went wrong.
func (e *Error) Kind() Kind { return e.kind }

// Message is the text the client reads.
func (e *Error) Message() string { return e.message }

// Violations are the fields added by Field, in order.
func (e *Error) Violations() []Violation { return slices.Clone(e.violations) }

// Detail is the message with what each field should be, for where an error is kept or
// passed on as text.
func (e *Error) Detail() string {
	detail := e.message
	for _, v := range e.violations {
		detail += "; " + v.Field + " " + v.Description
	}
	return detail
}

// Metadata is the value added by With under key, or "".
func (e *Error) Metadata(key string) string { return e.metadata[key] }

// RetryAfter is the wait suggested to the client; 0 where trying again won't help.
func (e *Error) RetryAfter() time.Duration {
	if e.retry > 0 {
		return e.retry
	}
	return kinds[e.kind].retry
}

// ReasonOf is the reason err would reach a client with; "" for nil.
func ReasonOf(err error) Reason {
	if err == nil {
		return ""
	}
	return From(err).reason
}

// Is reports whether err, ours or a peer's, carries the reason.
func Is(err error, reason Reason) bool { return ReasonOf(err) == reason }

// text makes s fit to be sent. Protobuf refuses invalid UTF-8, and an error whose
// details can't be encoded would arrive without its reason.
func text(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	cut := limit - len("…")
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

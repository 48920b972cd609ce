// Package strictjson gives JSON text its one canonical form, so that what a
// person approved, what is stored and what runs can be compared by a digest.
//
// RFC 8785 alone is not enough for that: it presumes input that has one
// meaning. So text is refused where parsers differ on what it says (a key that
// stands twice, bytes that are not UTF-8, half of a surrogate pair), and where
// the canonical form would say something else (a number that a double does
// not hold).
package strictjson

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/fault"
)

// MaxDepth is how deep arrays and objects may be nested.
const MaxDepth = 64

// maxPointer bounds the JSON pointer in a message; its end is the part that
// helps.
const maxPointer = 120

// Canonical gives the canonical bytes (RFC 8785) of one JSON value. Two texts
// have the same bytes exactly if they hold the same value: keys in any order,
// numbers by their decimal value, strings by their characters. Applied to its
// own result it changes nothing.
//
// Whatever has no such bytes is JSON_INVALID. The message says what and where,
// and repeats nothing of the text but object keys, since a value may be a
// secret. The work follows the size of the text, which the caller bounds, and
// not of what a hostile text says, such as 1e999999999.
func Canonical(text string) ([]byte, error) {
	if strings.HasPrefix(text, "\uFEFF") {
		return nil, invalid(text, 0, "", "a byte order mark is not JSON")
	}
	if at := badUTF8(text); at >= 0 {
		return nil, invalid(text, at, "", "the text is not UTF-8")
	}
	if err := check(text); err != nil {
		return nil, err
	}
	value := jsontext.Value(text)
	if err := value.Canonicalize(); err != nil {
		return nil, fault.New(fault.Bug, "checked JSON has no canonical form").Wrap(err)
	}
	return value, nil
}

// CanonicalField is Canonical for a field of a request, which the refusal names.
func CanonicalField(field, text string) ([]byte, error) {
	canonical, err := Canonical(text)
	if err != nil {
		refusal := fault.From(err)
		return nil, refusal.Field(field, refusal.Message())
	}
	return canonical, nil
}

// Digest is the SHA-256 of canonical bytes in lower-case hex. Input that is
// absent has no bytes, so its digest is that of nil, and no JSON value shares it.
func Digest(canonical []byte) string {
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}

// check refuses what is not exactly one value with one meaning.
func check(text string) error {
	decoder := jsontext.NewDecoder(strings.NewReader(text))
	for {
		token, err := decoder.ReadToken()
		if errors.Is(err, io.EOF) {
			return invalid(text, len(text), "", "there is no value")
		}
		if err != nil {
			return syntax(text, err)
		}
		end := int(decoder.InputOffset())
		if decoder.StackDepth() > MaxDepth {
			return invalid(text, end-1, "", fmt.Sprintf("arrays and objects are nested deeper than %d", MaxDepth))
		}
		if token.Kind() == jsontext.KindNumber && !exact(token.String()) {
			return invalid(text, end-len(token.String()), decoder.StackPointer(), "the number is not one that a double keeps exactly")
		}
		if decoder.StackDepth() > 0 {
			continue
		}
		if rest := strings.TrimLeft(text[end:], " \t\r\n"); rest != "" {
			return invalid(text, len(text)-len(rest), "", "text follows the value")
		}
		return nil
	}
}

// syntax puts an error of the parser in words of our own: its own quote the text.
func syntax(text string, err error) error {
	var e *jsontext.SyntacticError
	if !errors.As(err, &e) {
		return fault.New(fault.Bug, "JSON in memory cannot be read").Wrap(err)
	}
	at := min(int(e.ByteOffset), len(text))
	rest := text[at:]
	what := "this is not JSON"
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		// The pointer names the key, and so does the message.
		return invalid(text, at, e.JSONPointer, "a key stands twice in one object")
	case errors.Is(err, jsontext.ErrNonStringName):
		what = "an object key is not a string"
	case errors.Is(err, io.ErrUnexpectedEOF):
		at, what = len(text), "the text ends inside of the value"
	case surrogate(rest):
		what = "half of a surrogate pair is not a character"
	case strings.HasPrefix(rest, `\`):
		what = "there is no such escape"
	case rest != "" && rest[0] < ' ':
		what = "a control character is not escaped"
	}
	return invalid(text, at, e.JSONPointer, what)
}

// surrogate says whether s begins with the escape of one.
func surrogate(s string) bool {
	return len(s) >= 4 && s[:2] == `\u` && strings.IndexByte("dD", s[2]) >= 0 && strings.IndexByte("89abcdefABCDEF", s[3]) >= 0
}

// invalid says what is wrong where. Lines and columns count from 1, columns in
// characters.
func invalid(text string, at int, pointer jsontext.Pointer, what string) error {
	before := text[:at]
	line := strings.Count(before, "\n") + 1
	column := utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]) + 1
	where := fmt.Sprintf("line %d, column %d", line, column)
	if pointer != "" {
		where += fmt.Sprintf(", at %q", shorten(string(pointer)))
	}
	return fault.New(fault.JSONInvalid, "%s (%s)", what, where)
}

// shorten keeps the end of a pointer, whose keys may be of any length.
func shorten(pointer string) string {
	if len(pointer) <= maxPointer {
		return pointer
	}
	start := len(pointer) - maxPointer
	for !utf8.RuneStart(pointer[start]) {
		start++
	}
	return "…" + pointer[start:]
}

// badUTF8 gives the offset of the first byte that is no part of a character, or -1.
func badUTF8(s string) int {
	if utf8.ValidString(s) {
		return -1
	}
	for i, r := range s {
		if r != utf8.RuneError {
			continue
		}
		if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
			return i
		}
	}
	return -1
}

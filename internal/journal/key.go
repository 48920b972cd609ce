package journal

import (
	"fmt"
	"strings"

	"weir/internal/fault"
)

// Key names one aggregate. Two different keys never meet: neither as subjects
// nor as Redis keys, whatever characters their parts hold.
type Key struct {
	Tenant string
	Kind   string
	ID     string
}

// String is for people and logs.
func (k Key) String() string { return k.Tenant + "/" + k.Kind + "/" + k.ID }

// Escaped joins the escaped parts by dots. It is what subjects and Redis keys
// are made of.
func (k Key) Escaped() string {
	return Escape(k.Tenant) + "." + Escape(k.Kind) + "." + Escape(k.ID)
}

// Subject is the one literal subject that holds all events of the aggregate.
func (k Key) Subject(service string) string {
	return "weir." + service + "." + k.Escaped()
}

// maxSubject keeps a subject within the 4,096 bytes of a protocol line, which
// holds more beside it. A longer line would cost the connection that all share.
const maxSubject = 2048

// check refuses a key that no event can be stored under.
func (k Key) check(service string) error {
	if k.Tenant == "" || k.Kind == "" || k.ID == "" {
		return fault.New(fault.IDMalformed, "an id is empty")
	}
	if len(k.Subject(service)) > maxSubject {
		return fault.New(fault.IDMalformed, "an id is too long")
	}
	return nil
}

// ParseKey reads what Escaped wrote.
func ParseKey(escaped string) (Key, error) {
	parts := strings.Split(escaped, ".")
	if len(parts) != 3 {
		return Key{}, fmt.Errorf("key %q has %d parts, want 3", escaped, len(parts))
	}
	for i, part := range parts {
		raw, err := unescape(part)
		if err != nil {
			return Key{}, fmt.Errorf("key %q: %w", escaped, err)
		}
		parts[i] = raw
	}
	return Key{Tenant: parts[0], Kind: parts[1], ID: parts[2]}, nil
}

// parseSubject reads what Subject wrote.
func parseSubject(subject string) (Key, error) {
	prefix, rest, ok := strings.Cut(subject, ".")
	_, escaped, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || prefix != "weir" {
		return Key{}, fmt.Errorf("subject %q is not weir.<service>.<tenant>.<kind>.<id>", subject)
	}
	return ParseKey(escaped)
}

const hexDigits = "0123456789ABCDEF"

// Escape percent-encodes every byte but A-Z a-z 0-9 _ and -. It is injective,
// so `a.b` and `a-b` stay apart, and its result holds no character that means
// something in a subject (`.`, `*`, `>`) or in a Redis key (`{`, `}`).
func Escape(s string) string {
	n := 0
	for i := range len(s) {
		if !plain(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	out := make([]byte, 0, len(s)+2*n)
	for i := range len(s) {
		if c := s[i]; plain(c) {
			out = append(out, c)
		} else {
			out = append(out, '%', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return string(out)
}

// unescape is the inverse of Escape. It refuses what Escape never writes, so
// that every key has exactly one escaped form.
func unescape(s string) (string, error) {
	if s == "" {
		return "", fmt.Errorf("an empty part")
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if c := s[i]; plain(c) {
			out = append(out, c)
			continue
		}
		if s[i] != '%' || i+2 >= len(s) {
			return "", fmt.Errorf("%q is not escaped", s)
		}
		hi, lo := strings.IndexByte(hexDigits, s[i+1]), strings.IndexByte(hexDigits, s[i+2])
		if hi < 0 || lo < 0 || plain(byte(hi<<4|lo)) {
			return "", fmt.Errorf("%q is not escaped", s)
		}
		out = append(out, byte(hi<<4|lo))
		i += 2
	}
	return string(out), nil
}

func plain(c byte) bool {
	return 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}

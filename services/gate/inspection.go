package gate

import (
	"bytes"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// inspected is an input as people see it, and what was seen in it.
type inspected struct {
	shown       *string  // the text, with what looks like a credential masked
	credentials []string // JSON pointers to what was masked
	leaves      []leaf
}

// leaf is a scalar in an input.
type leaf struct {
	pointer string
	key     string // the nearest object key, in snake_case
	text    string // the scalar in lower case
}

func (l leaf) is(key, text string) bool { return l.key == key && l.text == text }

// masked stands for what looks like a credential. People are told where, not what.
const masked = "‹masked: looks like a credential›"

// inspectInput looks through strict JSON text. The shown text is the given one
// where nothing had to be masked.
func inspectInput(text *string) inspected {
	if text == nil {
		return inspected{}
	}
	d := json.NewDecoder(strings.NewReader(*text))
	d.UseNumber()
	var value any
	if d.Decode(&value) != nil {
		return inspected{shown: text} // strict JSON was asked for before: this cannot be
	}
	found := inspected{shown: text}
	value = found.walk("", "", false, value)
	if len(found.credentials) == 0 {
		return found
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(value) == nil {
		shown := strings.TrimSuffix(b.String(), "\n")
		found.shown = &shown
	}
	return found
}

// walk visits a value and gives it back with credentials masked. Whatever stands
// below a key that credentials are kept under is one.
func (i *inspected) walk(pointer, key string, secret bool, value any) any {
	secret = secret || secretKey.MatchString(key)
	switch v := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if secretText.MatchString(name) {
				// The key itself is one; a pointer to it would tell it.
				i.credentials = append(i.credentials, pointer+"/"+masked)
				v[masked] = masked
				delete(v, name)
				continue
			}
			escaped := strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
			v[name] = i.walk(pointer+"/"+escaped, snakeCase(name), secret, v[name])
		}
	case []any:
		for n := range v {
			v[n] = i.walk(pointer+"/"+strconv.Itoa(n), key, secret, v[n])
		}
	case json.Number:
		if secret {
			i.credentials = append(i.credentials, pointer)
			return masked
		}
	case string:
		if v != "" && (secret || secretText.MatchString(v)) {
			i.credentials = append(i.credentials, pointer)
			return masked
		}
		i.leaves = append(i.leaves, leaf{pointer, key, strings.ToLower(v)})
	case nil:
		i.leaves = append(i.leaves, leaf{pointer, key, "null"})
	case bool:
		i.leaves = append(i.leaves, leaf{pointer, key, strconv.FormatBool(v)})
	}
	return value
}

// where gives the pointer of the first leaf that answers to a description.
func (i inspected) where(is func(leaf) bool) (string, bool) {
	for _, l := range i.leaves {
		if is(l) {
			return "input" + l.pointer, true
		}
	}
	return "", false
}

// has says whether any leaf stands under one of the keys.
func (i inspected) has(keys ...string) bool {
	return slices.ContainsFunc(i.leaves, func(l leaf) bool { return slices.Contains(keys, l.key) })
}

var (
	// secretKey are keys under which credentials are kept, whatever they look like.
	secretKey = regexp.MustCompile(`(^|[_.-])(password|passwd|passphrase|secret|api[_-]?key|token|authorization|cookie|private[_-]?key|client[_-]?secret|credentials?)$`)
	// secretText are well-known shapes of credentials, wherever they stand.
	secretText = regexp.MustCompile(`AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}|xox[abeoprs]-[A-Za-z0-9-]{10,}|` +
		`\bsk[-_][A-Za-z0-9_-]{20,}|AIza[0-9A-Za-z_-]{35}|-----BEGIN [A-Z ]*PRIVATE KEY|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.|://[^/\s:@]+:[^/\s:@]+@`)
)

// snakeCase writes a key in lower case, with its words apart: dbPassword is
// db_password.
func snakeCase(key string) string {
	var b strings.Builder
	for n, r := range key {
		if n > 0 && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

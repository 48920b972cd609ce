package search

import (
	"reflect"
	"strings"
	"testing"

	"weir/internal/fault"
)

func TestParseQuery(t *testing.T) {
	t.Parallel()
	word := func(words ...string) (phrases [][]string) {
		for _, w := range words {
			phrases = append(phrases, strings.Fields(w))
		}
		return phrases
	}
	sixteen := strings.Repeat("w ", 15) + `"a phrase"`
	for query, want := range map[string]any{
		"word":                 word("word"),
		"  Two\tWORDS\n":       word("two", "words"),
		"the of and is":        word("the", "of", "and", "is"),
		`"one phrase"`:         word("one phrase"),
		`a "b  c" d`:           word("a", "b c", "d"),
		`a"b c"d`:              word("a", "b c", "d"),
		`"a" ""`:               word("a"),
		`"a, b!"`:              word("a b"),
		"e-mail":               word("e mail"),
		"field:value":          word("field value"),
		"conversation/start":   word("conversation start"),
		"wild* fuzzy~2 -not":   word("wild", "fuzzy 2", "not"),
		"+must (a|b) [1 TO 2]": word("must", "a b", "1", "to", "2"),
		"a^2 /b.*/":            word("a 2", "b"),
		`back\slash`:           word("back slash"),
		"don't 3.14 1,000":     word("don't", "3.14", "1,000"),
		"ÄRGER straße":         word("ärger", "straße"),
		"你好 world":             word("你 好", "world"),
		"a * b":                word("a", "b"),
		sixteen:                append(word(strings.Fields(strings.Repeat("w ", 15))...), []string{"a", "phrase"}),

		strings.Repeat("x", MaxQuery): word(strings.Repeat("x", MaxQuery)),
		strings.Repeat("ä", MaxQuery): word(strings.Repeat("ä", MaxQuery)),

		"":                              "the query has no word to search for",
		" \t":                           "the query has no word to search for",
		"* - !":                         "the query has no word to search for",
		`""`:                            "the query has no word to search for",
		`"`:                             "the query has a double quote without its other one",
		`a "b`:                          "the query has a double quote without its other one",
		`"a" "`:                         "the query has a double quote without its other one",
		sixteen + " w":                  "the query has 17 words and phrases, more than 16",
		strings.Repeat("x", MaxQuery+1): "the query has 201 characters, more than 200",
	} {
		got, err := ParseQuery(query)
		if refusal, ok := want.(string); ok {
			if fault.From(err).Reason() != fault.FieldInvalid || fault.From(err).Message() != refusal {
				t.Errorf("%q: %v, want %s", query, err, refusal)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got.phrases, want) {
			t.Errorf("%q: %q, %v; want %q", query, got.phrases, err, want)
		}
	}
}

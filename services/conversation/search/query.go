package search

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"weir/internal/fault"
)

// What a query holds at most.
const (
	MaxQuery   = 200 // characters
	MaxPhrases = 16  // words and phrases
)

// Query is what to search for: phrases that must all be there. A word is a phrase
// of one.
type Query struct {
	phrases [][]string
}

// ParseQuery reads words, which may stand anywhere, and phrases in double quotes,
// whose words must follow each other. Nothing else means anything: `*`, `~` and
// `field:` are text as in a message, where signs between words are passed over. So
// `e-mail` is the phrase of `e` and `mail`, as are words of Chinese.
//
// The error is FIELD_INVALID and says what is wrong.
func ParseQuery(query string) (Query, error) {
	if n := utf8.RuneCountInString(query); n > MaxQuery {
		return Query{}, invalid("has %d characters, more than %d", n, MaxQuery)
	}
	var q Query
	for n, between := range strings.Split(query, `"`) {
		if n%2 == 1 {
			q.add(between)
			continue
		}
		for word := range strings.FieldsSeq(between) {
			q.add(word)
		}
	}
	switch {
	case strings.Count(query, `"`)%2 == 1:
		return Query{}, invalid("has a double quote without its other one")
	case len(q.phrases) == 0:
		return Query{}, invalid("has no word to search for")
	case len(q.phrases) > MaxPhrases:
		return Query{}, invalid("has %d words and phrases, more than %d", len(q.phrases), MaxPhrases)
	}
	return q, nil
}

// add takes a piece of a query apart as text is that is indexed. A piece of nothing
// but signs is nothing.
func (q *Query) add(piece string) {
	var phrase []string
	for _, token := range analyzer.Analyze([]byte(piece)) {
		phrase = append(phrase, string(token.Term))
	}
	if phrase != nil {
		q.phrases = append(q.phrases, phrase)
	}
}

// words are all words of the query, each once.
func (q Query) words() []string {
	var words []string
	seen := make(map[string]bool)
	for _, phrase := range q.phrases {
		for _, word := range phrase {
			if !seen[word] {
				seen[word] = true
				words = append(words, word)
			}
		}
	}
	return words
}

func invalid(format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	return fault.New(fault.FieldInvalid, "the query %s", what).Field("query", what)
}

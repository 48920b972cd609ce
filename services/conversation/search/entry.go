package search

import (
	"bytes"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/blevesearch/bleve/v2/analysis"
	"github.com/blevesearch/bleve/v2/analysis/token/length"
	"github.com/blevesearch/bleve/v2/analysis/token/lowercase"
	"github.com/blevesearch/bleve/v2/analysis/tokenizer/unicode"
	"github.com/blevesearch/bleve/v2/document"
	bleve "github.com/blevesearch/bleve_index_api"
)

// Entry is one message as it is searched.
type Entry struct {
	Tenant       string
	Conversation string
	Position     int64
	// Sequence of the event that said it.
	Sequence uint64
	// Text as Text gives it. What is beyond MaxText is not searched.
	Text string
}

// The fields of an entry. Each conversation of a tenant is one word, and so is each
// tenant, so ids that look alike are different words. Order is what an entry is
// sorted by; it is the only field with a value beside its words, which is kept as
// one word and not as a number, of which bleve would keep sixteen.
const (
	fieldText         = "text"
	fieldConversation = "conversation"
	fieldTenant       = "tenant"
	fieldOrder        = "order"
)

const (
	// asPlaces keeps where words stand, for phrases.
	asPlaces = bleve.IndexField | bleve.IncludeTermVectors
	asWord   = bleve.IndexField | bleve.SkipFreqNorm
	asOrder  = asWord | bleve.DocValues
)

// analyzer takes text apart into words: by the rules of Unicode, in lower case. It
// has no list of words to leave out and knows no grammar.
var analyzer = &analysis.DefaultAnalyzer{
	CharFilters: []analysis.CharFilter{colons{}},
	Tokenizer:   unicode.NewUnicodeTokenizer(),
	TokenFilters: []analysis.TokenFilter{
		lowercase.NewLowerCaseFilter(),
		// No query can hold a longer one, so it is left out; its place stays empty.
		length.NewLengthFilter(1, MaxQuery),
	},
}

// colons makes a colon part words, which it doesn't by bleve's version of the rules:
// who searches for `open` finds `status:open`.
type colons struct{}

func (colons) Filter(text []byte) []byte { return bytes.ReplaceAll(text, []byte(":"), []byte(" ")) }

func (e Entry) document() *document.Document {
	d := document.NewDocument(name(e.Tenant, e.Conversation, e.Position))
	word := func(field, value string, options bleve.FieldIndexingOptions) {
		d.AddField(document.NewTextFieldCustom(field, nil, []byte(value), options, nil))
	}
	word(fieldTenant, e.Tenant, asWord)
	word(fieldConversation, conversationName(e.Tenant, e.Conversation), asWord)
	word(fieldOrder, order(e.Sequence, e.Position), asOrder)
	d.AddField(document.NewTextFieldCustom(fieldText, nil, []byte(bounded(e.Text)), asPlaces, analyzer))
	return d
}

// conversationName names one conversation of one tenant. Ids are escaped, so two
// conversations never have one name, whatever their ids hold.
func conversationName(tenant, conversation string) string {
	return url.PathEscape(tenant) + "/" + url.PathEscape(conversation)
}

// name is the id of an entry's document.
func name(tenant, conversation string, position int64) string {
	return conversationName(tenant, conversation) + "/" + strconv.FormatInt(position, 10)
}

// parseName reads what name wrote.
func parseName(name string) (conversation string, position int64, err error) {
	parts := strings.Split(name, "/")
	if len(parts) != 3 {
		return "", 0, fmt.Errorf("%q is not the name of an entry", name)
	}
	if conversation, err = url.PathUnescape(parts[1]); err != nil {
		return "", 0, err
	}
	position, err = strconv.ParseInt(parts[2], 10, 64)
	return conversation, position, err
}

// order sorts like the sequence, then the position.
func order(sequence uint64, position int64) string {
	return fmt.Sprintf("%016x%016x", sequence, uint64(position))
}

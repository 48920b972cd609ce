package search

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	conversationv1 "weir/gen/conversation/v1"
)

// MaxText is how much of one message is searched, in bytes of what Text gives. It
// bounds what a message can cost the index; what comes later in a longer one is not
// found.
const MaxText = 64 << 10

// Text gives what of a message is searched, at most MaxText: text; strings and
// numbers in data, and in the inputs and outputs of calls, but not the keys beside
// them; names of operations; messages of results; notes of approvals and turns; URIs
// of blobs. A phrase may begin in one of these and end in the next.
func Text(parts []*conversationv1.Part) string {
	var t pieces
	for _, part := range parts {
		switch p := part.GetPart().(type) {
		case *conversationv1.Part_Text:
			t.add(p.Text)
		case *conversationv1.Part_Data:
			t.addJSON(p.Data.GetJson())
		case *conversationv1.Part_Call:
			t.add(p.Call.GetOperation())
			t.addJSON(p.Call.GetInputJson())
		case *conversationv1.Part_Result:
			t.addJSON(p.Result.GetOutputJson())
			t.add(p.Result.GetMessage())
		case *conversationv1.Part_Approval:
			t.add(p.Approval.GetOperation())
			t.add(p.Approval.GetNote())
		case *conversationv1.Part_Blob:
			t.add(p.Blob.GetUri())
		case *conversationv1.Part_Turn:
			t.add(p.Turn.GetNote())
		}
	}
	return bounded(t.text.String())
}

// pieces of text, each on a line of its own.
type pieces struct {
	text strings.Builder
}

// full says that nothing more of the message is searched.
func (t *pieces) full() bool { return t.text.Len() > MaxText }

func (t *pieces) add(piece string) {
	if piece == "" || t.full() {
		return
	}
	if t.text.Len() > 0 {
		t.text.WriteByte('\n')
	}
	t.text.WriteString(piece)
}

// addJSON adds the values of a JSON text as they are written, as far as it is JSON.
func (t *pieces) addJSON(json string) {
	d := jsontext.NewDecoder(strings.NewReader(json), jsontext.AllowDuplicateNames(true))
	for !t.full() {
		token, err := d.ReadToken()
		if err != nil {
			return
		}
		switch token.Kind() {
		case jsontext.KindString:
			// In an object, every other string is a key.
			if in, n := d.StackIndex(d.StackDepth()); in == jsontext.KindBeginObject && n%2 == 1 {
				continue
			}
			t.add(token.String())
		case jsontext.KindNumber:
			t.add(token.String())
		}
	}
}

// bounded cuts text to MaxText, before the word that would be cut in two if there is
// a space before it.
func bounded(text string) string {
	if len(text) <= MaxText {
		return text
	}
	end := MaxText
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	if space := strings.LastIndexFunc(text[:end], unicode.IsSpace); space >= 0 {
		end = space
	}
	return text[:end]
}

// Package transfer is how conversations leave a mesh and come into one: as lines of
// JSON that `weir conversation export` writes and `weir conversation import` reads,
// and out of the files of others.
package transfer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protojson"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/visible"
)

// maxLineBytes is what ImportConversation takes in one line.
const maxLineBytes = 3 << 20

// Line is one record on its way into a mesh.
type Line struct {
	// Text is what is sent. It may hold more than Record knows, of a newer export.
	Text   string
	Record *conversationv1.Record
	// Place is where it stands in its file, for people: `line 7`.
	Place string
}

// Exported reads lines of an export, one at a time. Names of fields may be those of the
// protos or lowerCamelCase; blank lines are passed over. It ends with the first error,
// which says in which line.
func Exported(r io.Reader) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, maxLineBytes+len("\r\n"))
		number := 0
		for lines.Scan() {
			number++
			line := Line{Text: lines.Text(), Place: fmt.Sprintf("line %d", number)}
			if strings.TrimSpace(line.Text) == "" {
				continue
			}
			var err error
			if line.Record, err = parse(line.Text); err != nil {
				err = fmt.Errorf("%s: %w", line.Place, err)
			}
			if !yield(line, err) || err != nil {
				return
			}
		}
		switch err := lines.Err(); {
		case errors.Is(err, bufio.ErrTooLong):
			yield(Line{}, fmt.Errorf("line %d: is longer than the %d bytes that a record may have", number+1, maxLineBytes))
		case err != nil:
			yield(Line{}, fmt.Errorf("line %d: %w", number+1, err))
		}
	}
}

func parse(line string) (*conversationv1.Record, error) {
	record := &conversationv1.Record{}
	// What a newer mesh exported and this program doesn't know is for the other mesh to
	// judge, which gets the line as it is.
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(line), record); err != nil {
		return nil, fmt.Errorf("is no record of an export: %s", visible.Text(err.Error()))
	}
	if record.GetRecord() == nil {
		return nil, errors.New("is no record of an export: it is neither a conversation nor a message")
	}
	return record, nil
}

// render gives a record the same line each time, which protojson alone doesn't.
func render(record *conversationv1.Record) (string, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(record)
	if err != nil {
		return "", err
	}
	line := jsontext.Value(text)
	if err := line.Compact(); err != nil {
		return "", err
	}
	return string(line), nil
}

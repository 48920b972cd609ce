package conversation

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/benbjohnson/immutable"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
)

// codec lays a conversation out as a Redis hash:
//
//	root       what does not grow, as JSON
//	m:<id>     of each message, position, sequence and fingerprint
//	p:<run>    of 128 positions in a row, each one's sequence and size
//
// A message touches one of each. A reader asks for what it needs: the root says
// who may see and where the end is, an m: field finds one message, p: fields
// find a page.
type codec struct{}

const (
	messagePrefix = "m:"
	runPrefix     = "p:"
)

func messageField(id string) string { return messagePrefix + id }
func runField(run int64) string     { return runPrefix + strconv.FormatInt(run, 10) }

// runFields names the fields that hold a span's places, and the place before it.
func runFields(s span) []string {
	var fields []string
	for run := runOf(max(1, s.first-1)); run <= runOf(s.last); run++ {
		fields = append(fields, runField(run))
	}
	return fields
}

func (codec) Touched(_ conversation, e *conversationv1.Event) []string {
	fields := []string{aggregate.RootField}
	if m := e.GetMessageAppended(); m != nil {
		fields = append(fields, messageField(m.GetMessageId()), runField(runOf(m.GetPosition())))
	}
	return fields
}

func (codec) Names(c conversation) []string {
	names := make([]string, 0, 1+c.messages.Len()+c.runs.Len())
	names = append(names, aggregate.RootField)
	for itr := c.messages.Iterator(); !itr.Done(); {
		id, _, _ := itr.Next()
		names = append(names, messageField(id))
	}
	for itr := c.runs.Iterator(); !itr.Done(); {
		run, _, _ := itr.Next()
		names = append(names, runField(run))
	}
	return names
}

func (codec) Encode(c conversation, name string) ([]byte, error) {
	if name == aggregate.RootField {
		return json.Marshal(c.root)
	}
	if id, ok := strings.CutPrefix(name, messagePrefix); ok {
		known, ok := c.message(id)
		if !ok {
			return nil, nil
		}
		return encodeEntry(known), nil
	}
	number, err := parseRunField(name)
	if err != nil {
		return nil, err
	}
	run, _ := c.runs.Get(number)
	return encodeRun(run), nil
}

func (codec) Decode(fields map[string]string) (conversation, error) {
	top, err := aggregate.DecodeRoot[root](fields)
	if err != nil {
		return conversation{}, err
	}
	messages := immutable.NewMapBuilder[string, entry](idHasher{})
	runs := immutable.NewMapBuilder[int64, []place](nil)
	for name, content := range fields {
		if name == aggregate.RootField {
			continue
		}
		if id, ok := strings.CutPrefix(name, messagePrefix); ok {
			known, err := decodeEntry([]byte(content))
			if err != nil {
				return conversation{}, fmt.Errorf("field %q: %w", name, err)
			}
			messages.Set(id, known)
			continue
		}
		number, err := parseRunField(name)
		if err != nil {
			return conversation{}, err
		}
		run, err := decodeRun([]byte(content))
		if err != nil {
			return conversation{}, fmt.Errorf("field %q: %w", name, err)
		}
		runs.Set(number, run)
	}
	return conversation{root: top, messages: messages.Map(), runs: runs.Map()}, nil
}

func (codec) Size(c conversation) int {
	return 512 + len(c.Title) + 80*len(c.Participants) + messageBytes*int(c.Head)
}

func parseRunField(name string) (int64, error) {
	digits, ok := strings.CutPrefix(name, runPrefix)
	if !ok {
		return 0, fmt.Errorf("there is no field %q", name)
	}
	number, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || runField(number) != name {
		return 0, fmt.Errorf("there is no field %q", name)
	}
	return number, nil
}

var errTruncated = errors.New("ends too early")

func encodeEntry(known entry) []byte {
	content := binary.AppendUvarint(nil, uint64(known.Position))
	content = binary.AppendUvarint(content, known.Sequence)
	return append(content, known.Fingerprint[:]...)
}

func decodeEntry(content []byte) (entry, error) {
	position, content, err := uvarint(content)
	if err != nil {
		return entry{}, err
	}
	sequence, content, err := uvarint(content)
	if err != nil {
		return entry{}, err
	}
	known := entry{Position: int64(position), Sequence: sequence}
	if len(content) != len(known.Fingerprint) {
		return entry{}, fmt.Errorf("the fingerprint has %d bytes, want %d", len(content), len(known.Fingerprint))
	}
	copy(known.Fingerprint[:], content)
	return known, nil
}

// encodeRun writes sequences as what each adds to the one before, which takes a
// byte or two.
func encodeRun(run []place) []byte {
	var content []byte
	last := uint64(0)
	for _, p := range run {
		content = binary.AppendUvarint(content, p.Sequence-last)
		content = binary.AppendUvarint(content, uint64(p.Bytes))
		last = p.Sequence
	}
	return content
}

func decodeRun(content []byte) ([]place, error) {
	var run []place
	last := uint64(0)
	for len(content) > 0 {
		var step, bytes uint64
		var err error
		if step, content, err = uvarint(content); err != nil {
			return nil, err
		}
		if bytes, content, err = uvarint(content); err != nil {
			return nil, err
		}
		last += step
		run = append(run, place{Sequence: last, Bytes: uint32(bytes)})
	}
	if len(run) > runLength {
		return nil, fmt.Errorf("the run has %d places, want at most %d", len(run), runLength)
	}
	return run, nil
}

func uvarint(content []byte) (uint64, []byte, error) {
	value, n := binary.Uvarint(content)
	if n <= 0 {
		return 0, nil, errTruncated
	}
	return value, content[n:], nil
}

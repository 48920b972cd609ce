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
//	p:<run>    of 64 positions in a row, each one's sequence, size and id hash
//
// A message touches the root and one run. A reader asks for what it needs: the
// root says who may see and where the end is, runs find a page.
type codec struct{}

const runPrefix = "p:"

func runField(run int64) string { return runPrefix + strconv.FormatInt(run, 10) }

// runFields names the fields that hold a span's places.
func runFields(s span) []string {
	var fields []string
	for run := runOf(s.first); run <= runOf(s.last); run++ {
		fields = append(fields, runField(run))
	}
	return fields
}

// piece puts each pieceRuns runs into a piece of a snapshot, and the root into one
// by itself.
func piece(field string) int {
	if run, err := parseRunField(field); err == nil {
		return 1 + int(run/pieceRuns)
	}
	return 0
}

// Touched names the root and the runs of the messages that an event placed. A
// deletion leaves no run, so the whole document is written anew.
func (codec) Touched(_ conversation, e *conversationv1.Event) []string {
	if e.GetConversationDeleted() != nil || e.GetConversationCreated() != nil {
		return nil
	}
	fields := []string{aggregate.RootField}
	last := int64(-1)
	for _, position := range placedBy(e) {
		if run := runOf(position); run != last {
			fields, last = append(fields, runField(run)), run
		}
	}
	return fields
}

// placedBy is the positions of the messages that an event holds.
func placedBy(e *conversationv1.Event) []int64 {
	var positions []int64
	for _, r := range heldBy(aggregate.Recorded[*conversationv1.Event]{Event: e}, 0).Messages {
		positions = append(positions, r.GetPosition())
	}
	return positions
}

func (codec) Names(c conversation) []string {
	names := make([]string, 0, 1+c.runs.Len())
	names = append(names, aggregate.RootField)
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
	runs := immutable.NewMapBuilder[int64, []place](nil)
	for name, content := range fields {
		if name == aggregate.RootField {
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
	c := conversation{root: top, runs: runs.Map()}
	c.ids = newIDs(c.runs)
	return c, nil
}

func (codec) Size(c conversation) int {
	size := 1024 + len(c.Title) + 80*len(c.Participants) + messageBytes*int(c.Head-c.base())
	for _, g := range c.Groups {
		size += 64 * len(g.Members)
	}
	for _, t := range c.Turns {
		size += 64 * (len(t.Waiting) + len(t.Had))
	}
	return size
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

// encodeRun writes sequences as what each adds to the one before, which takes a
// byte or two. An erasure moves a place ahead, so a step may be back.
func encodeRun(run []place) []byte {
	var content []byte
	last := int64(0)
	for _, p := range run {
		content = binary.AppendVarint(content, int64(p.Sequence)-last)
		content = binary.AppendUvarint(content, uint64(p.Bytes))
		content = binary.BigEndian.AppendUint64(content, uint64(p.ID))
		last = int64(p.Sequence)
	}
	return content
}

func decodeRun(content []byte) ([]place, error) {
	var run []place
	last := int64(0)
	for len(content) > 0 {
		step, n := binary.Varint(content)
		if n <= 0 {
			return nil, errTruncated
		}
		content = content[n:]
		bytes, n := binary.Uvarint(content)
		if n <= 0 || len(content) < n+8 {
			return nil, errTruncated
		}
		id := binary.BigEndian.Uint64(content[n:])
		content = content[n+8:]
		last += step
		run = append(run, place{Sequence: uint64(last), Bytes: uint32(bytes), ID: idHash(id)})
	}
	if len(run) > runLength {
		return nil, fmt.Errorf("the run has %d places, want at most %d", len(run), runLength)
	}
	return run, nil
}

package transfer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"regexp"

	conversationv1 "weir/gen/conversation/v1"
)

// idPattern is that of the ids of conversations and messages, callIDPattern that of calls.
var (
	idPattern     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	callIDPattern = regexp.MustCompile(`^[!-~]{1,128}$`)
)

// reservedPrefix begins the ids of the messages that weir writes itself.
const reservedPrefix = "weir."

// names gives ids that are unique in a conversation, and the same ones each time.
type names struct {
	prefix   string // of those that are made
	pattern  *regexp.Regexp
	reserved map[string]bool
	given    map[string]bool
}

func newNames(prefix string, pattern *regexp.Regexp) *names {
	return &names{prefix, pattern, make(map[string]bool), make(map[string]bool)}
}

// reserve keeps an id for who brings it. All are reserved before the first is given.
func (n *names) reserve(id string) { n.reserved[id] = true }

// give is the wanted id where that is one and it was not given before, or else one made
// of what content sums up.
func (n *names) give(wanted string, content func(summer)) string {
	id := wanted
	for attempt := 0; id == "" || n.given[id] || !n.pattern.MatchString(id) || (attempt > 0 && n.reserved[id]); attempt++ {
		sum := newSummer()
		content(sum)
		sum.number(attempt)
		id = n.prefix + sum.hex(12)
	}
	n.given[id] = true
	return id
}

// summer sums up content. Every text goes in behind its length and every choice behind its
// number, so that no two contents are the same bytes; and none of it depends on how a
// library encodes, so that a file imported again gives the same ids in years.
type summer struct{ hash.Hash }

func newSummer() summer { return summer{sha256.New()} }

func (s summer) number(n int) { _, _ = s.Write(binary.AppendUvarint(nil, uint64(n))) }

func (s summer) text(text string) {
	s.number(len(text))
	_, _ = s.Write([]byte(text))
}

func (s summer) message(position int, author string, parts []*conversationv1.Part) {
	s.number(position)
	s.text(author)
	s.number(len(parts))
	for _, part := range parts {
		switch p := part.GetPart().(type) {
		case *conversationv1.Part_Text:
			s.number(1)
			s.text(p.Text)
		case *conversationv1.Part_Data:
			s.number(2)
			s.text(p.Data.GetMediaType())
			s.text(p.Data.GetJson())
		case *conversationv1.Part_Call:
			s.number(3)
			s.text(p.Call.GetCallId())
			s.text(p.Call.GetOperation())
			s.text(p.Call.GetInputJson())
		case *conversationv1.Part_Result:
			s.number(4)
			s.text(p.Result.GetCallId())
			s.text(p.Result.GetState())
			s.text(p.Result.GetOutputJson())
			s.text(p.Result.GetMessage())
		}
	}
}

// hex is the beginning of the sum.
func (s summer) hex(bytes int) string { return hex.EncodeToString(s.Sum(nil)[:bytes]) }

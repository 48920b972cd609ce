package conversation

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash"
	"strconv"
	"strings"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/strictjson"
)

const (
	// maxMessageBytes bounds the parts of a message that a caller sends, all
	// together. Calls and results are as large as the registry let them be.
	maxMessageBytes = 256 << 10
	// reservedPrefix begins the ids of the messages that weir writes. Callers'
	// ids may not, so the two never meet.
	reservedPrefix = "weir."
	// registrySubject is the author of results.
	registrySubject = "service:registry"
)

// message is the command that appends one.
type message struct {
	Conversation string
	ID           string
	Author       string
	Parts        []*conversationv1.Part
	To           []string
	ReplyTo      string
	// ExpectedHead is the head that the author saw, nil for any.
	ExpectedHead *int64

	origin      origin
	fingerprint fingerprint
}

// origin is how a message comes about.
type origin int

const (
	// said: a member's own words.
	said origin = iota
	// called: a member invoked an operation.
	called
	// ended: the operation of a call came to its end.
	ended
)

// originRules are what origins differ in.
type originRules struct {
	// byMember: the author must be a member.
	byMember bool
	// chosenID: the author chose the id, so the same id may come with other
	// content. Weir's own ids name one call or one result.
	chosenID bool
	// counted: needs a place below maxMessages.
	counted bool
}

func (o origin) rules() originRules {
	return [...]originRules{
		said:   {byMember: true, chosenID: true, counted: true},
		called: {byMember: true, counted: true},
		ended:  {},
	}[o]
}

// say checks what a member wants to say, as far as that can be told without the
// conversation, and makes the command of it.
func say(m message) (message, error) {
	m.origin = said
	if strings.HasPrefix(m.ID, reservedPrefix) {
		return message{}, fault.New(fault.IDMalformed, "the message id is one of weir's own").
			Field("message_id", "must not begin with "+reservedPrefix)
	}
	if err := checkParts(m.Parts); err != nil {
		return message{}, err
	}
	m.fingerprint = m.sum()
	return m, nil
}

// call is the command that shows in a conversation that caller invoked an operation.
func call(conversation, caller string, c *conversationv1.Call) message {
	m := message{
		Conversation: conversation,
		ID:           callID(c.GetInvocationId()),
		Author:       caller,
		Parts:        []*conversationv1.Part{{Part: &conversationv1.Part_Call{Call: c}}},
		origin:       called,
	}
	m.fingerprint = m.sum()
	return m
}

// result is the command that shows how a call ended. It replies to the call, so
// without the call it is refused as any reply to nothing is.
func result(conversation string, r *conversationv1.Result) message {
	m := message{
		Conversation: conversation,
		ID:           resultID(r.GetInvocationId()),
		Author:       registrySubject,
		Parts:        []*conversationv1.Part{{Part: &conversationv1.Part_Result{Result: r}}},
		ReplyTo:      callID(r.GetInvocationId()),
		origin:       ended,
	}
	m.fingerprint = m.sum()
	return m
}

// callID and resultID derive message ids from an invocation's, whatever its
// length, by a hash: hearing of an invocation twice gives the same id.
func callID(invocation string) string   { return reservedPrefix + "call." + digest(invocation) }
func resultID(invocation string) string { return reservedPrefix + "result." + digest(invocation) }

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// checkParts refuses what a caller may not send.
func checkParts(parts []*conversationv1.Part) error {
	total := 0
	for i, p := range parts {
		switch part := p.GetPart().(type) {
		case *conversationv1.Part_Text:
			total += len(part.Text)
		case *conversationv1.Part_Data:
			total += len(part.Data.GetMediaType()) + len(part.Data.GetJson())
		default:
			return fault.New(fault.FieldInvalid, "a message is made of text and data").
				Field(partField(i), "is neither text nor data; weir writes calls and results itself")
		}
	}
	if total > maxMessageBytes {
		return fault.New(fault.TooLarge, "the parts of a message hold at most %d bytes, these hold %d", maxMessageBytes, total).
			Field("parts", fmt.Sprintf("hold more than %d bytes together", maxMessageBytes)).
			With("limit", strconv.Itoa(maxMessageBytes))
	}
	for i, p := range parts {
		if data := p.GetData(); data != nil {
			if _, err := strictjson.CanonicalField(partField(i)+".data.json", data.GetJson()); err != nil {
				return err
			}
		}
	}
	return nil
}

func partField(i int) string { return "parts[" + strconv.Itoa(i) + "]" }

// fingerprintFormat names the encoding below. Fingerprints are kept as long as
// the journal, so what is summed must never depend on a library's encoding, and
// a change here takes a new name and must still know the old ones.
const fingerprintFormat = "weir.message.1"

// sum is the fingerprint. Every text goes in behind its length and every choice
// behind its number, so no two contents are summed as the same bytes.
func (m message) sum() fingerprint {
	s := summer{sha256.New()}
	s.text(fingerprintFormat)
	s.text(m.Author)
	s.number(len(m.Parts))
	for _, p := range m.Parts {
		switch part := p.GetPart().(type) {
		case *conversationv1.Part_Text:
			s.number(1)
			s.text(part.Text)
		case *conversationv1.Part_Data:
			s.number(2)
			s.text(part.Data.GetMediaType())
			s.text(part.Data.GetJson())
		case *conversationv1.Part_Call:
			s.number(3)
			s.text(part.Call.GetInvocationId())
			s.text(part.Call.GetOperation())
			s.optional(part.Call.InputJson)
		case *conversationv1.Part_Result:
			s.number(4)
			s.text(part.Result.GetInvocationId())
			s.text(part.Result.GetState())
			s.optional(part.Result.OutputJson)
			s.text(part.Result.GetReason())
			s.text(part.Result.GetMessage())
		}
	}
	s.number(len(m.To))
	for _, subject := range m.To {
		s.text(subject)
	}
	s.text(m.ReplyTo)
	return fingerprint(s.Sum(nil))
}

type summer struct{ hash.Hash }

func (s summer) number(n int) {
	_, _ = s.Write(binary.AppendUvarint(nil, uint64(n)))
}

func (s summer) text(t string) {
	s.number(len(t))
	_, _ = s.Write([]byte(t))
}

func (s summer) optional(t *string) {
	if t == nil {
		s.number(0)
		return
	}
	s.number(1)
	s.text(*t)
}

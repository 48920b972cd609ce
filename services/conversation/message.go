package conversation

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash"
	"slices"
	"strconv"
	"strings"
	"time"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/strictjson"
)

const (
	// maxMessageBytes bounds the parts of a message that a caller sends, all
	// together, and maxBatchBytes those of all messages of one call. What the
	// registry tells of is as large as the registry let it be.
	maxMessageBytes = 256 << 10
	maxBatchBytes   = 1 << 20
	// reservedPrefix begins the ids of the messages that weir writes. Callers'
	// ids may not, so the two never meet.
	reservedPrefix = "weir."
	// registrySubject and gateSubject are the authors of results, and of approval
	// notes that nobody decided.
	registrySubject = "service:registry"
	gateSubject     = "service:gate"
)

// States that parts hold as text.
const (
	pending            = "PENDING"
	succeeded          = "SUCCEEDED"
	failed             = "FAILED"
	conversationClosed = "CONVERSATION_CLOSED"
)

// message is one that is to be appended.
type message struct {
	ID         string
	Author     string
	Parts      []*conversationv1.Part
	To         []string
	ReplyTo    string
	Pinned     bool
	Summarizes *conversationv1.Range
	// OnBehalfOf, Session and Operation are how the author came to say it: nothing
	// that readers see or a retry must repeat.
	OnBehalfOf         []string
	Session, Operation string
	// Time, Addressed and Erasure are what an import brings.
	Time      time.Time
	Addressed []string
	Erasure   conversationv1.Erasure
	// field is where in the request it stands, "" or such as `messages[2].`.
	field       string
	fingerprint fingerprint
}

// saidBy checks what a member wants to say, as far as that can be told without
// the conversation.
func saidBy(author, field string, m *conversationv1.NewMessage) (message, error) {
	if strings.HasPrefix(m.GetMessageId(), reservedPrefix) {
		return message{}, fault.New(fault.IDMalformed, "the message id is one of weir's own").
			Field(field+"message_id", "must not begin with "+reservedPrefix)
	}
	if err := checkParts(field, m.GetParts()); err != nil {
		return message{}, err
	}
	if s := m.GetSummarizes(); s != nil && s.GetFirst() > s.GetLast() {
		return message{}, fault.New(fault.FieldInvalid, "the range of a summary is empty").
			Field(field+"summarizes", "first must not be after last")
	}
	if (m.GetPinned() || m.GetSummarizes() != nil) && hasCalls(m.GetParts()) {
		return message{}, fault.New(fault.FieldInvalid, "pinned messages and summaries stand apart from others").
			Field(field+"parts", "hold a call or a result, which must stand where it happened")
	}
	return message{
		ID: m.GetMessageId(), Author: author, Parts: m.GetParts(), To: m.GetTo(), ReplyTo: m.GetReplyTo(),
		Pinned: m.GetPinned(), Summarizes: m.GetSummarizes(), field: field,
	}.signed(), nil
}

func hasCalls(parts []*conversationv1.Part) bool {
	return slices.ContainsFunc(parts, func(p *conversationv1.Part) bool { return p.GetCall() != nil || p.GetResult() != nil })
}

// signed has the fingerprint of its content.
func (m message) signed() message {
	m.fingerprint = m.sum()
	return m
}

// appended is the message as its event keeps it, addressed to some subjects.
func (m message) appended(addressed []string) *conversationv1.AppendedMessage {
	return &conversationv1.AppendedMessage{
		MessageId: m.ID, Author: m.Author, Parts: m.Parts, To: m.To, ReplyTo: m.ReplyTo,
		Fingerprint: m.fingerprint[:], Addressed: addressed, Pinned: m.Pinned, Summarizes: m.Summarizes,
		CreateTime: timeToProto(m.Time), Erasure: m.Erasure,
		OnBehalfOf: m.OnBehalfOf, Session: m.Session, Operation: m.Operation,
	}
}

// note is a message of one part that weir writes.
func note(id, author, replyTo string, part *conversationv1.Part) message {
	return message{ID: id, Author: author, Parts: []*conversationv1.Part{part}, ReplyTo: replyTo}.signed()
}

// callNote shows that a caller invoked an operation, and resultNote how that ended.
// A result replies to its call, so without the call it is refused as any reply to
// nothing is.
func callNote(caller string, c *conversationv1.Call) message {
	return note(callID(c.GetInvocationId()), caller, "", &conversationv1.Part{Part: &conversationv1.Part_Call{Call: c}})
}

func resultNote(r *conversationv1.Result) message {
	return note(resultID(r.GetInvocationId()), registrySubject, callID(r.GetInvocationId()),
		&conversationv1.Part{Part: &conversationv1.Part_Result{Result: r}})
}

// askNote says that a person is asked, and answerNote what came of it. What somebody
// decided is theirs, so it is erased with all else that they said.
func askNote(a *conversationv1.ApprovalNote) message {
	return note(askID(a.GetApprovalId()), gateSubject, "", &conversationv1.Part{Part: &conversationv1.Part_Approval{Approval: a}})
}

func answerNote(a *conversationv1.ApprovalNote) message {
	return note(answerID(a.GetApprovalId()), cmp.Or(a.GetDecidedBy(), gateSubject), askID(a.GetApprovalId()),
		&conversationv1.Part{Part: &conversationv1.Part_Approval{Approval: a}})
}

// The ids of weir's messages are made of the ids of what they tell of, whatever
// their length, by a hash: hearing of it twice gives the same message.
func callID(invocation string) string   { return derivedID("call", invocation) }
func resultID(invocation string) string { return derivedID("result", invocation) }
func askID(approval string) string      { return derivedID("ask", approval) }
func answerID(approval string) string   { return derivedID("answer", approval) }

// closingID is that of the result which a call gets because its conversation closes.
func closingID(c openCall) string {
	if c.Invocation != "" {
		return resultID(c.Invocation)
	}
	// The call's place makes it unique: tools may use a call id again.
	return derivedID("closed", strconv.FormatInt(c.Position, 10)+" "+c.Call)
}

// turnID is that of the record of a member's turn at a message to a group.
func turnID(message, group, member string) string {
	return derivedID("turn", message+" "+group+" "+member)
}

func derivedID(kind, of string) string {
	sum := sha256.Sum256([]byte(of))
	return reservedPrefix + kind + "." + base64.RawURLEncoding.EncodeToString(sum[:])
}

// checkParts refuses what a caller may not send.
func checkParts(field string, parts []*conversationv1.Part) error {
	for i, p := range parts {
		name := partField(field, i)
		switch part := p.GetPart().(type) {
		case *conversationv1.Part_Text, *conversationv1.Part_Data, *conversationv1.Part_Blob:
		case *conversationv1.Part_Call:
			if part.Call.GetInvocationId() != "" || part.Call.GetCallId() == "" {
				return fault.New(fault.FieldInvalid, "a call of a tool has a call_id of its own").
					Field(name+".call.call_id", "must be set, and invocation_id not: weir writes its invocations itself")
			}
		case *conversationv1.Part_Result:
			if part.Result.GetInvocationId() != "" || part.Result.GetCallId() == "" {
				return fault.New(fault.FieldInvalid, "a result names a call by its call_id").
					Field(name+".result.call_id", "must be set, and invocation_id not: weir writes the results of its invocations itself")
			}
			if s := part.Result.GetState(); s != succeeded && s != failed {
				return fault.New(fault.FieldInvalid, "a result succeeded or failed").
					Field(name+".result.state", "must be "+succeeded+" or "+failed)
			}
		default:
			return fault.New(fault.FieldInvalid, "a message is made of text, data, blobs, calls and results").
				Field(name, "is none of these; weir writes approvals and turns itself")
		}
	}
	if total := partsBytes(parts); total > maxMessageBytes {
		return fault.New(fault.TooLarge, "the parts of a message hold at most %d bytes, these hold %d", maxMessageBytes, total).
			Field(field+"parts", fmt.Sprintf("hold more than %d bytes together", maxMessageBytes)).
			With("limit", strconv.Itoa(maxMessageBytes))
	}
	for i, p := range parts {
		if err := checkJSON(partField(field, i), p); err != nil {
			return err
		}
	}
	return nil
}

// checkJSON refuses JSON that is not strict, wherever a part holds any.
func checkJSON(field string, p *conversationv1.Part) error {
	var err error
	switch part := p.GetPart().(type) {
	case *conversationv1.Part_Data:
		_, err = strictjson.CanonicalField(field+".data.json", part.Data.GetJson())
	case *conversationv1.Part_Call:
		if part.Call.InputJson != nil {
			_, err = strictjson.CanonicalField(field+".call.input_json", part.Call.GetInputJson())
		}
	case *conversationv1.Part_Result:
		if part.Result.OutputJson != nil {
			_, err = strictjson.CanonicalField(field+".result.output_json", part.Result.GetOutputJson())
		}
	}
	return err
}

// partsBytes is how much parts hold of what a caller wrote.
func partsBytes(parts []*conversationv1.Part) int {
	total := 0
	for _, p := range parts {
		switch part := p.GetPart().(type) {
		case *conversationv1.Part_Text:
			total += len(part.Text)
		case *conversationv1.Part_Data:
			total += len(part.Data.GetMediaType()) + len(part.Data.GetJson())
		case *conversationv1.Part_Blob:
			total += len(part.Blob.GetMediaType()) + len(part.Blob.GetUri())
		case *conversationv1.Part_Call:
			total += len(part.Call.GetOperation()) + len(part.Call.GetInputJson()) + len(part.Call.GetCallId())
		case *conversationv1.Part_Result:
			r := part.Result
			total += len(r.GetOutputJson()) + len(r.GetReason()) + len(r.GetMessage()) + len(r.GetCallId())
		}
	}
	return total
}

func partField(field string, i int) string { return field + "parts[" + strconv.Itoa(i) + "]" }

// fingerprint is the SHA-256 over a message's author and content.
type fingerprint [sha256.Size]byte

// fingerprintFormat names the encoding below. Fingerprints are kept as long as
// the journal, so what is summed must never depend on a library's encoding, and
// a change here takes a new name and must still know the old ones.
const fingerprintFormat = "weir.message.2"

// sum is the fingerprint. Every text goes in behind its length and every choice
// behind its number, so no two contents are summed as the same bytes.
func (m message) sum() fingerprint {
	s := summer{sha256.New()}
	s.text(fingerprintFormat)
	s.text(m.Author)
	s.number(len(m.Parts))
	for _, p := range m.Parts {
		s.part(p)
	}
	s.number(len(m.To))
	for _, subject := range m.To {
		s.text(subject)
	}
	s.text(m.ReplyTo)
	s.flag(m.Pinned)
	s.number(int(m.Summarizes.GetFirst()))
	s.number(int(m.Summarizes.GetLast()))
	return fingerprint(s.Sum(nil))
}

type summer struct{ hash.Hash }

func (s summer) part(p *conversationv1.Part) {
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
		s.text(part.Call.GetCallId())
	case *conversationv1.Part_Result:
		s.number(4)
		s.text(part.Result.GetInvocationId())
		s.text(part.Result.GetState())
		s.optional(part.Result.OutputJson)
		s.text(part.Result.GetReason())
		s.text(part.Result.GetMessage())
		s.text(part.Result.GetCallId())
	case *conversationv1.Part_Approval:
		s.number(5)
		s.text(part.Approval.GetApprovalId())
		s.text(part.Approval.GetState())
	case *conversationv1.Part_Blob:
		s.number(6)
		s.text(part.Blob.GetUri())
		s.text(part.Blob.GetMediaType())
		s.number(int(part.Blob.GetSize()))
		s.text(part.Blob.GetSha256())
	case *conversationv1.Part_Turn:
		s.number(7)
		s.text(part.Turn.GetGroup())
		s.text(part.Turn.GetMember())
		s.number(int(part.Turn.GetOutcome()))
		s.text(part.Turn.GetMessageId())
		s.text(part.Turn.GetNote())
	}
}

func (s summer) number(n int) {
	_, _ = s.Write(binary.AppendUvarint(nil, uint64(n)))
}

func (s summer) text(t string) {
	s.number(len(t))
	_, _ = s.Write([]byte(t))
}

func (s summer) flag(set bool) {
	if set {
		s.number(1)
		return
	}
	s.number(0)
}

func (s summer) optional(t *string) {
	s.flag(t != nil)
	if t != nil {
		s.text(*t)
	}
}

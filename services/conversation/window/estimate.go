package window

import (
	"math"

	conversationv1 "weir/gen/conversation/v1"
)

// Estimate says how much of a budget a message takes, at least 0. It looks at
// nothing but the message.
type Estimate func(*conversationv1.Message) int64

// defaultBytesPerToken is what a token budget means that does not say.
const defaultBytesPerToken = 4

// Bytes is how many bytes of text the parts of a message hold: the lengths of all
// their strings. What is around them when they are sent does not count.
func Bytes(m *conversationv1.Message) int64 {
	var n int64
	for _, p := range m.GetParts() {
		n += int64(partBytes(p))
	}
	return n
}

func partBytes(p *conversationv1.Part) int {
	switch p := p.GetPart().(type) {
	case *conversationv1.Part_Text:
		return len(p.Text)
	case *conversationv1.Part_Data:
		return len(p.Data.GetMediaType()) + len(p.Data.GetJson())
	case *conversationv1.Part_Call:
		c := p.Call
		return len(c.GetInvocationId()) + len(c.GetOperation()) + len(c.GetInputJson()) + len(c.GetCallId())
	case *conversationv1.Part_Result:
		r := p.Result
		return len(r.GetInvocationId()) + len(r.GetState()) + len(r.GetOutputJson()) +
			len(r.GetReason()) + len(r.GetMessage()) + len(r.GetCallId())
	case *conversationv1.Part_Approval:
		a := p.Approval
		n := len(a.GetApprovalId()) + len(a.GetOperation()) + len(a.GetState()) +
			len(a.GetRequester()) + len(a.GetDecidedBy()) + len(a.GetNote())
		for _, scope := range a.GetApproverScopes() {
			n += len(scope)
		}
		return n
	case *conversationv1.Part_Blob:
		b := p.Blob
		return len(b.GetUri()) + len(b.GetMediaType()) + len(b.GetSha256())
	case *conversationv1.Part_Turn:
		t := p.Turn
		return len(t.GetGroup()) + len(t.GetMember()) + len(t.GetMessageId()) + len(t.GetNote())
	}
	return 0
}

// Tokens estimates by a budget's own figures.
func Tokens(b *conversationv1.TokenBudget) Estimate {
	perToken, perMessage := b.GetBytesPerToken(), b.GetTokensPerMessage()
	if perToken == 0 {
		perToken = defaultBytesPerToken
	}
	return func(m *conversationv1.Message) int64 {
		return int64(math.Ceil(float64(Bytes(m))/perToken)) + perMessage
	}
}

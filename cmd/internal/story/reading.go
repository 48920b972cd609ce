package story

import (
	"context"

	"google.golang.org/grpc"

	conversationv1 "weir/gen/conversation/v1"
)

// transcript is a conversation, sorted by what its parts are.
type transcript struct {
	messages []*conversationv1.Message
	texts    []*conversationv1.Message
	calls    []*conversationv1.Call
	results  []*conversationv1.Result
	exact    bool // positions are 1, 2, 3 …
}

func (s *story) said(ctx context.Context) (transcript, error) { return s.transcript(ctx, s.alice) }

func (s *story) transcript(ctx context.Context, as grpc.CallOption) (transcript, error) {
	page, err := s.messages.ListMessages(ctx, &conversationv1.ListMessagesRequest{ConversationId: conversation}, as)
	t := transcript{messages: page.GetMessages(), exact: true}
	for i, message := range page.GetMessages() {
		t.exact = t.exact && message.GetPosition() == int64(i+1)
		for _, part := range message.GetParts() {
			switch part := part.GetPart().(type) {
			case *conversationv1.Part_Text:
				t.texts = append(t.texts, message)
			case *conversationv1.Part_Call:
				t.calls = append(t.calls, part.Call)
			case *conversationv1.Part_Result:
				t.results = append(t.results, part.Result)
			}
		}
	}
	return t, err
}

func (s *story) read(ctx context.Context) error {
	t, err := until(ctx, func(ctx context.Context) (transcript, error) { return s.transcript(ctx, s.bob) },
		func(t transcript) bool { return len(t.results) > 0 })
	if err != nil {
		return err
	}
	s.checkTranscript(t)
	if len(t.texts) == 1 {
		said := t.texts[0]
		same(&s.report, said.GetMessageId(), s.message, "what was said is what the output names")
		same(&s.report, said.GetAuthor()+": "+said.GetParts()[0].GetText(), "agent:alice: "+words, "Alice said it, in her words")
	}
	if len(t.calls) == 1 && len(t.results) == 1 {
		same(&s.report, t.calls[0].GetInvocationId()+" "+t.calls[0].GetOperation(), invocation+" conversation/say", "the call is hers")
		same(&s.report, t.results[0].GetInvocationId()+" "+t.results[0].GetState(), invocation+" SUCCEEDED", "the result is the call's")
	}
	return nil
}

// checkTranscript checks that each thing was said once.
func (s *story) checkTranscript(t transcript) {
	s.check(len(t.calls) == 1 && len(t.texts) == 1 && len(t.results) == 1 && len(t.messages) == 3,
		"the conversation has one call, one text and one result (%d, %d and %d in %d messages)",
		len(t.calls), len(t.texts), len(t.results), len(t.messages))
	s.check(t.exact, "at positions without gaps")
}

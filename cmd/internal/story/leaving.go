package story

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	gatev1 "weir/gen/gate/v1"
	registryv1 "weir/gen/registry/v1"
	"weir/internal/fault"
)

// A person leaves while an agent writes, and comes back.
const (
	visit    = "visit"
	question = "What came of the review?"
	answer   = "It is moved to Friday, and Carol agreed."
	half     = len("It is moved to Friday,")
)

func (s *story) say(ctx context.Context, id, text string, as grpc.CallOption) (*conversationv1.Message, error) {
	said, err := s.messages.AppendMessage(ctx, &conversationv1.AppendMessageRequest{
		ConversationId: visit, MessageId: id, Parts: []*conversationv1.Part{{Part: &conversationv1.Part_Text{Text: text}}},
	}, as)
	return said.GetMessage(), err
}

func (s *story) write(ctx context.Context, offset int, text string) (int64, error) {
	written, err := s.messages.AppendDelta(ctx, &conversationv1.AppendDeltaRequest{
		ConversationId: visit, MessageId: "answer", Offset: int64(offset), Text: text,
	}, s.bobsHandler)
	return written.GetLength(), err
}

func (s *story) askAndLeave(ctx context.Context) error {
	_, err := s.conversations.CreateConversation(ctx, &conversationv1.CreateConversationRequest{
		ConversationId: visit, Title: "A visit", Participants: []string{"agent:alice", "agent:bob"},
	}, s.omar)
	if err != nil {
		return err
	}
	asked, err := s.say(ctx, "question", question, s.omar)
	if err != nil {
		return err
	}
	s.seen = asked.GetPosition()
	same(&s.report, s.seen, 1, "Omar asks, sees position 1, and closes his page")
	return nil
}

func (s *story) watchHalf(ctx context.Context) error {
	length, err := s.write(ctx, 0, answer[:half])
	if err != nil {
		return err
	}
	same(&s.report, length, int64(half), "half of the answer is written, and in no journal")
	tail, err := s.messages.TailMessages(ctx, &conversationv1.TailMessagesRequest{ConversationId: visit, After: proto.Int64(0)}, s.omar)
	if err != nil {
		return err
	}
	first, err := tail.Recv()
	if err != nil {
		return err
	}
	same(&s.report, first.GetMessage().GetMessageId(), "question", "who looks in now sees the question")
	second, err := tail.Recv()
	if err != nil {
		return err
	}
	same(&s.report, second.GetDelta().GetText(), answer[:half], "… and what Bob has written so far")
	return nil
}

// finishAnswer goes on where the draft is, which may be lost, and lands it.
func (s *story) finishAnswer(ctx context.Context) error {
	_, err := s.write(ctx, half, answer[half:])
	if fault.Is(err, fault.OffsetMismatch) {
		_, err = s.write(ctx, 0, answer)
		s.check(err == nil, "the draft went with the store that was killed, and is written anew%s", because(err))
	} else {
		s.check(err == nil, "the rest is written%s", because(err))
	}
	var positions []int64
	for range 2 {
		said, err := s.say(ctx, "answer", answer, s.bobsHandler)
		if err != nil {
			return err
		}
		positions = append(positions, said.GetPosition())
	}
	same(&s.report, fmt.Sprint(positions), "[2 2]", "the finished answer lands, once, though it is sent twice")
	return nil
}

func (s *story) comeBack(ctx context.Context) error {
	where, err := until(ctx, func(ctx context.Context) (*conversationv1.ListConversationsResponse, error) {
		return s.conversations.ListConversations(ctx, &conversationv1.ListConversationsRequest{
			PageSize: 1, Owner: "human:omar", Participant: "agent:bob",
			States: []conversationv1.ConversationState{conversationv1.ConversationState_CONVERSATION_STATE_ACTIVE},
		}, s.omar)
	}, func(found *conversationv1.ListConversationsResponse) bool {
		return len(found.GetConversations()) == 1 && found.GetConversations()[0].GetConversationId() == visit
	})
	if err != nil {
		return err
	}
	s.check(len(where.GetConversations()) == 1 && where.GetConversations()[0].GetTitle() == "A visit",
		"where was he? One call says: the newest conversation of his with Bob")
	tail, err := s.messages.TailMessages(ctx, &conversationv1.TailMessagesRequest{ConversationId: visit, After: &s.seen}, s.omar)
	if err != nil {
		return err
	}
	next, err := tail.Recv()
	if err != nil {
		return err
	}
	same(&s.report, next.GetMessage().GetParts()[0].GetText(), answer, "from the position he saw last, he gets the whole answer")
	found, err := until(ctx, func(ctx context.Context) (*conversationv1.SearchMessagesResponse, error) {
		return s.messages.SearchMessages(ctx, &conversationv1.SearchMessagesRequest{Query: `carol "moved to friday"`}, s.omar)
	}, func(found *conversationv1.SearchMessagesResponse) bool { return len(found.GetMessages()) > 0 })
	if err != nil {
		return err
	}
	s.check(len(found.GetMessages()) == 1 && found.GetMessages()[0].GetConversationId() == visit, "and finds it by its words, too")
	return nil
}

func (s *story) pause(ctx context.Context) error {
	asked, err := s.operations.Invoke(ctx, &registryv1.InvokeRequest{
		InvocationId: "while-visiting", Operation: "conversation/say", InputJson: proto.String(sayInput()), ConversationId: visit,
	}, s.aliceVisiting)
	if err != nil {
		return err
	}
	same(&s.report, asked.GetInvocation().GetState(), registryv1.InvocationState_INVOCATION_STATE_AWAITING_APPROVAL, "Alice, who runs in it now, wants to tell Bob something elsewhere: a person is asked")
	s.pausedFor = asked.GetInvocation().GetApprovalId()
	paused, err := until(ctx, func(ctx context.Context) (*conversationv1.GetConversationResponse, error) {
		return s.conversations.GetConversation(ctx, &conversationv1.GetConversationRequest{ConversationId: visit}, s.omar)
	}, func(c *conversationv1.GetConversationResponse) bool { return len(c.GetConversation().GetPauses()) > 0 })
	if err != nil {
		return err
	}
	same(&s.report, paused.GetConversation().GetState(), conversationv1.ConversationState_CONVERSATION_STATE_PAUSED, "the conversation waits for that")
	_, err = s.say(ctx, "early", "Hello?", s.omar)
	s.refused(err, fault.ConversationPaused, "what Omar says meanwhile is refused, and not consumed")
	_, err = s.messages.ListMessages(ctx, &conversationv1.ListMessagesRequest{ConversationId: visit}, s.carol)
	s.check(err == nil, "Carol, who decides, may read it as long as she is asked%s", because(err))
	return nil
}

func (s *story) resume(ctx context.Context) error {
	asked, err := s.approvals.GetApproval(ctx, &gatev1.GetApprovalRequest{ApprovalId: s.pausedFor}, s.carol)
	if err != nil {
		return err
	}
	_, err = s.approvals.DecideApproval(ctx, &gatev1.DecideApprovalRequest{
		ApprovalId: s.pausedFor, RequestId: "carol-again", Decision: gatev1.Decision_DECISION_APPROVE,
		InputDigest: asked.GetApproval().GetInputDigest(),
	}, s.carol)
	if err != nil {
		return err
	}
	listed, err := until(ctx, func(ctx context.Context) (*conversationv1.ListMessagesResponse, error) {
		return s.messages.ListMessages(ctx, &conversationv1.ListMessagesRequest{ConversationId: visit}, s.omar)
	}, func(page *conversationv1.ListMessagesResponse) bool { return len(page.GetMessages()) >= 6 })
	if err != nil {
		return err
	}
	counted := make(map[string]int)
	for _, m := range listed.GetMessages() {
		for _, p := range m.GetParts() {
			counted[fmt.Sprintf("%T", p.GetPart())[len("*conversationv1.Part_"):]]++
		}
	}
	same(&s.report, fmt.Sprint(counted), "map[Approval:2 Call:1 Result:1 Text:2]", "she approves: call, question, approval and result stand in it, each once")
	_, err = s.say(ctx, "early", "Hello?", s.omar)
	s.check(err == nil, "Omar's words go in now, under the id that was refused%s", because(err))
	_, err = s.messages.ListMessages(ctx, &conversationv1.ListMessagesRequest{ConversationId: visit}, s.carol)
	s.refused(err, fault.ConversationNotFound, "to Carol it does not exist any more")
	return nil
}

func (s *story) erase(ctx context.Context) error {
	fork, err := s.conversations.ForkConversation(ctx, &conversationv1.ForkConversationRequest{
		ParentConversationId: visit, Position: 2, ConversationId: "visit-again", Title: "From there on",
	}, s.omar)
	if err != nil {
		return err
	}
	same(&s.report, fork.GetConversation().GetHead(), 2, "Omar goes on from position 2 in a fork, which shares what was said so far")
	redacted, err := s.messages.RedactMessage(ctx, &conversationv1.RedactMessageRequest{ConversationId: visit, MessageId: "question"}, s.omar)
	if err != nil {
		return err
	}
	s.check(redacted.GetMessage().GetPosition() == 1 && len(redacted.GetMessage().GetParts()) == 0, "he takes his question back: its place stays, its words are gone")
	_, err = s.retention.DeleteConversation(ctx, &conversationv1.DeleteConversationRequest{ConversationId: visit}, s.omar)
	s.refused(err, fault.ScopeMissing, "deleting the whole is not his to do")
	_, err = s.retention.DeleteConversation(ctx, &conversationv1.DeleteConversationRequest{ConversationId: visit}, s.rita)
	s.check(err == nil, "Rita, an archivist, deletes it%s", because(err))
	return nil
}

func (s *story) erased(ctx context.Context) error {
	gone, err := until(ctx, func(ctx context.Context) (*conversationv1.DeleteConversationResponse, error) {
		return s.retention.DeleteConversation(ctx, &conversationv1.DeleteConversationRequest{ConversationId: visit}, s.rita)
	}, (*conversationv1.DeleteConversationResponse).GetFinished)
	if err != nil {
		return err
	}
	s.check(gone.GetFinished() && gone.GetCounts().GetMessages() == 7, "killed or not, it is finished: %d messages", gone.GetCounts().GetMessages())
	_, err = s.messages.ListMessages(ctx, &conversationv1.ListMessagesRequest{ConversationId: visit}, s.omar)
	s.refused(err, fault.ConversationNotFound, "to Omar it does not exist")
	page, err := s.messages.ListMessages(ctx, &conversationv1.ListMessagesRequest{ConversationId: "visit-again"}, s.omar)
	if err != nil {
		return err
	}
	marked := 0
	for _, m := range page.GetMessages() {
		if m.GetErasure() == conversationv1.Erasure_ERASURE_CONVERSATION_DELETED {
			marked++
		}
	}
	same(&s.report, marked, 2, "and his fork shows where two messages were")
	return nil
}

package conversation

import (
	"context"
	"errors"
	"strconv"

	"google.golang.org/grpc"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/services/conversation/window"
)

type messageServer struct {
	conversationv1.UnimplementedMessageServiceServer
	history *history
	drafts  *drafts
	feeds   *feeds
	search  *searcher
	eraser  *eraser
}

func (s *messageServer) AppendMessage(ctx context.Context, req *conversationv1.AppendMessageRequest) (*conversationv1.AppendMessageResponse, error) {
	appended, err := s.append(ctx, req.GetConversationId(), req.ExpectedHead, "", []*conversationv1.NewMessage{{
		MessageId: req.GetMessageId(), Parts: req.GetParts(), To: req.GetTo(), ReplyTo: req.GetReplyTo(),
		Pinned: req.GetPinned(), Summarizes: req.GetSummarizes(),
	}})
	if err != nil {
		return nil, err
	}
	return &conversationv1.AppendMessageResponse{Message: appended[0]}, nil
}

func (s *messageServer) AppendMessages(ctx context.Context, req *conversationv1.AppendMessagesRequest) (*conversationv1.AppendMessagesResponse, error) {
	total := 0
	for _, m := range req.GetMessages() {
		total += partsBytes(m.GetParts())
	}
	if total > maxBatchBytes {
		return nil, fault.New(fault.TooLarge, "the messages of one call hold at most %d bytes, these hold %d", maxBatchBytes, total).
			Field("messages", "hold more than "+strconv.Itoa(maxBatchBytes)+" bytes together").With("limit", strconv.Itoa(maxBatchBytes))
	}
	appended, err := s.append(ctx, req.GetConversationId(), req.ExpectedHead, "messages", req.GetMessages())
	if err != nil {
		return nil, err
	}
	return &conversationv1.AppendMessagesResponse{Messages: appended}, nil
}

// append adds messages of the caller. Field is what the list of them is called in
// the request, empty where it is one.
func (s *messageServer) append(ctx context.Context, id string, head *int64, field string, list []*conversationv1.NewMessage) ([]*conversationv1.Message, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	cmd := appendage{Conversation: id, Member: caller.Subject, ExpectedHead: head, origin: said}
	for i, m := range list {
		at := ""
		if field != "" {
			at = field + "[" + strconv.Itoa(i) + "]."
		}
		one, err := saidBy(caller.Subject, at, m)
		if err != nil {
			return nil, err
		}
		one.OnBehalfOf, one.Session, one.Operation = caller.OnBehalfOf, caller.Session, caller.Operation
		if r := m.GetSummarizes(); r != nil {
			if err := s.history.checkSummary(ctx, keyOf(caller, id), caller, at, r); err != nil {
				return nil, err
			}
		}
		cmd.Messages = append(cmd.Messages, one)
	}
	appended, err := s.history.append(ctx, keyOf(caller, id), cmd)
	if err == nil {
		s.drafts.landed(ctx, keyOf(caller, id), appended)
	}
	return appended, err
}

func (s *messageServer) AppendDelta(ctx context.Context, req *conversationv1.AppendDeltaRequest) (*conversationv1.AppendDeltaResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	length, err := s.drafts.add(ctx, keyOf(caller, req.GetConversationId()), caller, &conversationv1.Delta{
		MessageId: req.GetMessageId(), Author: caller.Subject, Offset: req.GetOffset(), Text: req.GetText(),
	})
	if err != nil {
		return nil, err
	}
	return &conversationv1.AppendDeltaResponse{Length: length}, nil
}

func (s *messageServer) ListMessages(ctx context.Context, req *conversationv1.ListMessagesRequest) (*conversationv1.ListMessagesResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	messages, next, err := s.history.page(ctx, keyOf(caller, req.GetConversationId()), caller, listing{
		newestFirst: req.GetOrder() == conversationv1.Order_ORDER_NEWEST_FIRST,
		from:        req.GetFrom(),
		size:        int64(req.GetPageSize()),
	})
	if err != nil {
		return nil, err
	}
	resp := &conversationv1.ListMessagesResponse{Messages: messages}
	if next != 0 {
		resp.Next = &next
	}
	return resp, nil
}

func (s *messageServer) GetMessage(ctx context.Context, req *conversationv1.GetMessageRequest) (*conversationv1.GetMessageResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	m, err := s.history.message(ctx, keyOf(caller, req.GetConversationId()), caller, req.GetMessageId())
	if err != nil {
		return nil, err
	}
	return &conversationv1.GetMessageResponse{Message: m}, nil
}

func (s *messageServer) TailMessages(req *conversationv1.TailMessagesRequest, stream grpc.ServerStreamingServer[conversationv1.TailMessagesResponse]) error {
	caller, err := identity.Must(stream.Context())
	if err != nil {
		return err
	}
	t := &tail{
		history: s.history, feeds: s.feeds, key: keyOf(caller, req.GetConversationId()), caller: caller,
		send: stream.Send, patience: slowAfter, quiet: keepaliveEvery,
	}
	return t.run(stream.Context(), req.After)
}

func (s *messageServer) GetContext(ctx context.Context, req *conversationv1.GetContextRequest) (*conversationv1.GetContextResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	key := keyOf(caller, req.GetConversationId())
	c, err := s.history.read(ctx, key, caller)
	if err != nil {
		return nil, err
	}
	want := window.Request{Head: c.Head, Budget: req.GetMaxBytes(), Estimate: window.Bytes, Pinned: c.Pinned}
	if req.Head != nil {
		if want.Head = req.GetHead(); want.Head > c.Head {
			return nil, pastHead("head", want.Head, c.Head)
		}
	}
	if tokens := req.GetMaxTokens(); tokens != nil {
		want.Budget, want.Estimate = tokens.GetTokens(), window.Tokens(tokens)
	}
	for _, m := range c.Summaries {
		want.Summaries = append(want.Summaries, window.Summary(m))
	}
	found, err := window.Build(ctx, want, func(ctx context.Context, first, last int64) ([]*conversationv1.Message, error) {
		// From the newest down: where a range is too large for a page, what is missing
		// is what lies further back.
		return s.history.cutDown(ctx, key, c, span{first, last})
	})
	if small, ok := errors.AsType[*window.TooSmallError](err); ok {
		refusal := fault.New(fault.BudgetTooSmall, "the budget is too small for any window")
		if small.Beyond {
			return nil, refusal.Field("budget", "cannot be large enough: the newest message belongs to one too far back")
		}
		return nil, refusal.Field("budget", "must be at least "+strconv.FormatInt(small.Needed, 10)).
			With("needed", strconv.FormatInt(small.Needed, 10))
	}
	if err != nil {
		return nil, err
	}
	return &conversationv1.GetContextResponse{Messages: found.Messages, Start: found.Start, Head: want.Head, Used: found.Used}, nil
}

func (s *messageServer) SearchMessages(ctx context.Context, req *conversationv1.SearchMessagesRequest) (*conversationv1.SearchMessagesResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	found, next, err := s.search.find(ctx, caller, req.GetConversationId(), req.GetQuery(), int(req.GetPageSize()), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	return &conversationv1.SearchMessagesResponse{Messages: found, NextPageToken: next}, nil
}

func (s *messageServer) RedactMessage(ctx context.Context, req *conversationv1.RedactMessageRequest) (*conversationv1.RedactMessageResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	m, err := s.eraser.redact(ctx, keyOf(caller, req.GetConversationId()), redaction{
		ID: req.GetConversationId(), Actor: caller.Subject, Eraser: caller.HasScope(scopeErase), MessageID: req.GetMessageId(),
	})
	if err != nil {
		return nil, err
	}
	return &conversationv1.RedactMessageResponse{Message: m}, nil
}

func (s *messageServer) DeclineTurn(ctx context.Context, req *conversationv1.DeclineTurnRequest) (*conversationv1.DeclineTurnResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	m, err := s.history.decline(ctx, keyOf(caller, req.GetConversationId()), decline{
		ID: req.GetConversationId(), MessageID: req.GetMessageId(), Member: caller.Subject, Note: req.GetNote(),
	})
	if err != nil {
		return nil, err
	}
	return &conversationv1.DeclineTurnResponse{Message: m}, nil
}

package conversation

import (
	"context"
	"time"

	"google.golang.org/grpc"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
)

type retentionServer struct {
	conversationv1.UnimplementedRetentionServiceServer
	history  *history
	eraser   *eraser
	erasures *erasureLoop
	rules    *retentionLoop
}

func (s *retentionServer) DeleteConversation(ctx context.Context, req *conversationv1.DeleteConversationRequest) (*conversationv1.DeleteConversationResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	c, err := s.eraser.delete(ctx, keyOf(caller, req.GetConversationId()), caller.Subject)
	if err != nil {
		return nil, err
	}
	resp := &conversationv1.DeleteConversationResponse{Finished: c.Erasing.Since.IsZero()}
	if resp.Finished {
		resp.Counts = c.Erasing.Counts.toProto()
		resp.Counts.Conversations = 1
	}
	return resp, nil
}

func (s *retentionServer) DeleteParticipantData(ctx context.Context, req *conversationv1.DeleteParticipantDataRequest) (*conversationv1.DeleteParticipantDataResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	after, err := s.erasures.Do(ctx, erasureKey(caller, req.GetRequestId()), func(p participantErasure, _ time.Time) (*conversationv1.Event, error) {
		return decideErasure(p, req.GetRequestId(), req.GetSubject(), caller.Subject)
	})
	if err != nil {
		return nil, err
	}
	return &conversationv1.DeleteParticipantDataResponse{Erasure: after.State.toProto()}, nil
}

func (s *retentionServer) GetParticipantErasure(ctx context.Context, req *conversationv1.GetParticipantErasureRequest) (*conversationv1.GetParticipantErasureResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	found, err := s.erasures.Read(ctx, erasureKey(caller, req.GetRequestId()))
	if err != nil {
		return nil, err
	}
	if !found.Exists() {
		return nil, fault.New(fault.ErasureNotFound, "there is no such erasure")
	}
	return &conversationv1.GetParticipantErasureResponse{Erasure: found.State.toProto()}, nil
}

func (s *retentionServer) ExportConversation(req *conversationv1.ExportConversationRequest, stream grpc.ServerStreamingServer[conversationv1.ExportConversationResponse]) error {
	caller, err := identity.Must(stream.Context())
	if err != nil {
		return err
	}
	return s.history.export(stream.Context(), keyOf(caller, req.GetConversationId()), caller, func(text string) error {
		return stream.Send(&conversationv1.ExportConversationResponse{Line: text})
	})
}

func (s *retentionServer) ImportConversation(stream grpc.ClientStreamingServer[conversationv1.ImportConversationRequest, conversationv1.ImportConversationResponse]) error {
	caller, err := identity.Must(stream.Context())
	if err != nil {
		return err
	}
	c, imported, err := s.history.importAll(stream.Context(), caller.Tenant, func() (string, error) {
		req, err := stream.Recv()
		return req.GetLine(), err
	})
	if err != nil {
		return err
	}
	return stream.SendAndClose(&conversationv1.ImportConversationResponse{Conversation: c, Imported: imported})
}

func (s *retentionServer) PutRetention(ctx context.Context, req *conversationv1.PutRetentionRequest) (*conversationv1.PutRetentionResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	rules, err := rulesFromProto(req.GetRules())
	if err != nil {
		return nil, err
	}
	after, err := s.rules.Do(ctx, retentionKey(caller), func(r retention, _ time.Time) (*conversationv1.Event, error) {
		return decideRetention(r, rules, caller.Subject), nil
	})
	if err != nil {
		return nil, err
	}
	return &conversationv1.PutRetentionResponse{Rules: rulesToProto(after.State.Rules)}, nil
}

func (s *retentionServer) GetRetention(ctx context.Context, _ *conversationv1.GetRetentionRequest) (*conversationv1.GetRetentionResponse, error) {
	caller, err := identity.Must(ctx)
	if err != nil {
		return nil, err
	}
	found, err := s.rules.Read(ctx, retentionKey(caller))
	if err != nil {
		return nil, err
	}
	return &conversationv1.GetRetentionResponse{Rules: rulesToProto(found.State.Rules)}, nil
}

func erasureKey(caller identity.Caller, request string) journal.Key {
	return journal.Key{Tenant: caller.Tenant, Kind: erasureKindName, ID: request}
}

func retentionKey(caller identity.Caller) journal.Key {
	return journal.Key{Tenant: caller.Tenant, Kind: retentionKindName, ID: retentionID}
}

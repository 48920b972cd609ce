package serve

import (
	"context"

	middleware "github.com/grpc-ecosystem/go-grpc-middleware/v2"
	"google.golang.org/grpc"
)

// around is an interceptor that looks only at the outside of a call: it is the same
// for unary calls and streams.
type around func(ctx context.Context, method string, next func(context.Context) error) error

func (a around) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	err = a(ctx, info.FullMethod, func(ctx context.Context) error {
		var err error
		resp, err = handler(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

func (a around) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return a(stream.Context(), info.FullMethod, func(ctx context.Context) error {
		return handler(srv, &middleware.WrappedServerStream{ServerStream: stream, WrappedContext: ctx})
	})
}

package serve

import (
	"context"
	"time"

	"google.golang.org/grpc"
)

const (
	// defaultDeadline is given to unary calls that bring none. A call nobody limits
	// would hold its place for as long as something it waits for is stuck.
	defaultDeadline = 30 * time.Second

	// maxDeadline is the most that a unary call can bring. Streams have none: a watch
	// ends with its client, its credential or the server.
	maxDeadline = 5 * time.Minute

	// peerDeadline is given to calls to peers made without one, which happens in
	// background work. It is short, since retries by the worker come on top.
	peerDeadline = 10 * time.Second
)

func capDeadline(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	limit := maxDeadline
	if _, brought := ctx.Deadline(); !brought {
		limit = defaultDeadline
	}
	ctx, cancel := context.WithTimeout(ctx, limit) // an earlier deadline stays
	defer cancel()
	return handler(ctx, req)
}

func bringDeadline(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if _, brought := ctx.Deadline(); !brought {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, peerDeadline)
		defer cancel()
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

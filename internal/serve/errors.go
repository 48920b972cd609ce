package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	"google.golang.org/grpc"

	"weir/internal/fault"
)

// recoverPanics turns a panic into a BUG: the call fails, the process and the other
// calls go on. The stack is for the log alone.
func recoverPanics(log *slog.Logger) around {
	return func(ctx context.Context, method string, next func(context.Context) error) (err error) {
		defer func() {
			if p := recover(); p != nil {
				log.LogAttrs(ctx, slog.LevelError, "panic", slog.String("method", method),
					slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
				err = fault.New(fault.Bug, "internal error").Wrap(fmt.Errorf("panic: %v", p))
			}
		}()
		return next(ctx)
	}
}

// convertErrors is the one gate through which errors leave: each has a reason from
// package fault then, and none tells more than it should.
func convertErrors(ctx context.Context, method string, next func(context.Context) error) error {
	err := next(ctx)
	if err == nil {
		return nil
	}
	if _, ours := errors.AsType[*fault.Error](err); !ours && foreignMethod(method) {
		return err // clients of the health protocol rely on its own codes
	}
	return fault.From(err)
}

// foreignMethod tells the methods that grpc-go implements, health and reflection, from
// weir's.
func foreignMethod(method string) bool { return strings.HasPrefix(method, "/grpc.") }

// untilDrain ends streams when the server is about to stop. Watches would otherwise
// hold every shutdown for the whole grace; their clients resume at another replica.
func untilDrain(drain context.Context) grpc.StreamServerInterceptor {
	cut := around(func(ctx context.Context, _ string, next func(context.Context) error) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(drain, cancel)()

		err := next(ctx)
		if drain.Err() != nil && fault.Is(err, fault.Cancelled) {
			return fault.New(fault.ShuttingDown, "this replica is shutting down").Wrap(err)
		}
		return err
	})
	return cut.stream
}

package serve

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/internal/fault"
	"weir/internal/identity"
)

// levels is how loudly each outcome is logged: an error is ours to look into, a
// warning tells of load or of something away, and the rest is between the client and
// its request.
var levels = [...]slog.Level{
	codes.OK:                 slog.LevelDebug, // metrics count them, and what they changed is an event
	codes.Canceled:           slog.LevelInfo,
	codes.Unknown:            slog.LevelError,
	codes.InvalidArgument:    slog.LevelInfo,
	codes.DeadlineExceeded:   slog.LevelWarn,
	codes.NotFound:           slog.LevelInfo,
	codes.AlreadyExists:      slog.LevelInfo,
	codes.PermissionDenied:   slog.LevelInfo,
	codes.ResourceExhausted:  slog.LevelWarn,
	codes.FailedPrecondition: slog.LevelInfo,
	codes.Aborted:            slog.LevelWarn,
	codes.OutOfRange:         slog.LevelInfo,
	codes.Unimplemented:      slog.LevelInfo,
	codes.Internal:           slog.LevelError,
	codes.Unavailable:        slog.LevelWarn,
	codes.DataLoss:           slog.LevelError,
	codes.Unauthenticated:    slog.LevelInfo,
}

// accessLog writes one line for each call: who, what, how it ended and, when it
// failed, why with the causes that the client isn't told. Requests and responses are
// never in it.
func accessLog(log *slog.Logger) around {
	return func(ctx context.Context, method string, next func(context.Context) error) error {
		started := time.Now()
		ctx, caller := identity.Observe(ctx)
		err := next(ctx)

		code := status.Code(err)
		level := levels[code]
		if foreignMethod(method) && level == slog.LevelInfo {
			level = slog.LevelDebug // health is polled by the second
		}
		if !log.Enabled(ctx, level) {
			return err
		}
		line := []slog.Attr{
			slog.String("method", method),
			slog.String("code", code.String()),
			slog.Duration("took", time.Since(started)),
		}
		if caller.Subject != "" {
			line = append(line, slog.String("tenant", caller.Tenant), slog.String("subject", caller.Subject))
		}
		if caller.Via != "" {
			line = append(line, slog.String("via", caller.Via))
		}
		if span := trace.SpanContextFromContext(ctx); span.IsValid() {
			line = append(line, slog.String("trace", span.TraceID().String()))
		}
		if err != nil {
			if f, ok := errors.AsType[*fault.Error](err); ok {
				line = append(line, slog.String("reason", string(f.Reason())))
			}
			line = append(line, slog.String("error", err.Error()))
		}
		log.LogAttrs(ctx, level, "call", line...)
		return err
	}
}

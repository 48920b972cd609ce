package journal

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
)

// traceContext is W3C trace context: an event carries the span that caused it,
// and what handles the event goes on under it.
var traceContext propagation.TraceContext

// Traceparent gives the header value for the span in ctx, "" if there is none.
func Traceparent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	traceContext.Inject(ctx, carrier)
	return carrier["traceparent"]
}

func extractTrace(ctx context.Context, e Event) context.Context {
	if e.Traceparent == "" {
		return ctx
	}
	return traceContext.Extract(ctx, propagation.MapCarrier{"traceparent": e.Traceparent})
}

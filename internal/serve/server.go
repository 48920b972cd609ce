package serve

import (
	"context"
	"log/slog"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"weir/internal/identity"
)

// Limits of one connection. A message over a limit is refused by grpc-go itself, before
// any interceptor, with RESOURCE_EXHAUSTED and no reason.
const (
	maxRecv = 4 << 20
	maxSend = 16 << 20 // pages of what was received in parts

	streamWorkers = 128 // calls beyond so many at once get a goroutine of their own
	maxHeaders    = 64 << 10
	maxStreams    = 1000

	minPing = 15 * time.Second // a client that pings more often is cut off
	maxAge  = time.Hour        // clients connect again and so find new replicas
)

// propagators carry the trace of a caller, in W3C form, whatever the process's global
// OpenTelemetry settings are: events record it.
var propagators = propagation.TraceContext{}

func newMetrics() *grpcprom.ServerMetrics {
	return grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(
		// A read takes well under a millisecond, so the usual buckets would show one bar.
		grpcprom.WithHistogramBuckets([]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 30}),
	))
}

// newServer puts the interceptors in their order: those that report are outside those
// that refuse, so that refusals are reported, and whatever can panic is inside the
// recovery.
func newServer(log *slog.Logger, transport credentials.TransportCredentials, metrics *grpcprom.ServerMetrics, guard *identity.Guard, drain context.Context) *grpc.Server {
	logged, recovered, converted := accessLog(log), recoverPanics(log), around(convertErrors)
	return grpc.NewServer(
		grpc.Creds(transport),
		grpc.StatsHandler(otelgrpc.NewServerHandler(
			otelgrpc.WithPropagators(propagators),
			otelgrpc.WithFilter(filters.Not(filters.HealthCheck())),
		)),
		grpc.ChainUnaryInterceptor(
			metrics.UnaryServerInterceptor(),
			logged.unary, recovered.unary, converted.unary,
			capDeadline, guard.Unary, validateUnary,
		),
		grpc.ChainStreamInterceptor(
			metrics.StreamServerInterceptor(),
			logged.stream, recovered.stream, converted.stream,
			untilDrain(drain), guard.Stream, validateStream,
		),
		// Goroutines that have grown their stack once are used again; growing it was a
		// tenth of what a small call costs.
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxRecvMsgSize(maxRecv),
		grpc.MaxSendMsgSize(maxSend),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle:     15 * time.Minute,
			MaxConnectionAge:      maxAge,
			MaxConnectionAgeGrace: maxDeadline, // so that age never cuts a unary call
			Time:                  2 * time.Minute,
			Timeout:               20 * time.Second,
		}),
	)
}

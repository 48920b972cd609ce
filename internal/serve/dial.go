package serve

import (
	"context"
	_ "embed"
	"errors"
	"net"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"weir/internal/fault"
	"weir/internal/identity"
)

// ServiceConfig is how clients should call weir, in the form every gRPC library reads:
// over all replicas in turn, and again when one can't be reached. That is safe for
// every method, since those that change something can be repeated under the same id.
// UNAVAILABLE is the only code that promises nothing was done. When most calls fail,
// throttling stops the retries, so that they don't finish off what is struggling.
//
//go:embed serviceconfig.json
var ServiceConfig string

// DialConfig is how a service calls its peers.
type DialConfig struct {
	TokenFile string `help:"File of the token that this service calls its peers with." placeholder:"FILE"`
	CA        string `name:"ca" help:"Authorities that sign the peers' certificates (PEM); the system's by default." placeholder:"FILE"`
	Cert      string `help:"Client certificate to call peers with (PEM)." placeholder:"FILE"`
	Key       string `help:"Its private key (PEM)." placeholder:"FILE"`
	Plaintext bool   `help:"Call peers without TLS, as is always done on loopback: for networks that encrypt by themselves."`
}

// Validate reports settings that can't work together, by their flags.
func (c *DialConfig) Validate() error {
	switch {
	case (c.Cert == "") != (c.Key == ""):
		return errors.New("--peer-cert and --peer-key: want both or neither")
	case c.Plaintext && (c.CA != "" || c.Cert != ""):
		return errors.New("--peer-plaintext: not with --peer-ca or --peer-cert")
	}
	return nil
}

// Dial prepares a connection to a peer: a host and port whose host may have many
// addresses. It doesn't wait for the peer; calls fail with UNAVAILABLE while it is away.
func Dial(target string, c DialConfig) (*grpc.ClientConn, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	plain := c.Plaintext || loopback(target) && c.CA == "" && c.Cert == ""
	transport := insecure.NewCredentials()
	if !plain {
		var err error
		if transport, err = c.clientTLS(); err != nil {
			return nil, err
		}
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultServiceConfig(ServiceConfig),
		grpc.WithDisableServiceConfig(), // DNS must not replace it
		grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithPropagators(propagators))),
		grpc.WithChainUnaryInterceptor(bringDeadline, ownCredential),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxSend), grpc.MaxCallSendMsgSize(maxRecv)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time:    2 * minPing, // notices a peer that vanished in the middle of a call
			Timeout: 10 * time.Second,
		}),
	}
	if c.TokenFile != "" {
		options = append(options, grpc.WithPerRPCCredentials(identity.TokenFile(c.TokenFile, !plain)))
	}
	return grpc.NewClient(target, options...)
}

// ownCredential keeps a peer's refusal of this service's token from looking like a
// refusal of our client's, who would throw away a good one.
func ownCredential(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err != nil && fault.From(err).Kind() == fault.KindUnauthenticated {
		return fault.New(fault.PeerUnavailable, "a service weir needs could not be reached").Wrap(err)
	}
	return err
}

// loopback reports whether a target never leaves this machine.
func loopback(target string) bool {
	if strings.HasPrefix(target, "unix:") {
		return true
	}
	if i := strings.LastIndexByte(target, '/'); i >= 0 {
		target = target[i+1:] // dns:///host:port
	}
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		return false
	}
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

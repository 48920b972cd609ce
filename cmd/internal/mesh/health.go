package mesh

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"weir/internal/serve"
)

// health is the four services' own word on whether they can work, asked over gRPC like
// anybody would.
type health map[string]*grpc.ClientConn // by the service's name

func dialHealth(at Addresses) (health, error) {
	h := make(health)
	for name, address := range at.Services() {
		conn, err := serve.Dial(address, serve.DialConfig{Plaintext: true})
		if err != nil {
			h.close()
			return nil, err
		}
		h[name] = conn
	}
	return h, nil
}

func (h health) close() {
	for _, conn := range h {
		_ = conn.Close()
	}
}

// check is nil when all four are serving, and otherwise says of each that isn't.
func (h health) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var down []string
	for name, conn := range h {
		answer, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
		if err == nil && answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			err = errors.New(answer.GetStatus().String())
		}
		if err != nil {
			down = append(down, fmt.Sprintf("%s: %v", name, err))
		}
	}
	if len(down) == 0 {
		return nil
	}
	slices.Sort(down)
	return errors.New(strings.Join(down, "; "))
}

// await waits until all four are serving.
func (h health) await(ctx context.Context) error {
	for {
		err := h.check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not all services are serving: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Healthy is nil when all four services at the addresses are serving.
func Healthy(ctx context.Context, at Addresses) error {
	h, err := dialHealth(at)
	if err != nil {
		return err
	}
	defer h.close()
	return h.check(ctx)
}

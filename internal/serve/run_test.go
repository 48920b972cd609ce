package serve

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"weir/internal/fault"
	"weir/internal/identity"
)

func serving(t *testing.T, r *running, service string) healthpb.HealthCheckResponse_ServingStatus {
	t.Helper()
	answer, err := healthpb.NewHealthClient(r.conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetStatus()
}

func TestACallUnderWayFinishes(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	worker := make(chan struct{})
	r := start(t, &backend{echo: func(ctx context.Context, text string) (string, error) {
		close(entered)
		<-leave
		return text, ctx.Err()
	}}, func(_ *Config, s *Service) {
		s.Workers = append(s.Workers, func(ctx context.Context) error {
			<-ctx.Done()
			close(worker)
			return ctx.Err()
		})
	})
	type result struct {
		text string
		err  error
	}
	got := make(chan result)
	go func() {
		text, err := r.call(context.Background(), echo, newRequest("a", "late"))
		got <- result{text, err}
	}()
	<-entered
	r.stop()
	eventually(t, "new connections to be refused", func() bool {
		c, err := net.Dial("tcp", r.addr)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	select {
	case <-worker:
		t.Error("a worker was stopped while a call may need it")
	case err := <-r.done:
		t.Fatalf("Run returned %v with a call under way", err)
	default:
	}
	close(leave)
	if g := <-got; g.err != nil || g.text != "late" {
		t.Errorf("the call got %+v", g)
	}
	if err := r.ended(t); err != nil {
		t.Error(err)
	}
	<-worker
}

func TestACallThatOutlastsTheGraceIsCut(t *testing.T) {
	entered := make(chan struct{})
	r := start(t, &backend{echo: func(ctx context.Context, _ string) (string, error) {
		close(entered)
		<-ctx.Done()
		return "", ctx.Err()
	}}, func(c *Config, _ *Service) { c.ShutdownGrace = 50 * time.Millisecond })
	failed := make(chan error)
	go func() {
		_, err := r.call(context.Background(), echo, newRequest("a", ""))
		failed <- err
	}()
	<-entered
	r.stop()
	if err := <-failed; err == nil {
		t.Error("the call was answered")
	}
	if err := r.ended(t); err != nil {
		t.Error(err)
	}
}

func TestAStreamIsToldThatTheServerStops(t *testing.T) {
	entered := make(chan struct{})
	r := start(t, &backend{watch: func(s grpc.ServerStream) error {
		// A stream that has begun isn't tried again unasked.
		if err := s.SendHeader(nil); err != nil {
			return err
		}
		close(entered)
		<-s.Context().Done()
		return s.Context().Err()
	}})
	stream, err := r.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	<-entered
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r.stop()
	if err := stream.RecvMsg(nil); !fault.Is(err, fault.ShuttingDown) || status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if err := r.ended(t); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 9*time.Second {
		t.Errorf("the watch held the shutdown for %v", took)
	}
}

func TestAPortInUse(t *testing.T) {
	r := start(t, &backend{})
	jwks, _ := trusted(t)
	for flag, cfg := range map[string]Config{
		"--listen": {JWKS: jwks, Listen: r.addr},
		"--http":   {JWKS: jwks, Listen: "127.0.0.1:0", HTTP: r.addr},
	} {
		err := Run(t.Context(), cfg, Service{Name: "gate", Register: (&backend{}).register})
		if err == nil || !strings.Contains(err.Error(), "gate: "+flag) || !strings.Contains(err.Error(), r.addr+": bind: address already in use") {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

func TestHealthFollowsTheProbe(t *testing.T) {
	var ill atomic.Bool
	ill.Store(true)
	r := start(t, &backend{}, func(c *Config, s *Service) {
		c.HTTP = "127.0.0.1:0"
		s.Healthy = func(context.Context) error {
			if ill.Load() {
				return errors.New("the journal is away")
			}
			return nil
		}
	})
	eventually(t, "the first probe", func() bool { return len(r.log.lines(t, "unhealthy")) == 1 })
	web := "http://" + r.log.lines(t, "serving")[0]["http"].(string)
	for _, step := range []struct {
		ill  bool
		want healthpb.HealthCheckResponse_ServingStatus
		http int
	}{
		{true, healthpb.HealthCheckResponse_NOT_SERVING, 503},
		{false, healthpb.HealthCheckResponse_SERVING, 200},
		{true, healthpb.HealthCheckResponse_NOT_SERVING, 503},
	} {
		ill.Store(step.ill)
		for _, service := range []string{"", "weir.test.v1.Echo"} {
			eventually(t, step.want.String()+" of "+service, func() bool { return serving(t, r, service) == step.want })
		}
		if code, body := get(t, web+"/healthz"); code != step.http || strings.Contains(body, "journal") {
			t.Errorf("/healthz: %d %s", code, body)
		}
	}
	if _, err := r.call(t.Context(), echo, newRequest("a", "")); err != nil {
		t.Errorf("an unhealthy server is advice, not a refusal: %v", err)
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestALateProbeDoesNotUndoStopping(t *testing.T) {
	server := grpc.NewServer()
	s := newState(server, nil, slog.New(slog.DiscardHandler))
	s.set(nil)
	s.stop()
	s.set(nil)
	if s.up() == nil {
		t.Error("up again")
	}
}

func TestAWorkersErrorEndsTheService(t *testing.T) {
	broken := errors.New("the projector's stream is gone")
	other := make(chan struct{})
	r := start(t, &backend{}, func(_ *Config, s *Service) {
		s.Workers = []func(context.Context) error{
			func(context.Context) error { return nil }, // one that has nothing left to do
			func(ctx context.Context) error { <-ctx.Done(); close(other); return nil },
			func(context.Context) error { return broken },
		}
	})
	if err := r.ended(t); !errors.Is(err, broken) {
		t.Errorf("Run returned %v", err)
	}
	<-other
}

func TestAWorkerThatHangs(t *testing.T) {
	hung := make(chan struct{})
	defer close(hung)
	r := start(t, &backend{}, func(c *Config, s *Service) {
		c.ShutdownGrace = 50 * time.Millisecond
		s.Workers = []func(context.Context) error{func(context.Context) error { <-hung; return nil }}
	})
	r.stop()
	if err := r.ended(t); err == nil {
		t.Error("Run says that all ended well")
	}
}

func TestServicesShareAProcess(t *testing.T) {
	registry := prometheus.NewRegistry()
	as := func(name string) func(*Config, *Service) {
		return func(c *Config, s *Service) { c.Registry, c.HTTP, s.Name = registry, "127.0.0.1:0", name }
	}
	gate, inbox := start(t, &backend{}, as("gate")), start(t, &backend{}, as("inbox"))
	for _, r := range []*running{gate, inbox, inbox} {
		if _, err := r.call(t.Context(), echo, newRequest("a", "")); err != nil {
			t.Fatal(err)
		}
	}
	const counted = `grpc_server_handled_total{grpc_code="OK",grpc_method="Echo",grpc_service="weir.test.v1.Echo",grpc_type="unary",service="`
	_, page := get(t, "http://"+gate.log.lines(t, "serving")[0]["http"].(string)+"/metrics")
	for _, line := range []string{counted + `gate"} 1`, counted + `inbox"} 2`} {
		if !strings.Contains(page, line) {
			t.Errorf("no %s in the metrics", line)
		}
	}

	gate.stop()
	if err := gate.ended(t); err != nil {
		t.Fatal(err)
	}
	again := start(t, &backend{}, as("gate"))
	if _, err := again.call(t.Context(), echo, newRequest("a", "")); err != nil {
		t.Errorf("started again: %v", err)
	}
}

func TestReflection(t *testing.T) {
	for _, open := range []bool{false, true} {
		r := start(t, &backend{}, func(c *Config, s *Service) {
			c.OpenReflection, s.methods, c.Peer.TokenFile = open, identity.Methods, ""
		})
		stream, err := grpc_reflection_v1.NewServerReflectionClient(r.conn).ServerReflectionInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		stream.Send(&grpc_reflection_v1.ServerReflectionRequest{
			MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
		})
		answer, err := stream.Recv()
		if open && len(answer.GetListServicesResponse().GetService()) != 4 {
			t.Errorf("open: %v, %v", answer, err)
		}
		if !open && !fault.Is(err, fault.TokenMissing) {
			t.Errorf("closed: %v", err)
		}
	}
}

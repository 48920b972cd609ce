package serve

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"weir/internal/fault"
	"weir/internal/identity"
)

func TestACallReachesItsHandler(t *testing.T) {
	var seen identity.Caller
	r := start(t, &backend{echo: func(ctx context.Context, text string) (string, error) {
		seen, _ = identity.FromContext(ctx)
		return text + "!", nil
	}})
	got, err := r.call(t.Context(), echo, newRequest("a", "hello"))
	if err != nil || got != "hello!" {
		t.Fatalf("got %q, %v", got, err)
	}
	if seen.Subject != caller.Subject || seen.Tenant != caller.Tenant {
		t.Errorf("the handler sees %+v", seen)
	}
}

func TestEveryErrorLeavesWithAReason(t *testing.T) {
	var answer error
	b := &backend{
		echo:  func(context.Context, string) (string, error) { return "", answer },
		watch: func(grpc.ServerStream) error { return answer },
	}
	r := start(t, b)
	for name, c := range map[string]struct {
		err    error
		reason fault.Reason
		code   codes.Code
	}{
		"a refusal":         {fault.New(fault.StaleClaim, "too late"), fault.StaleClaim, codes.FailedPrecondition},
		"a wrapped refusal": {errors.Join(errors.New("secret"), fault.New(fault.InboxFull, "full")), fault.InboxFull, codes.ResourceExhausted},
		"a peer's code":     {status.Error(codes.Unimplemented, "secret"), fault.Bug, codes.Internal},
		"an unexpected one": {errors.New("secret"), fault.Bug, codes.Internal},
		"the context's":     {context.Canceled, fault.Cancelled, codes.Canceled},
		"with a cause":      {fault.New(fault.NotGranted, "no").Wrap(errors.New("secret")), fault.NotGranted, codes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			answer = c.err
			_, unary := r.call(t.Context(), echo, newRequest("a", ""))
			stream, err := r.open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for kind, err := range map[string]error{"unary": unary, "stream": stream.RecvMsg(nil)} {
				if fault.ReasonOf(err) != c.reason || status.Code(err) != c.code {
					t.Errorf("%s: %v", kind, err)
				}
				if s := status.Convert(err); len(s.Details()) == 0 || strings.Contains(s.String(), "secret") {
					t.Errorf("%s: the client reads %v", kind, s)
				}
			}
		})
	}
}

func TestAPanicFailsOneCall(t *testing.T) {
	b := &backend{
		echo: func(_ context.Context, text string) (string, error) {
			if text == "panic" {
				panic("secret")
			}
			return text, nil
		},
		watch: func(grpc.ServerStream) error { panic("secret") },
	}
	r := start(t, b)
	_, unary := r.call(t.Context(), echo, newRequest("a", "panic"))
	stream, err := r.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for kind, err := range map[string]error{"unary": unary, "stream": stream.RecvMsg(nil)} {
		if !fault.Is(err, fault.Bug) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if _, err := r.call(t.Context(), echo, newRequest("a", "fine")); err != nil {
		t.Errorf("the next call: %v", err)
	}
	if lines := r.log.lines(t, "panic"); len(lines) != 2 || !strings.Contains(lines[0]["stack"].(string), "calls_test.go") {
		t.Errorf("logged %v", lines)
	}
}

func TestDeadlinesAreCapped(t *testing.T) {
	var left time.Duration
	r := start(t, &backend{echo: func(ctx context.Context, _ string) (string, error) {
		deadline, _ := ctx.Deadline()
		left = time.Until(deadline)
		return "", nil
	}})
	bare, err := grpc.NewClient(r.addr, dialBare(t, r)...)
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Close()
	r.conn = bare // Dial would bring a deadline

	for name, c := range map[string]struct{ brought, want time.Duration }{
		"none":  {0, defaultDeadline},
		"short": {5 * time.Second, 5 * time.Second},
		"long":  {time.Hour, maxDeadline},
	} {
		ctx := t.Context()
		if c.brought > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, c.brought)
			defer cancel()
		}
		if _, err := r.call(ctx, echo, newRequest("a", "")); err != nil {
			t.Fatal(err)
		}
		if left > c.want || left < c.want-4*time.Second {
			t.Errorf("%s brought: %v left", name, left)
		}
	}
}

func TestTimeRunsOut(t *testing.T) {
	r := start(t, &backend{echo: func(ctx context.Context, _ string) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.call(ctx, echo, newRequest("a", "")); !fault.Is(err, fault.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestRulesOfFields(t *testing.T) {
	called := 0
	b := &backend{
		echo:  func(context.Context, string) (string, error) { called++; return "", nil },
		watch: func(grpc.ServerStream) error { called++; return nil },
	}
	r := start(t, b)
	for name, c := range map[string]struct {
		id, text string
		reason   fault.Reason
		fields   []string
	}{
		"an id":   {"NO", "", fault.IDMalformed, []string{"message_id"}},
		"another": {"a", "forbidden", fault.FieldInvalid, []string{"text"}},
		"both":    {"NO", "forbidden", fault.FieldInvalid, []string{"message_id", "text"}},
	} {
		_, err := r.call(t.Context(), echo, newRequest(c.id, c.text))
		f := fault.From(err)
		if f.Reason() != c.reason || status.Code(err) != codes.InvalidArgument || len(f.Violations()) != len(c.fields) {
			t.Errorf("%s: %v %v", name, err, f.Violations())
			continue
		}
		for i, field := range c.fields {
			if v := f.Violations()[i]; v.Field != field || v.Description == "" {
				t.Errorf("%s: violation %+v", name, v)
			}
		}
	}
	stream, err := r.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, watch)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(stream.SendMsg(newRequest("NO", "")), stream.CloseSend()); err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(nil); !fault.Is(err, fault.IDMalformed) {
		t.Errorf("stream: %v", err)
	}
	if called > 0 {
		t.Error("a handler was called")
	}
}

func TestOversize(t *testing.T) {
	size := 0
	r := start(t, &backend{echo: func(_ context.Context, text string) (string, error) {
		return strings.Repeat("x", size), nil
	}})
	large := newRequest("a", strings.Repeat("x", maxRecv))
	if _, err := r.call(t.Context(), echo, large, grpc.MaxCallSendMsgSize(maxRecv*2)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("request: %v", err)
	}
	size = maxRecv * 2
	if got, err := r.call(t.Context(), echo, newRequest("a", "")); err != nil || len(got) != size {
		t.Errorf("response of %d: %d, %v", size, len(got), err)
	}
	size = maxSend
	if _, err := r.call(t.Context(), echo, newRequest("a", ""), grpc.MaxCallRecvMsgSize(maxSend*2)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("response: %v", err)
	}
}

func TestTheDoor(t *testing.T) {
	r := start(t, &backend{})
	if _, err := r.call(t.Context(), unlisted, newRequest("a", "")); !fault.Is(err, fault.ScopeMissing) {
		t.Errorf("unlisted: %v", err)
	}
	if _, err := r.call(t.Context(), "/weir.test.v1.Echo/Absent", newRequest("a", "")); status.Code(err) != codes.Unimplemented {
		t.Errorf("absent: %v", err)
	}
	bare, err := Dial(r.addr, DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Close()
	r.conn = bare
	if _, err := r.call(t.Context(), echo, newRequest("NO", "")); !fault.Is(err, fault.PeerUnavailable) {
		t.Errorf("a service without a credential: %v", err)
	}
	stream, err := r.open(withToken(t.Context(), "x"))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(nil); !fault.Is(err, fault.TokenInvalid) {
		t.Errorf("bad token: %v", err)
	}
	// The health protocol keeps its own codes.
	_, err = healthpb.NewHealthClient(bare).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "absent"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("health: %v", err)
	}
}

func TestEveryCodeHasALevel(t *testing.T) {
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		if strings.HasPrefix(code.String(), "Code(") {
			t.Fatalf("%v is no code", code)
		}
	}
	if n := int(codes.Unauthenticated) + 1; len(levels) != n {
		t.Errorf("%d levels for %d codes", len(levels), n)
	}
	for _, code := range []codes.Code{codes.Internal, codes.DataLoss, codes.Unknown} {
		if levels[code] != slog.LevelError {
			t.Errorf("%v is logged as %v", code, levels[code])
		}
	}
}

func TestOneLineACall(t *testing.T) {
	r := start(t, &backend{echo: func(_ context.Context, text string) (string, error) {
		if text == "payload" {
			return text, nil
		}
		return "", fault.New(fault.JournalUnavailable, "the journal is away").Wrap(errors.New("no route to host"))
	}})
	parent := metadata.Pairs("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	ctx := metadata.NewOutgoingContext(trace.ContextWithRemoteSpanContext(t.Context(), spanOf(parent)), nil)
	if _, err := r.call(ctx, echo, newRequest("a", "payload")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.call(t.Context(), unlisted, newRequest("a", "")); err == nil {
		t.Fatal("answered")
	}
	if _, err := r.call(t.Context(), echo, newRequest("a", "x"), grpc.WaitForReady(true)); err == nil {
		t.Fatal("answered")
	}
	// Unavailable calls are tried again, and each try is a call here.
	lines := r.log.lines(t, "call")
	if len(lines) < 3 {
		t.Fatalf("%d lines", len(lines))
	}
	for i, want := range []map[string]any{
		{"level": "DEBUG", "service": "echo", "method": echo, "code": "OK", "tenant": "acme", "subject": "agent:coder", "trace": "0af7651916cd43dd8448eb211c80319c"},
		{"level": "INFO", "method": unlisted, "code": "PermissionDenied", "reason": "SCOPE_MISSING", "subject": "agent:coder"},
		{"level": "WARN", "code": "Unavailable", "reason": "JOURNAL_UNAVAILABLE", "error": "JOURNAL_UNAVAILABLE: the journal is away: no route to host"},
	} {
		for field, value := range want {
			if lines[i][field] != value {
				t.Errorf("line %d: %s is %v, want %v", i, field, lines[i][field], value)
			}
		}
	}
	if strings.Contains(r.log.String(), "payload") {
		t.Error("the log holds a payload")
	}
}

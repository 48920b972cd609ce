package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	validatepb "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"weir/internal/identity"
)

const (
	echo     = "/weir.test.v1.Echo/Echo"
	watch    = "/weir.test.v1.Echo/Watch"
	unlisted = "/weir.test.v1.Echo/Unlisted"
)

var methods = identity.Table{
	echo:                           {Scopes: []string{"weir.test"}},
	watch:                          {Scopes: []string{"weir.test"}},
	"/grpc.health.v1.Health/Check": {Public: true},
	"/grpc.health.v1.Health/Watch": {Public: true},
}

// request is a message with rules, as one generated from a .proto has.
var request = func() protoreflect.MessageDescriptor {
	field := func(name string, number int32, rules *validatepb.StringRules) *descriptorpb.FieldDescriptorProto {
		options := &descriptorpb.FieldOptions{}
		proto.SetExtension(options, validatepb.E_Field, validatepb.FieldRules_builder{String: rules}.Build())
		return &descriptorpb.FieldDescriptorProto{
			Name: &name, Number: &number, Options: options,
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
			Type:  descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(),
		}
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("weir/test/v1/echo.proto"), Package: proto.String("weir.test.v1"), Syntax: proto.String("proto3"),
		Dependency: []string{"buf/validate/validate.proto"},
		MessageType: []*descriptorpb.DescriptorProto{{
			Name: proto.String("EchoRequest"),
			Field: []*descriptorpb.FieldDescriptorProto{
				field("message_id", 1, validatepb.StringRules_builder{Pattern: proto.String("^[a-z]*$")}.Build()),
				field("text", 2, validatepb.StringRules_builder{NotContains: proto.String("forbidden")}.Build()),
			},
		}},
	}, protoregistry.GlobalFiles)
	if err != nil {
		panic(err)
	}
	return file.Messages().Get(0)
}()

func newRequest(id, text string) *dynamicpb.Message {
	m := dynamicpb.NewMessage(request)
	m.Set(request.Fields().ByName("message_id"), protoreflect.ValueOf(id))
	m.Set(request.Fields().ByName("text"), protoreflect.ValueOf(text))
	return m
}

// backend is a service whose methods do what the test says.
type backend struct {
	echo  func(ctx context.Context, text string) (string, error)
	watch func(stream grpc.ServerStream) error
}

func (b *backend) register(server *grpc.Server) {
	unary := func(method string) grpc.MethodDesc {
		return grpc.MethodDesc{
			MethodName: method[strings.LastIndexByte(method, '/')+1:],
			Handler: func(_ any, ctx context.Context, decode func(any) error, through grpc.UnaryServerInterceptor) (any, error) {
				in := dynamicpb.NewMessage(request)
				if err := decode(in); err != nil {
					return nil, err
				}
				return through(ctx, in, &grpc.UnaryServerInfo{FullMethod: method}, func(ctx context.Context, _ any) (any, error) {
					text := in.Get(request.Fields().ByName("text")).String()
					if b.echo == nil {
						return wrapperspb.String(text), nil
					}
					text, err := b.echo(ctx, text)
					return wrapperspb.String(text), err
				})
			},
		}
	}
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "weir.test.v1.Echo", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{unary(echo), unary(unlisted)},
		Streams: []grpc.StreamDesc{{
			StreamName:    "Watch",
			ServerStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error {
				in := dynamicpb.NewMessage(request)
				if err := stream.RecvMsg(in); err != nil {
					return err
				}
				return b.watch(stream)
			},
		}},
	}, b)
}

// running is a service under test.
type running struct {
	conn *grpc.ClientConn // with the caller's token
	addr string
	stop context.CancelFunc
	done chan error // Run's result
	log  *logBuffer

	tokenFile string
}

var caller = identity.Caller{Tenant: "acme", Subject: "agent:coder", Scopes: []string{"weir.test"}}

// trusted are a trusted key's file and a token file of the caller.
func trusted(t *testing.T) (jwks, tokenFile string) {
	t.Helper()
	signer, err := identity.NewSigner()
	if err != nil {
		t.Fatal(err)
	}
	jwks = filepath.Join(t.TempDir(), "jwks.json")
	if err := signer.WriteJWKS(jwks); err != nil {
		t.Fatal(err)
	}
	token, err := signer.Issue(caller, "weir", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return jwks, writeFile(t, "token", token)
}

func start(t *testing.T, b *backend, change ...func(*Config, *Service)) *running {
	t.Helper()
	jwks, token := trusted(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &running{addr: listener.Addr().String(), done: make(chan error, 1), log: &logBuffer{}, tokenFile: token}
	cfg := Config{
		JWKS:     jwks,
		Listener: listener,
		Logger:   slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Peer:     DialConfig{TokenFile: token},
	}
	s := Service{Name: "echo", Register: b.register, methods: methods}
	for _, change := range change {
		change(&cfg, &s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { r.done <- Run(ctx, cfg, s) }()
	t.Cleanup(func() {
		cancel()
		if t.Failed() {
			t.Log(r.log)
		}
	})
	if r.conn, err = Dial(r.addr, cfg.Peer); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.conn.Close() })
	return r
}

func (r *running) call(ctx context.Context, method string, in proto.Message, opts ...grpc.CallOption) (string, error) {
	out := &wrapperspb.StringValue{}
	err := r.conn.Invoke(ctx, method, in, out, opts...)
	return out.GetValue(), err
}

func (r *running) open(ctx context.Context) (grpc.ClientStream, error) {
	stream, err := r.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, watch)
	if err != nil {
		return nil, err
	}
	return stream, errors.Join(stream.SendMsg(newRequest("a", "")), stream.CloseSend())
}

// ended is Run's result, once it returned.
func (r *running) ended(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("Run doesn't return")
		return nil
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// logBuffer collects JSON log lines.
type logBuffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

// lines are those with the message.
func (b *logBuffer) lines(t *testing.T, msg string) []map[string]any {
	t.Helper()
	var found []map[string]any
	for line := range strings.Lines(b.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("not JSON: %s", line)
		}
		if fields["msg"] == msg {
			found = append(found, fields)
		}
	}
	return found
}

func withToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

package registry

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "weir/gen/conversation/v1" // registers the messages that bindings name
	_ "weir/gen/inbox/v1"
	"weir/internal/strictjson"
)

// binding runs an operation.
type binding interface {
	// run makes one call with canonical JSON and gives canonical JSON. Key is
	// the id under which the target converges, where it does.
	run(ctx context.Context, peers peers, key string, input []byte) ([]byte, error)
	// repeatable says that running it again under the same key changes nothing
	// more.
	repeatable() bool
}

// peers are the connections to services by the names that bindings use.
type peers map[string]grpc.ClientConnInterface

// grpcBinding runs a unary method, whose request and response are the JSON of
// its messages.
type grpcBinding struct {
	Service string `yaml:"service"`
	Method  string `yaml:"method"`
	// RetryKey is the string field of the request by which the target tells a
	// retry. Weir fills it where the input does not.
	RetryKey string `yaml:"retry_key"`

	request, response protoreflect.MessageType
	retryKey          protoreflect.FieldDescriptor
}

// resolve finds the method's messages among the compiled-in ones.
func (b *grpcBinding) resolve() error {
	service, method, ok := strings.Cut(b.Method, "/")
	if !ok || b.Service == "" {
		return errors.New("needs a service, and a method as package.Service/Method")
	}
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + method))
	if err != nil {
		return fmt.Errorf("method %s: %w", b.Method, err)
	}
	descriptor, ok := found.(protoreflect.MethodDescriptor)
	if !ok || descriptor.IsStreamingClient() || descriptor.IsStreamingServer() {
		return fmt.Errorf("method %s is not a unary method", b.Method)
	}
	if b.request, err = protoregistry.GlobalTypes.FindMessageByName(descriptor.Input().FullName()); err != nil {
		return err
	}
	if b.response, err = protoregistry.GlobalTypes.FindMessageByName(descriptor.Output().FullName()); err != nil {
		return err
	}
	if b.RetryKey != "" {
		b.retryKey = descriptor.Input().Fields().ByName(protoreflect.Name(b.RetryKey))
		if b.retryKey == nil || b.retryKey.Kind() != protoreflect.StringKind {
			return fmt.Errorf("retry_key: %s has no string field %q", descriptor.Input().FullName(), b.RetryKey)
		}
	}
	return nil
}

func (b *grpcBinding) repeatable() bool { return b.retryKey != nil }

func (b *grpcBinding) run(ctx context.Context, peers peers, key string, input []byte) ([]byte, error) {
	conn, ok := peers[b.Service]
	if !ok {
		return nil, fmt.Errorf("no peer %q is configured", b.Service)
	}
	request := b.request.New()
	if input != nil {
		if err := protojson.Unmarshal(input, request.Interface()); err != nil {
			return nil, fmt.Errorf("the schema of %s takes what its message does not: %w", b.Method, err)
		}
	}
	if b.retryKey != nil && request.Get(b.retryKey).String() == "" {
		request.Set(b.retryKey, protoreflect.ValueOfString(key))
	}
	response := b.response.New().Interface()
	if err := conn.Invoke(ctx, "/"+b.Method, request.Interface(), response); err != nil {
		return nil, err
	}
	return toJSON(response)
}

// toJSON writes a message with its proto names. protojson varies white space
// on purpose; the canonical form does not.
func toJSON(m proto.Message) ([]byte, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	return strictjson.Canonical(string(text))
}

// retryKey is the id under which a target converges for one invocation. It is
// derived, so that whoever runs it again uses the same, and hashed, so that it
// never meets an id that a client chose.
func retryKey(tenant, invocation string) string {
	sum := sha256.Sum256([]byte(tenant + "/" + invocation))
	return "op-" + strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
}

package serve

import (
	"context"
	"errors"
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"weir/internal/fault"
)

func validateUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := validate(req); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func validateStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(srv, validatedStream{stream})
}

type validatedStream struct{ grpc.ServerStream }

func (s validatedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return validate(m)
}

// validate holds a request against the rules in its .proto. Descriptions come from the
// rules, not from the values, which may be secret.
func validate(m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return nil
	}
	err := protovalidate.Validate(msg)
	if err == nil {
		return nil
	}
	failed, ok := errors.AsType[*protovalidate.ValidationError](err)
	if !ok { // a rule that doesn't compile or run
		return fault.New(fault.Bug, "internal error").Wrap(err)
	}
	reason := fault.IDMalformed
	for _, v := range failed.Violations {
		if !aboutID(v) {
			reason = fault.FieldInvalid
		}
	}
	refusal := fault.New(reason, "the request breaks the rules of its fields")
	for _, v := range failed.Violations {
		refusal = refusal.Field(protovalidate.FieldPathString(v.Proto.GetField()), v.Proto.GetMessage())
	}
	return refusal
}

// aboutID reports whether a field that holds an id isn't spelt like one. Clients that
// make up ids handle that apart from other mistakes.
func aboutID(v *protovalidate.Violation) bool {
	path := v.Proto.GetField().GetElements()
	if len(path) == 0 || !strings.HasPrefix(v.Proto.GetRuleId(), "string.") {
		return false
	}
	name := "_" + path[len(path)-1].GetFieldName()
	return strings.HasSuffix(name, "_id") || strings.HasSuffix(name, "_ids")
}

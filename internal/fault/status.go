package fault

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// GRPCStatus is what the client gets. grpc-go calls it, but for an Error wrapped by
// another error it takes that error's text as the message; so servers return the
// Error itself, found by From.
func (e *Error) GRPCStatus() *status.Status {
	details := []protoadapt.MessageV1{
		&errdetails.ErrorInfo{Reason: string(e.reason), Domain: Domain, Metadata: e.metadata},
	}
	if len(e.violations) > 0 {
		bad := &errdetails.BadRequest{}
		for _, v := range e.violations {
			bad.FieldViolations = append(bad.FieldViolations,
				&errdetails.BadRequest_FieldViolation{Field: v.Field, Description: v.Description})
		}
		details = append(details, bad)
	}
	if after := e.RetryAfter(); after > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
	}
	plain := status.New(e.kind.Code(), e.message)
	full, err := plain.WithDetails(details...)
	if err != nil { // only for texts that aren't UTF-8, and New, Field and With let none in
		return plain
	}
	return full
}

// From makes any error an *Error: itself if there is one in the chain, the peer's if
// it came over gRPC, and otherwise a BUG that tells the client nothing and keeps err
// as its cause. From(nil) is nil, which must not be returned as an error.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		if e == err {
			return e
		}
		return e.Wrap(err) // what was added around it is for the log
	}
	// Not status.FromError: for a wrapped error it puts the wrapper's text, which is
	// ours alone, into the message.
	if remote, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		return fromStatus(remote.GRPCStatus()).Wrap(err)
	}
	switch {
	case errors.Is(err, context.Canceled):
		return New(Cancelled, "the call was cancelled").Wrap(err)
	case errors.Is(err, context.DeadlineExceeded):
		return New(DeadlineExceeded, "the call took longer than it was given").Wrap(err)
	}
	return New(Bug, "internal error").Wrap(err)
}

// foreign gives a reason to a status without one, which comes from grpc-go itself or
// a proxy. The codes not listed are bugs between us and the peer, so their texts stay
// in the log.
var foreign = map[codes.Code]*Error{
	codes.Unavailable:      New(PeerUnavailable, "a service weir needs could not be reached"),
	codes.Canceled:         New(Cancelled, "the call was cancelled"),
	codes.DeadlineExceeded: New(DeadlineExceeded, "the call took longer than it was given"),
}

func fromStatus(s *status.Status) *Error {
	var e *Error
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.Domain == Domain {
			e = &Error{
				reason:   Reason(info.Reason),
				kind:     kindOf(s.Code()),
				message:  s.Message(),
				metadata: info.Metadata,
			}
		}
	}
	if e == nil {
		if known, ok := foreign[s.Code()]; ok {
			return known
		}
		return New(Bug, "internal error")
	}
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.BadRequest:
			for _, v := range d.FieldViolations {
				e.violations = append(e.violations, Violation{v.Field, v.Description})
			}
		case *errdetails.RetryInfo:
			e.retry = d.RetryDelay.AsDuration()
		}
	}
	return e
}

package identity

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"weir/internal/fault"
)

// Guard stands in front of every method. A call passes it when its credential is
// good, nobody concerned is disabled and the method's rule lets the caller in. All
// that happens before the request is looked at, so a refusal tells nothing about what
// exists.
type Guard struct {
	Verifier *Verifier
	Standing *Standing // nil: nobody is disabled
	Peers    *Peers    // nil: certificates alone open nothing
	Methods  Table
}

// Unary is the Guard for unary methods.
func (g *Guard) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if g.Methods[info.FullMethod].Public {
		return next(ctx, req)
	}
	a, err := g.admit(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return next(NewContext(ctx, a.caller), req)
}

// Stream is the Guard for streaming methods. A stream may outlive its credential, so
// each message is let through only while the caller would still be admitted.
func (g *Guard) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if g.Methods[info.FullMethod].Public {
		return next(srv, stream)
	}
	a, err := g.admit(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return next(srv, &guardedStream{stream, g, a, NewContext(stream.Context(), a.caller)})
}

// admission is a caller let in, and what the decision rests on.
type admission struct {
	holder Caller    // whose credential it is
	caller Caller    // holder, or whom it acts for
	until  time.Time // when the credential ends; zero for a certificate, which the connection checked
}

func (g *Guard) admit(ctx context.Context, method string) (admission, error) {
	credential, err := g.authenticate(ctx)
	if err != nil {
		return admission{}, err
	}
	holder := credential.caller
	observed(ctx, holder)
	if err := g.Standing.check(holder); err != nil {
		return admission{}, err
	}
	rule := g.Methods[method]
	caller, err := resolve(ctx, holder, rule.ActsFor)
	if err != nil {
		return admission{}, err
	}
	observed(ctx, caller)
	if err := g.Standing.check(caller); err != nil {
		return admission{}, err
	}
	if err := rule.allow(caller); err != nil {
		return admission{}, err
	}
	return admission{holder, caller, credential.until}, nil
}

// authenticate finds the holder of the call's credential. With an authorization
// header nothing else counts: falling back to the certificate would turn a bad token
// into a service's rights.
func (g *Guard) authenticate(ctx context.Context) (verified, error) {
	headers := metadata.ValueFromIncomingContext(ctx, "authorization")
	switch len(headers) {
	case 0:
		if c, ok := g.Peers.caller(ctx); ok {
			return verified{caller: c}, nil
		}
		return verified{}, fault.New(fault.TokenMissing, "the call carries no credential")
	case 1:
		scheme, token, _ := strings.Cut(headers[0], " ")
		if !strings.EqualFold(scheme, "bearer") {
			return verified{}, fault.New(fault.TokenInvalid, "the authorization header is not a bearer token")
		}
		return g.Verifier.verify(ctx, token)
	}
	return verified{}, fault.New(fault.TokenInvalid, "the call carries more than one authorization header")
}

// still reports whether the admission holds now.
func (g *Guard) still(a admission) error {
	if !a.until.IsZero() && !g.Verifier.now().Before(a.until) {
		return fault.New(fault.TokenInvalid, "the token expired during the call")
	}
	if err := g.Standing.check(a.holder); err != nil {
		return err
	}
	return g.Standing.check(a.caller)
}

type guardedStream struct {
	grpc.ServerStream
	guard     *Guard
	admission admission
	ctx       context.Context
}

func (s *guardedStream) Context() context.Context { return s.ctx }

func (s *guardedStream) SendMsg(m any) error {
	if err := s.guard.still(s.admission); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(m)
}

func (s *guardedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.guard.still(s.admission)
}

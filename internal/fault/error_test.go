package fault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// remote is err as the other end of a connection gets it.
func remote(t interface{ Fatal(...any) }, err error) error {
	wire, e := proto.Marshal(status.Convert(err).Proto())
	if e != nil {
		t.Fatal(e)
	}
	s := status.Convert(err).Proto()
	proto.Reset(s)
	if e := proto.Unmarshal(wire, s); e != nil {
		t.Fatal(e)
	}
	return status.FromProto(s).Err()
}

func TestEveryReasonReachesTheClient(t *testing.T) {
	for reason, kind := range reasons {
		t.Run(string(reason), func(t *testing.T) {
			err := remote(t, New(reason, "no luck with %s", "x"))
			if got := status.Code(err); got != kind.Code() || got == codes.Unknown {
				t.Errorf("code is %v, want %v", got, kind.Code())
			}
			back := From(err)
			if back.Reason() != reason || back.Kind() != kind || back.Message() != "no luck with x" {
				t.Errorf("came back as %v (%v)", back, back.Kind())
			}
			if !Is(err, reason) {
				t.Error("Is doesn't know it")
			}
		})
	}
}

func TestDetailsAreGoogleRPC(t *testing.T) {
	err := New(FieldInvalid, "bad").Field("spec.name", "is empty").Field("ids[2]", "is malformed").
		With("approval", "01K5").Retry(3 * time.Second)

	var (
		info  *errdetails.ErrorInfo
		bad   *errdetails.BadRequest
		retry *errdetails.RetryInfo
	)
	for _, detail := range status.Convert(remote(t, err)).Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.BadRequest:
			bad = d
		case *errdetails.RetryInfo:
			retry = d
		}
	}
	if info.GetReason() != "FIELD_INVALID" || info.GetDomain() != "weir" || info.GetMetadata()["approval"] != "01K5" {
		t.Errorf("ErrorInfo is %v", info)
	}
	if v := bad.GetFieldViolations(); len(v) != 2 || v[1].Field != "ids[2]" || v[1].Description != "is malformed" {
		t.Errorf("BadRequest is %v", bad)
	}
	if retry.GetRetryDelay().AsDuration() != 3*time.Second {
		t.Errorf("RetryInfo is %v", retry)
	}

	back := From(remote(t, err))
	if back.Metadata("approval") != "01K5" || len(back.Violations()) != 2 || back.RetryAfter() != 3*time.Second {
		t.Errorf("came back as %#v", back)
	}
}

func TestWhatMayPassSaysWhenToRetry(t *testing.T) {
	for reason, kind := range reasons {
		passes := kind == KindContention || kind == KindUnavailable
		if got := New(reason, "").RetryAfter() > 0; got != passes {
			t.Errorf("%s has a retry delay: %v", reason, got)
		}
	}
}

func TestChainingLeavesTheOriginalAlone(t *testing.T) {
	sentinel := New(RateLimited, "slow down").With("a", "1").Field("f", "d")
	one := sentinel.With("a", "2").Field("g", "d").Retry(time.Minute).Wrap(io.EOF)
	two := sentinel.Field("h", "d")

	if sentinel.Metadata("a") != "1" || len(sentinel.Violations()) != 1 || sentinel.RetryAfter() != 0 || errors.Is(sentinel, io.EOF) {
		t.Errorf("the sentinel changed: %#v", sentinel)
	}
	if one.Violations()[1].Field != "g" || two.Violations()[1].Field != "h" {
		t.Error("two copies share their fields")
	}
	if !errors.Is(one, sentinel) || errors.Is(one, New(InboxFull, "")) {
		t.Error("errors.Is doesn't go by reason")
	}
}

func TestCausesStayHere(t *testing.T) {
	secret := errors.New("dial redis at 10.0.0.7: password hunter2 refused")
	for name, err := range map[string]error{
		"wrapped":    New(HotUnavailable, "hot state is away").Wrap(secret),
		"unexpected": secret,
		"outside":    fmt.Errorf("%w: %w", New(HotUnavailable, "hot state is away"), secret),
		"of a peer":  fmt.Errorf("%w: %w", remote(t, New(HotUnavailable, "hot state is away")), secret),
		"foreign":    fmt.Errorf("%w: %w", status.Error(codes.Unavailable, "10.0.0.7"), secret),
		"unknown":    status.Error(codes.Unknown, secret.Error()),
	} {
		t.Run(name, func(t *testing.T) {
			f := From(err)
			if sent := status.Convert(f).String(); strings.Contains(sent, "10.0.0.7") || strings.Contains(sent, "hunter2") {
				t.Errorf("the client reads %s", sent)
			}
			if !strings.Contains(f.Error(), "hunter2") {
				t.Errorf("the log reads only %s", f)
			}
			if name != "unknown" && !errors.Is(f, secret) {
				t.Error("errors.Is doesn't find the cause")
			}
		})
	}
}

func TestFrom(t *testing.T) {
	ours := New(StaleClaim, "too late")
	newer, _ := status.New(codes.FailedPrecondition, "novel").WithDetails(&errdetails.ErrorInfo{Reason: "NOVEL", Domain: Domain})
	other, _ := status.New(codes.NotFound, "x").WithDetails(&errdetails.ErrorInfo{Reason: "MESSAGE_NOT_FOUND", Domain: "example.com"})
	for name, c := range map[string]struct {
		err    error
		reason Reason
		kind   Kind
	}{
		"ours":                       {ours, StaleClaim, KindPrecondition},
		"ours, wrapped":              {fmt.Errorf("claiming: %w", ours), StaleClaim, KindPrecondition},
		"a peer's, wrapped":          {fmt.Errorf("asking: %w", remote(t, ours)), StaleClaim, KindPrecondition},
		"a newer peer's":             {newer.Err(), "NOVEL", KindPrecondition},
		"another system's":           {other.Err(), Bug, KindBug},
		"peer away":                  {status.Error(codes.Unavailable, ""), PeerUnavailable, KindUnavailable},
		"peer was out of time":       {status.Error(codes.DeadlineExceeded, ""), DeadlineExceeded, KindDeadlineExceeded},
		"peer was told to stop":      {status.Error(codes.Canceled, ""), Cancelled, KindCancelled},
		"peer doesn't know the call": {status.Error(codes.Unimplemented, ""), Bug, KindBug},
		"cancelled":                  {fmt.Errorf("x: %w", context.Canceled), Cancelled, KindCancelled},
		"out of time":                {fmt.Errorf("x: %w", context.DeadlineExceeded), DeadlineExceeded, KindDeadlineExceeded},
		"a reason without a row":     {New("TYPO", ""), "TYPO", KindBug},
		"anything else":              {io.ErrUnexpectedEOF, Bug, KindBug},
	} {
		t.Run(name, func(t *testing.T) {
			got := From(c.err)
			if got.Reason() != c.reason || got.Kind() != c.kind {
				t.Errorf("got %v (%v)", got, got.Kind())
			}
			if !errors.Is(got, c.err) && !errors.Is(c.err, got) {
				t.Error("the original is lost")
			}
		})
	}
	if From(nil) != nil || ReasonOf(nil) != "" || Is(nil, Bug) {
		t.Error("nil is an error")
	}
}

// Whatever text gets into an error, the client can read it and its reason.
func TestAnyTextCanBeSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOfN(rapid.Byte(), 0, 3000).Draw(t, "text"))
		err := New(LimitReached, "%s", text)
		for range rapid.IntRange(0, 40).Draw(t, "times") {
			err = err.Field(text, text).With(rapid.String().Draw(t, "key"), text)
		}
		got := From(remote(t, err))
		if got.Reason() != LimitReached || got.Message() != err.Message() {
			t.Fatalf("came back as %v", got)
		}
		if !utf8.ValidString(got.Message()) || len(got.Message()) > maxMessage {
			t.Fatalf("message of %d bytes", len(got.Message()))
		}
		if size := proto.Size(err.GRPCStatus().Proto()); size*4/3 > 8<<10 {
			t.Fatalf("%d bytes", size)
		}
	})
}

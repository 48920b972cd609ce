package fault

import (
	"time"

	"google.golang.org/grpc/codes"
)

// Kind says what sort of thing went wrong, and with it what a client can do:
// correct the request, get permission, try again, or call an operator.
type Kind uint8

const (
	KindBug Kind = iota // the zero kind, so that a forgotten one is never read as a mild refusal
	KindInvalid
	KindUnauthenticated
	KindForbidden
	KindNotFound
	KindExists
	KindPrecondition
	KindExhausted
	KindOutOfRange
	KindContention
	KindUnavailable
	KindUnreadable
	KindCancelled
	KindDeadlineExceeded
)

// kinds gives each kind its code. No code stands twice: that is what lets an
// error from a newer peer, whose reason is unknown here, keep its kind.
//
// retry is the wait suggested to clients where trying the same call again can
// help. An error that knows better says so with Error.Retry.
var kinds = [...]struct {
	name  string
	code  codes.Code
	retry time.Duration
}{
	KindBug:              {"bug", codes.Internal, 0},
	KindInvalid:          {"invalid", codes.InvalidArgument, 0},
	KindUnauthenticated:  {"unauthenticated", codes.Unauthenticated, 0},
	KindForbidden:        {"forbidden", codes.PermissionDenied, 0},
	KindNotFound:         {"not found", codes.NotFound, 0},
	KindExists:           {"exists", codes.AlreadyExists, 0},
	KindPrecondition:     {"precondition", codes.FailedPrecondition, 0},
	KindExhausted:        {"exhausted", codes.ResourceExhausted, 0},
	KindOutOfRange:       {"out of range", codes.OutOfRange, 0},
	KindContention:       {"contention", codes.Aborted, 50 * time.Millisecond},
	KindUnavailable:      {"unavailable", codes.Unavailable, time.Second},
	KindUnreadable:       {"unreadable", codes.DataLoss, 0},
	KindCancelled:        {"cancelled", codes.Canceled, 0},
	KindDeadlineExceeded: {"deadline exceeded", codes.DeadlineExceeded, 0},
}

func (k Kind) String() string { return kinds[k].name }

// Code is the gRPC code of every error of this kind.
func (k Kind) Code() codes.Code { return kinds[k].code }

// kindOf is Code backwards. Codes that weir never sends are bugs.
func kindOf(c codes.Code) Kind {
	for k := range kinds {
		if kinds[k].code == c {
			return Kind(k)
		}
	}
	return KindBug
}

package approvals

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"weir/cmd/internal/console"
	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
)

// Between two attempts to reach a gate that is away.
const (
	firstWait = 250 * time.Millisecond
	maxWait   = 15 * time.Second
)

// Watch lists what is pending, and then shows every change, a line each, until ctx ends.
// It goes on where it was when the gate was away. A change may show twice.
func Watch(ctx context.Context, t *console.Terminal, client gatev1.ApprovalServiceClient) error {
	w := watcher{t: t, client: client, wait: firstWait}
	for {
		err := w.follow(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case fault.Is(err, fault.CursorUnavailable) && w.token != "":
			// This gate never gave the token: its journal is another one. What is
			// pending there is not what was shown.
			t.Printf("%s\n", t.Yellow("the gate does not know what was shown last; from the beginning:"))
			w.token, w.listed = "", false
		case final(err):
			return err
		default:
			if !w.away {
				t.Printf("%s\n", t.Dim("the gate is away; trying again until it is back"))
			}
			w.away = true
		}
		// Half of it at random, so that many watchers don't come back all at once.
		pause := w.wait/2 + rand.N(w.wait/2)
		w.wait = min(2*w.wait, maxWait)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// final says whether trying again would give the same error.
func final(err error) bool {
	switch fault.From(err).Kind() {
	case fault.KindUnavailable, fault.KindDeadlineExceeded, fault.KindContention, fault.KindCancelled:
		return false
	}
	return !errors.Is(err, io.EOF)
}

type watcher struct {
	t      *console.Terminal
	client gatev1.ApprovalServiceClient
	token  string
	listed bool
	away   bool
	wait   time.Duration
}

// follow reads one stream to its end.
func (w *watcher) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := w.client.WatchApprovals(ctx, &gatev1.WatchApprovalsRequest{ResumeToken: w.token})
	if err != nil {
		return err
	}
	for {
		got, err := stream.Recv()
		if err != nil {
			return err
		}
		if w.away {
			w.t.Printf("%s\n", w.t.Dim("the gate is back"))
		}
		w.away, w.wait = false, firstWait
		// The list comes after the first answer, from which changes are followed: what
		// happens in between shows twice rather than never.
		if !w.listed {
			if err := List(ctx, w.t, w.client, gatev1.ApprovalState_APPROVAL_STATE_PENDING); err != nil {
				return err
			}
			w.listed = true
		}
		if got.GetChange() != "" {
			w.t.Printf("%s\n", changeLine(w.t, got))
		}
		w.token = got.GetResumeToken()
	}
}

func changeLine(t *console.Terminal, w *gatev1.WatchApprovalsResponse) string {
	text := w.GetChangeTime().AsTime().Local().Format(time.TimeOnly) + "  " + safe(w.GetChange())
	if w.GetActor() != "" {
		text += " by " + safe(w.GetActor())
	}
	return text + "  " + line(t, w.GetApproval(), time.Now())
}

package approvals

import (
	"context"
	"time"

	"weir/cmd/internal/console"
	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
)

// Watch lists what is pending, and then shows every change, a line each, until ctx ends.
// It goes on where it was when the gate was away. A change may show twice.
func Watch(ctx context.Context, t *console.Terminal, client gatev1.ApprovalServiceClient) error {
	w := watcher{t: t, client: client, follower: console.Follower{T: t, Service: "gate"}}
	return w.follower.Run(ctx, func(ctx context.Context) error {
		err := w.follow(ctx)
		if fault.Is(err, fault.CursorUnavailable) && w.token != "" {
			// This gate never gave the token: its journal is another one. What is
			// pending there is not what was shown.
			t.Printf("%s\n", t.Yellow("the gate does not know what was shown last; from the beginning:"))
			w.token, w.listed = "", false
			return nil
		}
		return err
	})
}

type watcher struct {
	t        *console.Terminal
	client   gatev1.ApprovalServiceClient
	follower console.Follower
	token    string
	listed   bool
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
		w.follower.Heard()
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

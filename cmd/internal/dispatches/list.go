package dispatches

import (
	"context"
	"fmt"
	"time"

	"weir/cmd/internal/console"
	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
)

// maxListed is how many dispatches a list has at most.
const maxListed = 1000

// List shows dispatches, newest activity first.
func List(ctx context.Context, t *console.Terminal, client inboxv1.DispatchServiceClient, which *inboxv1.ListDispatchesRequest) error {
	which.PageSize = maxListed
	listed, err := client.ListDispatches(ctx, which)
	if err != nil {
		return err
	}
	now := time.Now()
	var rows []console.Row
	for _, d := range listed.GetDispatches() {
		rows = append(rows, row(t, d, now))
	}
	leftOut := ""
	if listed.GetNextPageToken() != "" {
		leftOut = fmt.Sprintf("these are the newest %d; there are more", len(rows))
	}
	t.List(head(t), rows, leftOut)
	return nil
}

// Status counts a goal's items by state.
func Status(ctx context.Context, t *console.Terminal, client inboxv1.DispatchServiceClient, goal string) error {
	got, err := client.GetGoal(ctx, &inboxv1.GetGoalRequest{Goal: goal})
	if err != nil {
		return err
	}
	g := got.GetGoal()
	t.Printf("%s  %d of %d open\n", t.Bold(safe(g.GetGoal())), g.GetOpen(), g.GetLimit())
	for _, c := range g.GetCounts() {
		t.Printf("%6d %s\n", c.GetCount(), statePaint(t, c.GetState())(stateText(c.GetState())))
	}
	return nil
}

// Watch shows every change as it happens, a line each, until ctx ends. It goes on where it
// was when the inbox was away.
func Watch(ctx context.Context, t *console.Terminal, client inboxv1.DispatchServiceClient, goal string) error {
	w := watcher{t: t, client: client, goal: goal, follower: console.Follower{T: t, Service: "inbox"}}
	return w.follower.Run(ctx, func(ctx context.Context) error {
		err := w.follow(ctx)
		if fault.Is(err, fault.CursorUnavailable) && w.token != "" {
			t.Printf("%s\n", t.Yellow("the inbox does not know what was shown last; what happened meanwhile is left out"))
			w.token = ""
			return nil
		}
		return err
	})
}

type watcher struct {
	t        *console.Terminal
	client   inboxv1.DispatchServiceClient
	goal     string
	follower console.Follower
	token    string
}

// follow reads one stream to its end.
func (w *watcher) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := w.client.WatchDispatches(ctx, &inboxv1.WatchDispatchesRequest{Goal: w.goal, ResumeToken: w.token})
	if err != nil {
		return err
	}
	for {
		got, err := stream.Recv()
		if err != nil {
			return err
		}
		w.follower.Heard()
		if got.GetChange() != "" {
			w.t.Printf("%s\n", changeLine(w.t, got))
		}
		w.token = got.GetResumeToken()
	}
}

func changeLine(t *console.Terminal, w *inboxv1.WatchDispatchesResponse) string {
	d := w.GetDispatch()
	text := w.GetChangeTime().AsTime().Local().Format(time.TimeOnly) + "  " + safe(w.GetChange())
	if w.GetActor() != "" {
		text += " by " + safe(w.GetActor())
	}
	text += "  " + safe(d.GetGoal()) + "  " + t.Bold(safe(d.GetItem())) + "  " + statePaint(t, d.GetState())(stateText(d.GetState()))
	if more := notable(d); more != "" {
		text += "  " + more
	}
	return text
}

package dispatches

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"weir/cmd/internal/console"
	inboxv1 "weir/gen/inbox/v1"
)

// maxSeed is what the inbox takes.
const maxSeed = 64 << 10

// Seed is a text, or that of the file whose name stands behind an @.
func Seed(text string) (string, error) {
	path, named := strings.CutPrefix(text, "@")
	if !named {
		return text, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("--seed: %w", err)
	}
	defer file.Close()
	read, err := io.ReadAll(io.LimitReader(file, maxSeed+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("--seed: %w", err)
	case len(read) > maxSeed:
		return "", fmt.Errorf("--seed: %s: a seed is at most %d bytes", path, maxSeed)
	}
	return string(read), nil
}

// Start gives work away. Its request id is shown before the answer, which may get lost:
// the same again with that id starts nothing twice.
func Start(ctx context.Context, t *console.Terminal, client inboxv1.DispatchServiceClient, work *inboxv1.DispatchRequest) error {
	t.Printf("request %s\n", safe(work.GetRequestId()))
	got, err := client.Dispatch(ctx, work)
	if err != nil {
		return err
	}
	if got.GetReplay() {
		t.Printf("%s\n", t.Dim("it was asked for before"))
	}
	Show(t, got.GetDispatch(), time.Now())
	return nil
}

// decided shows what a verdict came to.
func decided(t *console.Terminal, d *inboxv1.Dispatch, err error) error {
	if err == nil {
		t.Printf("%s  %s  %s\n", safe(d.GetGoal()), t.Bold(safe(d.GetItem())), statePaint(t, d.GetState())(stateText(d.GetState())))
	}
	return err
}

// Accept says that work is done.
func Accept(ctx context.Context, t *console.Terminal, client inboxv1.DispatchServiceClient, goal, item, note string) error {
	got, err := client.Accept(ctx, &inboxv1.AcceptRequest{Goal: goal, Item: item, Note: note})
	return decided(t, got.GetDispatch(), err)
}

// Reject sends work back.
func Reject(ctx context.Context, t *console.Terminal, client inboxv1.DispatchServiceClient, goal, item, note string) error {
	got, err := client.Reject(ctx, &inboxv1.RejectRequest{Goal: goal, Item: item, Note: note})
	return decided(t, got.GetDispatch(), err)
}

// Abandon ends an item that nobody waits for any more.
func Abandon(ctx context.Context, t *console.Terminal, client inboxv1.DispatchServiceClient, goal, item, note string) error {
	got, err := client.Abandon(ctx, &inboxv1.AbandonRequest{Goal: goal, Item: item, Note: note})
	return decided(t, got.GetDispatch(), err)
}

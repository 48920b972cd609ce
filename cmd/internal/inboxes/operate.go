package inboxes

import (
	"context"
	"fmt"
	"slices"
	"time"

	"weir/cmd/internal/console"
	inboxv1 "weir/gen/inbox/v1"
)

// atOnce is how many messages one call names.
const atOnce = 100

// lookEvery is how often a drain looks whether the inbox is empty.
const lookEvery = 500 * time.Millisecond

// Redrive makes dead messages pending again; without ids, all that are dead now.
func Redrive(ctx context.Context, t *console.Terminal, client inboxv1.InboxServiceClient, goal string, ids []string) error {
	if len(ids) == 0 {
		err := eachDead(ctx, client, goal, func(d *inboxv1.DeadMessage) bool {
			ids = append(ids, d.GetMessage().GetMessageId())
			return true
		})
		if err != nil {
			return err
		}
	}
	return inBatches(t, "redriven", ids, func(ids []string) (*inboxv1.Inbox, error) {
		got, err := client.Redrive(ctx, &inboxv1.RedriveRequest{Goal: goal, MessageIds: ids})
		return got.GetInbox(), err
	})
}

// Discard ends dead messages for good, once the person has said yes.
func Discard(ctx context.Context, t *console.Terminal, client inboxv1.InboxServiceClient, goal string, ids []string, yes bool) error {
	if !yes {
		sure, err := t.Confirm(ctx, fmt.Sprintf("Discard %s of %s for good?", messages(len(ids)), safe(goal)))
		if err != nil {
			return err
		}
		if !sure {
			t.Printf("nothing was discarded\n")
			return console.Failed
		}
	}
	return inBatches(t, "discarded", ids, func(ids []string) (*inboxv1.Inbox, error) {
		got, err := client.DiscardDead(ctx, &inboxv1.DiscardDeadRequest{Goal: goal, MessageIds: ids})
		return got.GetInbox(), err
	})
}

// inBatches does something with ids, as many as one call takes, and says how far it came.
func inBatches(t *console.Terminal, what string, ids []string, do func([]string) (*inboxv1.Inbox, error)) error {
	through := 0
	var after *inboxv1.Inbox
	for batch := range slices.Chunk(ids, atOnce) {
		in, err := do(batch)
		if err != nil {
			if through > 0 {
				t.Printf("%s: %s, and then no more\n", what, messages(through))
			}
			return err
		}
		after = in
		through += len(batch)
	}
	t.Printf("%s: %s\n", what, messages(through))
	if after != nil {
		brief(t, after)
	}
	return nil
}

// brief shows an inbox as an operator left it.
func brief(t *console.Terminal, in *inboxv1.Inbox) {
	t.Printf("%s  %s  %s\n", t.Bold(safe(in.GetGoal())), statePaint(t, in.GetState())(stateText(in)), left(in))
}

// left is what an inbox still holds.
func left(in *inboxv1.Inbox) string {
	text := fmt.Sprintf("%d pending, %d delayed, %d claimed", in.GetPending(), in.GetDelayed(), in.GetClaimed())
	if in.GetDead() > 0 {
		text += fmt.Sprintf("; %d dead", in.GetDead())
	}
	return text
}

// Pause stops serving an inbox.
func Pause(ctx context.Context, t *console.Terminal, client inboxv1.InboxServiceClient, goal, note string) error {
	got, err := client.PauseInbox(ctx, &inboxv1.PauseInboxRequest{Goal: goal, Note: note})
	if err == nil {
		brief(t, got.GetInbox())
	}
	return err
}

// Resume opens an inbox again.
func Resume(ctx context.Context, t *console.Terminal, client inboxv1.InboxServiceClient, goal string) error {
	got, err := client.ResumeInbox(ctx, &inboxv1.ResumeInboxRequest{Goal: goal})
	if err == nil {
		brief(t, got.GetInbox())
	}
	return err
}

// Drain stops an inbox from taking messages, and waits until it is empty. Who ends the
// waiting leaves it draining.
func Drain(ctx context.Context, t *console.Terminal, client inboxv1.InboxServiceClient, goal, note string) error {
	got, err := client.DrainInbox(ctx, &inboxv1.DrainInboxRequest{Goal: goal, Note: note})
	if err != nil {
		return err
	}
	in := got.GetInbox()
	live := console.LiveLine{T: t}
	follower := console.Follower{T: t, Service: "inbox"}
	waiting, enough := context.WithCancel(ctx)
	defer enough()
	err = follower.Run(waiting, func(ctx context.Context) error {
		for in.GetDepth() > 0 && in.GetState() == inboxv1.InboxState_INBOX_STATE_DRAINING {
			live.Say("draining: " + left(in))
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(lookEvery):
			}
			got, err := client.GetInbox(ctx, &inboxv1.GetInboxRequest{Goal: goal})
			if err != nil {
				live.End()
				return err
			}
			follower.Heard()
			in = got.GetInbox()
		}
		enough()
		return nil
	})
	live.End()
	if err != nil {
		return err
	}
	if in.GetState() != inboxv1.InboxState_INBOX_STATE_DRAINING {
		t.Printf("somebody else changed it: %s  %s  %s\n", safe(goal), stateText(in), left(in))
		return console.Failed
	}
	again := "weir inbox resume " + safe(goal)
	if in.GetDepth() > 0 {
		t.Printf("%s stays draining, with %s; `%s` makes it take messages again\n", safe(goal), left(in), again)
		return console.Failed
	}
	t.Printf("%s is empty, and takes nothing until `%s`\n", safe(goal), again)
	return nil
}

// Send enqueues a message, and says under which id.
func Send(ctx context.Context, t *console.Terminal, client inboxv1.InboxServiceClient, message *inboxv1.EnqueueRequest) error {
	t.Printf("message %s\n", safe(message.GetMessageId())) // before the answer, which may get lost
	got, err := client.Enqueue(ctx, message)
	if err != nil {
		return err
	}
	t.Printf("%s in %s, which holds %s\n", name(got.GetState(), "MESSAGE_STATE_"), safe(message.GetGoal()), messages(int(got.GetDepth())))
	if got.GetReplacedMessageId() != "" {
		t.Printf("it takes the place of %s\n", safe(got.GetReplacedMessageId()))
	}
	return nil
}

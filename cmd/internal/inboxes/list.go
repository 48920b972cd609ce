package inboxes

import (
	"context"
	"fmt"
	"time"

	"weir/cmd/internal/console"
	inboxv1 "weir/gen/inbox/v1"
)

// How many of what a list shows at most, and a page of it has.
const (
	maxInboxes  = 1000
	maxMessages = 1000
	messagePage = 100
)

// List shows inboxes, newest activity first; with watch it goes on until ctx ends.
func List(ctx context.Context, t *console.Terminal, client inboxv1.InboxServiceClient, watch bool) error {
	look := func(ctx context.Context) (console.Row, []console.Row, bool, error) {
		listed, err := client.ListInboxes(ctx, &inboxv1.ListInboxesRequest{PageSize: maxInboxes})
		if err != nil {
			return console.Row{}, nil, false, err
		}
		now := time.Now()
		var rows []console.Row
		for _, in := range listed.GetInboxes() {
			rows = append(rows, inboxRow(t, in, now))
		}
		return t.Heads(heads...), rows, listed.GetNextPageToken() != "", nil
	}
	return show(ctx, t, look, watch)
}

// Peek shows what waits in an inbox and what is claimed, in order.
func Peek(ctx context.Context, t *console.Terminal, client inboxv1.InboxServiceClient, goal string, watch bool) error {
	look := func(ctx context.Context) (console.Row, []console.Row, bool, error) {
		now := time.Now()
		var rows []console.Row
		for token := ""; ; {
			page, err := client.Peek(ctx, &inboxv1.PeekRequest{Goal: goal, PageSize: messagePage, PageToken: token})
			if err != nil {
				return console.Row{}, nil, false, err
			}
			for _, m := range page.GetMessages() {
				rows = append(rows, messageRow(t, m, now))
			}
			if token = page.GetNextPageToken(); token == "" || len(rows) >= maxMessages {
				return t.Heads("MESSAGE", "STATE", "ENQUEUED", "SENDER", "SAYS", ""), rows, token != "", nil
			}
		}
	}
	return show(ctx, t, look, watch)
}

// looking gives a table, and whether there is more of it.
type looking func(context.Context) (head console.Row, rows []console.Row, more bool, err error)

func show(ctx context.Context, t *console.Terminal, look looking, watch bool) error {
	if watch {
		return t.Live(ctx, "inbox", func(ctx context.Context) (console.Row, []console.Row, error) {
			head, rows, _, err := look(ctx)
			return head, rows, err
		})
	}
	head, rows, more, err := look(ctx)
	if err != nil {
		return err
	}
	leftOut := ""
	if more {
		leftOut = fmt.Sprintf("these are the first %d; there are more", len(rows))
	}
	t.List(head, rows, leftOut)
	return nil
}

// Status shows one inbox.
func Status(ctx context.Context, t *console.Terminal, client inboxv1.InboxServiceClient, goal string) error {
	got, err := client.GetInbox(ctx, &inboxv1.GetInboxRequest{Goal: goal})
	if err == nil {
		status(t, got.GetInbox(), time.Now())
	}
	return err
}

// Dead shows the messages that were delivered too often, newest death first, and how each
// delivery ended.
func Dead(ctx context.Context, t *console.Terminal, client inboxv1.InboxServiceClient, goal string) error {
	shown, now := 0, time.Now()
	err := eachDead(ctx, client, goal, func(d *inboxv1.DeadMessage) bool {
		if shown == maxMessages {
			t.Printf("%s\n", t.Yellow(fmt.Sprintf("these are the newest %d; there are more", shown)))
			return false
		}
		shown++
		deadMessage(t, d, now)
		return true
	})
	if err == nil && shown == 0 {
		t.Printf("%s\n", t.Dim("there are none"))
	}
	return err
}

func deadMessage(t *console.Terminal, d *inboxv1.DeadMessage, now time.Time) {
	m := d.GetMessage()
	head := t.Bold(safe(m.GetMessageId())) + "  " + t.Red("DEAD")
	if at := d.GetDeathTime(); at != nil {
		head += "  " + console.Age(at, now)
	}
	t.Printf("%s  from %s  %s\n", head, safe(m.GetSender()), said(m))
	for _, delivery := range d.GetDeliveries() {
		text := "claimed " + console.Age(delivery.GetClaimTime(), now) + " by " + safe(delivery.GetClaimant()) + ", " +
			name(delivery.GetEnd(), "DELIVERY_END_")
		if from, to := delivery.GetClaimTime(), delivery.GetEndTime(); from != nil && to != nil {
			text += " after " + console.Remaining(max(0, to.AsTime().Sub(from.AsTime())))
		}
		t.Printf("  %s\n", text)
	}
}

// eachDead goes through all dead messages of an inbox, until each says that it is enough.
func eachDead(ctx context.Context, client inboxv1.InboxServiceClient, goal string, each func(*inboxv1.DeadMessage) bool) error {
	for token := ""; ; {
		page, err := client.ListDead(ctx, &inboxv1.ListDeadRequest{Goal: goal, PageSize: messagePage, PageToken: token})
		if err != nil {
			return err
		}
		for _, d := range page.GetMessages() {
			if !each(d) {
				return nil
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return nil
		}
	}
}

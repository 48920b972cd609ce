package story

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"weir/cmd/internal/events"
	inboxv1 "weir/gen/inbox/v1"
	registryv1 "weir/gen/registry/v1"
)

// happened is every event of the story and how often it is there, by stream. That is the
// whole of it: what is missing was lost, and what is more happened twice.
var happened = map[string]string{
	"WEIR_GATE":         "1 ApprovalDecided, 1 ApprovalRedeemed, 1 ApprovalRequested, 1 GrantPut",
	"WEIR_REGISTRY":     "1 InvocationAwaitingApproval, 1 InvocationRequested, 1 InvocationStarted, 1 InvocationSucceeded",
	"WEIR_CONVERSATION": "1 ConversationCreated, 3 MessagesAppended",
	"WEIR_INBOX":        "2 DispatchBegun, 1 DispatchSent, 2 MessagesClaimed, 1 MessagesDone, 1 MessagesEnqueued, 1 MessagesReleased",
}

func (s *story) events(ctx context.Context) error {
	subject := "weir.*." + s.tenant + ".>"
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	nc, err := nats.Connect(s.nats, nats.RetryOnFailedConnect(true))
	if err != nil {
		return err
	}
	defer nc.Close()

	counts := make(map[string]map[string]int)
	ids := make(map[string]bool)
	var unreadable error
	total := 0
	err = events.Read(ctx, nc, events.Query{Subject: subject, FromStart: true}, func(e events.Event) error {
		if counts[e.Stream] == nil {
			counts[e.Stream] = make(map[string]int)
		}
		counts[e.Stream][e.Type[strings.LastIndexByte(e.Type, '.')+1:]]++
		ids[e.ID] = true
		total++
		if e.Error != "" {
			unreadable = errors.Join(unreadable, errors.New(e.Error))
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.check(unreadable == nil, "all %d of %s are decoded%s", total, subject, because(unreadable))
	same(&s.report, len(ids), total, "each has an id of its own")
	for _, stream := range slices.Sorted(maps.Keys(happened)) {
		same(&s.report, tally(counts[stream]), happened[stream], "%s: %s", stream, happened[stream])
	}
	return nil
}

func tally(counts map[string]int) string {
	var words []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		words = append(words, fmt.Sprintf("%d %s", counts[kind], kind))
	}
	return strings.Join(words, ", ")
}

// recount looks at everything once more, after the last disturbance.
func (s *story) recount(ctx context.Context) error {
	fmt.Fprintf(s.out, "   (the mesh was disturbed %d times since the beginning)\n", s.disturbed)
	done, err := s.invocation(ctx)
	if err != nil {
		return err
	}
	same(&s.report, done.GetState(), registryv1.InvocationState_INVOCATION_STATE_SUCCEEDED, "the invocation succeeded")
	asked, err := s.asked(ctx)
	if err != nil {
		return err
	}
	same(&s.report, asked, 1, "a person was asked once")
	said, err := s.said(ctx)
	if err != nil {
		return err
	}
	s.checkTranscript(said)
	waiting, err := s.peek(ctx)
	if err != nil {
		return err
	}
	same(&s.report, len(waiting), 0, "the inbox is empty")
	if err := s.done(ctx, s.token); err != nil {
		return err
	}
	s.check(true, "finishing a message that is done is fine")
	found, err := s.dispatches.GetDispatch(ctx, &inboxv1.GetDispatchRequest{Goal: goal, Item: item}, s.alice)
	if err != nil {
		return err
	}
	same(&s.report, found.GetDispatch().GetDispatchId(), s.dispatchID, "the dispatch has its one id")
	return nil
}

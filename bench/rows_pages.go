package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	conversationv1 "weir/gen/conversation/v1"
)

const (
	pageSize = 100
	// atOnce is the most messages that one AppendMessages takes.
	atOnce = 100
	// longSeeders is how many calls that fill a conversation are under way. Its
	// appends come one after another; the others are on their way meanwhile.
	longSeeders = 4

	shortTalk = "short"
	longTalk  = "long"
)

// oldPage is the position at which an old page of a long conversation begins: of
// one with a million messages, that of the thousandth page from its beginning.
func oldPage(long int) int64 { return int64(long/10 - pageSize + 1) }

// isPage checks that a page is full, and what it begins with.
func isPage[M any](whose string, page []M, position func(M) int64, first int64) error {
	if len(page) != pageSize {
		return fmt.Errorf("%s gave %d messages for a page of %d", whose, len(page), pageSize)
	}
	if got := position(page[0]); got != first {
		return fmt.Errorf("%s gave a page that begins at %d, not %d", whose, got, first)
	}
	return nil
}

// openPages gives a conversation with so many messages as one page has, and one
// with very many.
func (m *mesh) openPages() (*talks, error) {
	if m.pages != nil {
		return m.pages, nil
	}
	conn, err := m.talker()
	if err != nil {
		return nil, err
	}
	m.pages = newTalks(conn, 0)
	old := int(oldPage(m.long)) - 1
	for _, step := range []struct {
		id         string
		from, more int
		atOnce     int
	}{
		// What pages are read of was said in as many events as it has messages.
		{shortTalk, 0, pageSize, 1},
		{longTalk, 0, old, atOnce},
		{longTalk, old, pageSize, 1},
		{longTalk, old + pageSize, m.long - old - 2*pageSize, atOnce},
		{longTalk, m.long - pageSize, pageSize, 1},
	} {
		if step.from == 0 {
			if err := m.pages.begin(m.ctx, step.id); err != nil {
				return nil, err
			}
		}
		if err := m.pages.fill(m.ctx, step.id, step.from, step.more, step.atOnce); err != nil {
			return nil, fmt.Errorf("filling %s: %w", step.id, err)
		}
	}
	return m.pages, nil
}

// fill says so many more things in a conversation, some at once. Which of them comes
// first does not matter.
func (t *talks) fill(ctx context.Context, id string, from, more, atOnce int) error {
	var batches atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range longSeeders {
		group.Go(func() error {
			for {
				first := int(batches.Add(1)-1) * atOnce
				if first >= more {
					return nil
				}
				request := &conversationv1.AppendMessagesRequest{ConversationId: id}
				for n := range atOnce {
					request.Messages = append(request.Messages, &conversationv1.NewMessage{
						MessageId: fmt.Sprintf("m%d", from+first+n), Parts: said(),
					})
				}
				if _, err := t.messages.AppendMessages(ctx, request); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// openNewest reads the newest page of a short or of the long conversation.
func openNewest(id string) func(*mesh) (workload, error) {
	return func(m *mesh) (workload, error) {
		first := int64(pageSize)
		if id == longTalk {
			first = int64(m.long)
		}
		return openPage(m, first, &conversationv1.ListMessagesRequest{
			ConversationId: id, PageSize: pageSize, Order: conversationv1.Order_ORDER_NEWEST_FIRST,
		})
	}
}

// openOld reads an old page of the long one.
func openOld(m *mesh) (workload, error) {
	from := oldPage(m.long)
	return openPage(m, from, &conversationv1.ListMessagesRequest{ConversationId: longTalk, PageSize: pageSize, From: &from})
}

// openPage reads a page that begins at a position.
func openPage(m *mesh, first int64, request *conversationv1.ListMessagesRequest) (workload, error) {
	t, err := m.openPages()
	if err != nil {
		return nil, err
	}
	return everyCaller(func(ctx context.Context) error {
		page, err := t.messages.ListMessages(ctx, request)
		if err != nil {
			return err
		}
		return isPage("weir", page.GetMessages(), (*conversationv1.Message).GetPosition, first)
	}), nil
}

package conversation

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
)

// fill appends messages with ids m<position> until a conversation has so many.
func (m *mesh) fill(r replica, id string, from, to int) {
	m.t.Helper()
	for batch := range slices.Chunk(slices.Collect(numbers(from+1, to)), 100) {
		req := &conversationv1.AppendMessagesRequest{ConversationId: id}
		for _, n := range batch {
			req.Messages = append(req.Messages, &conversationv1.NewMessage{MessageId: "m" + strconv.Itoa(n), Parts: text("message " + strconv.Itoa(n))})
		}
		if _, err := r.messages.AppendMessages(m.as(ann), req); err != nil {
			m.t.Fatalf("append from %s on: %v", req.GetMessages()[0].GetMessageId(), err)
		}
	}
}

func numbers(first, last int) func(func(int) bool) {
	return func(yield func(int) bool) {
		for n := first; n <= last && yield(n); n++ {
		}
	}
}

// calls are what members do all the time, on a conversation of so many messages.
func (m *mesh) calls(r replica, id string, size int) map[string]func(i int) error {
	ctx := m.as(ann)
	page := func(req *conversationv1.ListMessagesRequest) error {
		req.ConversationId, req.PageSize = id, 20
		resp, err := r.messages.ListMessages(ctx, req)
		if err == nil && len(resp.GetMessages()) != 20 {
			err = fmt.Errorf("%d messages", len(resp.GetMessages()))
		}
		return err
	}
	return map[string]func(int) error{
		"append": func(i int) error {
			_, err := r.messages.AppendMessage(ctx, &conversationv1.AppendMessageRequest{ConversationId: id, MessageId: fmt.Sprintf("x%d-%d", i, time.Now().UnixNano()), Parts: text("hello")})
			return err
		},
		"newest page": func(int) error {
			return page(&conversationv1.ListMessagesRequest{Order: conversationv1.Order_ORDER_NEWEST_FIRST})
		},
		"old page": func(i int) error {
			return page(&conversationv1.ListMessagesRequest{From: proto.Int64(int64(1 + i*7919%(size-20)))})
		},
		"get message": func(i int) error {
			_, err := r.messages.GetMessage(ctx, &conversationv1.GetMessageRequest{ConversationId: id, MessageId: "m" + strconv.Itoa(1+i*7919%size)})
			return err
		},
		"get context": func(int) error {
			_, err := r.messages.GetContext(ctx, &conversationv1.GetContextRequest{ConversationId: id, Budget: &conversationv1.GetContextRequest_MaxBytes{MaxBytes: 2000}})
			return err
		},
		"tail start": func(int) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			head := int64(size - 1)
			stream, err := r.messages.TailMessages(ctx, &conversationv1.TailMessagesRequest{ConversationId: id, After: &head})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		"draft": func(i int) error {
			_, err := r.messages.AppendDelta(ctx, &conversationv1.AppendDeltaRequest{ConversationId: id, MessageId: "draft" + strconv.Itoa(i%10), Text: "x"})
			return err
		},
	}
}

// BenchmarkSize shows how the cost of a call depends on how much has been said:
//
//	go test ./services/conversation -run - -bench Size -benchtime 200x
func BenchmarkSize(b *testing.B) {
	for _, size := range []int{100, 990_000} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			m := newMesh(b)
			r := m.start()
			m.create(r, "c")
			started := time.Now()
			m.fill(r, "c", 0, size)
			b.Logf("filling took %v", time.Since(started))
			calls := m.calls(r, "c", size)
			for _, name := range []string{"append", "newest page", "old page", "get message", "get context", "tail start", "draft"} {
				b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
					i := 0
					for b.Loop() {
						if err := calls[name](i); err != nil {
							b.Fatal(err)
						}
						i++
					}
				})
			}
			first := func(b *testing.B, what string) {
				started := time.Now()
				r := m.start()
				b.Logf("%s: a replica is up after %v", what, time.Since(started))
				calls := m.calls(r, "c", size)
				for _, name := range []string{"newest page", "old page", "tail start", "get message", "append", "append"} {
					started := time.Now()
					if err := calls[name](0); err != nil {
						b.Fatal(err)
					}
					b.Logf("%s: first %s %v", what, name, time.Since(started))
				}
			}
			first(b, "new replica")
			m.redis.Flush()
			first(b, "new replica, flushed")
		})
	}
}

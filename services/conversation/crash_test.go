package conversation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/internal/meshtest"

	conversationv1 "weir/gen/conversation/v1"
)

const (
	crashWriters = 4
	// crashMessages is how many each of them says.
	crashMessages = 40
	crashReaders  = 3
	// callPatience is how long a client waits before it asks again.
	callPatience = 5 * time.Second
)

// fleet is two replicas that come and go.
type fleet struct {
	*mesh
	replicas [2]atomic.Pointer[replica]
}

func (f *fleet) begin(i int) {
	r := f.start()
	f.replicas[i].Store(&r)
}

func (f *fleet) any() replica { return *f.replicas[rand.N(2)].Load() }

// insist does something again, with whichever replica, until it is done.
func (f *fleet) insist(do func(ctx context.Context, r replica) error) error {
	for f.t.Context().Err() == nil {
		ctx, cancel := context.WithTimeout(f.as(ann), callPatience)
		err := do(ctx, f.any())
		cancel()
		if err == nil {
			return nil
		}
	}
	return context.Cause(f.t.Context())
}

// read tails the conversation to its message at end, coming back behind the last
// position that it was given each time it is cut off.
func (f *fleet) read(end <-chan int64) ([]string, error) {
	var given []string
	last := int64(-1)
	for last < 0 || int64(len(given)) < last {
		ctx, cancel := context.WithCancel(f.as(ann))
		stop := context.AfterFunc(f.t.Context(), cancel)
		after := int64(len(given))
		stream, err := f.any().messages.TailMessages(ctx, &conversationv1.TailMessagesRequest{ConversationId: "c", After: &after})
		got := make(chan *conversationv1.TailMessagesResponse)
		if err == nil {
			go func() {
				defer close(got)
				for {
					resp, err := stream.Recv()
					if err != nil {
						return
					}
					select {
					case got <- resp:
					case <-ctx.Done():
						return
					}
				}
			}()
		} else {
			close(got)
		}
		for open := true; open && (last < 0 || int64(len(given)) < last); {
			var resp *conversationv1.TailMessagesResponse
			select {
			case resp, open = <-got:
			case last = <-end:
				end = nil
			}
			if m := resp.GetMessage(); m != nil {
				if m.GetPosition() != int64(len(given))+1 {
					cancel()
					return given, fmt.Errorf("position %d came after %d", m.GetPosition(), len(given))
				}
				given = append(given, m.GetMessageId())
			}
		}
		stop()
		cancel()
		if f.t.Context().Err() != nil {
			return given, errors.New("the test ended")
		}
	}
	return given, nil
}

// Writers race over two replicas and repeat what was not acknowledged, while
// replicas, NATS and Redis go away and come back.
func TestWhatWasAcknowledgedIsThereOnceAndInOrderWhateverStopsMeanwhile(t *testing.T) {
	f := &fleet{mesh: newMesh(t)}
	f.begin(0)
	f.begin(1)
	f.create(f.any(), "c")

	var acknowledged sync.Map // position by id
	var said atomic.Int64
	writing := make(chan error, crashWriters)
	for w := range crashWriters {
		go func() {
			var err error
			for n := 0; n < crashMessages && err == nil; n++ {
				id := fmt.Sprintf("m-%d-%d", w, n)
				err = f.insist(func(ctx context.Context, r replica) error {
					resp, err := r.messages.AppendMessage(ctx, &conversationv1.AppendMessageRequest{
						ConversationId: "c", MessageId: id, Parts: text(wordsOf(id)),
					})
					if err == nil {
						acknowledged.Store(id, resp.GetMessage().GetPosition())
					}
					return err
				})
				said.Add(1)
			}
			writing <- err
		}()
	}
	type reading struct {
		given []string
		err   error
	}
	ends := make([]chan int64, crashReaders)
	readings := make(chan reading, crashReaders)
	for i := range ends {
		ends[i] = make(chan int64, 1)
		go func() {
			given, err := f.read(ends[i])
			readings <- reading{given, err}
		}()
	}

	crashes := []func(){
		func() { f.redis.Kill(); f.redis.Start() },
		func() { f.nats.Stop(); f.nats.Start() },
		func() { f.replicas[0].Load().stop(); f.begin(0) },
		func() { f.replicas[1].Load().stop(); f.begin(1) },
		func() { f.redis.Kill(); f.nats.Stop(); f.nats.Start(); f.redis.Start() },
		func() { f.redis.Flush() },
	}
	rand.Shuffle(len(crashes), func(i, j int) { crashes[i], crashes[j] = crashes[j], crashes[i] })
	for i, crash := range crashes {
		// Each comes while they write.
		target := int64((i + 1) * crashWriters * crashMessages / (len(crashes) + 2))
		meshtest.Eventually(t, fmt.Sprintf("%d messages are said", target), func() bool { return said.Load() >= target })
		crash()
	}
	for range crashWriters {
		if err := <-writing; err != nil {
			t.Fatal(err)
		}
	}

	var all []*conversationv1.Message
	if err := f.insist(func(ctx context.Context, r replica) error {
		size := int32(1000)
		resp, err := r.messages.ListMessages(ctx, &conversationv1.ListMessagesRequest{ConversationId: "c", PageSize: size})
		all = resp.GetMessages()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for i, m := range all {
		if at, ok := acknowledged.Load(m.GetMessageId()); !ok || at != m.GetPosition() || m.GetPosition() != int64(i)+1 {
			t.Fatalf("%s is at %d, listed as number %d, acknowledged at %v", m.GetMessageId(), m.GetPosition(), i+1, at)
		}
		ids = append(ids, m.GetMessageId())
	}
	if len(all) != crashWriters*crashMessages {
		t.Fatalf("%d messages of %d", len(all), crashWriters*crashMessages)
	}
	// Each writer's are in its order.
	for w := range crashWriters {
		at := -1
		for n := range crashMessages {
			next := slices.Index(ids, fmt.Sprintf("m-%d-%d", w, n))
			if next <= at {
				t.Fatalf("message %d of writer %d is at %d, the one before at %d", n, w, next+1, at+1)
			}
			at = next
		}
	}
	for _, end := range ends {
		end <- int64(len(all))
	}
	for range crashReaders {
		if r := <-readings; r.err != nil || !slices.Equal(r.given, ids) {
			t.Fatalf("a reader was given %v, %v; want %v", r.given, r.err, ids)
		}
	}
}

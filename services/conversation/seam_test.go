package conversation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
)

const (
	// seamTails read while seamMessages are said in each of two conversations, of
	// which one is a fork with a shared past.
	seamTails    = 100
	seamMessages = 120
	seamWriters  = 4
	seamPast     = 20
)

// rough is a service that is stopped and started again under its clients.
type rough struct {
	mesh *mesh
	ctx  context.Context

	// running is held to read while somebody begins a call, and to write while the
	// service is being restarted.
	running sync.RWMutex
	replica replica

	said sync.Mutex
	more *sync.Cond
	head int
}

func (r *rough) now() replica {
	r.running.RLock()
	defer r.running.RUnlock()
	return r.replica
}

func (r *rough) restart() {
	r.running.Lock()
	defer r.running.Unlock()
	r.replica.stop()
	r.replica = r.mesh.start()
}

// wait waits until so many messages were said in both conversations together.
func (r *rough) wait(messages int) {
	r.said.Lock()
	defer r.said.Unlock()
	for r.head < messages && r.ctx.Err() == nil {
		r.more.Wait()
	}
}

// write says a writer's part of the messages, each until it is acknowledged.
func (r *rough) write(as context.Context, conversation string, writer int) {
	for n := writer; n < seamMessages; n += seamWriters {
		for as.Err() == nil {
			_, err := r.now().messages.AppendMessage(as, &conversationv1.AppendMessageRequest{
				ConversationId: conversation, MessageId: fmt.Sprintf("%s-%d", conversation, n), Parts: text("words"),
			})
			if err == nil {
				break
			}
		}
		r.said.Lock()
		r.head++
		r.said.Unlock()
		r.more.Broadcast()
	}
}

// read tails a conversation to its end and leaves again and again, sometimes after
// having stopped reading for a while. It gives what it got, in order.
func (r *rough) read(as context.Context, conversation string, last int64, random *rand.Rand) ([]string, error) {
	var got []string
	for int64(len(got)) < last {
		if err := as.Err(); err != nil {
			return got, fmt.Errorf("behind position %d: %w", len(got), err)
		}
		ctx, leave := context.WithCancel(as)
		tail, err := r.now().messages.TailMessages(ctx, &conversationv1.TailMessagesRequest{
			ConversationId: conversation, After: proto.Int64(int64(len(got))),
		})
		for stays := 1 + random.IntN(60); err == nil && stays > 0 && int64(len(got)) < last; stays-- {
			var response *conversationv1.TailMessagesResponse
			if response, err = tail.Recv(); err != nil {
				break
			}
			if random.IntN(40) == 0 {
				r.wait(min(r.heard()+random.IntN(50), 2*seamMessages))
			}
			m := response.GetMessage()
			if m == nil {
				continue
			}
			if m.GetPosition() != int64(len(got))+1 {
				leave()
				return got, fmt.Errorf("behind position %d came %d", len(got), m.GetPosition())
			}
			got = append(got, m.GetMessageId())
		}
		leave()
	}
	return got, nil
}

func (r *rough) heard() int {
	r.said.Lock()
	defer r.said.Unlock()
	return r.head
}

func TestTailsSeeEveryPositionOnceWhateverHappens(t *testing.T) {
	m := newMesh(t)
	r := &rough{mesh: m, replica: m.start()}
	r.more = sync.NewCond(&r.said)
	m.create(r.replica, "c")
	for n := range seamPast {
		m.say(r.replica, "c", fmt.Sprintf("past-%d", n), "words")
	}
	if _, err := r.replica.conversations.ForkConversation(m.as(ann), &conversationv1.ForkConversationRequest{
		ParentConversationId: "c", Position: seamPast, ConversationId: "f",
	}); err != nil {
		t.Fatal(err)
	}
	as, cancel := context.WithTimeout(m.as(ann), 3*time.Minute)
	defer cancel()
	r.ctx = as
	defer context.AfterFunc(as, r.more.Broadcast)()

	var calls sync.WaitGroup
	conversations := []string{"c", "f"}
	for _, conversation := range conversations {
		for writer := range seamWriters {
			calls.Go(func() { r.write(as, conversation, writer) })
		}
	}
	got := make([][]string, seamTails)
	failed := make([]error, seamTails)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range seamTails {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		calls.Go(func() {
			got[i], failed[i] = r.read(as, conversations[i%2], seamPast+seamMessages, random)
		})
	}
	for i, happens := range []func(){
		m.redis.Flush,
		r.restart,
		func() { m.nats.Stop(); m.nats.Start() },
		m.redis.Flush,
		r.restart,
	} {
		r.wait((i + 1) * 2 * seamMessages / 6)
		happens()
	}
	calls.Wait()
	want := map[string][]string{"c": m.ids(r.replica, "c"), "f": m.ids(r.replica, "f")}
	for i := range seamTails {
		conversation := conversations[i%2]
		if failed[i] != nil {
			t.Errorf("tail %d of %s: %v", i, conversation, failed[i])
		} else if !slices.Equal(got[i], want[conversation]) {
			t.Errorf("tail %d of %s got\n%v, want\n%v", i, conversation, got[i], want[conversation])
		}
	}
}

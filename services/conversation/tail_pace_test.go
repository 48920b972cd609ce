package conversation

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/fault"
)

// batchOf is messages with positions from the first on.
func batchOf(first, last int64) []*conversationv1.TailMessagesResponse {
	var batch []*conversationv1.TailMessagesResponse
	for position := first; position <= last; position++ {
		batch = append(batch, messageResponse(&conversationv1.Message{Position: position}))
	}
	return batch
}

// These run on a clock of their own, so that they take no time.

func TestAReaderThatTakesNothingIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := make(chan struct{})
		sent := 0
		to := &tail{next: 5, patience: slowAfter, send: func(*conversationv1.TailMessagesResponse) error {
			if sent++; sent > 3 {
				<-left
				return errors.New("the stream is done")
			}
			return nil
		}}
		began := time.Now()
		err := to.deliver(t.Context(), batchOf(5, 14))
		wantReason(t, err, fault.ReaderTooSlow)
		if after := fault.From(err).Metadata("after"); after != "7" || to.next != 8 {
			t.Errorf("it is told to go on behind %s, next is %d", after, to.next)
		}
		// Three were taken before the first look, so the second found nothing new.
		if took := time.Since(began); took != 2*slowAfter {
			t.Errorf("it was ended after %v", took)
		}
		close(left) // what leaving the method does
	})
}

func TestAReaderThatIsSlowButTakesIsNotEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &tail{next: 1, patience: slowAfter, send: func(*conversationv1.TailMessagesResponse) error {
			time.Sleep(slowAfter - time.Second)
			return nil
		}}
		if err := to.deliver(t.Context(), batchOf(1, 20)); err != nil || to.next != 21 {
			t.Errorf("%v, next is %d", err, to.next)
		}
	})
}

func TestASlowReaderDoesNotHoldUpTheEndOfTheService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, drain := context.WithCancel(t.Context())
		to := &tail{next: 1, patience: slowAfter, send: func(*conversationv1.TailMessagesResponse) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		time.AfterFunc(time.Second, drain)
		wantReason(t, to.deliver(ctx, batchOf(1, 2)), fault.Cancelled)
	})
}

func TestASilentTailIsKeptAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		ctx, leave := context.WithCancel(t.Context())
		f := &feed{head: 7, changed: make(chan struct{})}
		to := &tail{next: 8, patience: slowAfter, quiet: keepaliveEvery, spoke: began, send: func(r *conversationv1.TailMessagesResponse) error {
			if r.GetKeepalive().GetHead() != 7 {
				t.Errorf("sent %v", r)
			}
			if at = append(at, time.Since(began)); len(at) == 3 {
				leave()
			}
			return nil
		}}
		// What changes without anything to tell this reader is no sign of life.
		go func() {
			for every := time.NewTicker(2 * time.Second); ; f.turn() {
				select {
				case <-every.C:
				case <-ctx.Done():
					return
				}
			}
		}()
		for ctx.Err() == nil {
			if err := to.wait(ctx, f, f.news(to)); err != nil && !fault.Is(err, fault.Cancelled) {
				t.Fatal(err)
			}
		}
		for i, d := range at {
			if want := time.Duration(i+1) * keepaliveEvery; d != want {
				t.Errorf("keepalive %d came after %v, want %v", i+1, d, want)
			}
		}
	})
}

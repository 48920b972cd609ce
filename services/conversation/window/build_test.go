package window_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	conversationv1 "weir/gen/conversation/v1"
	"weir/services/conversation/window"
)

// What is read depends on the budget, not on the conversation.
func TestReadsAreBoundedByTheBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := long(5000, rapid.IntRange(2, 4000).Draw(t, "distance"))
		r := c.request()
		r.Budget = rapid.Int64Range(1, 2000).Draw(t, "budget")
		s := &source{messages: c.messages}
		w, err := window.Build(t.Context(), r, s.read)
		walked := r.Budget + 1 // each takes at least 1
		if small, ok := errors.AsType[*window.TooSmallError](err); ok {
			walked = small.Needed
		} else if err != nil {
			t.Fatal(err)
		}
		if most := 2*walked + 16; s.given > most {
			t.Fatalf("read %d messages for a budget of %d, want at most %d", s.given, r.Budget, most)
		}
		if batches := int64(len(s.reads)); batches > 7+walked/256 {
			t.Fatalf("read %d messages in %d batches", s.given, batches)
		}
		if int64(len(w.Messages)) > r.Budget {
			t.Fatalf("%d messages for a budget of %d", len(w.Messages), r.Budget)
		}
	})
}

// long is a conversation of small messages in which every tenth is a call, whose
// result comes at a distance.
func long(n, distance int) conversation {
	var c conversation
	due := map[int]string{}
	for i := range n {
		m := &conversationv1.Message{Parts: []*conversationv1.Part{text(1)}}
		if id, ok := due[i]; ok {
			m.Parts = append(m.Parts, result(id, 1))
		} else if i%10 == 0 {
			id := strings.Repeat("c", 1+i%128)
			if !slices.Contains(openAt(due, i), id) {
				m.Parts = append(m.Parts, call(id, 1))
				due[i+distance] = id
			}
		}
		c.say(m)
	}
	return c
}

func openAt(due map[int]string, at int) []string {
	var ids []string
	for when, id := range due {
		if when >= at {
			ids = append(ids, id)
		}
	}
	return ids
}

func TestASourceThatDoesNotGiveWhatItWasAskedForIsAnError(t *testing.T) {
	var c conversation
	for range 40 {
		c.say(&conversationv1.Message{Parts: []*conversationv1.Part{text(1)}})
	}
	failure := errors.New("the journal is away")
	for name, tc := range map[string]struct {
		source window.Source
		want   string
	}{
		"fails": {
			func(context.Context, int64, int64) ([]*conversationv1.Message, error) { return nil, failure },
			failure.Error(),
		},
		"gives nothing": {
			func(context.Context, int64, int64) ([]*conversationv1.Message, error) { return nil, nil },
			"asked for messages 25 to 40, got 0 of them",
		},
		"gives too many": {
			func(_ context.Context, first, last int64) ([]*conversationv1.Message, error) {
				return c.messages[first-2 : last], nil
			},
			"asked for messages 25 to 40, got 17 of them",
		},
		"gives the oldest of them": {
			func(_ context.Context, first, last int64) ([]*conversationv1.Message, error) {
				return c.messages[first-1 : last-1], nil
			},
			"asked for messages 25 to 40, got 25 where 26 belongs",
		},
		"leaves one out": {
			func(_ context.Context, first, last int64) ([]*conversationv1.Message, error) {
				return slices.Concat(c.messages[first-1:first+4], c.messages[first+5:last]), nil
			},
			"asked for messages 25 to 40, got 25 where 26 belongs",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := window.Build(t.Context(), c.request(), tc.source)
			if err == nil || err.Error() != tc.want {
				t.Fatalf("got %v and %v, want %q", w, err, tc.want)
			}
		})
	}
}

// Each read may fail: of pinned messages, of a summary on its own, of the run.
func TestEveryFailureOfTheSourceIsTold(t *testing.T) {
	var c conversation
	c.say(&conversationv1.Message{Pinned: true, Parts: []*conversationv1.Part{text(1)}})
	for range 40 {
		c.say(&conversationv1.Message{Parts: []*conversationv1.Part{text(1)}})
	}
	c.messages[9].Summarizes = &conversationv1.Range{First: 4, Last: 5}
	c.messages[39].Summarizes = &conversationv1.Range{First: 8, Last: 38}
	s := &source{messages: c.messages}
	if _, err := window.Build(t.Context(), c.request(), s.read); err != nil {
		t.Fatal(err)
	}
	failure := errors.New("the journal is away")
	for fails := range s.reads {
		again := &source{messages: c.messages}
		_, err := window.Build(t.Context(), c.request(), func(ctx context.Context, first, last int64) ([]*conversationv1.Message, error) {
			if len(again.reads) == fails {
				return nil, failure
			}
			return again.read(ctx, first, last)
		})
		if !errors.Is(err, failure) {
			t.Fatalf("read %d of %d to %d failed, got %v", fails, s.reads[fails][0], s.reads[fails][1], err)
		}
	}
	if len(s.reads) != 5 {
		t.Fatalf("reads %v: pinned, the run in three stretches, and a summary on its own", s.reads)
	}
}

// Ten thousand messages and a budget for all of them.
func BenchmarkTheLongestWindow(b *testing.B) { benchmark(b, 1_000_000, window.MaxBudget) }

// A hundred messages out of a million, and the same out of a thousand.
func BenchmarkAHundredOfAMillion(b *testing.B)  { benchmark(b, 1_000_000, 100*benchmarkBytes) }
func BenchmarkAHundredOfAThousand(b *testing.B) { benchmark(b, 1000, 100*benchmarkBytes) }

const benchmarkBytes = 20

// benchmark asks at the head of a conversation in which every third message is a
// call and the one behind it the result. Only the newest are kept, as no other
// may be asked for.
func benchmark(b *testing.B, head, budget int64) {
	keep := min(head, 30_000)
	kept := make([]*conversationv1.Message, keep)
	for i := range kept {
		m := &conversationv1.Message{Position: head - keep + int64(i) + 1}
		switch i % 3 {
		case 0:
			m.Parts = []*conversationv1.Part{text(benchmarkBytes)}
		case 1:
			m.Parts = []*conversationv1.Part{call("c", benchmarkBytes)}
		case 2:
			m.Parts = []*conversationv1.Part{result("c", benchmarkBytes)}
		}
		kept[i] = m
	}
	read := int64(0)
	source := func(_ context.Context, first, last int64) ([]*conversationv1.Message, error) {
		read += last - first + 1
		return kept[first-(head-keep)-1 : last-(head-keep)], nil
	}
	r := window.Request{Head: head, Budget: budget, Estimate: window.Bytes}
	b.ReportAllocs()
	for b.Loop() {
		w, err := window.Build(b.Context(), r, source)
		if err != nil {
			b.Fatal(err)
		}
		if n := int64(len(w.Messages)); n < min(budget/benchmarkBytes, window.MaxMessages)-2 {
			b.Fatalf("%d messages", n)
		}
	}
	b.ReportMetric(float64(read)/float64(b.N), "read/op")
}

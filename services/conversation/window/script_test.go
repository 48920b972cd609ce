package window_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/services/conversation/window"
)

// The scripts in testdata are conversations and the windows they come to.
// Rewrite what they expect with `go test -run Script -rewrite`, and read the
// difference.
//
// A conversation has a message a line, from position 1 on:
//
//	text 10          10 bytes of text
//	call a           a call with the call id a, of 1 byte
//	call a:30        30 bytes of it
//	call @a          an invocation a
//	result a:30      a result of a
//	call a text 5    parts in order
//	erased           a message without content
//	pinned text 10   a pinned message
//	sum 2-4 text 10  a summary of 2 to 4
//	100x text 1      100 messages
//
// A window is told as the positions of its messages in order: those in front,
// a bar, the run. 7-a is message 7 without the call or result a. With `reads`,
// what Source was asked for is told too.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var c conversation
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "conversation":
				c = parse(t, d)
				return ""
			case "window":
				r := c.request()
				d.MaybeScanArgs(t, "head", &r.Head)
				d.ScanArgs(t, "budget", &r.Budget)
				var perMessage int
				if d.MaybeScanArgs(t, "tokens", &perMessage) {
					r.Estimate = window.Tokens(&conversationv1.TokenBudget{TokensPerMessage: int64(perMessage)})
				}
				s := &source{messages: c.messages}
				w, err := window.Build(t.Context(), r, s.read)
				return shown(c, w, err) + asked(s, d.HasArg("reads"))
			}
			d.Fatalf(t, "there is no command %s", d.Cmd)
			return ""
		})
	})
}

// conversation is its messages, the first at position 1.
type conversation struct {
	messages []*conversationv1.Message
}

// request asks for all of it.
func (c conversation) request() window.Request {
	r := window.Request{Head: int64(len(c.messages)), Budget: window.MaxBudget, Estimate: window.Bytes}
	for _, m := range c.messages {
		if m.GetPinned() {
			r.Pinned = append(r.Pinned, m.GetPosition())
		}
		if s := m.GetSummarizes(); s != nil {
			r.Summaries = append(r.Summaries, window.Summary{Position: m.GetPosition(), First: s.GetFirst(), Last: s.GetLast()})
		}
	}
	return r
}

func (c *conversation) say(m *conversationv1.Message) {
	m.Position = int64(len(c.messages)) + 1
	c.messages = append(c.messages, m)
}

func parse(t *testing.T, d *datadriven.TestData) conversation {
	var c conversation
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		times := 1
		if n, repeated := strings.CutSuffix(words[0], "x"); repeated {
			times, words = number(t, n), words[1:]
		}
		for range times {
			c.say(parseMessage(t, words))
		}
	}
	return c
}

func parseMessage(t *testing.T, words []string) *conversationv1.Message {
	m := &conversationv1.Message{}
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		argument := func() string { a := words[0]; words = words[1:]; return a }
		switch word {
		case "pinned":
			m.Pinned = true
		case "erased":
			m.Erasure = conversationv1.Erasure_ERASURE_REDACTED
		case "sum":
			first, last, _ := strings.Cut(argument(), "-")
			m.Summarizes = &conversationv1.Range{First: int64(number(t, first)), Last: int64(number(t, last))}
		case "text":
			m.Parts = append(m.Parts, text(number(t, argument())))
		case "call", "result":
			id, size, sized := strings.Cut(argument(), ":")
			n := 1
			if sized {
				n = number(t, size)
			}
			if word == "call" {
				m.Parts = append(m.Parts, call(id, n))
			} else {
				m.Parts = append(m.Parts, result(id, n))
			}
		default:
			t.Fatalf("there is no part %s", word)
		}
	}
	return m
}

func number(t *testing.T, s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func text(n int) *conversationv1.Part {
	return &conversationv1.Part{Part: &conversationv1.Part_Text{Text: strings.Repeat("x", n)}}
}

// call is a call of n bytes. An id that begins with @ is an invocation's.
func call(id string, n int) *conversationv1.Part {
	c := &conversationv1.Call{}
	if invocation, is := strings.CutPrefix(id, "@"); is {
		c.InvocationId, id = invocation, invocation
	} else {
		c.CallId = id
	}
	if n > len(id) {
		c.InputJson = proto.String(strings.Repeat("x", n-len(id)))
	}
	return &conversationv1.Part{Part: &conversationv1.Part_Call{Call: c}}
}

func result(id string, n int) *conversationv1.Part {
	c := call(id, n).GetCall()
	return &conversationv1.Part{Part: &conversationv1.Part_Result{Result: &conversationv1.Result{
		InvocationId: c.GetInvocationId(), CallId: c.GetCallId(), OutputJson: c.InputJson,
	}}}
}

// source gives a conversation's messages and keeps what it was asked for.
type source struct {
	messages []*conversationv1.Message
	// most bounds the messages it gives at once, if set.
	most  int64
	reads [][2]int64
	given int64
}

func (s *source) read(_ context.Context, first, last int64) ([]*conversationv1.Message, error) {
	if first < 1 || first > last || last > int64(len(s.messages)) {
		return nil, fmt.Errorf("asked for %d to %d of %d", first, last, len(s.messages))
	}
	if s.most > 0 {
		first = max(first, last-s.most+1)
	}
	s.reads = append(s.reads, [2]int64{first, last})
	s.given += last - first + 1
	return s.messages[first-1 : last], nil
}

func asked(s *source, wanted bool) string {
	if !wanted {
		return ""
	}
	var b strings.Builder
	b.WriteString("read")
	for _, r := range s.reads {
		fmt.Fprintf(&b, " %d-%d", r[0], r[1])
	}
	return b.String() + "\n"
}

func shown(c conversation, w window.Window, err error) string {
	if err != nil {
		return err.Error() + "\n"
	}
	return fmt.Sprintf("start %d used %d: %s\n", w.Start, w.Used, strings.Join(told(c, w), " "))
}

// told tells the messages of a window, in order, and four or more in a row by
// the first and the last.
func told(c conversation, w window.Window) []string {
	var words []string
	var row []int64
	end := func() {
		if n := len(row); n > 3 {
			words = append(words, fmt.Sprintf("%d..%d", row[0], row[n-1]))
		} else {
			for _, p := range row {
				words = append(words, strconv.FormatInt(p, 10))
			}
		}
		row = nil
	}
	front := true
	for _, m := range w.Messages {
		position, said := m.GetPosition(), c.messages[m.GetPosition()-1]
		if front && !goesInFront(said) {
			end()
			words, front = append(words, "|"), false
		}
		if n := len(row); n > 0 && row[n-1] != position-1 {
			end()
		}
		row = append(row, position)
		if less := left(said, m); less != "" {
			row = row[:len(row)-1]
			end()
			words = append(words, strconv.FormatInt(position, 10)+less)
		}
	}
	end()
	return words
}

func goesInFront(m *conversationv1.Message) bool {
	return m.GetPinned() && m.GetErasure() == 0 && len(halves(m)) == 0
}

// halves are the ids of a message's calls and results, in order.
func halves(m *conversationv1.Message) []string {
	var ids []string
	for _, p := range m.GetParts() {
		switch p := p.GetPart().(type) {
		case *conversationv1.Part_Call:
			ids = append(ids, "call "+name(p.Call.GetInvocationId(), p.Call.GetCallId()))
		case *conversationv1.Part_Result:
			ids = append(ids, "result "+name(p.Result.GetInvocationId(), p.Result.GetCallId()))
		}
	}
	return ids
}

func name(invocation, call string) string {
	if invocation != "" {
		return "@" + invocation
	}
	return call
}

// left tells which calls and results of what was said are not in what is shown.
func left(said, shown *conversationv1.Message) string {
	there := halves(shown)
	var b strings.Builder
	for _, id := range halves(said) {
		if !slices.Contains(there, id) {
			_, id, _ = strings.Cut(id, " ")
			b.WriteString("-" + id)
		}
	}
	return b.String()
}

package conversation

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
)

// What an idle tail costs is measured on the server alone, so its clients are another
// process: this test's own program, which finds these in its environment.
const (
	readerAddr  = "WEIR_READER_ADDR"
	readerToken = "WEIR_READER_TOKEN"
	readerTails = "WEIR_READER_TAILS"
)

func TestMain(m *testing.M) {
	if os.Getenv(readerAddr) != "" {
		if err := holdTails(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// holdTails tails a conversation each, c0 and on, says so, and holds them until its
// input ends.
func holdTails() error {
	var tails int
	if _, err := fmt.Sscan(os.Getenv(readerTails), &tails); err != nil {
		return err
	}
	ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", os.Getenv(readerToken))
	if _, err := openTails(ctx, os.Getenv(readerAddr), tails, func(i int) string { return fmt.Sprintf("c%d", i) }); err != nil {
		return err
	}
	fmt.Println("open")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// openTails opens tails over as many connections as they need, and reads the first
// message of each.
func openTails(ctx context.Context, addr string, tails int, conversation func(int) string) ([]grpc.ServerStreamingClient[conversationv1.TailMessagesResponse], error) {
	opened := make([]grpc.ServerStreamingClient[conversationv1.TailMessagesResponse], tails)
	var client conversationv1.MessageServiceClient
	var opening errgroup.Group
	opening.SetLimit(32)
	for i := range tails {
		if i%900 == 0 { // a connection takes 1,000 streams
			conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				return nil, err
			}
			context.AfterFunc(ctx, func() { _ = conn.Close() })
			client = conversationv1.NewMessageServiceClient(conn)
		}
		through := client
		opening.Go(func() error {
			tail, err := through.TailMessages(ctx, &conversationv1.TailMessagesRequest{ConversationId: conversation(i), After: proto.Int64(0)})
			if err != nil {
				return err
			}
			opened[i] = tail
			_, err = tail.Recv()
			return err
		})
	}
	return opened, opening.Wait()
}

// footprint is what this process takes.
type footprint struct{ heap, stack, resident, goroutines float64 }

func takeFootprint() footprint {
	for range 3 { // stacks shrink by half at each collection
		debug.FreeOSMemory()
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	f := footprint{heap: float64(stats.HeapAlloc), stack: float64(stats.StackInuse), goroutines: float64(runtime.NumGoroutine())}
	if statm, err := os.ReadFile("/proc/self/statm"); err == nil {
		var size, pages float64
		if _, err := fmt.Sscan(string(statm), &size, &pages); err == nil {
			f.resident = pages * float64(os.Getpagesize())
		}
	}
	return f
}

// idle gives what one of so many tails takes, each of a conversation of its own.
func (m *mesh) idle(tails int) footprint {
	m.t.Helper()
	var addr string
	r := m.start(func(cfg *Config) { addr = cfg.Serve.Listener.Addr().String() })
	as := m.as(ann)
	var saying errgroup.Group
	saying.SetLimit(32)
	for i := range tails {
		id := fmt.Sprintf("c%d", i)
		saying.Go(func() error {
			if _, err := r.conversations.CreateConversation(as, &conversationv1.CreateConversationRequest{ConversationId: id}); err != nil {
				return err
			}
			_, err := r.messages.AppendMessage(as, &conversationv1.AppendMessageRequest{ConversationId: id, MessageId: "m1", Parts: text("words")})
			return err
		})
	}
	if err := saying.Wait(); err != nil {
		m.t.Fatal(err)
	}
	before := takeFootprint()

	held, _ := metadata.FromOutgoingContext(as)
	reader := exec.Command(os.Args[0])
	reader.Env = append(os.Environ(), readerAddr+"="+addr, readerToken+"="+held.Get("authorization")[0], fmt.Sprintf("%s=%d", readerTails, tails))
	reader.Stderr = os.Stderr
	in, err := reader.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	out, err := reader.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	if err := reader.Start(); err != nil {
		m.t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = reader.Wait()
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "open" {
		m.t.Fatalf("the reader says %q, %v", line, err)
	}
	after := takeFootprint()
	n := float64(tails)
	return footprint{
		(after.heap - before.heap) / n, (after.stack - before.stack) / n,
		(after.resident - before.resident) / n, (after.goroutines - before.goroutines) / n,
	}
}

func (f footprint) String() string {
	return fmt.Sprintf("%.1f KiB of heap, %.1f KiB of stack, %.1f KiB resident, %.2f goroutines", f.heap/1024, f.stack/1024, f.resident/1024, f.goroutines)
}

const (
	// mostIdleBytes is twice what a tail was measured to take, heap and stack.
	mostIdleBytes      = 80 << 10
	mostIdleGoroutines = 1.1
)

func TestIdleTailsCostLittle(t *testing.T) {
	cost := newMesh(t).idle(1000)
	t.Logf("a tail takes %v", cost)
	if cost.heap+cost.stack > mostIdleBytes || cost.goroutines > mostIdleGoroutines {
		t.Errorf("a tail takes %v", cost)
	}
}

// BenchmarkIdleTails shows the figures of the README: go test -bench IdleTails
// -benchtime 1x.
func BenchmarkIdleTails(b *testing.B) {
	for b.Loop() {
		cost := newMesh(b).idle(10_000)
		b.ReportMetric(cost.heap, "heap-B/tail")
		b.ReportMetric(cost.stack, "stack-B/tail")
		b.ReportMetric(cost.resident, "resident-B/tail")
		b.ReportMetric(cost.goroutines, "goroutines/tail")
	}
}

// BenchmarkFanOut is the time from an append until all of a thousand tails have it.
func BenchmarkFanOut(b *testing.B) {
	m := newMesh(b)
	var addr string
	r := m.start(func(cfg *Config) { addr = cfg.Serve.Listener.Addr().String() })
	m.create(r, "c")
	m.say(r, "c", "m0", "words")
	ctx, leave := context.WithCancel(m.as(ann))
	defer leave()
	tails, err := openTails(ctx, addr, 1000, func(int) string { return "c" })
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	var acknowledged time.Duration
	for b.Loop() {
		var all sync.WaitGroup
		for _, tail := range tails {
			all.Go(func() {
				if _, err := tail.Recv(); err != nil {
					b.Error(err)
				}
			})
		}
		n++
		began := time.Now()
		m.say(r, "c", fmt.Sprintf("m%d", n), "words")
		acknowledged += time.Since(began)
		all.Wait()
	}
	b.ReportMetric(float64(acknowledged.Microseconds())/float64(n), "append-us/op")
}

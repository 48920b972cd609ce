package audit

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	gatev1 "weir/gen/gate/v1"
)

// BenchmarkLog says what a replica's start costs: reading a journal of 100,000
// events of 10 tenants and building their trees; and then, what calls cost.
func BenchmarkLog(b *testing.B) {
	const events, tenants = 100_000, 10
	w := newBook(b)
	js, err := jetstream.New(w.nats.Connect(), jetstream.WithPublishAsyncMaxPending(events))
	if err != nil {
		b.Fatal(err)
	}
	data, err := proto.Marshal(denied("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"))
	if err != nil {
		b.Fatal(err)
	}
	for i := range events {
		id := strconv.Itoa(i)
		_, err := js.PublishMsgAsync(&nats.Msg{
			Subject: fmt.Sprintf("weir.gate.t%d.check.%s", i%tenants, id),
			Header: nats.Header{
				"ce-id": {id}, "ce-type": {"weir.gate.v1.CheckDenied"}, "ce-time": {"2026-11-30T12:00:00.000000Z"},
				jetstream.ExpectedLastSubjSeqHeader: {"0"},
			},
			Data: data,
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(time.Minute):
		b.Fatal("the journal is not written")
	}
	k := newKeys(b, "weir/gate")
	b.Run("build", func(b *testing.B) {
		for b.Loop() {
			before := heap()
			started := time.Now()
			l, stop := w.run()
			b.ReportMetric(float64(time.Since(started).Milliseconds()), "ms/build")
			stop()
			b.ReportMetric(float64(heap()-before)/events, "heap-bytes/event")
			if l.applied != events {
				b.Fatalf("%d events", l.applied)
			}
			runtime.KeepAlive(l)
		}
	})
	gate := as{w.server(k), "t3"}
	b.Run("checkpoint", func(b *testing.B) {
		for b.Loop() {
			gate.checkpoint(b)
		}
	})
	for _, size := range []int32{100, 1000} {
		b.Run(fmt.Sprint("page of ", size), func(b *testing.B) {
			for b.Loop() {
				if _, err := gate.ListRecords(b.Context(), &gatev1.ListRecordsRequest{PageSize: size}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("consistency", func(b *testing.B) {
		for b.Loop() {
			if _, err := gate.ProveConsistency(b.Context(), &gatev1.ProveConsistencyRequest{OldSize: 4321, NewSize: 9876}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("audit", func(b *testing.B) {
		kept := gate.checkpoint(b).GetCheckpoint()
		for b.Loop() {
			if _, err := Audit(b.Context(), gate, kept, k.verifier); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func heap() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

package inbox

import (
	"fmt"
	"runtime"
	"testing"

	inboxv1 "weir/gen/inbox/v1"
)

// mostIdleBytes is some twice what an idle watch was measured to take, heap and stack, at
// the service and its client together.
const mostIdleBytes = 120 << 10

func TestIdleWatchesCostLittle(t *testing.T) {
	const watches = 400
	r := newAloneRig(t)
	replica := r.measured()
	c := r.at(replica.Service, worker)
	takes := func() (bytes, goroutines float64) {
		for range 3 { // stacks shrink by half at each collection
			runtime.GC()
		}
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return float64(stats.HeapAlloc + stats.StackInuse), float64(runtime.NumGoroutine())
	}
	before, goroutines := takes()
	for i := range watches {
		if err := c.watch().Send(&inboxv1.WatchInboxesRequest{Goals: []string{fmt.Sprint("g", i)}}); err != nil {
			t.Fatal(err)
		}
	}
	replica.shows("watches", watches)
	after, more := takes()
	each := (after - before) / watches
	t.Logf("a watch takes %.1f KiB and %.1f goroutines, with its client", each/1024, (more-goroutines)/watches)
	if each > mostIdleBytes {
		t.Errorf("a watch takes %.1f KiB", each/1024)
	}
}

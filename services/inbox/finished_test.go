package inbox

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"runtime"
	"testing"
	"time"

	"weir/internal/aggregate"
	"weir/internal/meshtest"
)

func hashed(i int) []byte {
	sum := sha256.Sum256([]byte(fmt.Sprint(i)))
	return sum[:]
}

// endedIDs are the ids old-0, old-1, … of so many messages that are done.
func endedIDs(t testing.TB, n int) finished {
	t.Helper()
	buckets := map[uint64][]ended{}
	for i := range n {
		number := uint64(i / bucketSize)
		buckets[number] = append(buckets[number], ended{
			id: hashID(fmt.Sprint("old-", i)), print: printOf(hashed(i)), at: second(start), as: uint8(done),
		})
	}
	f, err := decodeFinished(buckets)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// The ids of 200,000 messages fit well: what one takes, in memory with what finds
// it, in the document, and in Redis.
func TestWhatAnEndedIdCosts(t *testing.T) {
	const ended = 200_000
	s := newInbox()
	s.finished = endedIDs(t, ended)
	document := written(t, s.counted())
	s = inbox{}
	memory := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := memory()
	s, err := inboxCodec{}.Decode(document)
	if err != nil {
		t.Fatal(err)
	}
	inMemory := float64(memory()-before) / ended
	size := 0
	for field, content := range document {
		size += len(field) + len(content)
	}
	redis := meshtest.StartRedis(t)
	client := redis.Client()
	defer func() { _ = client.Close() }()
	if err := client.HSet(t.Context(), "inbox", document).Err(); err != nil {
		t.Fatal(err)
	}
	inRedis := float64(client.MemoryUsage(t.Context(), "inbox", 0).Val()) / ended
	t.Logf("an id takes %.1f bytes in memory, %.1f in the document, %.1f in Redis", inMemory, float64(size)/ended, inRedis)
	if inMemory > finishedBytes || float64(size)/ended > 24 || inRedis == 0 || inRedis > 32 {
		t.Error("that is more than the limits are made for")
	}
	for _, i := range []int{0, 77, ended - 1} {
		if at, _ := s.standing(fmt.Sprint("old-", i), "", start); at != done {
			t.Errorf("old-%d is %s", i, standingNames[at])
		}
	}
	if at, _ := s.standing("new", "", start); at != unknown {
		t.Errorf("an id that never was is %s", standingNames[at])
	}
	runtime.KeepAlive(s)
}

// However long ids are to be kept, there is a cap: beyond it the oldest bucket goes.
func TestBeyondTheCapTheOldestIdsAreForgotten(t *testing.T) {
	const most = 4
	f := endedIDs(t, most*bucketSize)
	var changed []uint64
	bounded := func() { f = f.bounded(most, func(bucket uint64) { changed = append(changed, bucket) }) }
	if bounded(); len(changed) != 0 || f.count != most*bucketSize {
		t.Fatalf("%d ids are remembered, %v changed", f.count, changed)
	}
	f, _ = f.with(ended{id: hashID("new"), as: uint8(done)})
	if bounded(); fmt.Sprint(changed) != "[0]" {
		t.Errorf("buckets %v changed", changed)
	}
	for id, want := range map[string]bool{"old-0": false, "old-63": false, "old-64": true, fmt.Sprint("old-", most*bucketSize-1): true, "new": true} {
		if _, known := f.find(id); known != want {
			t.Errorf("%s is known: %v", id, known)
		}
	}
	if f.count != (most-1)*bucketSize+1 || f.byID.Len() != f.count {
		t.Errorf("%d ids are remembered, %d are found", f.count, f.byID.Len())
	}
}

// An id that is used again once its time is over is known by its later end.
func TestAnIdThatIsUsedAgainIsKnownByItsLaterEnd(t *testing.T) {
	f := newFinished()
	add := func(id string, at uint32, as standing) {
		f, _ = f.with(ended{id: hashID(id), at: at, as: uint8(as)})
	}
	add("a", 10, done)
	add("b", 20, done)
	add("a", 30, expired) // in the same bucket
	for i := range bucketSize {
		add(fmt.Sprint(i), 40, done)
	}
	add("b", 50, expired) // in another
	forget := func(before int64) { f = f.forget(time.Unix(before, 0), func(uint64) {}) }
	for _, before := range []int64{0, 10, 11, 21, 30} {
		forget(before)
		for _, id := range []string{"a", "b"} {
			if e, ok := f.find(id); !ok || standing(e.as) != expired {
				t.Errorf("after what ended before %d is forgotten, %s is known: %v, as %s", before, id, ok, standingNames[e.as])
			}
		}
	}
	forget(31)
	if _, ok := f.find("a"); ok {
		t.Error("a is still known")
	}
	forget(51)
	if f.count != 0 || f.byID.Len() != 0 || f.first != f.next {
		t.Errorf("%d ids are left, %d are found, in buckets %d to %d", f.count, f.byID.Len(), f.first, f.next)
	}
}

// Forgotten buckets leave their numbers behind, for every replica the same.
func TestTheNumbersOfBucketsAreNeverUsedAgain(t *testing.T) {
	p := filled(t, 0, 100)
	later := p.state.Updated.Add(defaultKeepIDs + time.Minute)
	p.must(later)(decideEnqueue(p.state, put(newMessage{ID: "old-1", Body: "other"}), later))
	if p.state.Finished != 0 || p.state.FirstBucket != 2 {
		t.Fatalf("%d ids are left, the first bucket is %d", p.state.Finished, p.state.FirstBucket)
	}
	p.check()
	read, err := inboxCodec{}.Decode(maps.Clone(p.document))
	if err != nil || read.finished.next != 2 {
		t.Fatalf("read back, the next bucket is %d: %v", read.finished.next, err)
	}
	if _, ok := p.document[finishedField+"0"]; ok {
		t.Error("the first bucket is still in the document")
	}
	if _, err := (inboxCodec{}).Decode(map[string]string{aggregate.RootField: p.document[aggregate.RootField]}); err != nil {
		t.Error(err)
	}
}

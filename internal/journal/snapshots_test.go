package journal_test

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/oklog/ulid/v2"

	"weir/internal/journal"
	"weir/internal/meshtest"
)

const bucketSubjects = "$KV.WEIR_TEST_SNAPSHOTS."

// byNumber puts a field `n:…` in piece n, and all others in piece 0.
func byNumber(field string) int {
	n := 0
	_, _ = fmt.Sscanf(field, "%d:", &n)
	return n
}

func snapshot(version uint64, fields ...string) journal.Snapshot {
	s := journal.Snapshot{Version: version, Fields: map[string][]byte{}}
	for _, field := range fields {
		name, content, _ := strings.Cut(field, "=")
		s.Fields[name] = []byte(content)
	}
	return s
}

func saved(t testing.TB, j *journal.Journal, k journal.Key, s journal.Snapshot) {
	t.Helper()
	if err := j.SaveSnapshot(t.Context(), k, s, byNumber); err != nil {
		t.Fatalf("save of %s at %d: %v", k, s.Version, err)
	}
}

func wantSnapshot(t testing.TB, j *journal.Journal, k journal.Key, want journal.Snapshot) {
	t.Helper()
	got, err := j.LoadSnapshot(t.Context(), k)
	if err != nil || got.Version != want.Version || !maps.EqualFunc(got.Fields, want.Fields, bytes.Equal) {
		t.Fatalf("%s has a snapshot at %d with %d fields, %v; want it at %d with %d", k, got.Version, len(got.Fields), err, want.Version, len(want.Fields))
	}
}

// written hears of what is written to the bucket.
type written struct {
	t   testing.TB
	nc  *nats.Conn
	sub *nats.Subscription
}

func listen(t testing.TB, nc *nats.Conn) *written {
	t.Helper()
	sub, err := nc.SubscribeSync(bucketSubjects + ">")
	if err != nil {
		t.Fatal(err)
	}
	w := &written{t: t, nc: nc, sub: sub}
	w.keys()
	return w
}

// keys gives what was written since the last time, without the pieces' ids.
func (w *written) keys() []string {
	w.t.Helper()
	if err := w.nc.Flush(); err != nil {
		w.t.Fatal(err)
	}
	var keys []string
	for {
		msg, err := w.sub.NextMsg(time.Nanosecond)
		if err != nil {
			slices.Sort(keys)
			return keys
		}
		parts := strings.Split(strings.TrimPrefix(msg.Subject, bucketSubjects), ".")
		keys = append(keys, strings.Join(parts[2:min(len(parts), 4)], "."))
	}
}

func TestASnapshotInPiecesWritesWhatChanged(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	version := uint64(0)
	for i := range 9 {
		version = appended(t, j, event(fmt.Sprint(i)), version)
	}
	wrote := listen(t, n.Connect())
	for _, step := range []struct {
		snapshot journal.Snapshot
		wrote    string
	}{
		{snapshot(1, "root=1", "1:a=1", "1:b=1", "2:a=1"), "[x x.1 x.2]"},
		{snapshot(2, "root=2", "1:a=1", "1:b=1", "2:a=1"), "[x]"},
		{snapshot(3, "root=3", "1:a=1", "1:b=3", "2:a=1"), "[x x.1]"},
		{snapshot(4, "root=4", "1:a=1", "1:b=3", "2:a=1", "3:a=4"), "[x x.3]"},
		{snapshot(5, "root=5", "1:a=1", "2:a=1", "3:a=4"), "[x x.1]"}, // a field is gone
		{snapshot(6, "root=6", "1:a=1"), "[x]"},                       // and whole pieces
		{snapshot(7, "root=7", "1:a=1", "2:a=1"), "[x x.2]"},
		{snapshot(8, "root=8", "other=8"), "[x]"},
	} {
		saved(t, j, key("x"), step.snapshot)
		if got := fmt.Sprint(wrote.keys()); got != step.wrote {
			t.Errorf("at %d it wrote %s, want %s", step.snapshot.Version, got, step.wrote)
		}
		wantSnapshot(t, j, key("x"), step.snapshot)
		wantSnapshot(t, open(t, n.URL()), key("x"), step.snapshot)
	}
	// What is older does not come back.
	saved(t, j, key("x"), snapshot(7, "root=7"))
	wantSnapshot(t, j, key("x"), snapshot(8, "root=8", "other=8"))
	wantSnapshot(t, j, key("nobody"), journal.Snapshot{})
}

func TestASnapshotLargerThanAMessage(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	one := appended(t, j, event("one"), 0)
	two := appended(t, j, event("two"), one)
	const count = 4500 // 4.5 MB, where a message is at most 4
	s := snapshot(one, "root=1")
	for i := range count {
		content := make([]byte, 1000)
		_, _ = rand.Read(content)
		s.Fields[fmt.Sprintf("%d:%d", 1+i/256, i)] = content
	}
	saved(t, j, key("x"), s)
	wantSnapshot(t, j, key("x"), s)
	s.Version = two
	s.Fields["18:more"] = []byte("more")
	wrote := listen(t, n.Connect())
	saved(t, j, key("x"), s)
	if got := fmt.Sprint(wrote.keys()); got != "[x x.18]" {
		t.Errorf("it wrote %s", got)
	}
	wantSnapshot(t, j, key("x"), s)
	if err := j.SaveSnapshot(t.Context(), key("x"), s, nil); err == nil {
		t.Error("it fits into one message")
	}
	wantSnapshot(t, j, key("x"), s)
}

// Whoever saves at the same time, a snapshot that is read is one that was saved.
func TestASnapshotIsNeverMadeOfTwo(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	const versions = 60
	version := uint64(0)
	for i := range versions {
		version = appended(t, j, event(fmt.Sprint(i)), version)
	}
	// Piece p changes every p versions; its fields say at which.
	at := func(version uint64) journal.Snapshot {
		s := snapshot(version, fmt.Sprint("root=", version))
		for p := uint64(1); p <= 5; p++ {
			s.Fields[fmt.Sprint(p, ":a")] = fmt.Append(nil, version/p)
		}
		return s
	}
	saved(t, j, key("x"), at(1))
	var savers, loaders sync.WaitGroup
	done := make(chan struct{})
	loads := 0
	loaders.Go(func() {
		for reader := open(t, n.URL()); ; loads++ {
			select {
			case <-done:
				return
			default:
			}
			s, err := reader.LoadSnapshot(t.Context(), key("x"))
			if err != nil || !maps.EqualFunc(s.Fields, at(s.Version).Fields, bytes.Equal) {
				t.Errorf("it is %v, %v; never saved", s, err)
				return
			}
		}
	})
	for saver := range uint64(3) {
		savers.Go(func() {
			mine := open(t, n.URL())
			for v := 1 + saver; v <= versions; v += 1 + saver {
				if err := mine.SaveSnapshot(t.Context(), key("x"), at(v), byNumber); err != nil {
					t.Errorf("save at %d: %v", v, err)
				}
			}
		})
	}
	savers.Wait()
	close(done)
	loaders.Wait()
	if loads == 0 {
		t.Error("nothing was loaded meanwhile")
	}
	s, err := j.LoadSnapshot(t.Context(), key("x"))
	if err != nil || s.Version == 1 {
		t.Errorf("at last it is at %d, %v", s.Version, err)
	}
}

// bucket is the tests' own way to the snapshots.
func bucketOf(t testing.TB, nc *nats.Conn) jetstream.KeyValue {
	t.Helper()
	kv, err := jetStream(t, nc).KeyValue(t.Context(), "WEIR_TEST_SNAPSHOTS")
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

// pieceKeys gives the keys of an aggregate's pieces.
func pieceKeys(t testing.TB, kv jetstream.KeyValue, id string) []string {
	t.Helper()
	keys, err := kv.ListKeysFiltered(t.Context(), "acme.thing."+id+".>")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for key := range keys.Keys() {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}

func TestPiecesThatNoSnapshotNamesAreRemoved(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	one := appended(t, j, event("one"), 0)
	two := appended(t, j, event("two"), one)
	saved(t, j, key("x"), snapshot(one, "root=1", "1:a=1", "2:a=1"))
	kv := bucketOf(t, n.Connect())
	// Saves that were cut off, long ago and just now, one of a piece that is named.
	cut := func(number int, age time.Duration) string {
		id := ulid.MustNew(ulid.Timestamp(time.Now().Add(-age)), rand.Reader)
		name := fmt.Sprintf("acme.thing.x.%d.%s", number, id)
		if _, err := kv.PutString(t.Context(), name, "cut off"); err != nil {
			t.Fatal(err)
		}
		return name
	}
	old, older, young := cut(2, 2*time.Minute), cut(7, time.Hour), cut(2, time.Second)
	replaced := pieceKeys(t, kv, "x")
	saved(t, j, key("x"), snapshot(two, "root=2", "1:a=1", "2:a=2"))
	left := pieceKeys(t, kv, "x")
	if slices.Contains(left, old) || slices.Contains(left, older) || !slices.Contains(left, young) {
		t.Errorf("of %v are left %v", replaced, left)
	}
	// The piece that was replaced is too young to be removed, the other is in use.
	if len(left) != 4 {
		t.Errorf("left are %v", left)
	}
	wantSnapshot(t, j, key("x"), snapshot(two, "root=2", "1:a=1", "2:a=2"))
}

// However old a piece is, it stays as long as the snapshot is made of it.
func TestAPieceInUseStays(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := open(t, n.URL())
	one := appended(t, j, event("one"), 0)
	two := appended(t, j, event("two"), one)
	saved(t, j, key("x"), snapshot(one, "root=1", "1:a=1"))
	// The same snapshot, as if it had been saved an hour ago.
	kv := bucketOf(t, n.Connect())
	name := pieceKeys(t, kv, "x")[0]
	young := name[strings.LastIndexByte(name, '.')+1:]
	old := ulid.MustNew(ulid.Timestamp(time.Now().Add(-time.Hour)), rand.Reader).String()
	for from, to := range map[string]string{name: strings.ReplaceAll(name, young, old), "acme.thing.x": "acme.thing.x"} {
		entry, err := kv.Get(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		zip, err := gzip.NewReader(bytes.NewReader(entry.Value()))
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(zip)
		if err != nil {
			t.Fatal(err)
		}
		var packed bytes.Buffer
		again := gzip.NewWriter(&packed)
		_, _ = again.Write(bytes.ReplaceAll(content, []byte(young), []byte(old)))
		_ = again.Close()
		if _, err := kv.Put(t.Context(), to, packed.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	if err := kv.Purge(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	wantSnapshot(t, j, key("x"), snapshot(one, "root=1", "1:a=1"))
	saved(t, j, key("x"), snapshot(two, "root=2", "1:a=1"))
	wantSnapshot(t, j, key("x"), snapshot(two, "root=2", "1:a=1"))
}

// A piece that is lost costs the snapshot, and the next save is whole again.
func TestASnapshotThatLacksAPieceIsNone(t *testing.T) {
	for name, harm := range map[string]func(testing.TB, jetstream.KeyValue, string){
		"gone": func(t testing.TB, kv jetstream.KeyValue, piece string) {
			if err := kv.Purge(t.Context(), piece); err != nil {
				t.Fatal(err)
			}
		},
		"no piece": func(t testing.TB, kv jetstream.KeyValue, piece string) {
			if _, err := kv.PutString(t.Context(), piece, "something else"); err != nil {
				t.Fatal(err)
			}
		},
		"another piece": func(t testing.TB, kv jetstream.KeyValue, piece string) {
			other, err := kv.Get(t.Context(), pieceKeys(t, kv, "x")[0])
			if err != nil {
				t.Fatal(err)
			}
			if _, err := kv.Put(t.Context(), piece, other.Value()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := meshtest.StartNATS(t)
			j := open(t, n.URL())
			one := appended(t, j, event("one"), 0)
			s := snapshot(one, "root=1", "1:a=1", "2:a=1", "2:b=1")
			saved(t, j, key("x"), s)
			kv := bucketOf(t, n.Connect())
			harm(t, kv, pieceKeys(t, kv, "x")[1])
			if got, err := j.LoadSnapshot(t.Context(), key("x")); err == nil {
				t.Errorf("it is %v", got)
			}
			saved(t, j, key("x"), s)
			wantSnapshot(t, j, key("x"), s)
		})
	}
}

func TestEraseSnapshot(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := openErasable(t, n.URL())
	last := uint64(0)
	for _, id := range []string{"x", "x.y", "x.1", "y"} {
		last = appended(t, j, eventOf(key(id), id), 0)
		saved(t, j, key(id), snapshot(last, "root="+id, "1:a="+id, "2:a="+id))
	}
	for i, want := range []bool{true, false} {
		if existed, err := j.EraseSnapshot(t.Context(), key("x")); err != nil || existed != want {
			t.Errorf("time %d: existed %v, %v", i, existed, err)
		}
	}
	if left := pieceKeys(t, bucketOf(t, n.Connect()), "x"); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	wantSnapshot(t, j, key("x"), journal.Snapshot{})
	for i, id := range []string{"x.y", "x.1", "y"} {
		wantSnapshot(t, j, key(id), snapshot(uint64(i+2), "root="+id, "1:a="+id, "2:a="+id))
	}
}

// A save that began before an erasure and ends behind it leaves nothing.
func TestASaveThatAnErasureOvertookKeepsNothing(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := openErasable(t, n.URL())
	one := appended(t, j, event("one"), 0)
	two := appended(t, j, event("two"), one)
	saved(t, j, key("x"), snapshot(one, "root=1", "1:a=1"))
	past := event("past")
	past.ErasesPast = true
	erasing(t, j, past, two)
	if _, err := j.EraseSnapshot(t.Context(), key("x")); err != nil {
		t.Fatal(err)
	}
	saved(t, j, key("x"), snapshot(two, "root=2", "1:a=2"))
	wantSnapshot(t, j, key("x"), journal.Snapshot{})
	if left := pieceKeys(t, bucketOf(t, n.Connect()), "x"); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

package journal_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"weir/internal/journal"
	"weir/internal/meshtest"
)

// disk is a nats-server whose files can be looked into, and which looks after
// them more often than the two minutes that are its default.
type disk struct {
	t   testing.TB
	dir string
	srv *server.Server
}

func startDisk(t testing.TB) *disk {
	t.Helper()
	d := &disk{t: t, dir: t.TempDir()}
	d.start()
	t.Cleanup(d.stop)
	return d
}

func (d *disk) start() {
	d.t.Helper()
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: d.dir, SyncInterval: 100 * time.Millisecond,
		NoSigs: true, NoLog: true, MaxPayload: 4 << 20,
	})
	if err != nil {
		d.t.Fatalf("nats-server: %v", err)
	}
	srv.Start()
	if !srv.ReadyForConnections(meshtest.Patience) {
		d.t.Fatal("nats-server did not get ready")
	}
	d.srv = srv
}

func (d *disk) stop() {
	d.srv.Shutdown()
	d.srv.WaitForShutdown()
}

// holds gives the names of the files that hold a text.
func (d *disk) holds(text string) []string {
	d.t.Helper()
	var names []string
	err := filepath.WalkDir(d.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if bytes.Contains(content, []byte(text)) {
			names = append(names, filepath.Base(path))
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) { // the server may remove what is being read
		d.t.Fatal(err)
	}
	return names
}

func (d *disk) want(when, text string, files ...string) {
	d.t.Helper()
	if got := d.holds(text); !slices.Equal(got, files) {
		d.t.Errorf("%s: %q is in %v, want it in %v", when, text, got, files)
	}
}

// telling is an event whose data holds a text that nothing else does.
func telling(id, text string) journal.Event {
	e := eventOf(key(id), id+text)
	e.Data = []byte("what was said: " + text)
	return e
}

// fillBlock appends live events of another aggregate until the server begins its
// next file.
func (d *disk) fillBlock(j *journal.Journal, id string) {
	d.t.Helper()
	files := func() int {
		names, err := filepath.Glob(filepath.Join(d.dir, "jetstream/*/streams/WEIR_TEST/msgs/*.blk"))
		if err != nil {
			d.t.Fatal(err)
		}
		return len(names)
	}
	before, last := files(), uint64(0)
	for i := 0; files() == before; i++ {
		e := eventOf(key(id), fmt.Sprint(id, before, "/", i))
		e.Data = make([]byte, 1<<20)
		last = appended(d.t, j, e, last)
	}
}

// This is what EraseEvents promises of the files.
func TestErasedEventsAreGoneFromTheFiles(t *testing.T) {
	d := startDisk(t)
	j := openErasable(t, d.srv.ClientURL())
	// One in a file that is full, and one in the file that is being written.
	one := appended(t, j, telling("old", "secret-1"), 0)
	appended(t, j, telling("neighbour", "kept-1"), 0)
	d.fillBlock(j, "filler")
	two := appended(t, j, telling("new", "secret-2"), 0)
	appended(t, j, telling("neighbour2", "kept-2"), 0)
	d.want("appended", "secret-1", "1.blk")
	d.want("appended", "secret-2", "2.blk")
	for sequence, e := range map[uint64]journal.Event{one: eventOf(key("old"), "gone"), two: eventOf(key("new"), "gone too")} {
		e.Erases = []journal.Erased{{Sequence: sequence}}
		erasing(t, j, e, sequence)
	}
	d.want("erased", "secret-1")
	d.want("erased", "secret-2")
	d.want("erased", "kept-1", "1.blk")
	d.want("erased", "kept-2", "2.blk")
	d.stop()
	d.want("stopped", "secret-1")
	d.want("stopped", "secret-2")
}

// And this of ErasePast: nobody can read the events, but their bytes stay in the
// files until the server has another reason to write these anew.
func TestAPurgeLeavesBytesInTheFiles(t *testing.T) {
	d := startDisk(t)
	j := openErasable(t, d.srv.ClientURL())
	clear := func(id string, last uint64) {
		t.Helper()
		past := eventOf(key(id), id+" past")
		past.ErasesPast = true
		erasing(t, j, past, last)
		wantHistory(t, j, key(id), id+" past")
	}
	// In the first file most is alive, in the second most will be gone, and the
	// third is being written.
	among := appended(t, j, telling("among", "secret-among-living"), 0)
	d.fillBlock(j, "living")
	mostly := appended(t, j, telling("dead", "secret-among-dead"), 0)
	for i := range 5 {
		e := eventOf(key("dead"), fmt.Sprint("dead", i))
		e.Data = make([]byte, 1<<20)
		mostly = appended(t, j, e, mostly)
	}
	appended(t, j, telling("survivor", "kept"), 0)
	d.fillBlock(j, "next")
	newest := appended(t, j, telling("newest", "secret-newest"), 0)
	clear("among", among)
	clear("newest", newest)
	d.want("purged", "secret-among-living", "1.blk")
	d.want("purged", "secret-newest", "3.blk")

	clear("dead", mostly)
	meshtest.Eventually(t, "a file that is mostly dead is written anew", func() bool {
		return len(d.holds("secret-among-dead")) == 0
	})
	d.want("written anew", "kept", "2.blk")
	// The server looks at all files at once, so it has looked at these as well.
	d.want("looked after", "secret-among-living", "1.blk")
	d.want("looked after", "secret-newest", "3.blk")
	d.stop()
	d.start()
	d.want("started again", "secret-among-living", "1.blk")
	d.want("started again", "secret-newest", "3.blk")
}

// Snapshots are in a bucket, from which NATS lets nothing be deleted but by a
// purge. So they must not hold what has to be overwritten.
func TestErasedSnapshotsLeaveBytesInTheFiles(t *testing.T) {
	d := startDisk(t)
	j := openErasable(t, d.srv.ClientURL())
	one := appended(t, j, telling("x", "said"), 0)
	saved(t, j, key("x"), snapshot(one, "root=secret"))
	saved(t, j, key("y"), snapshot(one, "root=kept")) // a file of nothing alive is removed
	kv := bucketOf(t, meshtest.Connect(t, d.srv.ClientURL()))
	entry, err := kv.Get(t.Context(), "acme.thing.x")
	if err != nil {
		t.Fatal(err)
	}
	packed := string(entry.Value())
	d.want("saved", packed, "1.blk")
	if _, err := j.EraseSnapshot(t.Context(), key("x")); err != nil {
		t.Fatal(err)
	}
	wantSnapshot(t, j, key("x"), journal.Snapshot{})
	d.want("erased", packed, "1.blk")
}

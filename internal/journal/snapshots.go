package journal

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"
)

// Snapshot is an aggregate's document at a version, from which a replay can go
// on. It is a cache of the journal beside the journal: one that is missing, or
// cannot be read, costs a longer replay and nothing else.
type Snapshot struct {
	Version uint64
	Fields  map[string][]byte
}

// manifest is the message under an aggregate's own key in the bucket. It holds
// the fields of piece 0, and names the messages that hold the others. A piece
// is written once, under a key of its own, so a manifest that can be read whole
// is exactly what was saved at its version, whoever saves at the same time.
type manifest struct {
	Version uint64 `json:"version"`
	// Stream is the stream that it was made from; another one of the same name
	// has other sequences.
	Stream string            `json:"stream"`
	Fields map[string][]byte `json:"fields"`
	Pieces map[int]piece     `json:"pieces,omitempty"`
}

// piece names a message of the bucket, and the SHA-256 of what it unpacks to.
type piece struct {
	ID   string `json:"id"`
	Hash string `json:"hash"`
}

const (
	// maxSnapshot bounds what one message of a snapshot may unpack to.
	maxSnapshot = 256 << 20
	// pieceGrace is how old a piece that no manifest names is before it is
	// removed. One that is younger may be of a save under way, by a replica whose
	// clock is not quite the same.
	pieceGrace = time.Minute
	// pieceReaders is how many pieces are read side by side.
	pieceReaders = 8
)

// errTooLarge says that a piece of a snapshot does not fit into a message.
var errTooLarge = errors.New("it is larger than a message may be")

// errPieceLost says that a piece is not there, or not as it was saved.
var errPieceLost = errors.New("it is not what was saved")

// snapshotKey writes a key in what a key-value bucket takes, which is all that
// Escape leaves but the percent sign.
func snapshotKey(key Key) string { return strings.ReplaceAll(key.Escaped(), "%", "=") }

func pieceKey(key Key, number int, id string) string {
	return snapshotKey(key) + "." + strconv.Itoa(number) + "." + id
}

// bucket opens the service's bucket of snapshots, and makes it at first.
func (j *Journal) bucket(ctx context.Context) (jetstream.KeyValue, error) {
	j.bucketMu.Lock()
	defer j.bucketMu.Unlock()
	if j.snapshots != nil {
		return j.snapshots, nil
	}
	kv, err := j.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket:      j.stream + "_SNAPSHOTS",
		Description: "weir: where replays of the " + j.service + " service's long aggregates begin",
		Storage:     jetstream.FileStorage,
		Replicas:    j.replicas,
	})
	if err == nil {
		j.snapshots = kv
	}
	return kv, err
}

// bucketStream and bucketSubject are what NATS makes a bucket of.
func (j *Journal) bucketStream() string { return "KV_" + j.stream + "_SNAPSHOTS" }

func (j *Journal) bucketSubject(key string) string {
	return "$KV." + j.stream + "_SNAPSHOTS." + key
}

// SaveSnapshot keeps a snapshot in place of the aggregate's older one. pieceOf
// says in which piece a field is, for a document that is larger than a message;
// nil is one piece, 0. Piece 0 is always written, and others where they are not
// as the older snapshot has them.
//
// Of several that save at once one wins. Of what is erased from the journal
// meanwhile nothing is kept.
func (j *Journal) SaveSnapshot(ctx context.Context, key Key, s Snapshot, pieceOf func(field string) int) error {
	err := j.writeSnapshot(ctx, key, s, pieceOf)
	// An erasure removes events first and snapshots then. So whoever of the two
	// comes last sees the other's work.
	if _, gone := j.askLeader(ctx, question{Sequence: s.Version}); errors.Is(gone, errNoEvent) {
		_, erased := j.EraseSnapshot(ctx, key)
		return errors.Join(err, erased)
	}
	return err
}

func (j *Journal) writeSnapshot(ctx context.Context, key Key, s Snapshot, pieceOf func(field string) int) error {
	kv, err := j.bucket(ctx)
	if err != nil {
		return err
	}
	// One that cannot be read is replaced like any other.
	old, revision, err := j.manifest(ctx, kv, key)
	if err != nil && revision == 0 {
		return err
	}
	if old.Version > s.Version {
		return nil
	}
	next := manifest{Version: s.Version, Stream: j.Identity(), Pieces: map[int]piece{}}
	for number, fields := range inPieces(s.Fields, pieceOf) {
		if number == 0 {
			next.Fields = fields
			continue
		}
		content, err := json.Marshal(fields)
		if err != nil {
			return fmt.Errorf("snapshot of %s: %w", key, err)
		}
		p := piece{Hash: hashOf(content)}
		if known, ok := old.Pieces[number]; ok && known.Hash == p.Hash {
			next.Pieces[number] = known
			continue
		}
		p.ID = ulid.Make().String()
		packed, err := j.pack(content)
		if err != nil {
			return fmt.Errorf("snapshot of %s: piece %d: %w", key, number, err)
		}
		if _, err := kv.Put(ctx, pieceKey(key, number, p.ID), packed); err != nil {
			return err
		}
		next.Pieces[number] = p
	}
	content, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("snapshot of %s: %w", key, err)
	}
	packed, err := j.pack(content)
	if err != nil {
		return fmt.Errorf("snapshot of %s: %w", key, err)
	}
	if _, err = kv.Update(ctx, snapshotKey(key), packed, revision); isWrongSequence(err) {
		return nil // another replica saved meanwhile, or it was erased
	}
	if err != nil {
		return err
	}
	return j.dropPieces(ctx, key, next)
}

func inPieces(fields map[string][]byte, pieceOf func(string) int) map[int]map[string][]byte {
	if pieceOf == nil {
		return map[int]map[string][]byte{0: fields}
	}
	pieces := make(map[int]map[string][]byte)
	for name, content := range fields {
		number := pieceOf(name)
		if pieces[number] == nil {
			pieces[number] = make(map[string][]byte)
		}
		pieces[number][name] = content
	}
	return pieces
}

// dropPieces removes the pieces that a manifest does not name: those of the
// snapshot before it, and those of saves that were cut off.
func (j *Journal) dropPieces(ctx context.Context, key Key, current manifest) error {
	stream, err := j.js.Stream(ctx, j.bucketStream())
	if err != nil {
		return err
	}
	prefix := j.bucketSubject(snapshotKey(key)) + "."
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(prefix+">"))
	if err != nil {
		return err
	}
	named := make(map[string]bool, len(current.Pieces))
	for number, p := range current.Pieces {
		named[j.bucketSubject(pieceKey(key, number, p.ID))] = true
	}
	for subject := range info.State.Subjects {
		id, err := ulid.ParseStrict(subject[strings.LastIndexByte(subject, '.')+1:])
		if named[subject] || err == nil && time.Since(id.Timestamp()) < pieceGrace {
			continue
		}
		if _, err := j.purge(ctx, j.bucketStream(), jetstream.StreamPurgeRequest{Subject: subject}); err != nil {
			return err
		}
	}
	return nil
}

// LoadSnapshot gives the aggregate's snapshot, one of version 0 if there is none.
// One that lacks a piece is an error, and is removed, so that the next save does
// not build on it.
func (j *Journal) LoadSnapshot(ctx context.Context, key Key) (Snapshot, error) {
	kv, err := j.bucket(ctx)
	if err != nil {
		return Snapshot{}, err
	}
	var s Snapshot
	for range 2 { // a piece may have been replaced since its manifest was read
		var m manifest
		if m, _, err = j.manifest(ctx, kv, key); err != nil {
			return Snapshot{}, err
		}
		if s, err = j.pieces(ctx, kv, key, m); !errors.Is(err, errPieceLost) {
			return s, err
		}
	}
	_, erased := j.EraseSnapshot(ctx, key)
	return Snapshot{}, errors.Join(err, erased)
}

// manifest gives the aggregate's manifest and its revision in the bucket: one of
// version 0 if there is none from this stream. The revision is given also where
// the manifest cannot be read.
func (j *Journal) manifest(ctx context.Context, kv jetstream.KeyValue, key Key) (manifest, uint64, error) {
	entry, err := kv.Get(ctx, snapshotKey(key))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return manifest{}, 0, nil
	}
	if err != nil {
		return manifest{}, 0, err
	}
	var m manifest
	content, err := unpack(entry.Value())
	if err == nil {
		err = json.Unmarshal(content, &m)
	}
	if err != nil {
		return manifest{}, entry.Revision(), fmt.Errorf("snapshot of %s: %w", key, err)
	}
	if m.Stream != j.Identity() {
		m = manifest{}
	}
	return m, entry.Revision(), nil
}

// pieces puts a snapshot together.
func (j *Journal) pieces(ctx context.Context, kv jetstream.KeyValue, key Key, m manifest) (Snapshot, error) {
	parts := make([]map[string][]byte, len(m.Pieces))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(pieceReaders)
	next := 0
	for number, p := range m.Pieces {
		fields := &parts[next]
		next++
		group.Go(func() error {
			entry, err := kv.Get(ctx, pieceKey(key, number, p.ID))
			if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
				return err
			}
			var content []byte
			if err == nil {
				content, err = unpack(entry.Value())
			}
			if err == nil && hashOf(content) == p.Hash {
				err = json.Unmarshal(content, fields)
			} else {
				err = errors.Join(err, errPieceLost)
			}
			if err != nil {
				return fmt.Errorf("snapshot of %s: piece %d: %w", key, number, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return Snapshot{}, err
	}
	s := Snapshot{Version: m.Version, Fields: m.Fields}
	for _, fields := range parts {
		if s.Fields == nil {
			s.Fields = make(map[string][]byte)
		}
		maps.Copy(s.Fields, fields)
	}
	return s, nil
}

// EraseSnapshot removes all that the bucket holds of an aggregate, and says
// whether there was anything. It is for after the aggregate's events were
// erased: then no save under way leaves anything behind either.
func (j *Journal) EraseSnapshot(ctx context.Context, key Key) (existed bool, err error) {
	if _, err := j.bucket(ctx); err != nil {
		return false, unavailable(err)
	}
	for _, of := range []string{snapshotKey(key), snapshotKey(key) + ".>"} {
		removed, err := j.purge(ctx, j.bucketStream(), jetstream.StreamPurgeRequest{Subject: j.bucketSubject(of)})
		if err != nil {
			return existed, err
		}
		existed = existed || removed > 0
	}
	return existed, nil
}

func hashOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func (j *Journal) pack(content []byte) ([]byte, error) {
	var packed bytes.Buffer
	zip, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := zip.Write(content); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	if int64(packed.Len()) > j.nc.MaxPayload()-1024 {
		return nil, errTooLarge
	}
	return packed.Bytes(), nil
}

func unpack(packed []byte) ([]byte, error) {
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(zip, maxSnapshot+1))
	if err == nil && len(content) > maxSnapshot {
		err = errTooLarge
	}
	return content, err
}

package journal

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Snapshot is an aggregate's document at a version, from which a replay can go
// on. It is a cache of the journal beside the journal: one that is missing, or
// cannot be read, costs a longer replay and nothing else.
type Snapshot struct {
	Version uint64            `json:"version"`
	Fields  map[string][]byte `json:"fields"`
	// Stream is the stream that it was made from; another one of the same name
	// has other sequences.
	Stream string `json:"stream"`
}

// errTooLarge says that a snapshot does not fit into a message.
var errTooLarge = errors.New("snapshot is larger than a message may be")

// snapshotKey writes a key in what a key-value bucket takes, which is all that
// Escape leaves but the percent sign.
func snapshotKey(key Key) string { return strings.ReplaceAll(key.Escaped(), "%", "=") }

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

// SaveSnapshot keeps a snapshot in place of the aggregate's older one.
func (j *Journal) SaveSnapshot(ctx context.Context, key Key, s Snapshot) error {
	s.Stream = j.Identity()
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	if err := errors.Join(json.NewEncoder(zip).Encode(s), zip.Close()); err != nil {
		return fmt.Errorf("snapshot of %s: %w", key, err)
	}
	if int64(packed.Len()) > j.nc.MaxPayload()-1024 {
		return errTooLarge
	}
	kv, err := j.bucket(ctx)
	if err != nil {
		return err
	}
	_, err = kv.Put(ctx, snapshotKey(key), packed.Bytes())
	return err
}

// LoadSnapshot gives the aggregate's snapshot, one of version 0 if there is none.
func (j *Journal) LoadSnapshot(ctx context.Context, key Key) (Snapshot, error) {
	kv, err := j.bucket(ctx)
	if err != nil {
		return Snapshot{}, err
	}
	entry, err := kv.Get(ctx, snapshotKey(key))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return Snapshot{}, nil
	}
	if err != nil {
		return Snapshot{}, err
	}
	zip, err := gzip.NewReader(bytes.NewReader(entry.Value()))
	if err != nil {
		return Snapshot{}, fmt.Errorf("snapshot of %s: %w", key, err)
	}
	var s Snapshot
	if err := json.NewDecoder(io.LimitReader(zip, maxSnapshot)).Decode(&s); err != nil {
		return Snapshot{}, fmt.Errorf("snapshot of %s: %w", key, err)
	}
	if s.Stream != j.Identity() {
		return Snapshot{}, nil
	}
	return s, nil
}

// maxSnapshot bounds what a packed snapshot may unpack to.
const maxSnapshot = 256 << 20

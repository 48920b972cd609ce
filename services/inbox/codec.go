package inbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/hot"
)

// Kinds of aggregates in the stream of this service.
const (
	inboxKindName    = "inbox"
	dispatchKindName = "dispatch"
)

// Lists of a tenant's inboxes, newest activity first.
const (
	listAll = "all"
	// listReady holds those that have something to serve.
	listReady = "ready"
)

// snapshotEvery keeps replays short: an inbox lives for years on few messages
// at a time.
const snapshotEvery = 1000

func inboxKind() aggregate.Kind[inbox, *inboxv1.Event] {
	return aggregate.Kind[inbox, *inboxv1.Event]{
		Name:   inboxKindName,
		Evolve: evolveInbox,
		Codec:  inboxCodec{},
		Lists: func(s inbox, version uint64) []hot.Entry {
			lists := []hot.Entry{{Set: listAll, Score: version}}
			if s.Counts.Pending > 0 && s.Mode != paused {
				lists = append(lists, hot.Entry{Set: listReady, Score: version})
			}
			return lists
		},
		Due:           inbox.due,
		SnapshotEvery: snapshotEvery,
		Piece:         piece,
	}
}

func dispatchKind() aggregate.Kind[dispatch, *inboxv1.Event] {
	return aggregate.Kind[dispatch, *inboxv1.Event]{
		Name:          dispatchKindName,
		Evolve:        evolveDispatch,
		Codec:         aggregate.RootCodec[dispatch, *inboxv1.Event]{Bytes: dispatch.bytes},
		Lists:         dispatch.lists,
		Due:           dispatch.due,
		SnapshotEvery: snapshotEvery, // a worker may report for as long as it works
	}
}

// Fields of an inbox's document beside the root: one for each message, and one
// for each bucket of ids that outlive their messages.
const (
	messageField  = "m:"
	finishedField = "d:"
)

// A snapshot is in pieces, since a full inbox is larger than a message of the
// journal: those of the messages, and those of the buckets. Most buckets never
// change, and so their pieces are written once.
const (
	messagePieces   = 16
	bucketsPerPiece = 128
)

func piece(field string) int {
	if id, ok := strings.CutPrefix(field, messageField); ok {
		h := fnv.New32a()
		_, _ = h.Write([]byte(id))
		return 1 + int(h.Sum32()%messagePieces)
	}
	if number, ok := parseFinishedField(field); ok {
		return 1 + messagePieces + int(number/bucketsPerPiece)
	}
	return 0
}

// What a state costs in memory, with its share of the indexes.
const (
	inboxBytes    = 2 << 10
	messageBytes  = 1400
	deliveryBytes = 120
	finishedBytes = 72
	dispatchBytes = 500
)

type inboxCodec struct{}

// Touched is what evolveInbox noted while it followed the event.
func (inboxCodec) Touched(s inbox, _ *inboxv1.Event) []string { return s.touched }

func (inboxCodec) Names(s inbox) []string {
	names := []string{aggregate.RootField}
	for itr := s.messages.Iterator(); !itr.Done(); {
		id, _, _ := itr.Next()
		names = append(names, messageField+id)
	}
	for number := s.finished.first; number < s.finished.next; number++ {
		names = append(names, finishedFieldOf(number))
	}
	return names
}

func (inboxCodec) Encode(s inbox, name string) ([]byte, error) {
	if name == aggregate.RootField {
		return json.Marshal(s.root)
	}
	if id, ok := strings.CutPrefix(name, messageField); ok {
		if m, ok := s.messages.Get(id); ok {
			return json.Marshal(m)
		}
	}
	if number, ok := parseFinishedField(name); ok {
		if bucket, ok := s.finished.buckets.Get(number); ok {
			return encodeBucket(bucket), nil
		}
	}
	return nil, nil
}

// Decode builds the indexes anew. A document whose counts are not those of its
// messages is refused: to decide on it would be to lose mail.
func (inboxCodec) Decode(fields map[string]string) (inbox, error) {
	root, err := aggregate.DecodeRoot[root](fields)
	if err != nil {
		return inbox{}, err
	}
	if _, ok := modes[root.Mode]; !ok {
		return inbox{}, fmt.Errorf("the root has the mode %q", root.Mode)
	}
	s := newInbox()
	s.root = root
	s.finished.first, s.finished.next = root.FirstBucket, root.FirstBucket
	if len(fields) == 1 {
		// The inbox is empty, or only its root was asked for.
		return s, nil
	}
	buckets := map[uint64][]ended{}
	for name, content := range fields {
		if err := s.decode(buckets, name, content); err != nil {
			return inbox{}, fmt.Errorf("field %q: %w", name, err)
		}
	}
	if len(buckets) > 0 {
		if s.finished, err = decodeFinished(buckets); err != nil {
			return inbox{}, err
		}
	}
	s.touched = nil
	// The root follows from all the rest; only what an operator said, and the newest
	// interruption, stand in it alone.
	if s = s.counted(); s.root != root || s.messages.Len() != s.Counts.depth()+s.Counts.Dead {
		return inbox{}, fmt.Errorf("the root is %+v, and what the document holds makes %+v", root, s.root)
	}
	return s, nil
}

// decode adds what one field holds.
func (s *inbox) decode(buckets map[uint64][]ended, name, content string) error {
	if id, ok := strings.CutPrefix(name, messageField); ok {
		var m message
		if err := json.Unmarshal([]byte(content), &m); err != nil {
			return err
		}
		*s = s.set(id, m)
		return nil
	}
	if number, ok := parseFinishedField(name); ok {
		bucket, err := decodeBucket(content)
		buckets[number] = bucket
		return err
	}
	if name == aggregate.RootField {
		return nil
	}
	return errors.New("it is not one of an inbox")
}

func (inboxCodec) Size(s inbox) int {
	if !s.exists() {
		return inboxBytes
	}
	return inboxBytes + messageBytes*s.messages.Len() + deliveryBytes*s.history + finishedBytes*s.finished.count
}

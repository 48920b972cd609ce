package inbox

import (
	"encoding/json"
	"errors"
	"fmt"
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

// listAll is the list of a tenant's inboxes, newest activity first.
const listAll = "all"

// snapshotEvery keeps replays short: an inbox lives for years on few messages
// at a time.
const snapshotEvery = 1000

func inboxKind() aggregate.Kind[inbox, *inboxv1.Event] {
	return aggregate.Kind[inbox, *inboxv1.Event]{
		Name:   inboxKindName,
		Evolve: evolveInbox,
		Codec:  inboxCodec{},
		Lists: func(_ inbox, version uint64) []hot.Entry {
			return []hot.Entry{{Set: listAll, Score: version}}
		},
		Due:           inbox.due,
		SnapshotEvery: snapshotEvery,
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
// for each id that outlives its message.
const (
	messageField  = "m:"
	finishedField = "d:"
)

// What a state costs in memory, with its share of the indexes.
const (
	inboxBytes    = 1 << 10
	messageBytes  = 700
	finishedBytes = 300
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
	for itr := s.finished.Iterator(); !itr.Done(); {
		id, _, _ := itr.Next()
		names = append(names, finishedField+id)
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
	if id, ok := strings.CutPrefix(name, finishedField); ok {
		if f, ok := s.finished.Get(id); ok {
			return json.Marshal(f)
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
	s := newInbox()
	s.root = root
	if len(fields) == 1 {
		// The inbox is empty, or only its root was asked for.
		return s, nil
	}
	for name, content := range fields {
		if s, err = s.decoded(name, content); err != nil {
			return inbox{}, fmt.Errorf("field %q: %w", name, err)
		}
	}
	s.touched = nil
	if s = s.counted(); s.Counts != root.Counts || s.Finished != root.Finished {
		return inbox{}, fmt.Errorf("the root counts %+v and %d finished, its messages are %+v and %d",
			root.Counts, root.Finished, s.Counts, s.Finished)
	}
	return s, nil
}

// decoded adds what one field holds.
func (s inbox) decoded(name, content string) (inbox, error) {
	if id, ok := strings.CutPrefix(name, messageField); ok {
		var m message
		if err := json.Unmarshal([]byte(content), &m); err != nil {
			return inbox{}, err
		}
		return s.set(id, m), nil
	}
	if id, ok := strings.CutPrefix(name, finishedField); ok {
		var f finished
		if err := json.Unmarshal([]byte(content), &f); err != nil {
			return inbox{}, err
		}
		return s.finish(id, f), nil
	}
	if name == aggregate.RootField {
		return s, nil
	}
	return inbox{}, errors.New("it is not one of an inbox")
}

func (inboxCodec) Size(s inbox) int {
	if !s.exists() {
		return inboxBytes
	}
	return inboxBytes + messageBytes*s.messages.Len() + finishedBytes*s.finished.Len()
}

// Package aggregate is weir's one write path. A service supplies, for each kind
// of aggregate, how its state follows from events and how it lies in Redis; the
// Loop loads, decides, appends, evolves and refreshes, the same way for all.
//
// Nothing else in weir appends events.
package aggregate

import (
	"time"

	"google.golang.org/protobuf/proto"

	"weir/internal/hot"
	"weir/internal/journal"
)

// Kind is what the loop must know of one kind of aggregate.
//
// S is its state: plain Go, and immutable, because callers share it. What can
// grow is held in persistent structures, so that following one event costs no
// more in a large state than in a small one. The zero S is the aggregate that
// has no event yet. E is the service's protobuf Event.
type Kind[S any, E proto.Message] struct {
	// Name is the kind's part of subjects and keys.
	Name string
	// Evolve gives the state after an event. It is pure, and total: an event
	// that was appended is history, there is nothing to refuse.
	Evolve func(S, Recorded[E]) S
	// Erases says what an event erases of its aggregate's past, as journal.Event
	// has it: earlier events by name, or all of them. Nil for a kind whose events
	// erase nothing. The loop only says so in the journal; the service removes them
	// once the event is in.
	//
	// Evolve then hears histories without the erased events, and the event that
	// carries what must stay of them only later. After one that erases the past it
	// is given the zero state, whatever was there before.
	Erases func(E) ([]journal.Erased, bool)
	// Codec lays the state out as the fields of a Redis hash.
	Codec Codec[S, E]
	// Lists says in which of its tenant's lists the aggregate stands at a
	// version. Scores are sequences: the version for "newest activity first", the
	// sequence of its first event for "newest first".
	Lists func(S, uint64) []hot.Entry
	// Due says when the aggregate wants to be looked at, zero for never. Nil
	// for a kind without deadlines.
	Due func(S) time.Time
	// SnapshotEvery is after how many events the loop keeps a snapshot to
	// replay from, 0 for never. For kinds whose replay could take over 50 ms.
	SnapshotEvery int
	// Piece says in which piece of a snapshot a field is kept, for a kind whose
	// document can be larger than a message of the journal, and can so grow as
	// long as no single piece does. Nil is all of it in piece 0. Piece 0 is
	// written with every snapshot, and what changes with every event belongs in
	// it; of the others those are written that changed.
	Piece func(field string) int
}

// Recorded is an event as the journal holds it.
type Recorded[E proto.Message] struct {
	Event    E
	ID       string
	Time     time.Time
	Sequence uint64
	// ErasesPast says that the state follows from this event alone.
	ErasesPast bool
}

// Codec lays a state out as the fields of a Redis hash: a root field, and one
// field for each entry of what can grow. Names must not begin with a dot.
type Codec[S any, E proto.Message] interface {
	// Touched names the fields that an event may change, in the state after it.
	// Nil says that the document is to be written anew: fields that the state does
	// not name any more are gone then.
	Touched(S, E) []string
	// Names names all fields.
	Names(S) []string
	// Encode gives the content of a field, nil when the state has none such.
	Encode(S, string) ([]byte, error)
	// Decode reads back what Encode wrote. Where a reader asked for some fields
	// only, the others are absent.
	Decode(map[string]string) (S, error)
	// Size estimates the state's bytes in memory.
	Size(S) int
}

// Key names an aggregate of this kind.
func (k Kind[S, E]) Key(tenant, id string) journal.Key {
	return journal.Key{Tenant: tenant, Kind: k.Name, ID: id}
}

func (k Kind[S, E]) row(state S, version uint64) hot.Row {
	row := hot.Row{Entries: k.Lists(state, version), HasDue: k.Due != nil}
	if k.Due != nil {
		row.Due = k.Due(state)
	}
	return row
}

// encode lays out the named fields of a state.
func (k Kind[S, E]) encode(state S, names []string) (hot.Change, error) {
	change := hot.Change{Set: make(map[string][]byte, len(names))}
	for _, name := range names {
		content, err := k.Codec.Encode(state, name)
		switch {
		case err != nil:
			return hot.Change{}, err
		case content == nil:
			change.Del = append(change.Del, name)
		default:
			change.Set[name] = content
		}
	}
	return change, nil
}

package aggregate

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"weir/internal/fault"
	"weir/internal/journal"
)

// RootField is the field that holds what does not grow.
const RootField = "root"

// RootCodec is the codec of a kind that does not grow: its whole state is JSON
// in the root field.
type RootCodec[S any, E proto.Message] struct {
	// Bytes estimates the state's size in memory.
	Bytes func(S) int
}

// Touched says that every event rewrites the root.
func (RootCodec[S, E]) Touched(S, E) []string { return []string{RootField} }

// Names names the root.
func (RootCodec[S, E]) Names(S) []string { return []string{RootField} }

// Encode gives the state as JSON.
func (RootCodec[S, E]) Encode(state S, _ string) ([]byte, error) { return json.Marshal(state) }

// Decode reads the root.
func (RootCodec[S, E]) Decode(fields map[string]string) (S, error) {
	return DecodeRoot[S](fields)
}

// Size asks the kind.
func (c RootCodec[S, E]) Size(state S) int { return c.Bytes(state) }

// DecodeRoot reads a JSON root field into R.
func DecodeRoot[R any](fields map[string]string) (R, error) {
	var root R
	content, ok := fields[RootField]
	if !ok {
		return root, fmt.Errorf("the field %q is missing", RootField)
	}
	err := json.Unmarshal([]byte(content), &root)
	return root, err
}

// eventOneof is the oneof in every service's Event that holds what happened.
const eventOneof = "event"

// eventType gives the full name of the message that is set in a service's
// Event: the ce-type header.
func eventType(event proto.Message) (string, error) {
	m := event.ProtoReflect()
	oneof := m.Descriptor().Oneofs().ByName(eventOneof)
	if oneof == nil {
		return "", fmt.Errorf("%s has no oneof %q", m.Descriptor().FullName(), eventOneof)
	}
	set := m.WhichOneof(oneof)
	if set == nil || set.Kind() != protoreflect.MessageKind {
		return "", fmt.Errorf("%s holds no event that this version knows", m.Descriptor().FullName())
	}
	return string(set.Message().FullName()), nil
}

// TypeOf gives the ce-type of events that hold such a message, for who hears them.
func TypeOf(event proto.Message) string { return string(event.ProtoReflect().Descriptor().FullName()) }

// Decode reads an event of a journal, also of another service's. One that this program cannot read
// wholly, as one that a newer version wrote, is unreadable: to skip it would be
// to show a history that never was.
func Decode[E proto.Message](e journal.Event) (Recorded[E], error) {
	var none E
	event, ok := none.ProtoReflect().New().Interface().(E)
	if !ok {
		return Recorded[E]{}, fault.New(fault.Bug, "an event type makes no event of its own type")
	}
	err := proto.Unmarshal(e.Data, event)
	if err == nil {
		_, err = eventType(event)
	}
	if err != nil {
		return Recorded[E]{}, fault.New(fault.EventUnreadable, "an event of this %s cannot be read", e.Key.Kind).Wrap(err)
	}
	return Recorded[E]{Event: event, ID: e.ID, Time: e.Time, Sequence: e.Sequence, ErasesPast: e.ErasesPast}, nil
}

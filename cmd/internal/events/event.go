// Package events reads what the services announce, as any program outside of weir can: by
// a plain consumer on their streams and the published protos.
package events

import (
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	gatev1 "weir/gen/gate/v1"
	inboxv1 "weir/gen/inbox/v1"
	registryv1 "weir/gen/registry/v1"
)

// streams are the services that announce events, and the message that theirs are in.
var streams = []stream{
	{"gate", func() proto.Message { return &gatev1.Event{} }},
	{"registry", func() proto.Message { return &registryv1.Event{} }},
	{"conversation", func() proto.Message { return &conversationv1.Event{} }},
	{"inbox", func() proto.Message { return &inboxv1.Event{} }},
}

type stream struct {
	service string
	message func() proto.Message
}

// Event is one event with its headers, as a line of `weir events`.
type Event struct {
	Sequence uint64          `json:"sequence"`
	Stream   string          `json:"stream"`
	Subject  string          `json:"subject"`
	Type     string          `json:"type"`
	ID       string          `json:"id"`
	Time     time.Time       `json:"time"`
	Event    json.RawMessage `json:"event,omitempty"`
	Error    string          `json:"error,omitempty"` // why Event is missing

	Message proto.Message `json:"-"`
}

// decode reads the headers that are CloudEvents' and the payload, which is protobuf. An
// event that can't be read is still one that happened.
func (s stream) decode(name string, msg jetstream.Msg, sequence uint64) Event {
	e := Event{
		Sequence: sequence, Stream: name, Subject: msg.Subject(),
		Type: msg.Headers().Get("ce-type"), ID: msg.Headers().Get("ce-id"), Message: s.message(),
	}
	var err error
	if e.Time, err = time.Parse(time.RFC3339, msg.Headers().Get("ce-time")); err != nil {
		e.Error = err.Error()
	} else if err = proto.Unmarshal(msg.Data(), e.Message); err != nil {
		e.Error = err.Error()
	} else if e.Event, err = (protojson.MarshalOptions{UseProtoNames: true}).Marshal(e.Message); err != nil {
		e.Error = err.Error()
	}
	return e
}

package journal

import (
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Event is one state change of one aggregate, as the journal keeps it.
type Event struct {
	// ID is unique, and is how a lost acknowledgement is resolved.
	ID string
	// Type is the full name of the protobuf message, such as
	// weir.gate.v1.ApprovalDecided.
	Type string
	Key  Key
	// Time is the time that the decision was taken at, in UTC and whole
	// microseconds, so that it reads back as it was written.
	Time time.Time
	// Data is the service's protobuf Event.
	Data []byte
	// Traceparent ties the event to the request that caused it, if any.
	Traceparent string

	// Sequence is the event's place in the stream, and so the version of its
	// aggregate from then on. Previous is that of the aggregate's event before
	// it, 0 for a first one. Both are set by the journal.
	Sequence uint64
	Previous uint64

	// Erases names earlier events of the aggregate that are deleted from the
	// stream once this one is in; what of them must stay, this one carries. An
	// event that named erased ones, and is erased in its turn, leaves their names
	// to the one that erases it.
	Erases []Erased
	// ErasesPast says that everything before this event is purged once it is in.
	// It is a new beginning: the aggregate's state follows from it alone.
	ErasesPast bool
}

// Headers of a stored event. The ce- ones are CloudEvents 1.0 in binary mode.
const (
	headerID          = "ce-id"
	headerType        = "ce-type"
	headerSource      = "ce-source"
	headerSubject     = "ce-subject"
	headerTime        = "ce-time"
	headerSpecVersion = "ce-specversion"
	headerContentType = "content-type"
	headerTraceparent = "traceparent"
	contentProtobuf   = "application/protobuf"
	timeLayout        = "2006-01-02T15:04:05.000000Z"
)

func (e Event) message(service string, expected uint64) *nats.Msg {
	header := nats.Header{
		jetstream.MsgIDHeader:               {e.ID},
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(expected, 10)},
		headerSpecVersion:                   {"1.0"},
		headerID:                            {e.ID},
		headerType:                          {e.Type},
		headerSource:                        {"weir/" + service},
		headerSubject:                       {e.Key.String()},
		headerTime:                          {e.Time.Format(timeLayout)},
		headerContentType:                   {contentProtobuf},
	}
	if e.Traceparent != "" {
		header[headerTraceparent] = []string{e.Traceparent}
	}
	if erases := e.erases(); erases != "" {
		header[headerErases] = []string{erases}
	}
	return &nats.Msg{Subject: e.Key.Subject(service), Header: header, Data: e.Data}
}

// parseEvent reads a stored message. The predecessor stands in the header that
// the event was appended with; without it the chain could not be proved.
func parseEvent(subject string, header nats.Header, data []byte, sequence uint64) (Event, error) {
	key, err := parseSubject(subject)
	if err != nil {
		return Event{}, err
	}
	at, err := time.Parse(timeLayout, header.Get(headerTime))
	if err != nil {
		return Event{}, fmt.Errorf("%s %d: %s: %w", subject, sequence, headerTime, err)
	}
	previous, err := strconv.ParseUint(header.Get(jetstream.ExpectedLastSubjSeqHeader), 10, 64)
	if err != nil {
		return Event{}, fmt.Errorf("%s %d: %s: %w", subject, sequence, jetstream.ExpectedLastSubjSeqHeader, err)
	}
	event := Event{
		ID:          header.Get(headerID),
		Type:        header.Get(headerType),
		Key:         key,
		Time:        at,
		Data:        data,
		Traceparent: header.Get(headerTraceparent),
		Sequence:    sequence,
		Previous:    previous,
	}
	if err := event.parseErases(header); err != nil {
		return Event{}, fmt.Errorf("%s %d: %s: %w", subject, sequence, headerErases, err)
	}
	return event, nil
}

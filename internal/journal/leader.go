package journal

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"weir/internal/fault"
)

// question is what the leader of a stream is asked for: one message.
type question struct {
	Sequence uint64 `json:"seq,omitempty"`
	// NextFor asks for the first message of a subject from the sequence on,
	// LastFor for the last one.
	NextFor string `json:"next_by_subj,omitempty"`
	LastFor string `json:"last_by_subj,omitempty"`
}

// storedMessage is a message as the leader answers with it.
type storedMessage struct {
	Subject  string `json:"subject"`
	Sequence uint64 `json:"seq"`
	Header   []byte `json:"hdrs"`
	Data     []byte `json:"data"`
}

// askLeader asks the stream's leader. That is 1.6 times the cost of a direct
// get, which any follower may answer; but a follower that lags would prove an
// absence that is none, so what is not there is asked of the leader.
func (j *Journal) askLeader(ctx context.Context, q question) (storedMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	request, err := json.Marshal(q)
	if err != nil {
		return storedMessage{}, unavailable(err)
	}
	reply, err := j.nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+j.stream, request)
	if err != nil {
		return storedMessage{}, unavailable(err)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message storedMessage       `json:"message"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return storedMessage{}, unavailable(err)
	}
	switch {
	case answer.Error == nil && answer.Message.Sequence > 0:
		return answer.Message, nil
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return storedMessage{}, errNoEvent
	default:
		return storedMessage{}, unavailable(fmt.Errorf("stream %s: %s", j.stream, reply.Data))
	}
}

// lastSequence gives the sequence of an aggregate's last event.
func (j *Journal) lastSequence(ctx context.Context, subject string) (uint64, error) {
	last, err := j.askLeader(ctx, question{LastFor: subject})
	return last.Sequence, err
}

// event reads a message that the leader answered with.
func (m storedMessage) event() (Event, error) {
	header, err := nats.DecodeHeadersMsg(m.Header)
	if err == nil {
		var event Event
		if event, err = parseEvent(m.Subject, header, m.Data, m.Sequence); err == nil {
			return event, nil
		}
	}
	return Event{}, fault.New(fault.EventUnreadable, "event %d cannot be read", m.Sequence).Wrap(err)
}

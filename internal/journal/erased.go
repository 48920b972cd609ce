package journal

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"weir/internal/fault"
)

// Erased is an event that is gone from the stream, or is about to be: its
// sequence, and that of its aggregate's event before it. It is the link that a
// replay lacks where the event was.
type Erased struct {
	Sequence uint64
	Previous uint64
}

// MaxErases is how many events one event may name as erased. A stream takes
// 64 KB of headers.
const MaxErases = 1000

// headerErases says which earlier events of its aggregate an event erases, as
// `12:7 13:12`, or erasesPast for all of them.
const (
	headerErases = "Weir-Erases"
	erasesPast   = "*"
)

func (e Event) erases() string {
	if e.ErasesPast {
		return erasesPast
	}
	pairs := make([]string, len(e.Erases))
	for i, gone := range e.Erases {
		pairs[i] = strconv.FormatUint(gone.Sequence, 10) + ":" + strconv.FormatUint(gone.Previous, 10)
	}
	return strings.Join(pairs, " ")
}

// parseErases reads what an event with a predecessor says that it erases. It
// takes only what erases would have written.
func (e *Event) parseErases(header nats.Header) error {
	values := header.Values(headerErases)
	switch {
	case len(values) == 0:
		return nil
	case len(values) > 1:
		return fmt.Errorf("%d times", len(values))
	case values[0] == erasesPast:
		e.ErasesPast = true
		return nil
	}
	for pair := range strings.SplitSeq(values[0], " ") {
		sequence, previous, _ := strings.Cut(pair, ":")
		var gone Erased
		var err error
		if gone.Sequence, err = strconv.ParseUint(sequence, 10, 64); err != nil {
			return err
		}
		if gone.Previous, err = strconv.ParseUint(previous, 10, 64); err != nil {
			return err
		}
		e.Erases = append(e.Erases, gone)
	}
	if e.erases() != values[0] {
		return fmt.Errorf("%q is not written as it should be", values[0])
	}
	return e.checkErases(e.Previous)
}

// checkErases says whether events of one chain, up to its event `last`, can be
// what is named: in the order of the chain, each behind the one before.
func (e Event) checkErases(last uint64) error {
	before := uint64(0)
	for _, gone := range e.Erases {
		if gone.Previous < before || gone.Previous >= gone.Sequence || gone.Sequence > last {
			return fmt.Errorf("%d can't be an earlier event of this chain that follows %d", gone.Sequence, gone.Previous)
		}
		before = gone.Sequence
	}
	return nil
}

// checkErasing refuses an event that no replay could make sense of, or that this
// journal can't carry out.
func (j *Journal) checkErasing(e Event, expected uint64) error {
	if len(e.Erases) > MaxErases {
		return fault.New(fault.TooLarge, "one event can erase %d others, not %d", MaxErases, len(e.Erases))
	}
	err := e.checkErases(expected)
	switch {
	case err != nil:
	case e.ErasesPast && len(e.Erases) > 0:
		err = fmt.Errorf("what erases the past names no single events")
	case !j.erasable && (e.ErasesPast || len(e.Erases) > 0):
		err = fmt.Errorf("nothing is erased from stream %s", j.stream)
	}
	if err != nil {
		return fault.New(fault.Bug, "an event erases what it can't").Wrap(err)
	}
	return nil
}

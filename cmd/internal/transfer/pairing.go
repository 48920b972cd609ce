package transfer

import (
	"fmt"

	conversationv1 "weir/gen/conversation/v1"
)

// callKey is how a foreign result names its call. Formats from before calls had ids name
// the function; the two never meet.
type callKey struct {
	legacy bool
	name   string
}

func (k callKey) String() string {
	if k.legacy {
		return fmt.Sprintf("of function %q", k.name)
	}
	return fmt.Sprintf("with id %q", k.name)
}

// foreignCall is a call as it was read, before it has an id that is its own.
type foreignCall struct {
	key  callKey
	part *conversationv1.Call
}

type foreignResult struct {
	key  callKey
	part *conversationv1.Result
}

// pairing finds the call of each result. Some models count their calls anew in every turn,
// or give all of them the same id, so an id alone doesn't say which one is meant: it
// is the first that is open of the latest message that made such a call.
type pairing struct {
	pairs    []*pair // in the order of the calls
	open     map[callKey][]*pair
	answered map[callKey]bool
}

type pair struct {
	message int // that made the call
	foreignCall
	result *conversationv1.Result // nil while it is open
}

func newPairing() *pairing {
	return &pairing{open: make(map[callKey][]*pair), answered: make(map[callKey]bool)}
}

func (p *pairing) call(message int, c foreignCall) {
	next := &pair{message: message, foreignCall: c}
	p.pairs = append(p.pairs, next)
	p.open[c.key] = append(p.open[c.key], next)
}

func (p *pairing) result(r foreignResult) error {
	open := p.open[r.key]
	if len(open) == 0 {
		if p.answered[r.key] {
			return fmt.Errorf("the call %s has a result already", r.key)
		}
		return fmt.Errorf("no call %s comes before this result", r.key)
	}
	first := len(open) - 1
	for first > 0 && open[first-1].message == open[first].message {
		first--
	}
	open[first].result = r.part
	p.open[r.key] = append(open[:first:first], open[first+1:]...)
	p.answered[r.key] = true
	return nil
}

// number gives every call, and the result with it, an id that no other call of the
// conversation has: its own where that is one, and nobody had it before.
func (p *pairing) number() {
	names := newNames("call-", callIDPattern)
	for _, pair := range p.pairs {
		if !pair.key.legacy {
			names.reserve(pair.key.name)
		}
	}
	for i, pair := range p.pairs {
		wanted := pair.key.name
		if pair.key.legacy {
			wanted = ""
		}
		id := names.give(wanted, func(s summer) {
			s.number(i)
			s.text(pair.key.name)
			s.text(pair.part.GetOperation())
			s.text(pair.part.GetInputJson())
		})
		pair.part.CallId = id
		if pair.result != nil {
			pair.result.CallId = id
		}
	}
}

package window

import (
	"slices"

	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
)

// callID is what a call and its results share: an invocation's id, or one that
// the caller of a tool chose.
type callID struct{ invocation, call string }

func idOf(invocation, call string) callID {
	if invocation != "" {
		return callID{invocation: invocation}
	}
	return callID{call: call}
}

// half says whether a part is a call or a result, and of which id.
func half(p *conversationv1.Part) (id callID, call, result bool) {
	switch p := p.GetPart().(type) {
	case *conversationv1.Part_Call:
		return idOf(p.Call.GetInvocationId(), p.Call.GetCallId()), true, false
	case *conversationv1.Part_Result:
		return idOf(p.Result.GetInvocationId(), p.Result.GetCallId()), false, true
	}
	return callID{}, false, false
}

func holdsHalves(m *conversationv1.Message) bool {
	return slices.ContainsFunc(m.GetParts(), func(p *conversationv1.Part) bool {
		_, call, result := half(p)
		return call || result
	})
}

func erased(m *conversationv1.Message) bool {
	return m.GetErasure() != conversationv1.Erasure_ERASURE_UNSPECIFIED
}

// unmet are the ids of results whose calls the walk has not met yet. While there
// are any, a run can't begin.
type unmet map[callID]struct{}

// meet takes one more message, going backwards. A call's results all come behind
// it, so the call ends the wait of all of them.
func (u unmet) meet(m *conversationv1.Message) {
	if erased(m) {
		clear(u)
	}
	for _, p := range slices.Backward(m.GetParts()) {
		switch id, call, result := half(p); {
		case call:
			delete(u, id)
		case result:
			u[id] = struct{}{}
		}
	}
}

// withoutSingles gives the messages of a run without the calls and results whose
// other half may have been erased, or is nowhere. Messages that have none are
// given as they are, others as copies.
func withoutSingles(run []taken) []*conversationv1.Message {
	single := singles(run)
	messages := make([]*conversationv1.Message, len(run))
	for i, t := range run {
		messages[i] = t.message
		if len(single) > 0 && slices.ContainsFunc(t.message.GetParts(), single.has) {
			c := proto.CloneOf(t.message)
			c.Parts = nil
			for _, p := range t.message.GetParts() {
				if !single.has(p) {
					c.Parts = append(c.Parts, p)
				}
			}
			messages[i] = c
		}
	}
	return messages
}

// partSet is parts, each of one message.
type partSet map[*conversationv1.Part]struct{}

func (s partSet) has(p *conversationv1.Part) bool { _, ok := s[p]; return ok }
func (s partSet) add(p *conversationv1.Part)      { s[p] = struct{}{} }

// singles are the results in a run that come behind no call of their id, or
// where what they belong to may be hidden; and the calls without a result that
// don't look open.
func singles(run []taken) partSet {
	single := partSet{}
	// Last holds the last call of each id: where in the run it or its last result
	// is, and its part until it has a result.
	type said struct {
		open *conversationv1.Part
		at   int
	}
	last := map[callID]said{}
	lastErased, lastHidden := -1, -1
	for i, t := range run {
		if erased(t.message) {
			lastErased, lastHidden = i, i
		}
		if t.stands {
			lastHidden = i
		}
		for _, p := range t.message.GetParts() {
			id, call, result := half(p)
			before, known := last[id]
			switch {
			case call:
				// An id is used again only when its call has a result.
				if before.open != nil {
					single.add(before.open)
				}
				last[id] = said{open: p, at: i}
			case result && known && (before.open != nil || lastHidden < before.at):
				last[id] = said{at: i}
			case result:
				// Its call is not there, or is answered, and another may be hidden.
				single.add(p)
			}
		}
	}
	for _, c := range last {
		if c.open != nil && c.at < lastErased {
			single.add(c.open)
		}
	}
	return single
}

package inbox

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
)

// An import is one event: GoalImported holds the whole file, and with it the inbox
// begins. From then on its messages are like any other's, and its items are taken
// over one by one, each into the aggregate that is its own:
//
//	──▶ GoalImported ──▶ DispatchImported, for each item ──▶ GoalImportFinished
//
// Until the last event the inbox is in the deadlines set, so that whatever dies on
// the way, some replica goes on with it. Each item is taken over once, however
// often that is tried.

// importGrace is how long the replica that was asked has the items to itself.
const importGrace = 5 * time.Second

// imported is the file that an inbox began with, if any.
type imported struct {
	// Digest is the file's SHA-256 in hex.
	Digest string `json:"digest,omitempty"`
	// Letter is the sequence of GoalImported while not all of its items are in.
	Letter uint64 `json:"letter,omitempty"`
	// Due is when another replica goes on with them.
	Due time.Time `json:"due,omitzero"`
}

// open says that items may be missing.
func (i imported) open() bool { return i.Letter != 0 }

// importGoal takes a state file over.
type importGoal struct {
	File   stateFile
	Digest []byte
	Actor  string
	Rules  rules
}

// decideImport takes a file into an inbox that nobody has written to.
func decideImport(s inbox, c importGoal, _ time.Time) (*inboxv1.Event, error) {
	if s.exists() {
		if s.Import.Digest == hex.EncodeToString(c.Digest) {
			return nil, nil
		}
		return nil, fault.New(fault.AlreadyExists, "the inbox %s is there already, and not from this file", c.File.Goal).
			With("goal", c.File.Goal)
	}
	waiting := 0
	for _, m := range c.File.Messages {
		if m.GetState() == inboxv1.MessageState_MESSAGE_STATE_PENDING {
			waiting++
		}
		// As of an enqueue by who imports it, so that such a retry is known.
		policy := busyPolicy(inboxv1.BusyPolicy_BUSY_POLICY_UNSPECIFIED)
		m.Fingerprint = newMessage{ID: m.GetMessageId(), Body: m.GetBody(), Policy: policy}.fingerprint(c.Actor)
	}
	if waiting > c.Rules.Limit {
		return nil, tooMany("inbox", "messages that are not done", waiting, c.Rules.Limit)
	}
	return &inboxv1.Event{Actor: c.Actor, Event: &inboxv1.Event_GoalImported{GoalImported: &inboxv1.GoalImported{
		Goal: c.File.Goal, Messages: c.File.Messages, Items: c.File.Items, Digest: c.Digest,
	}}}, nil
}

// digestOf is by what the same file is known again.
func digestOf(file string) []byte {
	sum := sha256.Sum256([]byte(file))
	return sum[:]
}

// imported follows the import: messages wait in the order of the file, from the time
// on that it says, and what was done is known as done from now on.
func (s inbox) imported(e *inboxv1.GoalImported, actor string, sequence uint64, now time.Time) inbox {
	s.Import.Digest = hex.EncodeToString(e.GetDigest())
	if len(e.GetItems()) > 0 {
		s.Import.Letter, s.Import.Due = sequence, now.Add(importGrace)
	}
	for i, m := range e.GetMessages() {
		if m.GetState() == inboxv1.MessageState_MESSAGE_STATE_DONE {
			s = s.finish(m.GetMessageId(), m.GetFingerprint(), done)
			continue
		}
		at := arrival{sequence, int32(i)}
		s = s.set(m.GetMessageId(), message{
			State:       pending,
			Letter:      at,
			Arrival:     at,
			Enqueued:    fromTimestamp(m.GetEnqueueTime()),
			Bytes:       len(m.GetBody()),
			Fingerprint: m.GetFingerprint(),
			Origin:      origin{Subject: actor}, // who answers for it at its delivery
		})
	}
	return s
}

// finishImport says that all items are in, but for those that were taken.
type finishImport struct {
	Goal   string
	Letter uint64
	Taken  []string
}

func decideFinishImport(s inbox, c finishImport, _ time.Time) (*inboxv1.Event, error) {
	if !s.exists() || s.Import.Letter != c.Letter {
		return nil, nil // another replica was first
	}
	return &inboxv1.Event{Actor: self, Event: &inboxv1.Event_GoalImportFinished{GoalImportFinished: &inboxv1.GoalImportFinished{
		Goal: c.Goal, TakenItems: c.Taken,
	}}}, nil
}

// importFinished keeps the digest, for a retry of the import.
func (s inbox) importFinished() inbox {
	s.Import = imported{Digest: s.Import.Digest}
	return s
}

// importItem takes one item of a file over.
type importItem struct {
	Goal  string
	Item  *inboxv1.ImportedItem
	Actor string
}

// decideImportItem: an item that is there with the file's dispatch id is that very
// one, whatever has happened to it since.
func decideImportItem(d dispatch, c importItem, _ time.Time) (*inboxv1.Event, error) {
	switch d.ID {
	case "":
		return &inboxv1.Event{Actor: c.Actor, Event: &inboxv1.Event_DispatchImported{DispatchImported: &inboxv1.DispatchImported{
			Goal: c.Goal, Item: c.Item,
		}}}, nil
	case c.Item.GetDispatchId():
		return nil, nil
	}
	return nil, itemTaken(c.Goal, c.Item.GetItem())
}

// unplaced is an item that its file says was sent, and no file says where to: who
// knows may still say so.
func (d dispatch) unplaced() bool {
	return d.ConversationID == "" && (d.State == sent || d.State == rejected)
}

func itemTaken(goal, item string) error {
	return fault.New(fault.AlreadyExists, "item %q of goal %s was begun already, and not in this file", item, goal).
		Field("dispatch["+quoted(item)+"]", "must not be there already").With("item", item)
}

// importedLetter is what an imported message says. Who imported it answers for it.
func importedLetter(read aggregate.Recorded[*inboxv1.Event], id string, at arrival) (letter, bool) {
	messages := read.Event.GetGoalImported().GetMessages()
	if i := int(at.Index); i >= len(messages) || messages[i].GetMessageId() != id {
		return letter{}, false
	}
	m := messages[at.Index]
	return letter{
		EnqueuedMessage: &inboxv1.EnqueuedMessage{MessageId: m.GetMessageId(), Body: m.GetBody(), Fingerprint: m.GetFingerprint()},
		sender:          read.Event.GetActor(),
		at:              fromTimestamp(m.GetEnqueueTime()),
	}, true
}

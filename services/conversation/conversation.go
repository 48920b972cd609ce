package conversation

import (
	"slices"
	"time"

	"github.com/benbjohnson/immutable"
	"google.golang.org/protobuf/proto"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/journal"
)

// A conversation and what may happen to it:
//
//	absent ── Created ──→ OPEN ←──────── Reopened ────────┐
//	                      │  ↑ │                          │
//	                      │  │ ├──── Closed ────→ CLOSED ─┤
//	         MessagesAppended, │                    │     │
//	      Updated, Redacted, … └── Archived ──→ ARCHIVED ─┘
//	                                                │
//	            any of them ── Deleted ──→ DELETED ─┘ (for good)
//
// An open conversation is PAUSED while approvals in it are pending.
//
// What always holds:
//
//   - The first event is ConversationCreated, or ConversationDeleted where all
//     before it is erased.
//   - Messages have the positions behind the shared past, base + 1, base + 2 …,
//     and head is the last one's. A message never moves.
//   - No two messages share an id, and an id's content never changes but to be
//     erased.
//   - A result stands behind the call that it ends, and ends it once. Where
//     nothing is open, every call has its result.
//
// The state does not hold what was said. It knows of each message where in the
// journal it is, and enough to tell whether an id is taken.

const (
	kindName = "conversation"

	// maxMessages is how many messages a conversation takes. What weir itself
	// writes is let in beyond it: each such message ends something that had a
	// place.
	maxMessages = 1_000_000
	// messageBytes estimates what one message costs in memory.
	messageBytes = 48
	// snapshotEvery bounds a replay to some ten milliseconds.
	snapshotEvery = 1000
	// pieceRuns is how many runs lie in one piece of a snapshot. A piece is
	// written again while its runs fill, and not after that.
	pieceRuns = 256

	// Caps on what the root holds.
	maxOpenCalls = 256
	maxPinned    = 32
	maxSummaries = 1000
	maxAncestors = 64
	maxPauses    = 100
	maxTurns     = 100
	maxGroups    = 10
)

// self is the author of what the service itself writes.
const self = "service:conversation"

type conversation struct {
	root
	ids ids
	// runs hold the places of runLength positions each, by number.
	runs *immutable.Map[int64, []place]
}

// root is what does not grow with what is said.
type root struct {
	State state
	Title string `json:",omitempty"`
	// Owner is empty while the conversation does not exist.
	Owner string
	// Participants are sorted, and the owner is not among them. Groups stand
	// there by their names, and in Groups as they were when last heard of.
	Participants []string `json:",omitempty"`
	Groups       []group  `json:",omitempty"`
	Labels       []string `json:",omitempty"`
	Created      time.Time
	// Creation tells a retry of the creation from another one.
	Creation fingerprint
	// Updated is when something was last said or changed, by the event Active.
	Updated time.Time
	Active  uint64
	// First is the sequence of the event that began it.
	First uint64
	// Head is the position of the last message, 0 when there is none.
	Head int64
	// Ancestors hold the shared past of a fork, oldest first.
	Ancestors []ancestor `json:",omitempty"`
	// Authors are all who said something in it, as long as they are few.
	Authors authors

	Calls     []openCall `json:",omitempty"`
	Pauses    []pause    `json:",omitempty"`
	Turns     []turn     `json:",omitempty"`
	Pinned    []int64    `json:",omitempty"`
	Summaries []summary  `json:",omitempty"`

	// Events is how many events the journal holds of it, without those that are
	// about to be erased.
	Events  int64
	Erasing erasing
	// Requested is what the last few participant erasures took of it.
	Requested []requestedErasure `json:",omitempty"`
}

type state int

const (
	open state = iota
	closed
	archived
	deleted
)

// ancestor holds the positions of a fork behind those of the ancestor before it,
// up to Last.
type ancestor struct {
	ID   string
	Last int64
}

// openCall is a call without a result.
type openCall struct {
	callKey
	MessageID string
	Position  int64
}

// callKey names a call. Weir's invocations and the calls of other tools have ids
// of their own.
type callKey struct {
	Invocation string `json:",omitempty"`
	Call       string `json:",omitempty"`
}

// pause is an approval that the conversation waits for.
type pause struct {
	Approval  string
	Operation string
	Requester string
	// Scopes are those of which an approver holds one.
	Scopes []string
	Since  time.Time
}

// summary is a message that stands for a range of earlier ones.
type summary struct{ Position, First, Last int64 }

// erasing is what is to be erased, and what was. While anything is to be, the
// conversation has a deadline that has passed.
type erasing struct {
	// Since is when it was decided, zero where nothing is to be erased.
	Since time.Time `json:",omitzero"`
	// Events are single ones, Past is everything before that sequence, which are
	// PastEvents.
	Events     []uint64 `json:",omitempty"`
	Past       uint64   `json:",omitempty"`
	PastEvents int64    `json:",omitempty"`
	// Messages are those whose content it takes.
	Messages int64 `json:",omitempty"`
	// Counts are of all that is finished.
	Counts counts
}

// counts is how much was erased from each store.
type counts struct {
	Messages, Events, Documents, Snapshots, Entries int64 `json:",omitempty"`
}

func (c counts) plus(o counts) counts {
	return counts{
		c.Messages + o.Messages, c.Events + o.Events, c.Documents + o.Documents,
		c.Snapshots + o.Snapshots, c.Entries + o.Entries,
	}
}

// requestedErasure is what one participant erasure took of a conversation. It is
// kept where the messages were, so that a count that was begun twice is the same.
type requestedErasure struct {
	Request string
	Counts  counts
}

// maxRequested is how many of them are kept.
const maxRequested = 16

func kind() aggregate.Kind[conversation, *conversationv1.Event] {
	return aggregate.Kind[conversation, *conversationv1.Event]{
		Name:          kindName,
		Evolve:        evolve,
		Codec:         codec{},
		Lists:         lists,
		Due:           conversation.due,
		SnapshotEvery: snapshotEvery,
		Piece:         piece,
		Erases:        erases,
	}
}

// lists puts a conversation into the list of each of its members and groups,
// newest activity first, and into those that retention goes through.
func lists(c conversation, _ uint64) []hot.Entry {
	if c.State == deleted {
		return []hot.Entry{{Set: tombstoneList, Score: c.Active}}
	}
	names := []string{retentionList(c.State == archived, "")}
	for _, label := range c.Labels {
		names = append(names, retentionList(c.State == archived, label))
	}
	for _, subject := range c.members() {
		names = append(names, memberList(subject))
	}
	for _, p := range c.Participants {
		if isGroup(p) {
			names = append(names, memberList(p))
		}
	}
	entries := []hot.Entry{{Set: allList, Score: c.First}}
	for _, name := range names {
		entries = append(entries, hot.Entry{Set: name, Score: c.Active})
	}
	return entries
}

// tombstoneList keeps a row of each deleted conversation: one without entries
// would not show what version it is of.
const tombstoneList = "deleted"

// allList is every conversation of a tenant, in the order in which they began:
// nothing moves in it.
const allList = "all"

func memberList(subject string) string { return "member:" + subject }

// retentionList is the conversations with a label, or all of them, in the order
// of their last activity.
func retentionList(archived bool, label string) string {
	if archived {
		return "archived:" + label
	}
	return "live:" + label
}

// handover is how long whoever decided an erasure has it to itself.
const handover = time.Second

// due is when somebody should look: soon where something is to be erased, else
// when the first turn ends, which none does while it is paused.
func (c conversation) due() time.Time {
	if !c.Erasing.Since.IsZero() {
		return c.Erasing.Since.Add(handover)
	}
	var first time.Time
	if len(c.Pauses) > 0 {
		return first
	}
	for _, t := range c.Turns {
		if first.IsZero() || t.Expires.Before(first) {
			first = t.Expires
		}
	}
	return first
}

// Refusals that are the same for many requests. Whether a conversation is not
// there or not the caller's to see must not be told apart: one error for both.
var (
	errConversationNotFound = fault.New(fault.ConversationNotFound, "there is no such conversation")
	errMessageNotFound      = fault.New(fault.MessageNotFound, "there is no such message in the conversation")
)

// exists says whether there is a conversation to speak of.
func (c conversation) exists() bool { return c.Owner != "" && c.State != deleted }

// base is the last position of the shared past, 0 where there is none.
func (c conversation) base() int64 {
	if n := len(c.Ancestors); n > 0 {
		return c.Ancestors[n-1].Last
	}
	return 0
}

// members are the subjects that take part, each once: the owner first.
func (c conversation) members() []string {
	all := []string{c.Owner}
	for _, p := range c.Participants {
		if !isGroup(p) {
			all = append(all, p)
		}
	}
	for _, g := range c.Groups {
		for _, m := range g.Members {
			if !slices.Contains(all, m) {
				all = append(all, m)
			}
		}
	}
	return all
}

func (c conversation) isMember(subject string) bool {
	if subject == c.Owner {
		return true
	}
	if _, found := slices.BinarySearch(c.Participants, subject); found && !isGroup(subject) {
		return true
	}
	return slices.ContainsFunc(c.Groups, func(g group) bool { return slices.Contains(g.Members, subject) })
}

// evolve gives the state after an event. Events whose predecessors were erased
// meet a state that lacks what those brought, so nothing here relies on more than
// its own event says.
func evolve(c conversation, e aggregate.Recorded[*conversationv1.Event]) conversation {
	c.Events++
	switch event := e.Event.GetEvent().(type) {
	case *conversationv1.Event_ConversationCreated:
		c = begun(event.ConversationCreated, e)
	case *conversationv1.Event_MessagesAppended:
		c = c.said(event.MessagesAppended.GetFirstPosition(), event.MessagesAppended.GetMessages(), e)
	case *conversationv1.Event_ConversationUpdated:
		c.root = c.updated(event.ConversationUpdated)
	case *conversationv1.Event_ConversationClosed:
		c = c.said(event.ConversationClosed.GetFirstPosition(), event.ConversationClosed.GetResults(), e)
		c.root = c.ended(closed)
	case *conversationv1.Event_ConversationArchived:
		c = c.said(event.ConversationArchived.GetFirstPosition(), event.ConversationArchived.GetResults(), e)
		c.root = c.ended(archived)
		if e.Event.GetActor() == self {
			return c // retention is no activity, or nothing would come of age
		}
	case *conversationv1.Event_ConversationReopened:
		c.State = open
	case *conversationv1.Event_GroupMembersChanged:
		c.root = c.regrouped(groupFromProto(event.GroupMembersChanged.GetGroup()))
		c = c.said(event.GroupMembersChanged.GetFirstPosition(), event.GroupMembersChanged.GetMessages(), e)
		if len(event.GroupMembersChanged.GetMessages()) == 0 {
			return c
		}
	case *conversationv1.Event_MessagesRedacted:
		return c.redacted(event.MessagesRedacted, e)
	case *conversationv1.Event_ConversationDeleted:
		return wiped(event.ConversationDeleted, e)
	case *conversationv1.Event_ErasureFinished:
		c.Erasing = erasing{Counts: c.Erasing.Counts.plus(countsFromProto(event.ErasureFinished.GetCounts()))}
		return c
	}
	c.Updated, c.Active = e.Time, e.Sequence
	return c
}

func begun(created *conversationv1.ConversationCreated, e aggregate.Recorded[*conversationv1.Event]) conversation {
	c := conversation{root: root{
		Title:        created.GetTitle(),
		Owner:        created.GetOwner(),
		Participants: created.GetParticipants(),
		Labels:       created.GetLabels(),
		Created:      e.Time,
		First:        e.Sequence,
		Events:       1,
		Creation:     creationSum(created),
	}}
	for _, a := range created.GetAncestors() {
		c.Ancestors = append(c.Ancestors, ancestor{a.GetConversationId(), a.GetPosition()})
	}
	for _, g := range created.GetGroups() {
		c.Groups = append(c.Groups, groupFromProto(g))
	}
	if imported := created.GetImported(); imported != nil {
		c.Created = imported.GetCreateTime().AsTime()
		c.State = importedStates[imported.GetState()]
	}
	if m := created.GetMarks(); m != nil {
		c.root = c.root.withMarks(m)
	}
	c.Head = c.base()
	c.runs = immutable.NewMap[int64, []place](nil)
	c.ids = newIDs(c.runs)
	return c
}

// said is the state after messages, of which the first has a position.
func (c conversation) said(first int64, messages []*conversationv1.AppendedMessage, e aggregate.Recorded[*conversationv1.Event]) conversation {
	for i, m := range messages {
		c = c.placed(first+int64(i), m, e.Sequence)
		c.root = c.root.heard(first+int64(i), m, e.Time)
	}
	return c
}

// placed is the state that knows where a message is.
func (c conversation) placed(position int64, m *conversationv1.AppendedMessage, sequence uint64) conversation {
	p := place{Sequence: sequence, Bytes: uint32(proto.Size(m)), ID: hashID(m.GetMessageId())}
	if _, known := c.place(position); !known {
		c.ids = c.ids.with(p.ID, position)
	}
	c.runs = withPlace(c.runs, position, p)
	c.Head = max(c.Head, position)
	c.Authors = c.Authors.with(m.GetAuthor())
	return c
}

// heard is what a message changes beyond its own place.
func (r root) heard(position int64, m *conversationv1.AppendedMessage, at time.Time) root {
	for _, p := range m.GetParts() {
		switch part := p.GetPart().(type) {
		case *conversationv1.Part_Call:
			key := callKey{part.Call.GetInvocationId(), part.Call.GetCallId()}
			r.Calls = append(slices.Clone(r.Calls), openCall{key, m.GetMessageId(), position})
		case *conversationv1.Part_Result:
			r.Calls = without(r.Calls, func(c openCall) bool {
				return c.callKey == callKey{part.Result.GetInvocationId(), part.Result.GetCallId()}
			})
		case *conversationv1.Part_Approval:
			r = r.askedOrAnswered(part.Approval, m, at)
		}
	}
	if m.GetPinned() {
		r.Pinned = append(slices.Clone(r.Pinned), position)
	}
	if s := m.GetSummarizes(); s != nil {
		r.Summaries = append(slices.Clone(r.Summaries), summary{position, s.GetFirst(), s.GetLast()})
	}
	return r.turnsAfter(position, m, at)
}

// askedOrAnswered is the root after a note that a person is asked, or what came of it.
// What is imported asks nobody here.
func (r root) askedOrAnswered(note *conversationv1.ApprovalNote, m *conversationv1.AppendedMessage, at time.Time) root {
	if isImported(m) {
		return r
	}
	waited := len(r.Pauses) > 0
	r.Pauses = without(r.Pauses, func(p pause) bool { return p.Approval == note.GetApprovalId() })
	if note.GetState() == pending {
		r.Pauses = append(slices.Clone(r.Pauses), pause{
			Approval: note.GetApprovalId(), Operation: note.GetOperation(), Requester: note.GetRequester(),
			Scopes: note.GetApproverScopes(), Since: at,
		})
	}
	if waited && len(r.Pauses) == 0 {
		r = r.turnsResumed(at)
	}
	return r
}

// isImported says whether a message was said elsewhere: it brings its time.
func isImported(m *conversationv1.AppendedMessage) bool { return m.GetCreateTime() != nil }

// ended is the root of a conversation that nobody can say anything in.
func (r root) ended(to state) root {
	r.State, r.Turns = to, nil
	return r
}

// authors is a set of subjects, or too many to be named.
type authors struct {
	Many     bool     `json:",omitempty"`
	Subjects []string `json:",omitempty"`
}

// maxAuthors is how many are named.
const maxAuthors = 200

func (a authors) with(subject string) authors {
	at, known := slices.BinarySearch(a.Subjects, subject)
	switch {
	case known || a.Many:
		return a
	case len(a.Subjects) == maxAuthors:
		return authors{Many: true}
	}
	return authors{Subjects: slices.Insert(slices.Clone(a.Subjects), at, subject)}
}

// mayHold says whether a subject may be among them.
func (a authors) mayHold(subject string) bool {
	_, known := slices.BinarySearch(a.Subjects, subject)
	return known || a.Many
}

// without is a list less some, and a new one if there are any: states are shared.
func without[T any](list []T, gone func(T) bool) []T {
	if !slices.ContainsFunc(list, gone) {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), gone)
}

// erases says what of its conversation an event takes out of the journal.
func erases(e *conversationv1.Event) (events []journal.Erased, past bool) {
	for _, gone := range e.GetMessagesRedacted().GetErased() {
		events = append(events, journal.Erased{Sequence: gone.GetSequence(), Previous: gone.GetPrevious()})
	}
	return events, e.GetConversationDeleted() != nil
}

package inbox

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"time"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
	"weir/internal/identity"
)

// A dispatch, the record of one item of work that was given away:
//
//	                                          reports, in any order
//	                                        ┌───────────────────────┐
//	──▶ BEGUN ───────────────▶ SENT ────▶ PROGRESS  BLOCKED  QUESTION ────▶ DONE ──▶ ACCEPTED
//	     ▲ ▲                   ▲  ▲                    │                     │
//	     │ └ deferred          │  └──── all finished ──┘                     ▼
//	     │                     └───────────────── mark sent ───────────── REJECTED
//	     └──────────────────────────── dispatch: a new attempt ──────────────┘
//
//	any but ACCEPTED and REJECTED ──▶ ABANDONED
//
// What is not drawn is refused; the table below is the whole of it. What always holds:
//
//   - The first event gives the id and the owner, for good. Attempts only grow.
//   - While it is BEGUN with a plan, or BLOCKED and resuming, weir has something to
//     do: the dispatch is then in the deadlines set, whatever else fails.
//   - A conversation that was recorded by a DispatchSent never becomes another.

// Limits of dispatches.
const (
	maxSeed = 64 << 10
	// maxOpen is how many items of a goal can be neither accepted nor abandoned.
	maxOpen = 1000
	// keepRequests is how many request ids are remembered, the newest, of Dispatch
	// and of Report each.
	keepRequests = 16
)

// dispatchState is where a dispatch stands, as everybody sees it.
type dispatchState string

const (
	begun      dispatchState = "begun"
	sent       dispatchState = "sent"
	inProgress dispatchState = "progress"
	blocked    dispatchState = "blocked"
	inQuestion dispatchState = "question"
	workDone   dispatchState = "done"
	accepted   dispatchState = "accepted"
	rejected   dispatchState = "rejected"
	abandoned  dispatchState = "abandoned"
)

// dispatch is the state of one. The zero dispatch is one that nobody has begun.
type dispatch struct {
	ID             string        `json:"id"`
	Goal           string        `json:"goal"`
	Item           string        `json:"item"`
	State          dispatchState `json:"state"`
	Attempts       int32         `json:"attempts"`
	ConversationID string        `json:"conversation_id,omitempty"`
	// Settled is true once ConversationID was recorded by a DispatchSent.
	Settled bool      `json:"settled,omitempty"`
	Unbegun bool      `json:"unbegun,omitempty"`
	Owner   string    `json:"owner"`
	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`
	// Worker is the goal that the work was given to, empty where weir does not know.
	Worker string `json:"worker,omitempty"`

	Errand errand `json:"errand,omitzero"`
	// Awaited are the items that it waits for and that are not finished yet.
	Awaited []string `json:"awaited,omitempty"`
	// Resuming is true when all of them are, and the worker is to be told.
	Resuming bool    `json:"resuming,omitempty"`
	Failure  failure `json:"failure,omitzero"`

	Report  report    `json:"report,omitzero"`
	Note    string    `json:"note,omitempty"`
	Asked   []request `json:"asked,omitempty"`    // by Dispatch
	Told    []request `json:"told,omitempty"`     // by Report
	Mention []string  `json:"finished,omitempty"` // the awaited items of the newest block that are finished
}

// errand is what weir does for a dispatch.
type errand struct {
	errandID
	// Plan is the sequence of the DispatchBegun that holds the plan, 0 for none. The
	// seed stands there, and nowhere else.
	Plan uint64 `json:"plan,omitempty"`
	// Since is when it was given or last woken.
	Since time.Time `json:"since,omitzero"`
}

// errandID tells errands of one dispatch apart. The ids of the messages that weir
// writes follow from it, so that each is written once.
type errandID struct {
	Attempt int32 `json:"attempt,omitempty"`
	// Round counts how often the worker was to be told to go on.
	Round int `json:"round,omitempty"`
}

// failure is why weir could not do its errand when it last tried, and since when it
// has not been able to.
type failure struct {
	Text  string    `json:"text"`
	Since time.Time `json:"since"`
	Last  time.Time `json:"last"`
}

// report is the worker's newest.
type report struct {
	Kind     inboxv1.ReportKind `json:"kind"`
	Text     string             `json:"text,omitempty"`
	Evidence []evidence         `json:"evidence,omitempty"`
	Reporter string             `json:"reporter"`
	At       time.Time          `json:"at"`
}

type evidence struct {
	URI   string `json:"uri"`
	Title string `json:"title,omitempty"`
}

// request is the id of one that was carried out, and what it asked for.
type request struct {
	ID          string `json:"id"`
	Fingerprint []byte `json:"fingerprint"`
}

// dispatchID names the aggregate of (goal, item). A goal holds no colon, so no
// two pairs have one name.
func dispatchID(goal, item string) string { return goal + ":" + item }

// progress is where a dispatch stands, with what only weir sees.
type progress int

const (
	isUnheard  progress = iota
	isBegun             // by hand: weir sends nothing
	isDeferred          // has a plan, and waits for other items
	isSending           // has a plan, which weir carries out
	isSent
	isInProgress
	isBlocked  // and somebody must help
	isWaiting  // blocked until other items are finished
	isResuming // was waiting, and weir tells the worker
	isInQuestion
	isDone
	isAccepted
	isRejected
	isAbandoned
	progresses int = iota
)

// dispatchCommand is what can be asked of a dispatch. The last three are weir's own.
type dispatchCommand int

const (
	toBegin         dispatchCommand = iota
	toMarkHere                      // in the conversation that is recorded
	toMarkElsewhere                 // in another, or where none is recorded
	toDispatch                      // under a new request id
	toReport                        // likewise
	toAccept
	toReject
	toAbandon
	toSend
	toFail
	toWake
	dispatchCommands int = iota
)

// ruling is what a command comes to.
type ruling int

const (
	unchanged   ruling = iota // it is so already
	occurs                    // there is an event
	noSuch                    // DISPATCH_NOT_FOUND
	conflicting               // STATE_CONFLICT
	otherwise                 // DISPATCH_MISMATCH
)

// dispatchTransitions is the whole state machine of a dispatch. A request id that
// is known comes before it: the same request again is unchanged, whatever the state.
var dispatchTransitions = [progresses][dispatchCommands]ruling{
	//            begin  mark sent:         dispatch   report    accept    reject    abandon   weir: sends fails wakes
	//                   here     elsewhere
	isUnheard:    {occurs, occurs, occurs, occurs, noSuch, noSuch, noSuch, noSuch, unchanged, unchanged, unchanged},
	isBegun:      {occurs, occurs, occurs, occurs, conflicting, conflicting, conflicting, occurs, unchanged, unchanged, unchanged},
	isDeferred:   {occurs, conflicting, otherwise, otherwise, conflicting, conflicting, conflicting, occurs, unchanged, occurs, occurs},
	isSending:    {occurs, conflicting, otherwise, otherwise, conflicting, conflicting, conflicting, occurs, occurs, occurs, unchanged},
	isSent:       {occurs, unchanged, otherwise, otherwise, occurs, conflicting, conflicting, occurs, unchanged, unchanged, unchanged},
	isInProgress: {occurs, unchanged, otherwise, otherwise, occurs, conflicting, conflicting, occurs, unchanged, unchanged, unchanged},
	isBlocked:    {occurs, unchanged, otherwise, otherwise, occurs, conflicting, conflicting, occurs, unchanged, unchanged, unchanged},
	isWaiting:    {occurs, unchanged, otherwise, otherwise, occurs, conflicting, conflicting, occurs, unchanged, occurs, occurs},
	isResuming:   {occurs, unchanged, otherwise, otherwise, occurs, conflicting, conflicting, occurs, occurs, occurs, unchanged},
	isInQuestion: {occurs, unchanged, otherwise, otherwise, occurs, conflicting, conflicting, occurs, unchanged, unchanged, unchanged},
	isDone:       {occurs, unchanged, otherwise, otherwise, conflicting, occurs, occurs, occurs, unchanged, unchanged, unchanged},
	isAccepted:   {occurs, unchanged, otherwise, conflicting, conflicting, unchanged, conflicting, conflicting, unchanged, unchanged, unchanged},
	isRejected:   {occurs, occurs, otherwise, occurs, conflicting, conflicting, unchanged, conflicting, unchanged, unchanged, unchanged},
	isAbandoned:  {occurs, conflicting, conflicting, conflicting, conflicting, conflicting, conflicting, unchanged, unchanged, unchanged, unchanged},
}

// plain are the states that say all.
var plain = map[dispatchState]progress{
	sent: isSent, inProgress: isInProgress, inQuestion: isInQuestion, workDone: isDone,
	accepted: isAccepted, rejected: isRejected, abandoned: isAbandoned,
}

func (d dispatch) progress() progress {
	switch {
	case d.State == "":
		return isUnheard
	case d.State == begun && d.Errand.Plan == 0:
		return isBegun
	case d.State == begun && len(d.Awaited) > 0:
		return isDeferred
	case d.State == begun:
		return isSending
	case d.State == blocked && len(d.Awaited) > 0:
		return isWaiting
	case d.State == blocked && d.Resuming:
		return isResuming
	case d.State == blocked:
		return isBlocked
	}
	return plain[d.State]
}

// finished says that nobody needs to wait for it.
func (d dispatch) finished() bool { return d.State == accepted || d.State == abandoned }

// waits says that it waits for other items.
func (d dispatch) waits() bool { p := d.progress(); return p == isDeferred || p == isWaiting }

// busy says that weir has an errand to do now.
func (d dispatch) busy() bool { p := d.progress(); return p == isSending || p == isResuming }

// rule looks a command up, and gives the refusal where there is one.
func (d dispatch) rule(c dispatchCommand, goal, item string) (happens bool, err error) {
	switch dispatchTransitions[d.progress()][c] {
	case occurs:
		return true, nil
	case noSuch:
		return false, dispatchNotFound(goal, item)
	case conflicting:
		return false, fault.New(fault.StateConflict, "the item %s", doing[d.progress()]).
			With("dispatch_id", d.ID).With("state", strings.ToUpper(string(d.State)))
	case otherwise:
		return false, d.mismatch()
	}
	return false, nil
}

// doing is a progress as a refusal puts it.
var doing = [progresses]string{
	isBegun: "was begun and not sent", isDeferred: "waits for other items", isSending: "is being sent by weir",
	isSent: "was sent", isInProgress: "is in progress", isBlocked: "is blocked", isWaiting: "is blocked",
	isResuming: "is blocked", isInQuestion: "waits for an answer", isDone: "is done and waits for a verdict",
	isAccepted: "was accepted", isRejected: "was rejected", isAbandoned: "was abandoned",
}

func (d dispatch) mismatch() error {
	return fault.New(fault.DispatchMismatch, "the item %s, in conversation %s", doing[d.progress()], d.ConversationID).
		With("dispatch_id", d.ID).With("conversation_id", d.ConversationID)
}

func dispatchNotFound(goal, item string) *fault.Error {
	return fault.New(fault.DispatchNotFound, "nothing was dispatched for item %q of goal %s", item, goal)
}

// knows says whether a request was carried out; with other content it is refused.
func knows(requests []request, id string, fingerprint []byte) (bool, error) {
	i := slices.IndexFunc(requests, func(r request) bool { return r.ID == id })
	if i < 0 {
		return false, nil
	}
	if !bytes.Equal(requests[i].Fingerprint, fingerprint) {
		return true, fault.New(fault.IdempotencyMismatch, "request %s was made before with other content", id).With("request_id", id)
	}
	return true, nil
}

// Commands. NewID is the id that the dispatch gets if it has none yet, and Open how
// many items of its goal are open.

type begin struct {
	Goal, Item string
	NewID      string
	Actor      string
	Open       int
}

type markSent struct {
	Goal, Item     string
	NewID          string
	ConversationID string
	Actor          string
}

// giving asks weir to send.
type giving struct {
	begin
	Owner           identity.Caller
	Request         string
	NewConversation string
	Worker          string
	Seed, Title     string
	Priority        int32
	WaitsFor        []string
}

type telling struct {
	Goal, Item string
	Request    string
	Kind       inboxv1.ReportKind
	Text       string
	Evidence   []*inboxv1.Evidence
	WaitsFor   []string
	Reporter   identity.Caller
	// Joined says that the reporter is known to take part in the conversation.
	Joined bool
}

// judging is the owner's word: accept, reject or abandon.
type judging struct {
	Goal, Item string
	What       dispatchCommand
	Note       string
	Judge      identity.Caller
	// Operator may end what others own.
	Operator bool
}

// decideBegin counts one more attempt.
func decideBegin(d dispatch, c begin, _ time.Time) (*inboxv1.Event, error) {
	if happens, err := d.rule(toBegin, c.Goal, c.Item); !happens {
		return nil, err
	}
	if err := c.full(d); err != nil {
		return nil, err
	}
	return c.begun(d, nil), nil
}

// full refuses an item that would be one too many.
func (c begin) full(d dispatch) error {
	if d.State != "" || c.Open < maxOpen {
		return nil
	}
	return fault.New(fault.LimitReached, "goal %s has %d open items, and %d is the limit", c.Goal, c.Open, maxOpen).
		With("limit", strconv.Itoa(maxOpen)).With("open", strconv.Itoa(c.Open))
}

func (c begin) begun(d dispatch, plan *inboxv1.DispatchPlan) *inboxv1.Event {
	return &inboxv1.Event{Actor: c.Actor, Event: &inboxv1.Event_DispatchBegun{DispatchBegun: &inboxv1.DispatchBegun{
		Goal: c.Goal, Item: c.Item, DispatchId: d.idOr(c.NewID), Attempt: d.Attempts + 1, Plan: plan,
	}}}
}

// decideMark records where the work goes on.
func decideMark(d dispatch, c markSent, _ time.Time) (*inboxv1.Event, error) {
	if d.Owner != "" && d.Owner != c.Actor && identity.Agent.Is(c.Actor) {
		return nil, notOwner()
	}
	command := toMarkElsewhere
	if c.ConversationID == d.ConversationID {
		command = toMarkHere
	}
	if happens, err := d.rule(command, c.Goal, c.Item); !happens && !d.unplaced() {
		return nil, err
	}
	return &inboxv1.Event{Actor: c.Actor, Event: &inboxv1.Event_DispatchSent{DispatchSent: &inboxv1.DispatchSent{
		Goal: c.Goal, Item: c.Item, DispatchId: d.idOr(c.NewID), ConversationId: c.ConversationID,
	}}}, nil
}

// decideDispatch journals the plan of an attempt, and nothing is done before that.
func decideDispatch(d dispatch, c giving, _ time.Time) (*inboxv1.Event, error) {
	if d.Owner != "" && d.Owner != c.Owner.Subject {
		return nil, notOwner()
	}
	if known, err := knows(d.Asked, c.Request, c.fingerprint()); known {
		return nil, err
	}
	if happens, err := d.rule(toDispatch, c.Goal, c.Item); !happens {
		return nil, err
	}
	if err := c.full(d); err != nil {
		return nil, err
	}
	conversation := c.NewConversation
	if d.Settled {
		// The conversation stays, and who takes part in it.
		conversation = d.ConversationID
		if d.Worker != "" && d.Worker != c.Worker {
			return nil, d.mismatch()
		}
	}
	return c.begun(d, &inboxv1.DispatchPlan{
		RequestId: c.Request, Worker: c.Worker, ConversationId: conversation, Seed: c.Seed, Title: c.Title,
		Priority: c.Priority, WaitsFor: c.WaitsFor, Fingerprint: c.fingerprint(),
		OnBehalfOf: c.Owner.OnBehalfOf, Session: c.Owner.Session, Operation: c.Owner.Operation, Confined: c.Owner.Confined,
	}), nil
}

func (c giving) fingerprint() []byte {
	return digest(append([]string{c.Worker, c.Seed, c.Title, strconv.Itoa(int(c.Priority))}, c.WaitsFor...)...)
}

// digest goes over each part behind its length, so that no two lists run together.
func digest(parts ...string) []byte {
	var data []byte
	for _, part := range parts {
		data = binary.BigEndian.AppendUint64(data, uint64(len(part)))
		data = append(data, part...)
	}
	sum := sha256.Sum256(data)
	return sum[:]
}

// decideReport records what a worker says.
func decideReport(d dispatch, c telling, _ time.Time) (*inboxv1.Event, error) {
	if d.State == "" {
		return nil, dispatchNotFound(c.Goal, c.Item)
	}
	if !c.byWorker(d) {
		return nil, fault.New(fault.NotWorker, "only the worker of an item reports on it")
	}
	if known, err := knows(d.Told, c.Request, c.fingerprint()); known {
		return nil, err
	}
	if happens, err := d.rule(toReport, c.Goal, c.Item); !happens {
		return nil, err
	}
	return &inboxv1.Event{Actor: c.Reporter.Subject, Event: &inboxv1.Event_DispatchReported{DispatchReported: &inboxv1.DispatchReported{
		Goal: c.Goal, Item: c.Item, RequestId: c.Request, Kind: c.Kind, Text: c.Text, Evidence: c.Evidence,
		WaitsFor: c.WaitsFor, Fingerprint: c.fingerprint(),
	}}}, nil
}

// byWorker: people and services work for every goal. An agent works for its own; on
// an item whose worker weir does not know, it does so if the conversation is its.
func (c telling) byWorker(d dispatch) bool {
	own, agent := ownGoal(c.Reporter)
	return !agent || d.Worker == own || d.Worker == "" && c.Joined && c.Reporter.Subject != d.Owner
}

func (c telling) fingerprint() []byte {
	parts := []string{c.Reporter.Subject, strconv.Itoa(int(c.Kind)), c.Text, strconv.Itoa(len(c.Evidence))}
	for _, e := range c.Evidence {
		parts = append(parts, e.GetUri(), e.GetTitle())
	}
	return digest(append(parts, c.WaitsFor...)...)
}

// decideJudge records the owner's word.
func decideJudge(d dispatch, c judging, _ time.Time) (*inboxv1.Event, error) {
	switch {
	case d.State == "":
		return nil, dispatchNotFound(c.Goal, c.Item)
	case c.Judge.Subject != d.Owner && !(c.Operator && c.What == toAbandon):
		return nil, notOwner()
	case c.What == toAccept && c.judgesItself(d):
		return nil, fault.New(fault.SelfApproval, "who did the work can't accept it")
	}
	if happens, err := d.rule(c.What, c.Goal, c.Item); !happens {
		return nil, err
	}
	if c.What == toAbandon {
		return &inboxv1.Event{Actor: c.Judge.Subject, Event: &inboxv1.Event_DispatchAbandoned{DispatchAbandoned: &inboxv1.DispatchAbandoned{
			Goal: c.Goal, Item: c.Item, Note: c.Note,
		}}}, nil
	}
	return &inboxv1.Event{Actor: c.Judge.Subject, Event: &inboxv1.Event_DispatchJudged{DispatchJudged: &inboxv1.DispatchJudged{
		Goal: c.Goal, Item: c.Item, Accepted: c.What == toAccept, Note: c.Note,
	}}}, nil
}

// judgesItself says that the work is the judge's own, or that of somebody it speaks
// for.
func (c judging) judgesItself(d dispatch) bool {
	for _, who := range append([]string{c.Judge.Subject}, c.Judge.OnBehalfOf...) {
		if who == d.Report.Reporter || d.Worker != "" && who == agentOf(d.Worker) {
			return true
		}
	}
	return false
}

// agentOf is the agent that serves a goal.
func agentOf(goal string) string { return string(identity.Agent) + ":" + goal }

func notOwner() error {
	return fault.New(fault.NotOwner, "that is for the owner of the item to do")
}

// Weir's own commands. Each names the errand that it belongs to: one that came late
// changes nothing.

type sending struct{ Errand errandID }

type failing struct {
	Errand errandID
	Text   string
}

// decideSent records that the errand is done.
func decideSent(d dispatch, c sending, _ time.Time) (*inboxv1.Event, error) {
	if happens, err := d.rule(toSend, d.Goal, d.Item); !happens || d.Errand.errandID != c.Errand {
		return nil, err
	}
	return &inboxv1.Event{Actor: self, Event: &inboxv1.Event_DispatchSent{DispatchSent: &inboxv1.DispatchSent{
		Goal: d.Goal, Item: d.Item, DispatchId: d.ID, ConversationId: d.ConversationID,
	}}}, nil
}

// decideFail records why the errand can't be done now, once for each reason.
func decideFail(d dispatch, c failing, _ time.Time) (*inboxv1.Event, error) {
	if happens, err := d.rule(toFail, d.Goal, d.Item); !happens || d.Errand.errandID != c.Errand || d.Failure.Text == c.Text {
		return nil, err
	}
	return &inboxv1.Event{Actor: self, Event: &inboxv1.Event_DispatchFailed{DispatchFailed: &inboxv1.DispatchFailed{
		Goal: d.Goal, Item: d.Item, Failure: c.Text,
	}}}, nil
}

// decideWake records that an item it waits for is finished.
func decideWake(d dispatch, item string, _ time.Time) (*inboxv1.Event, error) {
	if happens, err := d.rule(toWake, d.Goal, d.Item); !happens || !slices.Contains(d.Awaited, item) {
		return nil, err
	}
	return &inboxv1.Event{Actor: self, Event: &inboxv1.Event_DispatchWoken{DispatchWoken: &inboxv1.DispatchWoken{
		Goal: d.Goal, Item: d.Item, FinishedItem: item,
	}}}, nil
}

func (d dispatch) idOr(newID string) string {
	if d.ID != "" {
		return d.ID
	}
	return newID
}

// replay says whether the newest begin found the work begun, or sent, before.
func (d dispatch) replay() bool { return d.Attempts > 1 || d.Unbegun }

// warning is what somebody who begins again must know.
func (d dispatch) warning() string {
	switch {
	case d.State != begun || !d.replay():
		return ""
	case d.ConversationID == "":
		return "begun before and never marked sent: a conversation may exist without its first message"
	default:
		return "begun before and not sent yet: weir sends it to conversation " + d.ConversationID +
			", which may exist without its first message"
	}
}

package inbox

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
	"weir/internal/strictjson"
)

// A state file is where a queue in a script keeps one goal's mail and what it gave
// away:
//
//	{"version": 1, "goal": "build",
//	 "inbox": [{"id": "m1", "text": "…", "enqueued_at": "2026-01-02T03:04:05Z", "state": "pending"}],
//	 "dispatch": {"issue 7": {"dispatch_id": "d1", "state": "sent", "attempts": 1}}}
//
// All of these must be there and nothing else, since what is guessed here is lost
// mail or work done twice. enqueued_at may be Unix seconds, too. The messages
// stand in their order.

// Limits of a state file. Those of a message and of an inbox hold besides.
const (
	maxStateFile = 2 << 20
	// maxStateMessages is what an inbox can be told to hold at most. More of them
	// must not wait than this one may hold.
	maxStateMessages = maxLimit
	// maxStateItems bounds how many aggregates one import makes.
	maxStateItems = 1000
	maxAttempts   = 1_000_000
	maxItem       = 128
)

// messageStatesInFiles are the states of messages that are taken over. A claim of
// the script died with it, so what was claimed waits again. One that was given up
// is refused by its state: whether it should be served again is for people to say,
// who then write pending or done.
var messageStatesInFiles = map[string]inboxv1.MessageState{
	"pending": inboxv1.MessageState_MESSAGE_STATE_PENDING,
	"claimed": inboxv1.MessageState_MESSAGE_STATE_PENDING,
	"done":    inboxv1.MessageState_MESSAGE_STATE_DONE,
}

var dispatchStatesInFiles = map[string]inboxv1.DispatchState{
	"begun":     inboxv1.DispatchState_DISPATCH_STATE_BEGUN,
	"sent":      inboxv1.DispatchState_DISPATCH_STATE_SENT,
	"done":      inboxv1.DispatchState_DISPATCH_STATE_DONE,
	"accepted":  inboxv1.DispatchState_DISPATCH_STATE_ACCEPTED,
	"rejected":  inboxv1.DispatchState_DISPATCH_STATE_REJECTED,
	"abandoned": inboxv1.DispatchState_DISPATCH_STATE_ABANDONED,
}

// What ids, goals and items look like. The proto says the same of requests.
var (
	idPattern   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	itemPattern = regexp.MustCompile(`^[^\pC]*[^\pC\pZ][^\pC]*$`)
)

// stateFileVersion is the one version there is, as the canonical number.
const stateFileVersion = "1"

const idRule = "must be 1 to 64 characters of A-Za-z0-9._-, a letter or digit first"

// stateFile is what a state file says.
type stateFile struct {
	Goal     string
	Messages []*inboxv1.ImportedMessage // in the file's order, without fingerprints
	Items    []*inboxv1.ImportedItem    // by their names
}

// readStateFile reads all of a state file, or refuses it with the place that is
// wrong, the limit and the reason. Nothing of a message's text is repeated. A text
// may have as many bytes as a body.
func readStateFile(text string, body int, now time.Time) (stateFile, error) {
	if len(text) > maxStateFile {
		return stateFile{}, tooMany("state_json", "bytes", len(text), maxStateFile)
	}
	canonical, err := strictjson.CanonicalField("state_json", text)
	if err != nil {
		return stateFile{}, err
	}
	var content any
	decoder := json.NewDecoder(strings.NewReader(string(canonical)))
	decoder.UseNumber()
	if err := decoder.Decode(&content); err != nil {
		return stateFile{}, fault.New(fault.Bug, "canonical JSON cannot be read").Wrap(err)
	}
	r := stateReader{body: body, now: now}
	file := r.file(content)
	return file, r.refusal
}

// stateReader walks what a state file holds. The first refusal stays, and from then
// on nothing that is read counts.
type stateReader struct {
	body    int
	now     time.Time
	refusal error
}

func (r *stateReader) refuse(place, rule string) {
	r.fail(fault.New(fault.FieldInvalid, "the state file is wrong at %s: %s", orWhole(place), rule).Field(orWhole(place), rule))
}

func (r *stateReader) fail(err error) {
	if r.refusal == nil {
		r.refusal = err
	}
}

// orWhole names the file itself, whose place is empty.
func orWhole(place string) string {
	if place == "" {
		return "state_json"
	}
	return place
}

func tooMany(place, what string, size, limit int) error {
	return fault.New(fault.TooLarge, "the state file is too large: %s has %d %s, and the limit is %d", place, size, what, limit).
		Field(place, fmt.Sprintf("must have at most %d %s", limit, what)).
		With("size", strconv.Itoa(size)).With("limit", strconv.Itoa(limit))
}

func (r *stateReader) file(content any) stateFile {
	fields := r.object("", content, "version", "goal", "inbox", "dispatch")
	if fields["version"] != json.Number(stateFileVersion) {
		r.refuse("version", "must be "+stateFileVersion)
	}
	file := stateFile{Goal: r.id("goal", fields["goal"])}
	file.Messages = r.messages(fields["inbox"])
	file.Items = r.items(fields["dispatch"])
	return file
}

func (r *stateReader) messages(content any) []*inboxv1.ImportedMessage {
	list, ok := content.([]any)
	switch {
	case !ok:
		r.refuse("inbox", "must be a list")
		return nil
	case len(list) > maxStateMessages:
		r.fail(tooMany("inbox", "messages", len(list), maxStateMessages))
		return nil
	}
	messages := make([]*inboxv1.ImportedMessage, 0, len(list))
	seen := make(map[string]int, len(list))
	for i, content := range list {
		place := fmt.Sprintf("inbox[%d]", i)
		m := r.message(place, content)
		if r.refusal != nil {
			return nil
		}
		if before, twice := seen[m.GetMessageId()]; twice {
			r.refuse(place+".id", fmt.Sprintf("must be another one than that of inbox[%d]", before))
		}
		seen[m.GetMessageId()] = i
		messages = append(messages, m)
	}
	return messages
}

func (r *stateReader) message(place string, content any) *inboxv1.ImportedMessage {
	fields := r.object(place, content, "id", "text", "enqueued_at", "state")
	m := &inboxv1.ImportedMessage{
		MessageId:   r.id(place+".id", fields["id"]),
		Body:        r.text(place+".text", fields["text"]),
		EnqueueTime: timestamppb.New(r.past(place+".enqueued_at", fields["enqueued_at"])),
		State:       stateIn(r, place+".state", fields["state"], messageStatesInFiles),
	}
	for _, own := range ownPrefixes {
		if strings.HasPrefix(m.GetMessageId(), own) {
			r.refuse(place+".id", "must not begin with "+own)
		}
	}
	switch size := len(m.GetBody()); {
	case size == 0:
		r.refuse(place+".text", "must not be empty")
	case size > r.body:
		r.fail(tooMany(place+".text", "bytes", size, r.body))
	}
	return m
}

func (r *stateReader) items(content any) []*inboxv1.ImportedItem {
	table, ok := content.(map[string]any)
	switch {
	case !ok:
		r.refuse("dispatch", "must be an object")
		return nil
	case len(table) > maxStateItems:
		r.fail(tooMany("dispatch", "items", len(table), maxStateItems))
		return nil
	}
	items := make([]*inboxv1.ImportedItem, 0, len(table))
	seen := make(map[string]string, len(table))
	for _, name := range slices.Sorted(maps.Keys(table)) {
		place := "dispatch[" + quoted(name) + "]"
		if utf8.RuneCountInString(name) > maxItem || !itemPattern.MatchString(name) {
			r.refuse(place, fmt.Sprintf("an item must be 1 to %d characters, not blank, no control characters", maxItem))
			return nil
		}
		fields := r.object(place, table[name], "dispatch_id", "state", "attempts")
		item := &inboxv1.ImportedItem{
			Item:       name,
			DispatchId: r.id(place+".dispatch_id", fields["dispatch_id"]),
			State:      stateIn(r, place+".state", fields["state"], dispatchStatesInFiles),
			Attempts:   int32(r.whole(place+".attempts", fields["attempts"], maxAttempts)),
		}
		if r.refusal != nil {
			return nil
		}
		if before, twice := seen[item.GetDispatchId()]; twice {
			r.refuse(place+".dispatch_id", fmt.Sprintf("must be another one than that of item %q", before))
		}
		seen[item.GetDispatchId()] = name
		items = append(items, item)
	}
	return items
}

// object gives the fields of an object that has exactly these.
func (r *stateReader) object(place string, content any, names ...string) map[string]any {
	fields, ok := content.(map[string]any)
	if !ok {
		r.refuse(place, "must be an object")
		return nil
	}
	prefix := place
	if prefix != "" {
		prefix += "."
	}
	for _, name := range names {
		if _, there := fields[name]; !there {
			r.refuse(prefix+name, "must be there")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(names, name) {
			r.refuse(prefix+name, "is not known; there are "+strings.Join(names, ", "))
		}
	}
	return fields
}

// quoted is an item as a place names it.
func quoted(item string) string { return strconv.Quote(item) }

func (r *stateReader) text(place string, content any) string {
	text, ok := content.(string)
	if !ok {
		r.refuse(place, "must be a string")
	}
	return text
}

func (r *stateReader) id(place string, content any) string {
	id := r.text(place, content)
	if !idPattern.MatchString(id) {
		r.refuse(place, idRule)
	}
	return id
}

// whole gives a whole number from 0 to a limit.
func (r *stateReader) whole(place string, content any, limit int64) int64 {
	number, ok := content.(json.Number)
	whole, err := number.Int64()
	if !ok || err != nil || whole < 0 || whole > limit {
		r.refuse(place, fmt.Sprintf("must be a whole number from 0 to %d", limit))
		return 0
	}
	return whole
}

// past gives a time that has come. One that has not is that of another clock, or in
// milliseconds, and would make a message look younger than it is for years.
func (r *stateReader) past(place string, content any) time.Time {
	const rule = "must be a time of RFC 3339, or Unix seconds"
	var at time.Time
	switch content := content.(type) {
	case string:
		// Unlike time.Parse it takes nothing but RFC 3339.
		if err := at.UnmarshalText([]byte(content)); err != nil {
			r.refuse(place, rule)
			return time.Time{}
		}
	case json.Number:
		seconds, err := content.Float64()
		if err != nil || seconds < 0 || seconds > float64(r.now.Unix())+1 {
			r.refuse(place, rule+", and not in the future")
			return time.Time{}
		}
		at = time.UnixMicro(int64(math.Round(seconds * 1e6)))
	default:
		r.refuse(place, rule)
		return time.Time{}
	}
	switch {
	case at.Before(time.Unix(0, 0)):
		r.refuse(place, rule+", and not before 1970")
	case at.After(r.now):
		r.refuse(place, rule+", and not in the future")
	}
	return at.UTC().Truncate(time.Microsecond)
}

// stateIn looks a state up by the name that it has in files.
func stateIn[S any](r *stateReader, place string, content any, states map[string]S) S {
	name := r.text(place, content)
	state, known := states[name]
	if !known {
		r.refuse(place, "must be one of "+strings.Join(slices.Sorted(maps.Keys(states)), ", "))
	}
	return state
}

package inbox

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	inboxv1 "weir/gen/inbox/v1"
	"weir/internal/fault"
)

func TestStateFiles(t *testing.T) {
	datadriven.Walk(t, "testdata/statefiles", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			file, err := readStateFile(d.Input, defaultBody, start)
			if err != nil {
				return refused(err) + "\n"
			}
			return shownFile(file)
		})
	})
}

func shownFile(file stateFile) string {
	var b strings.Builder
	fmt.Fprintf(&b, "goal %s\n", file.Goal)
	for _, m := range file.Messages {
		fmt.Fprintf(&b, "message %s %s %s ago: %q\n", m.GetMessageId(), m.GetState(), start.Sub(m.GetEnqueueTime().AsTime()), m.GetBody())
	}
	for _, i := range file.Items {
		fmt.Fprintf(&b, "item %q %s %s attempts %d\n", i.GetItem(), i.GetDispatchId(), i.GetState(), i.GetAttempts())
	}
	return b.String()
}

// What does not fit into a script.
func TestStateFilesThatAreTooLargeOrNoText(t *testing.T) {
	messages := func(many int, text string) string {
		list := make([]string, many)
		for i := range list {
			list[i] = fmt.Sprintf(`{"id":"m%d","text":"%s","enqueued_at":1,"state":"done"}`, i, text)
		}
		return `{"version":1,"goal":"build","inbox":[` + strings.Join(list, ",") + `],"dispatch":{}}`
	}
	items := func(many int) string {
		list := make([]string, many)
		for i := range list {
			list[i] = fmt.Sprintf(`"i%d":{"dispatch_id":"d%d","state":"sent","attempts":1}`, i, i)
		}
		return `{"version":1,"goal":"build","inbox":[],"dispatch":{` + strings.Join(list, ",") + `}}`
	}
	for name, c := range map[string]struct {
		text   string
		reason fault.Reason
		field  string
		limit  string
	}{
		"the largest text":   {messages(1, strings.Repeat("x", defaultBody)), "", "", ""},
		"a byte more":        {messages(1, strings.Repeat("x", defaultBody+1)), fault.TooLarge, "inbox[0].text", "65536"},
		"in bytes":           {messages(1, strings.Repeat("ö", defaultBody/2)+"x"), fault.TooLarge, "inbox[0].text", "65536"},
		"all messages":       {messages(maxStateMessages, "x"), "", "", ""},
		"a message more":     {messages(maxStateMessages+1, "x"), fault.TooLarge, "inbox", "10000"},
		"all items":          {items(maxStateItems), "", "", ""},
		"an item more":       {items(maxStateItems + 1), fault.TooLarge, "dispatch", "1000"},
		"a file":             {messages(0, "") + strings.Repeat(" ", maxStateFile-len(messages(0, ""))), "", "", ""},
		"a file of one more": {messages(0, "") + strings.Repeat(" ", maxStateFile-len(messages(0, ""))+1), fault.TooLarge, "state_json", "2097152"},
		"no UTF-8":           {messages(1, "\xff"), fault.JSONInvalid, "state_json", ""},
		"a byte order mark":  {"\uFEFF" + messages(1, "x"), fault.JSONInvalid, "state_json", ""},
		"UTF-16":             {"{\x00}\x00", fault.JSONInvalid, "state_json", ""},
		"much too deep":      {strings.Repeat("[", 100_000), fault.JSONInvalid, "state_json", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readStateFile(c.text, defaultBody, start)
			if fault.ReasonOf(err) != c.reason {
				t.Fatalf("gives %v, want %q", err, c.reason)
			}
			if err == nil {
				return
			}
			e := fault.From(err)
			if v := e.Violations(); len(v) != 1 || v[0].Field != c.field || e.Metadata("limit") != c.limit {
				t.Errorf("names %v and limit %q", v, e.Metadata("limit"))
			}
		})
	}
}

// No refusal repeats what a message says: it may be a secret.
func TestRefusalsOfStateFilesRepeatNoText(t *testing.T) {
	const secret = "hunter2"
	whole := `{"version":1,"goal":"build","inbox":[{"id":"m1","text":"hunter2","enqueued_at":1,"state":"done"}],"dispatch":{}}`
	for i := range whole {
		for _, text := range []string{whole[:i], whole[:i] + "\xff" + whole[i:], whole[:i] + "0" + whole[i:], whole[:i] + whole[i+1:]} {
			if _, err := readStateFile(text, defaultBody, start); err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("%q: %v", text, err)
			}
		}
	}
}

// FuzzStateFile: whatever the bytes, a file is refused for a reason of its own or holds
// only what an inbox could have come to by itself.
func FuzzStateFile(f *testing.F) {
	f.Add(`{"version":1,"goal":"build","inbox":[{"id":"m1","text":"x","enqueued_at":1.5,"state":"claimed"}],"dispatch":{"a b":{"dispatch_id":"d1","state":"begun","attempts":0}}}`)
	f.Add(`{"version":1,"goal":"a","inbox":[{"id":"m1","text":"x","enqueued_at":"2026-01-01T00:00:00.123456789-07:00","state":"done"}],"dispatch":{}}`)
	f.Add(`{"version":1,"goal":"a","inbox":[],"dispatch":{"\u202e":{}}}`)
	f.Add(`{"version":1e0,"goal":"\u0061","inbox":[[]],"dispatch":null}`)
	f.Add("[[[[")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := readStateFile(text, defaultBody, start)
		if err != nil {
			e := fault.From(err)
			if r := e.Reason(); r != fault.JSONInvalid && r != fault.FieldInvalid && r != fault.TooLarge {
				t.Fatalf("refused by %s: %v", r, err)
			}
			if v := e.Violations(); len(v) != 1 || v[0].Field == "" || v[0].Description == "" {
				t.Fatalf("refused at %v: %v", v, err)
			}
			return
		}
		ids := map[string]bool{}
		for _, m := range file.Messages {
			at := m.GetEnqueueTime().AsTime()
			if ids[m.GetMessageId()] || checkChosenID("id", m.GetMessageId()) != nil || len(m.GetBody()) == 0 || len(m.GetBody()) > defaultBody ||
				m.GetState() == inboxv1.MessageState_MESSAGE_STATE_UNSPECIFIED || at.After(start) || at.Unix() < 0 {
				t.Fatalf("message %v", m)
			}
			ids[m.GetMessageId()] = true
		}
		for i, item := range file.Items {
			if i > 0 && file.Items[i-1].GetItem() >= item.GetItem() || item.GetState() == 0 || item.GetAttempts() < 0 || strings.TrimSpace(item.GetItem()) == "" {
				t.Fatalf("item %v", item)
			}
		}
	})
}

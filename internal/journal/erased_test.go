package journal_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"weir/internal/fault"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

// openErasable opens the tests' stream, with events that can be erased.
func openErasable(t testing.TB, url string) *journal.Journal {
	t.Helper()
	j, err := journal.OpenErasable(t.Context(), meshtest.Connect(t, url), service, 1, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestAnEventReadsBackWithWhatItErases(t *testing.T) {
	j := openErasable(t, meshtest.StartNATS(t).URL())
	version := uint64(0)
	for i := range 3 {
		version = appended(t, j, event(fmt.Sprint(i)), version)
	}
	for name, want := range map[string]journal.Event{
		"two":      {Erases: []journal.Erased{{Sequence: 1}, {Sequence: 3, Previous: 2}}},
		"the past": {ErasesPast: true},
		"nothing":  {},
	} {
		e := event(name)
		e.Erases, e.ErasesPast = want.Erases, want.ErasesPast
		version = appended(t, j, e, version)
		got, err := j.Get(t.Context(), version)
		if err != nil || fmt.Sprint(got.Erases) != fmt.Sprint(want.Erases) || got.ErasesPast != want.ErasesPast {
			t.Errorf("%s: got %v and %v, %v", name, got.Erases, got.ErasesPast, err)
		}
	}
}

func TestWhatAnEventErasesIsReadStrictly(t *testing.T) {
	n := meshtest.StartNATS(t)
	j, js := openErasable(t, n.URL()), jetStream(t, n.Connect())
	version := 0
	publish := func(values ...string) uint64 {
		t.Helper()
		msg := raw(key("x"), fmt.Sprint(version), uint64(version), 0)
		if len(values) > 0 {
			msg.Header["Weir-Erases"] = values
		}
		if _, err := js.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
		version++
		return uint64(version)
	}
	for range 12 {
		publish()
	}
	for value, want := range map[string]string{
		"12:11":            "[{12 11}]",
		"1:0":              "[{1 0}]",
		"2:0 3:2 7:3":      "[{2 0} {3 2} {7 3}]",
		"3:1 7:5 12:11":    "[{3 1} {7 5} {12 11}]",
		"10:2 11:10 12:11": "[{10 2} {11 10} {12 11}]",
	} {
		e, err := j.Get(t.Context(), publish(value))
		if err != nil || fmt.Sprint(e.Erases) != want || e.ErasesPast {
			t.Errorf("%q is read as %v and %v, %v", value, e.Erases, e.ErasesPast, err)
		}
	}
	for name, values := range map[string][]string{
		"nothing":                    {""},
		"no predecessor":             {"12"},
		"an empty predecessor":       {"12:"},
		"three numbers":              {"12:11:10"},
		"words":                      {"a:b"},
		"a sign":                     {"+12:11"},
		"a leading zero":             {"012:11"},
		"more than a number":         {"18446744073709551616:1"},
		"two spaces":                 {"3:2  12:11"},
		"a comma":                    {"3:2,12:11"},
		"itself as the one before":   {"12:12"},
		"a later one as that before": {"7:8"},
		"not in order":               {"12:11 3:2"},
		"the same twice":             {"12:11 12:11"},
		"past one that it names":     {"3:2 12:2"},
		"a later event":              {"99:12"},
		"the past and more":          {"* 12:11"},
		"the past twice":             {"**"},
		"two headers":                {"3:2", "12:11"},
	} {
		_, err := j.Get(t.Context(), publish(values...))
		if !fault.Is(err, fault.EventUnreadable) {
			t.Errorf("%s: %q: got %v, want EVENT_UNREADABLE", name, values, err)
		}
	}
}

func TestAnEventThatErasesWhatItCannotIsRefused(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := openErasable(t, n.URL())
	version := uint64(0)
	for i := range 3 {
		version = appended(t, j, event(fmt.Sprint(i)), version)
	}
	for name, e := range map[string]journal.Event{
		"a later one":             {Erases: []journal.Erased{{Sequence: 4, Previous: 3}}},
		"one that follows itself": {Erases: []journal.Erased{{Sequence: 2, Previous: 2}}},
		"not in order":            {Erases: []journal.Erased{{Sequence: 3, Previous: 2}, {Sequence: 1}}},
		"the past and more":       {ErasesPast: true, Erases: []journal.Erased{{Sequence: 1}}},
	} {
		bad := event(name)
		bad.Erases, bad.ErasesPast = e.Erases, e.ErasesPast
		_, err := j.Append(t.Context(), bad, version)
		if !fault.Is(err, fault.Bug) {
			t.Errorf("%s: got %v, want a refusal", name, err)
		}
	}
	wantHistory(t, j, key("x"), "0", "1", "2")

	plain, err := journal.Open(t.Context(), meshtest.Connect(t, n.URL()), "plain", 1, quiet)
	if err != nil {
		t.Fatal(err)
	}
	past := eventOf(key("y"), "past")
	past.ErasesPast = true
	_, err = plain.Append(t.Context(), past, 0)
	wantReason(t, err, fault.Bug)
}

// As many as the limit says fit, however long their numbers; more are refused
// before they are sent.
func TestAnEventErasesNoMoreThanItsHeaderHolds(t *testing.T) {
	n := meshtest.StartNATS(t)
	j := openErasable(t, n.URL())
	const far = 18446744073709000000 // numbers as long as they get
	full := strings.TrimSpace(strings.Repeat(fmt.Sprint(uint64(far), ":", uint64(far), " "), journal.MaxErases))
	msg := raw(key("long"), "long", 0, 0)
	msg.Header["Weir-Erases"] = []string{full}
	if _, err := jetStream(t, n.Connect()).PublishMsg(t.Context(), msg); err != nil {
		t.Errorf("a header of %d bytes is refused: %v", len(full), err)
	}

	js := jetStream(t, n.Connect())
	version := uint64(0)
	var all []journal.Erased
	for range journal.MaxErases + 1 {
		next := uint64(len(all)) + 2 // 1 is the long one
		if _, err := js.PublishMsgAsync(&nats.Msg{Subject: key("x").Subject(service), Header: raw(key("x"), fmt.Sprint("x", next), version, 0).Header}); err != nil {
			t.Fatal(err)
		}
		all = append(all, journal.Erased{Sequence: next, Previous: version})
		version = next
	}
	<-js.PublishAsyncComplete()
	e := event("too many")
	e.Erases = all
	_, err := j.Append(t.Context(), e, version)
	wantReason(t, err, fault.TooLarge)
	e.Erases = all[1:]
	appended(t, j, e, version)
}

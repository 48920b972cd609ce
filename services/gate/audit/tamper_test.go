package audit

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/fault"
	"weir/internal/journal"
)

func without(messages []journal.Stored, i int) []journal.Stored {
	return slices.Delete(messages, i, i+1)
}

func swapped(messages []journal.Stored, i, k int) []journal.Stored {
	messages[i], messages[k] = messages[k], messages[i]
	return messages
}

func with(messages []journal.Stored, i int, name, value string) []journal.Stored {
	messages[i].Header.Set(name, value)
	return messages
}

// Someone who can write to the journal's disk makes another history of it, and
// makes it fit as well as can be. An auditor kept a checkpoint of the first round
// of the story; a second followed.
func TestWhoKeptACheckpointCatchesAChangedHistory(t *testing.T) {
	original := newBook(t)
	original.story("1")
	k := newKeys(t, "weir/gate")
	gate := as{original.server(k), "acme"}
	kept := gate.checkpoint(t).GetCheckpoint()
	original.story("2")
	messages := original.contents()
	// Of the first round: 0 acme policy, 1 bell, 2 acme approval requested, 3 acme
	// check, 4 acme approval decided, 5 bell, 6 acme check, 7 acme approval
	// redeemed, 8 bell, 9 acme trust, 10 bell, 11 and 12 acme checks.
	for name, test := range map[string]struct {
		tamper func([]journal.Stored) []journal.Stored
		want   string // of the error; "" where nothing is wrong
	}{
		"an untouched copy": {func(m []journal.Stored) []journal.Stored { return m }, ""},
		"a copy that goes on": {func(m []journal.Stored) []journal.Stored {
			more := m[len(m)-1]
			more.Subject = "weir.gate.acme.check.more"
			more.Header = maps.Clone(more.Header)
			more.Header.Set("ce-id", "more")
			more.Header.Set("Nats-Msg-Id", "more")
			return append(m, more)
		}, ""},
		"a copy that ends where the checkpoint was taken": {func(m []journal.Stored) []journal.Stored { return m[:13] }, ""},
		"one byte of a payload": {func(m []journal.Stored) []journal.Stored {
			m[6].Data = bytes.Clone(m[6].Data)
			m[6].Data[len(m[6].Data)-1] ^= 1
			return m
		}, "one of the records 0 to 8 was changed"},
		"one byte of a payload, and nothing after": {func(m []journal.Stored) []journal.Stored {
			m[6].Data = bytes.Clone(m[6].Data)
			m[6].Data[3] ^= 1
			return m[:13]
		}, "both checkpoints have 9 records, but other root hashes"},
		"two events in the other order":     {func(m []journal.Stored) []journal.Stored { return swapped(m, 3, 6) }, "is not the beginning"},
		"a decision after what it decided":  {func(m []journal.Stored) []journal.Stored { return swapped(m, 4, 7) }, "is not the beginning"},
		"the order of two tenants":          {func(m []journal.Stored) []journal.Stored { return swapped(m, 8, 9) }, "is not the beginning"},
		"no first event":                    {func(m []journal.Stored) []journal.Stored { return without(m, 0) }, "is not the beginning"},
		"one event less":                    {func(m []journal.Stored) []journal.Stored { return without(m, 6) }, "is not the beginning"},
		"one event of a chain less":         {func(m []journal.Stored) []journal.Stored { return without(m, 4) }, "is not the beginning"},
		"the last covered event less":       {func(m []journal.Stored) []journal.Stored { return without(m, 12) }, "is not the beginning"},
		"one event less, and nothing after": {func(m []journal.Stored) []journal.Stored { return without(m, 6)[:12] }, "1 records are missing"},
		"nothing left":                      {func([]journal.Stored) []journal.Stored { return nil }, "9 records are missing"},
		"one event twice": {func(m []journal.Stored) []journal.Stored {
			return with(slices.Insert(m, 6, copied(m[6])), 6, "Nats-Msg-Id", "x")
		}, "is not the beginning"},
		"another time": {func(m []journal.Stored) []journal.Stored { return with(m, 6, "ce-time", "2026-11-30T12:00:07.000002Z") }, "is not the beginning"},
		"another type": {func(m []journal.Stored) []journal.Stored { return with(m, 6, "ce-type", "weir.gate.v1.CheckDenied") }, "is not the beginning"},
		"another id":   {func(m []journal.Stored) []journal.Stored { return with(m, 6, "ce-id", "x") }, "is not the beginning"},
		"an event that nobody can read in its place": {func(m []journal.Stored) []journal.Stored { return with(m, 6, "ce-time", "once") }, "is not the beginning"},
		"another subject": {func(m []journal.Stored) []journal.Stored {
			m[6].Subject = "weir.gate.acme.check.other"
			return m
		}, "is not the beginning"},
		"an event given to the other tenant": {func(m []journal.Stored) []journal.Stored {
			m[6].Subject = "weir.gate.bell.check.other"
			return m
		}, "is not the beginning"},
	} {
		t.Run(name, func(t *testing.T) {
			copies := make([]journal.Stored, len(messages))
			for i := range messages {
				copies[i] = copied(messages[i])
			}
			b := forge(t, test.tamper(copies))
			report, err := Audit(t.Context(), as{b.server(k), "acme"}, kept, k.verifier)
			if test.want != "" {
				wantError(t, err, test.want)
				if _, found := errors.AsType[Difference](err); !found {
					t.Errorf("it is no finding: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if report.Kept.Size != acmeStory || report.Records != report.Now.Size || report.Now.Size < acmeStory {
				t.Errorf("got %+v", report)
			}
		})
	}
}

func copied(m journal.Stored) journal.Stored {
	header := nats.Header{}
	for name, values := range m.Header {
		header[name] = slices.Clone(values)
	}
	m.Header = header
	return m
}

func TestAPurgedEventIsCaughtOnceTheLogIsBuiltAnew(t *testing.T) {
	b := newBook(t)
	b.story("1")
	k := newKeys(t, "weir/gate")
	running := as{b.server(k), "acme"}
	kept := running.checkpoint(t).GetCheckpoint()
	b.purge("weir.gate.acme.check.c21")
	// The log that had read it still has its hash, and misses the event itself.
	_, err := Audit(t.Context(), running, kept, k.verifier)
	wantError(t, err, "gone from the journal")
	b.story("2")
	_, err = Audit(t.Context(), as{b.server(k), "acme"}, kept, k.verifier)
	wantError(t, err, "is not the beginning")
	// The other tenant lost nothing.
	other := as{running.server, "bell"}
	if _, err := Audit(t.Context(), as{b.server(k), "bell"}, other.checkpoint(t).GetCheckpoint(), k.verifier); err != nil {
		t.Error(err)
	}
}

func TestAnAuditBelievesNoOtherKeyAndNoOtherTenant(t *testing.T) {
	b := newBook(t)
	b.story("1")
	k, other := newKeys(t, "weir/gate"), newKeys(t, "weir/gate")
	acme, bell := as{b.server(k), "acme"}, as{b.server(k), "bell"}
	kept := acme.checkpoint(t).GetCheckpoint()
	_, err := Audit(t.Context(), acme, kept, other.verifier)
	wantError(t, err, "the kept checkpoint: the checkpoint is not signed by the key")
	_, err = Audit(t.Context(), as{b.server(other), "acme"}, kept, k.verifier)
	wantError(t, err, "the gate's checkpoint: the checkpoint is not signed by the key")
	_, err = Audit(t.Context(), bell, kept, k.verifier)
	wantError(t, err, "the origin differs: the kept checkpoint is of weir/gate/acme, this one of weir/gate/bell")
}

func TestAJournalThatIsChangedBehindARunningLogIsNoticedAtOnce(t *testing.T) {
	b := newBook(t)
	b.story("1")
	k := newKeys(t, "weir/gate")
	gate := as{b.server(k), "acme"}
	kept := gate.checkpoint(t).GetCheckpoint()
	messages := b.contents()
	messages[6] = copied(messages[6])
	messages[6].Data = append(bytes.Clone(messages[6].Data[:len(messages[6].Data)-1]), '!')
	gate.server.log.journal = forge(t, messages).journal

	_, err := gate.ListRecords(t.Context(), &gatev1.ListRecordsRequest{FirstIndex: 4})
	wantReason(t, err, fault.EventUnreadable)
	wantError(t, err, "record 4 is not what it was: event 7 has changed in the journal")
	if page, err := gate.ListRecords(t.Context(), &gatev1.ListRecordsRequest{PageSize: 4}); err != nil || len(page.GetRecords()) != 4 {
		t.Errorf("those before it: %v", err)
	}
	_, err = gate.ProveInclusion(t.Context(), &gatev1.ProveInclusionRequest{Index: 4, TreeSize: 9})
	wantReason(t, err, fault.EventUnreadable)
	_, err = Audit(t.Context(), gate, kept, k.verifier)
	wantError(t, err, "the gate says: record 4 is not what it was")
	if _, found := errors.AsType[Difference](err); !found {
		t.Errorf("it is no finding: %v", err)
	}
}

package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/journal"
)

func anyRecord(t *rapid.T, name string) Record {
	text := rapid.StringMatching(`[a-c.\n]{0,3}`)
	r := Record{
		Sequence: rapid.Uint64Range(0, 3).Draw(t, name),
		Previous: rapid.Uint64Range(0, 3).Draw(t, name),
		Subject:  text.Draw(t, name), EventID: text.Draw(t, name), Type: text.Draw(t, name),
	}
	r.Payload[0] = rapid.ByteRange(0, 2).Draw(t, name)
	if rapid.Bool().Draw(t, name) {
		r.Time = time.Unix(rapid.Int64Range(-2, 2).Draw(t, name), rapid.Int64Range(0, 2).Draw(t, name)*1000).UTC()
	}
	return r
}

func TestDifferentRecordsHaveDifferentLeaves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyRecord(t, "a"), anyRecord(t, "b")
		if (string(a.Leaf()) == string(b.Leaf())) != (a == b) {
			t.Fatalf("%+v and %+v", a, b)
		}
	})
}

func TestARecordReadsBackAsItWasSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyRecord(t, "r")
		got, err := FromProto(want.Proto(7))
		if err != nil || got != want {
			t.Fatalf("got %+v, %v, want %+v", got, err, want)
		}
	})
}

// The leaf is a contract with everyone who keeps a checkpoint: it must never
// change.
func TestTheLeafStaysAsItIs(t *testing.T) {
	r := Record{
		Sequence: 5, Previous: 3, Subject: "weir.gate.acme.policy.p", EventID: "e1", Type: "weir.gate.v1.PolicyPut",
		Time: time.Date(2026, 11, 30, 12, 0, 0, 1000, time.UTC), Payload: sha256.Sum256([]byte("x")),
	}
	const want = "776569722f676174652f61756469742f7265636f72642f76310a" + // domain
		"0000000000000005" + "0000000000000003" +
		"0000000000000017" + "776569722e676174652e61636d652e706f6c6963792e70" +
		"0000000000000002" + "6531" +
		"0000000000000016" + "776569722e676174652e76312e506f6c696379507574" +
		"01" + "000000006b0d6540" + "000003e8" +
		"2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
	if got := hex.EncodeToString(r.Leaf()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestARecordThatIsNotWellFormedIsRefused(t *testing.T) {
	good := strings.Repeat("ab", 32)
	for name, m := range map[string]*gatev1.Record{
		"no digest":         {},
		"a short digest":    {PayloadDigest: good[2:]},
		"a long digest":     {PayloadDigest: good + "ab"},
		"upper case":        {PayloadDigest: strings.ToUpper(good)},
		"not hex":           {PayloadDigest: strings.Repeat("xy", 32)},
		"a time before all": {PayloadDigest: good, EventTime: &timestamppb.Timestamp{Seconds: -1 << 60}},
		"the zero time":     {PayloadDigest: good, EventTime: timestamppb.New(time.Time{})},
	} {
		if r, err := FromProto(m); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestWhatCannotBeReadHasARecordThatCoversAllOfIt(t *testing.T) {
	header := func(values ...string) nats.Header {
		h := nats.Header{}
		for i := 0; i < len(values); i += 2 {
			h.Add(values[i], values[i+1])
		}
		return h
	}
	const subject = "weir.gate.acme.check.x"
	messages := map[string]journal.Stored{
		"nothing":         {Subject: subject},
		"data":            {Subject: subject, Data: []byte("a")},
		"other data":      {Subject: subject, Data: []byte("b")},
		"a header":        {Subject: subject, Header: header("a", "b")},
		"another header":  {Subject: subject, Header: header("a", "c")},
		"two values":      {Subject: subject, Header: header("a", "b", "a", "c")},
		"their order":     {Subject: subject, Header: header("a", "c", "a", "b")},
		"two headers":     {Subject: subject, Header: header("a", "b", "c", "d")},
		"bytes in an id":  {Subject: subject, Header: header("ce-id", "\xff")},
		"other bytes":     {Subject: subject, Header: header("ce-id", "\xfe")},
		"a subject":       {Subject: subject + "%"},
		"bytes":           {Subject: subject + "\xff"},
		"other bytes yet": {Subject: subject + "\xfe"},
	}
	seen := map[[32]byte]string{}
	for name, m := range messages {
		r := RecordOf(m)
		if other, there := seen[[32]byte(r.Hash())]; there {
			t.Errorf("%s and %s have the same leaf", name, other)
		}
		seen[[32]byte(r.Hash())] = name
		if _, err := proto.Marshal(r.Proto(0)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := FromProto(r.Proto(0)); err != nil || got != r {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

func TestEveryTypeOfEventIsShown(t *testing.T) {
	fields := (&gatev1.Event{}).ProtoReflect().Descriptor().Oneofs().ByName("event").Fields()
	known := map[protoreflect.FullName]bool{}
	for i := range fields.Len() {
		field := fields.Get(i)
		known[field.Message().FullName()] = true
		if show[field.Message().FullName()] == nil {
			t.Errorf("%s has no row", field.Message().FullName())
			continue
		}
		e := &gatev1.Event{Actor: "human:ann"}
		e.ProtoReflect().Set(field, protoreflect.ValueOfMessage(e.ProtoReflect().NewField(field).Message()))
		data, err := proto.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		record := &gatev1.Record{Type: string(field.Message().FullName())}
		fill(record, data)
		if record.GetActor() != "human:ann" || record.GetVerdict() == "" {
			t.Errorf("%s shows %v", field.Message().FullName(), record)
		}
		other := &gatev1.Record{Type: "weir.gate.v1.Other"}
		if fill(other, data); other.GetActor() != "" {
			t.Errorf("an event of another type shows %v", other)
		}
	}
	for name := range show {
		if !known[name] {
			t.Errorf("%s is no event", name)
		}
	}
	broken := &gatev1.Record{Type: "weir.gate.v1.PolicyPut"}
	if fill(broken, []byte{0xff}); broken.GetVerdict() != "" {
		t.Errorf("broken bytes show %v", broken)
	}
}

// Package audit is the gate's tamper-evident log: over the events of each tenant
// stands a Merkle tree, and who kept a signed checkpoint of it can prove later
// that nothing before it was changed, reordered or removed.
//
// The journal stays the truth. The trees are built from it when a replica
// starts, so they cost no write and there is nothing to keep in step.
package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/journal"
)

// Record is one event as its leaf covers it.
type Record struct {
	Sequence uint64
	Previous uint64
	Subject  string
	EventID  string
	Type     string
	// Time is zero where the event's headers cannot be read.
	Time time.Time
	// Payload is the SHA-256 of the event's bytes; of its subject and headers
	// too where these cannot be read.
	Payload [sha256.Size]byte
}

// The names that keep these hashes from being taken for any others. A new
// encoding gets a new name.
const (
	leafDomain       = "weir/gate/audit/record/v1\n"
	unreadableDomain = "weir/gate/audit/unreadable/v1\n"
)

// RecordOf makes the record of a stored event. One that cannot be read has a
// record too, with what is there, so that nobody hides an event by spoiling it.
func RecordOf(s journal.Stored) Record {
	event, err := s.Event()
	if err != nil || !utf8.ValidString(event.ID) || !utf8.ValidString(event.Type) || event.Time.IsZero() {
		return Record{
			Sequence: s.Sequence, Payload: unreadablePayload(s),
			Subject: valid(s.Subject), EventID: valid(s.Header.Get("ce-id")), Type: valid(s.Header.Get("ce-type")),
		}
	}
	return Record{
		Sequence: s.Sequence, Previous: event.Previous, Subject: s.Subject,
		EventID: event.ID, Type: event.Type, Time: event.Time, Payload: sha256.Sum256(s.Data),
	}
}

// valid makes bytes from the stream into text that a response can carry.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// unreadablePayload covers the whole message, since the rest of its record may
// say little of it.
func unreadablePayload(s journal.Stored) [sha256.Size]byte {
	sum := sha256.Sum256(s.Data)
	out := appendText(append([]byte(unreadableDomain), sum[:]...), s.Subject)
	for _, name := range slices.Sorted(maps.Keys(s.Header)) {
		for _, value := range s.Header[name] {
			out = appendText(appendText(out, name), value)
		}
	}
	return sha256.Sum256(out)
}

// Leaf is what the tree hashes. Every part is of a fixed length or preceded by
// its length, so two different records never have the same bytes. Sequence and
// previous pin the order: a record that is left out leaves a gap in them.
func (r Record) Leaf() []byte {
	out := make([]byte, 0, len(leafDomain)+len(r.Subject)+len(r.EventID)+len(r.Type)+88)
	out = append(out, leafDomain...)
	out = binary.BigEndian.AppendUint64(out, r.Sequence)
	out = binary.BigEndian.AppendUint64(out, r.Previous)
	out = appendText(out, r.Subject)
	out = appendText(out, r.EventID)
	out = appendText(out, r.Type)
	if r.Time.IsZero() {
		out = append(out, 0)
	} else {
		out = append(out, 1)
		out = binary.BigEndian.AppendUint64(out, uint64(r.Time.Unix()))
		out = binary.BigEndian.AppendUint32(out, uint32(r.Time.Nanosecond()))
	}
	return append(out, r.Payload[:]...)
}

func appendText(out []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint64(out, uint64(len(s))), s...)
}

// Hash is the RFC 6962 hash of the leaf.
func (r Record) Hash() tlog.Hash { return tlog.RecordHash(r.Leaf()) }

// Proto gives the record as auditors receive it, without what is only shown.
func (r Record) Proto(index uint64) *gatev1.Record {
	out := &gatev1.Record{
		Index: index, Sequence: r.Sequence, Previous: r.Previous, Subject: r.Subject,
		EventId: r.EventID, Type: r.Type, PayloadDigest: hex.EncodeToString(r.Payload[:]),
	}
	if !r.Time.IsZero() {
		out.EventTime = timestamppb.New(r.Time)
	}
	return out
}

// FromProto reads what Proto wrote. What Proto never writes is refused, so that
// one record has one form.
func FromProto(m *gatev1.Record) (Record, error) {
	r := Record{
		Sequence: m.GetSequence(), Previous: m.GetPrevious(), Subject: m.GetSubject(),
		EventID: m.GetEventId(), Type: m.GetType(),
	}
	if at := m.GetEventTime(); at != nil {
		if err := at.CheckValid(); err != nil {
			return Record{}, fmt.Errorf("record %d: event_time: %w", m.GetIndex(), err)
		}
		if r.Time = at.AsTime(); r.Time.IsZero() {
			return Record{}, fmt.Errorf("record %d: event_time: the zero time stands for none", m.GetIndex())
		}
	}
	digest := m.GetPayloadDigest()
	sum, err := hex.DecodeString(digest)
	if err != nil || len(sum) != sha256.Size || digest != strings.ToLower(digest) {
		return Record{}, fmt.Errorf("record %d: payload_digest: want %d lower-case hex digits", m.GetIndex(), 2*sha256.Size)
	}
	copy(r.Payload[:], sum)
	return r, nil
}

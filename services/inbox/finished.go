package inbox

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/benbjohnson/immutable"
)

// What outlives a message is its id: enough to answer a retry of its enqueue. An
// inbox may remember hundreds of thousands, so one takes 21 bytes in the document,
// and buckets of bucketSize of them are a field each: an event writes no more than
// the bucket that it adds to.
//
// Ids and fingerprints are kept as the first 8 bytes of a SHA-256. Two ids that meet
// by accident, at about one in 10¹⁴ for each new message, are one id for the later
// one: as other content under it IDEMPOTENCY_MISMATCH, never lost in silence.

const (
	bucketSize = 64
	// maxBuckets bounds the ids of an inbox: beyond it the oldest are forgotten.
	maxBuckets = 4096
	// forgetAtOnce bounds the buckets that one event forgets ids of. It is more than
	// one event's messages fill, so the ids never get ahead of it.
	forgetAtOnce = 4
	// endedBytes is one id in the document: hashes of id and fingerprint, the second
	// of the end, and which end.
	endedBytes = 8 + 8 + 4 + 1
)

// ended is one message that is not live any more.
type ended struct {
	id    uint64 // hash
	print uint64 // the start of its fingerprint
	at    uint32 // Unix seconds, rounded up
	as    uint8  // standing
}

// before says that it ended before a time. Years before 1970 have no message.
func (e ended) before(t time.Time) bool { return int64(e.at) < t.Unix() }

// finished is the ids of an inbox. It is persistent. Buckets are in the order of
// their numbers, and what is in them in the order of the ends.
type finished struct {
	buckets *immutable.SortedMap[uint64, []ended]
	// byID gives the bucket that an id is in, the newest if in several.
	byID  *immutable.SortedMap[uint64, uint64]
	count int
	first uint64 // the oldest bucket
	next  uint64 // the bucket behind the newest
}

func newFinished() finished {
	return finished{
		buckets: immutable.NewSortedMap[uint64, []ended](comparer[uint64](cmp.Compare[uint64])),
		byID:    immutable.NewSortedMap[uint64, uint64](comparer[uint64](cmp.Compare[uint64])),
	}
}

func hashID(id string) uint64 {
	sum := sha256.Sum256([]byte(id))
	return binary.BigEndian.Uint64(sum[:])
}

// printOf shortens a fingerprint. It is one of ours, and a hash already.
func printOf(fingerprint []byte) uint64 {
	if len(fingerprint) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(fingerprint)
}

// second is a time in whole seconds, rounded up: an id is never kept too short.
func second(t time.Time) uint32 {
	s := t.Unix()
	if t.Nanosecond() > 0 {
		s++
	}
	return uint32(s)
}

// find gives what is known of an id.
func (f finished) find(id string) (ended, bool) {
	hash := hashID(id)
	number, ok := f.byID.Get(hash)
	if !ok {
		return ended{}, false
	}
	bucket, _ := f.buckets.Get(number)
	for _, e := range slices.Backward(bucket) {
		if e.id == hash {
			return e, true
		}
	}
	return ended{}, false
}

// oldest is the id that is forgotten next.
func (f finished) oldest() (ended, bool) {
	bucket, ok := f.buckets.Get(f.first)
	if !ok {
		return ended{}, false
	}
	return bucket[0], true
}

// with adds an id, and gives the number of the bucket that it is in.
func (f finished) with(e ended) (finished, uint64) {
	number := f.next
	var bucket []ended
	if f.next > f.first {
		if last, _ := f.buckets.Get(f.next - 1); len(last) < bucketSize {
			number, bucket = f.next-1, last
		}
	}
	// A copy: the bucket before belongs to the state before.
	bucket = append(make([]ended, 0, len(bucket)+1), bucket...)
	f.buckets = f.buckets.Set(number, append(bucket, e))
	f.byID = f.byID.Set(e.id, number)
	f.next = number + 1
	f.count++
	return f, number
}

// without forgets the first n ids of the oldest bucket.
func (f finished) without(n int) finished {
	bucket, _ := f.buckets.Get(f.first)
	for _, e := range bucket[:n] {
		if number, _ := f.byID.Get(e.id); number == f.first {
			f.byID = f.byID.Delete(e.id)
		}
	}
	// An id that is there twice is still known by the later one.
	for _, e := range bucket[n:] {
		if _, ok := f.byID.Get(e.id); !ok {
			f.byID = f.byID.Set(e.id, f.first)
		}
	}
	f.count -= n
	if n < len(bucket) {
		f.buckets = f.buckets.Set(f.first, slices.Clone(bucket[n:]))
		return f
	}
	f.buckets = f.buckets.Delete(f.first)
	f.first++
	return f
}

// forget drops ids of messages that ended before a time, and all beyond the cap,
// and tells the buckets that changed.
func (f finished) forget(before time.Time, changed func(uint64)) finished {
	for range forgetAtOnce {
		bucket, ok := f.buckets.Get(f.first)
		if !ok {
			break
		}
		n := 0
		for n < len(bucket) && !before.IsZero() && bucket[n].before(before) {
			n++
		}
		if n == 0 {
			break
		}
		changed(f.first)
		partly := n < len(bucket)
		if f = f.without(n); partly {
			break
		}
	}
	return f
}

// bounded drops the oldest buckets beyond a cap.
func (f finished) bounded(most uint64, changed func(uint64)) finished {
	for f.next-f.first > most {
		changed(f.first)
		bucket, _ := f.buckets.Get(f.first)
		f = f.without(len(bucket))
	}
	return f
}

func finishedFieldOf(number uint64) string { return finishedField + strconv.FormatUint(number, 10) }

func parseFinishedField(name string) (uint64, bool) {
	text, ok := strings.CutPrefix(name, finishedField)
	if !ok {
		return 0, false
	}
	number, err := strconv.ParseUint(text, 10, 64)
	return number, err == nil
}

func encodeBucket(bucket []ended) []byte {
	data := make([]byte, 0, len(bucket)*endedBytes)
	for _, e := range bucket {
		data = binary.BigEndian.AppendUint64(data, e.id)
		data = binary.BigEndian.AppendUint64(data, e.print)
		data = binary.BigEndian.AppendUint32(data, e.at)
		data = append(data, e.as)
	}
	return data
}

func decodeBucket(content string) ([]ended, error) {
	if len(content) == 0 || len(content)%endedBytes != 0 || len(content) > bucketSize*endedBytes {
		return nil, errors.New("it is no bucket of finished ids")
	}
	bucket := make([]ended, 0, len(content)/endedBytes)
	for data := []byte(content); len(data) > 0; data = data[endedBytes:] {
		e := ended{
			id:    binary.BigEndian.Uint64(data),
			print: binary.BigEndian.Uint64(data[8:]),
			at:    binary.BigEndian.Uint32(data[16:]),
			as:    data[20],
		}
		if e.as < uint8(done) || int(e.as) >= standings {
			return nil, errors.New("it holds an end that there is not")
		}
		bucket = append(bucket, e)
	}
	return bucket, nil
}

// decodeFinished puts buckets together. Their numbers must be without a gap.
func decodeFinished(buckets map[uint64][]ended) (finished, error) {
	f := newFinished()
	numbers := make([]uint64, 0, len(buckets))
	for number := range buckets {
		numbers = append(numbers, number)
	}
	slices.Sort(numbers)
	in := immutable.NewSortedMapBuilder[uint64, []ended](comparer[uint64](cmp.Compare[uint64]))
	byID := immutable.NewSortedMapBuilder[uint64, uint64](comparer[uint64](cmp.Compare[uint64]))
	for i, number := range numbers {
		if number != numbers[0]+uint64(i) {
			return f, errors.New("a bucket of finished ids is missing")
		}
		in.Set(number, buckets[number])
		for _, e := range buckets[number] {
			byID.Set(e.id, number)
		}
		f.count += len(buckets[number])
	}
	f.buckets, f.byID = in.Map(), byID.Map()
	if len(numbers) > 0 {
		f.first, f.next = numbers[0], numbers[0]+uint64(len(numbers))
	}
	return f, nil
}

package conversation

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/benbjohnson/immutable"
)

// idHash is what the state keeps of a message id. A conversation of a million
// messages could not keep the ids themselves: with their fingerprints they are
// ten times as much. Ids are hashed by the start of a SHA-256, so that nobody can
// make many of them meet. Two that do meet are told apart when the message is
// read; the later one is refused, as an id that is taken.
type idHash uint64

func hashID(id string) idHash {
	sum := sha256.Sum256([]byte(id))
	return idHash(binary.BigEndian.Uint64(sum[:]))
}

// ids finds positions by hash. It is persistent: with leaves the one it is called
// on as it was. Sorted levels double in size, so that adding is cheap and finding
// looks into some twenty of them at most.
type ids struct {
	// runs is what the levels are made of when they are needed first. Many who
	// read a conversation never look for an id.
	runs  *immutable.Map[int64, []place]
	built *sync.Once
	// levels is behind a pointer because copies of ids share what one of them built.
	levels *[]level
}

type level []known

type known struct {
	hash     idHash
	position int64
}

func (k known) compare(other known) int { return cmp.Compare(k.hash, other.hash) }

// newIDs indexes the messages of some runs.
func newIDs(runs *immutable.Map[int64, []place]) ids {
	return ids{runs: runs, built: &sync.Once{}, levels: new([]level)}
}

func (i ids) all() []level {
	if i.built == nil {
		return nil
	}
	i.built.Do(func() {
		if i.runs == nil {
			return
		}
		var first level
		for itr := i.runs.Iterator(); !itr.Done(); {
			run, places, _ := itr.Next()
			for n, p := range places {
				if p.exists() {
					first = append(first, known{p.ID, run*runLength + int64(n) + 1})
				}
			}
		}
		slices.SortFunc(first, known.compare)
		*i.levels = []level{first}
	})
	return *i.levels
}

// find gives the position of a message by its id's hash.
func (i ids) find(hash idHash) (int64, bool) {
	for _, l := range i.all() {
		if at, found := slices.BinarySearchFunc(l, known{hash: hash}, known.compare); found {
			return l[at].position, true
		}
	}
	return 0, false
}

// with adds a message.
func (i ids) with(hash idHash, position int64) ids {
	levels := slices.Clone(i.all())
	last := level{{hash, position}}
	for len(levels) > 0 && len(levels[len(levels)-1]) <= len(last) {
		last = merge(levels[len(levels)-1], last)
		levels = levels[:len(levels)-1]
	}
	levels = append(levels, last)
	done := &sync.Once{}
	done.Do(func() {})
	return ids{built: done, levels: &levels}
}

func merge(a, b level) level {
	out := make(level, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if a[0].compare(b[0]) <= 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return append(append(out, a...), b...)
}

package audit

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/mod/sumdb/tlog"

	"weir/internal/fault"
	"weir/internal/journal"
)

const (
	// coverPatience bounds how long a call waits for this replica to hear what
	// was recorded before the call. Events arrive within milliseconds.
	coverPatience = 5 * time.Second
	// askAgain is how often a waiting call looks whether there is still
	// something to wait for.
	askAgain = 250 * time.Millisecond
	// leaderTries is how often the journal is asked for its end before one that
	// lies behind what was read from it is believed.
	leaderTries = 4
	// resume is the pause before the log follows a stream that broke off.
	resume = 200 * time.Millisecond
)

// Log is this replica's view of all tenants' trees. It owns them: only Run adds
// to them, in the order of the stream, each event once.
type Log struct {
	consumer *journal.Consumer
	journal  *journal.Journal
	log      *slog.Logger

	mu    sync.RWMutex
	trees map[string]*Tree // by the tenant as subjects spell it
	// applied is the sequence of the last event that is in its tree.
	applied uint64
	// ready is set for good once the log has caught up with the journal.
	ready bool
	// moved is closed when applied or ready changes; nil while nobody waits.
	moved chan struct{}
}

// NewLog makes an empty log. The consumer must see the whole stream of the
// journal: its filter is all of the gate's subjects, or none.
func NewLog(consumer *journal.Consumer, j *journal.Journal, log *slog.Logger) *Log {
	return &Log{consumer: consumer, journal: j, log: log, trees: make(map[string]*Tree)}
}

// Run builds the trees and follows the journal until ctx ends.
func (l *Log) Run(ctx context.Context) error {
	for {
		l.mu.RLock()
		next := l.applied + 1
		l.mu.RUnlock()
		err := l.consumer.Tail(ctx, next, l.add, l.caughtUp)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			l.log.Warn("audit log interrupted, trying on", "from", next, "error", err)
		}
		if journal.Pause(ctx, resume) != nil {
			return nil
		}
	}
}

// add puts an event into its tenant's tree. It does not ask whether sequences
// are missing: what was purged is in no tree any more, and shows when a tree that
// was built without it meets a kept checkpoint.
func (l *Log) add(s journal.Stored) error {
	tenant, ok := tenantOf(s.Subject)
	if !ok {
		// The stream takes no such subject.
		l.log.Error("an event names no tenant and is in no audit tree", "sequence", s.Sequence)
	}
	leaf := RecordOf(s).Hash()
	l.mu.Lock()
	defer l.mu.Unlock()
	if ok {
		tree := l.trees[tenant]
		if tree == nil {
			tree = &Tree{}
			l.trees[tenant] = tree
		}
		if err := tree.Add(leaf, s.Sequence); err != nil {
			return err
		}
	}
	l.applied = s.Sequence
	l.wake()
	return nil
}

func (l *Log) caughtUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready {
		l.ready = true
		l.log.Info("audit log built", "sequence", l.applied, "tenants", len(l.trees))
	}
	l.wake()
}

// wake must be called with mu held.
func (l *Log) wake() {
	if l.moved != nil {
		close(l.moved)
		l.moved = nil
	}
}

// tenantOf reads weir.<service>.<tenant>.<kind>.<id> without unescaping: an id
// that nobody could have written still lies with its tenant.
func tenantOf(subject string) (string, bool) {
	parts := strings.Split(subject, ".")
	if len(parts) != 5 || parts[2] == "" {
		return "", false
	}
	return parts[2], true
}

// position gives what has been applied, and a channel that closes when that
// changes.
func (l *Log) position() (applied uint64, ready bool, moved <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.moved == nil {
		l.moved = make(chan struct{})
	}
	return l.applied, l.ready, l.moved
}

// Ready is nil once the trees show the whole journal, as of when Run began.
func (l *Log) Ready() error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if !l.ready {
		return rebuilding("the audit log is being built from the journal")
	}
	return nil
}

func rebuilding(why string) error {
	return fault.New(fault.IndexRebuilding, "%s", why).Retry(time.Second)
}

// Cover waits until every event that was recorded before the call is in its
// tree. A journal that ends before what this replica has read from it is
// EVENT_UNREADABLE: somebody has put another in its place.
func (l *Log) Cover(ctx context.Context) error {
	before, ready, _ := l.position()
	if !ready {
		return l.Ready()
	}
	ctx, cancel := context.WithTimeout(ctx, coverPatience)
	defer cancel()
	last, err := l.journal.LastSequence(ctx)
	// A leader that was just elected may be behind for a moment.
	for tries := 0; err == nil && last < before && tries < leaderTries && journal.Pause(ctx, askAgain) == nil; tries++ {
		last, err = l.journal.LastSequence(ctx)
	}
	if err != nil {
		return err
	}
	if last < before {
		return fault.New(fault.EventUnreadable, "the journal ends at event %d, but event %d was read from it before", last, before)
	}
	for {
		applied, _, moved := l.position()
		if applied >= last {
			return nil
		}
		timer := time.NewTimer(askAgain)
		select {
		case <-moved:
		case <-timer.C:
			// The last events may have been purged; then nothing comes.
			if behind, err := l.journal.Behind(ctx, applied); err != nil || !behind {
				return err
			}
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return rebuilding("this replica has not heard the newest events yet")
		}
	}
}

// read calls fn with a tenant's tree, which must not be kept. A tenant without
// events has an empty one.
func (l *Log) read(tenant string, fn func(*Tree) error) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	tree := l.trees[journal.Escape(tenant)]
	if tree == nil {
		tree = &Tree{}
	}
	return fn(tree)
}

// Checkpoint is the tenant's tree as it is now.
func (l *Log) Checkpoint(tenant string) (Checkpoint, error) {
	c := Checkpoint{Tenant: tenant}
	err := l.read(tenant, func(t *Tree) (err error) {
		c.Size = t.Size()
		c.Root, err = t.Root(c.Size)
		return err
	})
	return c, err
}

// place is where a record lies and what its hash was when it was read first.
type place struct {
	sequence uint64
	leaf     tlog.Hash
}

// places gives those of up to limit records from an index on, and the size.
func (l *Log) places(tenant string, first int64, limit int) (out []place, size int64) {
	_ = l.read(tenant, func(t *Tree) error {
		size = t.Size()
		if first >= size {
			return nil
		}
		for i, sequence := range t.Sequences(first, limit) {
			out = append(out, place{sequence, t.Leaf(first + int64(i))})
		}
		return nil
	})
	return out, size
}

package conversation

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	conversationv1 "weir/gen/conversation/v1"
	"weir/internal/aggregate"
	"weir/internal/fault"
	"weir/internal/identity"
	"weir/internal/journal"
	"weir/services/conversation/search"
)

const (
	defaultHits = 20
	// indexBatch and indexPause say when what was heard is put into the index: after
	// so many events and messages in them, or when no more came for so long.
	indexBatch = 256
	indexPause = 50 * time.Millisecond
	// indexRetry is how soon what failed is tried again.
	indexRetry = 200 * time.Millisecond
)

// searcher finds messages by their words. Its index belongs to this replica, which
// feeds it from the journal; until it has caught up, there is no search.
type searcher struct {
	open     func() (*search.Index, error)
	consumer *journal.Consumer
	history  *history
	log      *slog.Logger

	mu sync.Mutex
	// index is replaced by an empty one when it is broken.
	index *search.Index
	// ready says that all is indexed that was there when this process began.
	ready bool
	// removed counts the entries that erasures took, by conversation.
	removed map[journal.Key]int64
	// applied is closed when more is in the index, and another takes its place.
	applied chan struct{}
	// erased holds something while the files may hold what was erased.
	erased chan struct{}
}

func newSearcher(open func() (*search.Index, error), consumer *journal.Consumer, h *history, log *slog.Logger) (*searcher, error) {
	index, err := open()
	s := &searcher{
		open: open, index: index, consumer: consumer, history: h, log: log,
		removed: make(map[journal.Key]int64), applied: make(chan struct{}), erased: make(chan struct{}, 1),
	}
	s.purgeSoon() // what the process before left
	return s, err
}

func (s *searcher) purgeSoon() {
	select {
	case s.erased <- struct{}{}:
	default:
	}
}

// purge takes what was erased out of the files too, on each replica, whichever of
// them it is that carries an erasure out.
func (s *searcher) purge(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-s.erased:
		case <-ctx.Done():
			return
		}
		if err := s.current().Purge(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("the search index is not purged, trying on", "error", err)
			s.purgeSoon()
			_ = journal.Pause(ctx, indexRetry)
		}
	}
}

func (s *searcher) current() *search.Index {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index
}

// run feeds the index until ctx ends, and an empty one in its place where it breaks.
func (s *searcher) run(ctx context.Context) error {
	var purging sync.WaitGroup
	purging.Go(func() { s.purge(ctx) })
	defer purging.Wait()
	for ctx.Err() == nil {
		err := s.follow(ctx)
		select {
		case <-s.current().Broken():
			err = errors.Join(err, s.reopen())
		default:
		}
		if err != nil {
			s.log.Warn("the search index is not fed, trying on", "error", err)
		}
		_ = journal.Pause(ctx, indexRetry)
	}
	return nil
}

func (s *searcher) reopen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = false
	if err := s.index.Close(); err != nil {
		s.log.Warn("broken search index not removed", "error", err)
	}
	index, err := s.open()
	if err == nil {
		s.index = index
	}
	return err
}

func (s *searcher) close() error { return s.current().Close() }

// follow reads the stream from behind what the index shows.
func (s *searcher) follow(ctx context.Context) error {
	index := s.current()
	heard := make(chan journal.Stored, indexBatch)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	end := make(chan error, 1)
	caughtUp := make(chan struct{}, 1)
	go func() {
		defer close(heard)
		end <- s.consumer.Tail(ctx, index.Sequence()+1, func(e journal.Stored) error {
			select {
			case heard <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, func() { caughtUp <- struct{}{} })
	}()
	pending := &feeding{searcher: s, index: index}
	timer := time.NewTimer(indexPause)
	defer timer.Stop()
	for {
		select {
		case e, more := <-heard:
			if !more {
				if err := pending.flush(); err != nil {
					return err
				}
				return unlessOver(ctx, <-end)
			}
			if err := pending.take(e); err != nil {
				return err
			}
			timer.Reset(indexPause)
		case <-timer.C:
			if err := pending.flush(); err != nil {
				return err
			}
			select {
			case <-caughtUp:
				s.mu.Lock()
				s.ready = true
				s.mu.Unlock()
			default:
			}
			timer.Reset(indexPause)
		}
	}
}

func unlessOver(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// feeding is events on their way into the index.
type feeding struct {
	*searcher
	index *search.Index
	batch search.Batch
	// size counts events, and the messages in them.
	size     int
	sequence uint64
	erased   []journal.Key
}

// take adds one event. An event that cannot be read is passed over: its
// conversation can't be read either.
func (f *feeding) take(stored journal.Stored) error {
	f.sequence = stored.Sequence
	f.size++
	e, err := stored.Event()
	if err == nil {
		var recorded aggregate.Recorded[*conversationv1.Event]
		if recorded, err = aggregate.Decode[*conversationv1.Event](e); err == nil {
			f.hear(e.Key, recorded)
		}
	}
	if err != nil {
		f.log.Error("an event cannot be indexed", "subject", stored.Subject, "error", err)
	}
	if f.size >= indexBatch {
		return f.flush()
	}
	return nil
}

func (f *feeding) hear(key journal.Key, e aggregate.Recorded[*conversationv1.Event]) {
	if e.Event.GetConversationDeleted() != nil {
		f.batch.RemoveConversation(key.Tenant, key.ID)
		f.erased = append(f.erased, key)
		return
	}
	redacts := e.Event.GetMessagesRedacted() != nil
	for _, r := range heldBy(e, 0).Messages {
		f.size++
		m := r.GetMessage()
		if m.GetErasure() != conversationv1.Erasure_ERASURE_UNSPECIFIED {
			if redacts {
				f.batch.Remove(key.Tenant, key.ID, r.GetPosition())
				f.erased = append(f.erased, key)
			}
			continue
		}
		if text := search.Text(m.GetParts()); text != "" && !redacts {
			f.batch.Add(search.Entry{
				Tenant: key.Tenant, Conversation: key.ID, Position: r.GetPosition(), Sequence: e.Sequence, Text: text,
			})
		}
	}
}

func (f *feeding) flush() error {
	if f.size == 0 {
		return nil
	}
	removed, err := f.index.Apply(&f.batch, f.sequence)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.erased) > 0 {
		f.removed[f.erased[0]] += int64(removed)
		f.purgeSoon()
	}
	close(f.applied)
	f.applied = make(chan struct{})
	f.batch, f.size, f.erased = search.Batch{}, 0, nil
	return nil
}

// forget waits until the index has heard of an erasure and holds nothing of it any
// more, and gives how many entries that took.
func (s *searcher) forget(ctx context.Context, key journal.Key, version uint64) (int64, error) {
	index := s.current()
	for index.Sequence() < version {
		s.mu.Lock()
		applied := s.applied
		s.mu.Unlock()
		if index.Sequence() >= version {
			break
		}
		select {
		case <-applied:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	if err := index.Purge(ctx); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	removed := s.removed[key]
	delete(s.removed, key)
	return removed, nil
}

// find gives a page of messages that match, newest first, of one conversation or of
// all that the caller owns or takes part in.
func (s *searcher) find(ctx context.Context, caller identity.Caller, conversationID, query string, size int, token string) ([]*conversationv1.Message, string, error) {
	words, err := search.ParseQuery(query)
	if err != nil {
		return nil, "", err
	}
	after, err := openCursor(token)
	if err != nil {
		return nil, "", err
	}
	s.mu.Lock()
	ready := s.ready
	s.mu.Unlock()
	if !ready {
		return nil, "", fault.New(fault.IndexRebuilding, "the search index is being built from the journal").Retry(time.Second)
	}
	if size == 0 {
		size = defaultHits
	}
	reach := &reach{searcher: s, caller: caller, known: make(map[string]*conversation)}
	if conversationID != "" {
		if c, err := reach.conversation(ctx, conversationID); err != nil {
			return nil, "", err
		} else if c == nil {
			return nil, "", errConversationNotFound
		}
	}
	var found []*conversationv1.Message
	for {
		hits, err := s.current().Search(ctx, caller.Tenant, conversationID, words, after, size)
		if err != nil {
			return nil, "", fault.From(err)
		}
		for _, hit := range hits {
			after = hit.Cursor()
			m, err := reach.message(ctx, hit)
			if err != nil {
				return nil, "", err
			}
			if m == nil {
				continue
			}
			if found = append(found, m); len(found) == size {
				return found, sealCursor(after), nil
			}
		}
		if len(hits) < size {
			return found, "", nil
		}
	}
}

// reach is what one caller can read, as far as one search asked.
type reach struct {
	*searcher
	caller identity.Caller
	// known is nil for a conversation that the caller can't read.
	known map[string]*conversation
}

// conversation gives one that the caller can read, nil if there is none.
func (r *reach) conversation(ctx context.Context, id string) (*conversation, error) {
	if c, asked := r.known[id]; asked {
		return c, nil
	}
	c, err := r.history.read(ctx, keyOf(r.caller, id), r.caller)
	switch {
	case fault.Is(err, fault.ConversationNotFound):
		r.known[id] = nil
		return nil, nil
	case err != nil:
		return nil, err
	case c.memberOr(r.caller.HasScope(scopeAdmin), r.caller.Subject) != nil:
		// An approver reads what it decides on, and doesn't look through it.
		r.known[id] = nil
		return nil, nil
	}
	r.known[id] = &c
	return &c, nil
}

// message gives what was found, nil where the caller can't read it or it is gone.
func (r *reach) message(ctx context.Context, hit search.Hit) (*conversationv1.Message, error) {
	c, err := r.conversation(ctx, hit.Conversation)
	if err != nil || c == nil || hit.Position > c.Head {
		return nil, err
	}
	messages, err := r.history.cut(ctx, keyOf(r.caller, hit.Conversation), *c, span{hit.Position, hit.Position}, false)
	if fault.Is(err, fault.ConversationNotFound) {
		return nil, nil // deleted since
	}
	if err != nil || messages[0].GetErasure() != conversationv1.Erasure_ERASURE_UNSPECIFIED {
		return nil, err
	}
	return messages[0], nil
}

// sealCursor makes the opaque page token: where to go on.
func sealCursor(c search.Cursor) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatUint(c.Sequence, 36) + "." + strconv.FormatInt(c.Position, 36)))
}

func openCursor(token string) (search.Cursor, error) {
	if token == "" {
		return search.Cursor{}, nil
	}
	if text, err := base64.RawURLEncoding.DecodeString(token); err == nil {
		if head, tail, ok := strings.Cut(string(text), "."); ok {
			sequence, err1 := strconv.ParseUint(head, 36, 64)
			position, err2 := strconv.ParseInt(tail, 36, 64)
			if c := (search.Cursor{Sequence: sequence, Position: position}); err1 == nil && err2 == nil && sealCursor(c) == token {
				return c, nil
			}
		}
	}
	return search.Cursor{}, fault.New(fault.PageTokenInvalid, "the page token is not one that this search gave").
		Field("page_token", "must be a next_page_token of the same search, unchanged")
}

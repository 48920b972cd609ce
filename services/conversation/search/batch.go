package search

import (
	"context"
	"encoding/binary"

	bleve "github.com/blevesearch/bleve_index_api"
)

// Batch is what events of the journal do to the index: all of a range of sequences
// that matter to it, in their order. Of what is said about one entry the last thing
// holds. A batch is written in one piece, so who fills it bounds it.
type Batch struct {
	entries       map[place]*Entry // nil: to be removed
	conversations map[place]bool   // to be removed before
}

// place is where a message stands. Position is 0 for a conversation.
type place struct {
	tenant, conversation string
	position             int64
}

// Add puts an entry in the index, in the place of what it had at this position.
func (b *Batch) Add(e Entry) {
	b.set(place{e.Tenant, e.Conversation, e.Position}, &e)
}

// Remove takes the entry at a position out.
func (b *Batch) Remove(tenant, conversation string, position int64) {
	b.set(place{tenant, conversation, position}, nil)
}

// RemoveConversation takes all entries of a conversation out.
func (b *Batch) RemoveConversation(tenant, conversation string) {
	for p := range b.entries {
		if p.tenant == tenant && p.conversation == conversation {
			delete(b.entries, p)
		}
	}
	if b.conversations == nil {
		b.conversations = make(map[place]bool)
	}
	b.conversations[place{tenant, conversation, 0}] = true
}

func (b *Batch) set(p place, e *Entry) {
	if b.entries == nil {
		b.entries = make(map[place]*Entry)
	}
	b.entries[p] = e
}

// Apply writes a batch that brings the index up to sequence, and returns when it is
// on disk. Removed is how many entries there were of those to remove.
//
// Events may come again after a crash. A batch up to a sequence that the index shows
// changes nothing, so that what was removed since does not come back; one that begins
// before and ends behind it has the same result as if it had begun there.
//
// Entries and sequence become visible and durable at once, but for those of removed
// conversations, which go before in pieces. If that is interrupted, the sequence is
// the old one, and applying again removes the rest.
//
// An error is the end of the index: it is Broken.
func (i *Index) Apply(batch *Batch, sequence uint64) (removed int, err error) {
	if err := i.use(); err != nil {
		return 0, err
	}
	defer i.using.RUnlock()
	i.writing.Lock()
	defer i.writing.Unlock()
	if sequence <= i.sequence.Load() {
		return 0, nil
	}
	for p := range batch.conversations {
		n, err := i.removeConversation(p)
		removed += n
		if err != nil {
			return removed, i.fail(err)
		}
	}
	out, n, err := i.operations(batch, sequence)
	if err == nil {
		err = i.write(out)
	}
	if err != nil {
		return removed, i.fail(err)
	}
	i.sequence.Store(sequence)
	return removed + n, nil
}

// operations says in scorch's words what is to be done for a batch, without its
// removed conversations.
func (i *Index) operations(batch *Batch, sequence uint64) (out *bleve.Batch, removed int, err error) {
	reader, err := i.scorch.Reader()
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = reader.Close() }()
	out = bleve.NewBatch()
	out.SetInternal(sequenceKey, binary.BigEndian.AppendUint64(nil, sequence))
	for p, e := range batch.entries {
		if e != nil {
			out.Update(e.document())
			continue
		}
		id := name(p.tenant, p.conversation, p.position)
		there, err := reader.InternalID(id)
		if err != nil {
			return nil, 0, err
		}
		if there != nil {
			out.Delete(id)
			removed++
		}
	}
	return out, removed, nil
}

// piece is how many entries of a conversation are removed at once.
const piece = 4096

func (i *Index) removeConversation(p place) (removed int, err error) {
	for {
		names, err := i.names(p, piece)
		if err != nil || len(names) == 0 {
			return removed, err
		}
		batch := bleve.NewBatch()
		for _, name := range names {
			batch.Delete(name)
		}
		if err := i.write(batch); err != nil {
			return removed, err
		}
		removed += len(names)
	}
}

// names gives the names of some entries of a conversation.
func (i *Index) names(p place, limit int) ([]string, error) {
	reader, err := i.scorch.Reader()
	if err != nil {
		return nil, err
	}
	defer func() { _ = reader.Close() }()
	word := []byte(conversationName(p.tenant, p.conversation))
	entries, err := reader.TermFieldReader(context.Background(), word, fieldConversation, false, false, false)
	if err != nil {
		return nil, err
	}
	defer func() { _ = entries.Close() }()
	var names []string
	for len(names) < limit {
		entry, err := entries.Next(nil)
		if err != nil || entry == nil {
			return names, err
		}
		name, err := reader.ExternalID(entry.ID)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

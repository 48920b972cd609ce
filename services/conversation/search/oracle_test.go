package search

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// model is the index as a plain map.
type model map[place]Entry

func (m model) apply(b *Batch) (removed int) {
	for p := range m {
		if b.conversations[place{p.tenant, p.conversation, 0}] {
			delete(m, p)
			removed++
		}
	}
	for p, e := range b.entries {
		if e != nil {
			m[p] = *e
			continue
		}
		if _, there := m[p]; there {
			delete(m, p)
			removed++
		}
	}
	return removed
}

// find looks at every entry.
func (m model) find(tenant, conversation string, q Query, after Cursor, size int) []Hit {
	hits := []Hit{}
	for p, e := range m {
		if p.tenant != tenant || conversation != "" && p.conversation != conversation {
			continue
		}
		hit := Hit{p.conversation, p.position, e.Sequence}
		if behind(hit.Cursor(), after) && holds(e.Text, q) {
			hits = append(hits, hit)
		}
	}
	slices.SortFunc(hits, func(a, b Hit) int {
		return cmp.Or(cmp.Compare(b.Sequence, a.Sequence), cmp.Compare(b.Position, a.Position))
	})
	return hits[:min(size, len(hits))]
}

func behind(c, after Cursor) bool {
	return after == Cursor{} || c.Sequence < after.Sequence ||
		c.Sequence == after.Sequence && c.Position < after.Position
}

// holds is for texts of words between spaces and commas.
func holds(text string, q Query) bool {
	text = " " + strings.Join(strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return r == ' ' || r == ',' }), " ") + " "
	for _, phrase := range q.phrases {
		if !strings.Contains(text, " "+strings.Join(phrase, " ")+" ") {
			return false
		}
	}
	return true
}

var (
	tenants       = rapid.SampledFrom([]string{"t", "T", "t.a"})
	conversations = rapid.SampledFrom([]string{"a.b", "A.b", "a-b", "b", "a/b", "a%2Fb"})
	vocabulary    = rapid.SampledFrom([]string{"a", "A", "b", "Äther", "äther"})
	gaps          = rapid.SampledFrom([]string{" ", "  ", ", "})
)

func drawText(t *rapid.T, longest int, label string) string {
	var text strings.Builder
	for n := range rapid.IntRange(0, longest).Draw(t, label+" length") {
		if n > 0 {
			text.WriteString(gaps.Draw(t, "gap"))
		}
		text.WriteString(vocabulary.Draw(t, label))
	}
	return text.String()
}

// drawQuery draws one that is valid.
func drawQuery(t *rapid.T) Query {
	var text string
	for range rapid.IntRange(1, 3).Draw(t, "words and phrases") {
		if rapid.Bool().Draw(t, "as a phrase") {
			text += ` "` + vocabulary.Draw(t, "word") + " " + drawText(t, 3, "phrase") + `"`
		} else {
			text += " " + vocabulary.Draw(t, "word")
		}
	}
	q, err := ParseQuery(text)
	if err != nil {
		t.Fatalf("ParseQuery(%q): %v", text, err)
	}
	return q
}

// oracle is an index and what it should be.
type oracle struct {
	folder string
	index  *Index
	model  model
	events []func(*Batch) // event s at s-1
}

// more makes up some events that come next.
func (o *oracle) more(t *rapid.T) {
	for range rapid.IntRange(1, 12).Draw(t, "events") {
		sequence := uint64(len(o.events)) + 1
		tenant, conversation := tenants.Draw(t, "tenant"), conversations.Draw(t, "conversation")
		position := rapid.Int64Range(1, 12)
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0:
			o.events = append(o.events, func(b *Batch) { b.RemoveConversation(tenant, conversation) })
		case 1:
			at := position.Draw(t, "position")
			o.events = append(o.events, func(b *Batch) { b.Remove(tenant, conversation, at) })
		default:
			// One event may say several things.
			var entries []Entry
			for range rapid.IntRange(1, 3).Draw(t, "entries") {
				entries = append(entries, Entry{tenant, conversation, position.Draw(t, "position"), sequence, drawText(t, 8, "text")})
			}
			o.events = append(o.events, func(b *Batch) {
				for _, e := range entries {
					b.Add(e)
				}
			})
		}
	}
}

// batch holds the events from one sequence to another.
func (o *oracle) batch(from, to uint64) *Batch {
	var b Batch
	for s := from; s <= to; s++ {
		o.events[s-1](&b)
	}
	return &b
}

// apply applies what comes next, and sometimes some of what came before with it.
func (o *oracle) apply(t *rapid.T) {
	shown := o.index.Sequence()
	o.more(t)
	first := shown + 1
	if rapid.IntRange(0, 2).Draw(t, "overlap") == 0 {
		first = rapid.Uint64Range(1, first).Draw(t, "first")
	}
	last := uint64(len(o.events))
	got, err := o.index.Apply(o.batch(first, last), last)
	if err != nil {
		t.Fatalf("Apply: %v", err)
	}
	want := o.model.apply(o.batch(shown+1, last))
	if first == shown+1 && got != want {
		t.Fatalf("Apply removed %d, want %d", got, want)
	}
	o.wantSequence(t)
}

// again applies what came before, as a tail does that begins too early.
func (o *oracle) again(t *rapid.T) {
	if len(o.events) == 0 {
		return
	}
	from := rapid.Uint64Range(1, uint64(len(o.events))).Draw(t, "from")
	to := rapid.Uint64Range(from, uint64(len(o.events))).Draw(t, "to")
	if removed, err := o.index.Apply(o.batch(from, to), to); removed != 0 || err != nil {
		t.Fatalf("Apply again: %d, %v", removed, err)
	}
	o.wantSequence(t)
}

func (o *oracle) wantSequence(t *rapid.T) {
	if got, want := o.index.Sequence(), uint64(len(o.events)); got != want {
		t.Fatalf("Sequence is %d, want %d", got, want)
	}
}

// search goes through all pages, while more is added.
func (o *oracle) search(t *rapid.T) {
	q := drawQuery(t)
	tenant := tenants.Draw(t, "tenant")
	conversation := rapid.OneOf(rapid.Just(""), conversations).Draw(t, "conversation")
	size := rapid.IntRange(1, 12).Draw(t, "page")
	var after Cursor
	for {
		got, err := o.index.Search(context.Background(), tenant, conversation, q, after, size)
		if err != nil {
			t.Fatalf("Search: %v", err)
		}
		if want := o.model.find(tenant, conversation, q, after, size); !slices.Equal(got, want) {
			t.Fatalf("Search(%q, %q, %q, %v, %d)\n%v, want\n%v\n%v", tenant, conversation, q.phrases, after, size, got, want, o.model)
		}
		if len(got) < size {
			return
		}
		after = got[size-1].Cursor()
		if rapid.IntRange(0, 3).Draw(t, "meanwhile") == 0 {
			o.apply(t)
		}
	}
}

func (o *oracle) purge(t *rapid.T) { purge(t, o.index) }

func (o *oracle) reopen(t *rapid.T) {
	if err := o.index.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	o.index = mustOpen(t, o.folder)
	o.wantSequence(t)
}

// TestAgainstAScan compares the index with a map that is looked through: after any
// events, also those that come again, after purges, and after closing and opening.
func TestAgainstAScan(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		folder, err := os.MkdirTemp(parent, "")
		if err != nil {
			t.Fatal(err)
		}
		o := &oracle{folder: folder, index: mustOpen(t, folder), model: make(model)}
		defer func() { _ = o.index.Close() }()
		steps := []func(*rapid.T){o.apply, o.apply, o.search, o.search, o.search, o.again, o.purge, o.reopen}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			rapid.SampledFrom(steps).Draw(t, "step")(t)
		}
		o.search(t)
	})
}

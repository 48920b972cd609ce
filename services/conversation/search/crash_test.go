package search

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
)

// childFolder is the variable that makes the test program a child which feeds the
// index in a folder until it is killed.
const childFolder = "WEIR_SEARCH_CRASH"

// event is what the event of a sequence does: every 40th removes a conversation,
// which gets new entries afterwards, every 10th removes an entry, and all others add
// one.
func event(b *Batch, s uint64) {
	conversation := strconv.FormatUint(s/40%3, 10)
	switch {
	case s%40 == 39:
		b.RemoveConversation("t", conversation)
	case s%10 == 0:
		b.Remove("t", conversation, int64(s-3))
	default:
		b.Add(Entry{Tenant: "t", Conversation: conversation, Position: int64(s), Sequence: s, Text: "all " + strconv.FormatUint(s, 10)})
	}
}

// feed applies events in batches of 7, and tells each sequence when it is applied.
func feed(folder string) {
	i, err := Open(folder, stream, quiet)
	for err == nil {
		var batch Batch
		last := i.Sequence()
		for s := last + 1; s <= last+7; s++ {
			event(&batch, s)
		}
		if _, err = i.Apply(&batch, last+7); err == nil {
			fmt.Println(last + 7)
		}
	}
	fmt.Println(err)
}

// TestKilledWhileApplying kills the process that feeds an index, again and again.
// Each time the index opens, has all that was acknowledged, and goes on as if
// nothing had been.
//
// It does not run beside the tests that open and close indexes: a child holds their
// locks from its beginning until it is a program of its own.
func TestKilledWhileApplying(t *testing.T) {
	folder := t.TempDir()
	var acknowledged uint64
	for round := range 5 {
		child := exec.CommandContext(t.Context(), os.Args[0])
		child.Env = append(os.Environ(), childFolder+"="+folder)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; n < 10+round && lines.Scan(); n++ {
			if acknowledged, err = strconv.ParseUint(lines.Text(), 10, 64); err != nil {
				t.Fatalf("the child says %q", lines.Text())
			}
		}
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() {
			if acknowledged, err = strconv.ParseUint(lines.Text(), 10, 64); err != nil {
				t.Fatalf("the child says %q", lines.Text())
			}
		}
		_ = child.Wait()

		i := mustOpen(t, folder)
		if i.Sequence() < acknowledged {
			t.Fatalf("the sequence is %d after %d was acknowledged", i.Sequence(), acknowledged)
		}
		// The batch that came next may have removed conversations already.
		last := i.Sequence() + 7
		apply(t, i, last, func(b *Batch) {
			for s := last - 6; s <= last; s++ {
				event(b, s)
			}
		})
		wantEvents(t, i, last)
		if err := i.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// wantEvents says that the index shows the events up to a sequence and no others.
func wantEvents(t *testing.T, i *Index, last uint64) {
	t.Helper()
	m := make(model)
	for s := range last {
		var b Batch
		event(&b, s+1)
		m.apply(&b)
	}
	q, err := ParseQuery("all")
	if err != nil {
		t.Fatal(err)
	}
	got, err := i.Search(t.Context(), "t", "", q, Cursor{}, int(last))
	if err != nil {
		t.Fatal(err)
	}
	if want := m.find("t", "", q, Cursor{}, int(last)); !slices.Equal(got, want) {
		t.Fatalf("after %d there are %d entries, want %d\n%v\n%v", last, len(got), len(want), got, want)
	}
}

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if isRole, err := runRole(os.Stdin, os.Stdout); isRole {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestEveryReaderIsGivenEveryMessageOnceUnderLoad(t *testing.T) {
	var progress strings.Builder
	r, err := run(t.Context(), options{
		Conversations: 20, Writers: 5, Tails: 5, Rate: 100, For: 2 * time.Second, Dir: t.TempDir(),
	}, &progress)
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	var table strings.Builder
	r.print(&table)
	if err := r.verdict(); err != nil {
		t.Fatalf("%v\n%s", err, table.String())
	}
	if r.written < 20 || r.delivered != 5*r.written || len(r.memory) != samples+1 {
		t.Fatalf("counted\n%s", table.String())
	}
}

// What a reader was not given, was given twice or was given in another order is seen.
func TestALossIsAFailure(t *testing.T) {
	for name, given := range map[string][]uint64{"lost": {1, 2}, "in the wrong place": {1, 3, 2}} {
		l := &load{talks: []*talk{{said: []uint64{1, 2, 3}, read: []*reader{{given: given}}}}}
		if l.judge(); l.counts.lost.Load()+l.counts.strange.Load() == 0 {
			t.Errorf("%s: not seen", name)
		}
	}
	if err := (&result{repeated: 1}).verdict(); err == nil {
		t.Error("a repeated message passes")
	}
}

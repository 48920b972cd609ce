package search

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// messages makes texts of about 100 bytes, of words that are as uneven as those of a
// language: word 0 is in nearly every text, most words are rare.
func messages() func() string {
	random := rand.New(rand.NewPCG(1, 2))
	words := rand.NewZipf(random, 1.1, 4, 50_000)
	return func() string {
		var text strings.Builder
		for text.Len() < 96 {
			text.WriteString("w" + strconv.FormatUint(words.Uint64(), 36) + "xy ")
		}
		return text.String()
	}
}

// fill adds entries to a tenant in batches: every other one to conversation
// "big", the rest to a thousand small ones.
func fill(b testing.TB, i *Index, count, size int) {
	b.Helper()
	text := messages()
	sequence := i.Sequence()
	for n := 0; n < count; n += size {
		var batch Batch
		for range size {
			sequence++
			conversation := "big"
			if sequence%2 == 0 {
				conversation = "small" + strconv.FormatUint(sequence%1000, 10)
			}
			batch.Add(Entry{"acme", conversation, int64(sequence), sequence, text()})
		}
		if _, err := i.Apply(&batch, sequence); err != nil {
			b.Fatal(err)
		}
	}
}

// A machine that is shared tells little by its clock, so what is measured is the time
// on the processor.
func BenchmarkApply(b *testing.B) {
	for _, size := range []int{256, 4096} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			i := open(b, b.TempDir())
			began := processor(b)
			for b.Loop() {
				fill(b, i, 4096, size)
			}
			b.ReportMetric(float64(b.N)*4096/(processor(b)-began).Seconds(), "entries/cpu-s")
		})
	}
}

func BenchmarkSearch(b *testing.B) {
	const entries = 100_000
	i := open(b, b.TempDir())
	before, began := heapInUse(), processor(b)
	fill(b, i, entries, 256)
	b.Logf("%d entries: %v cpu, %.1f MiB of files, %.1f MiB of heap", entries,
		processor(b)-began, mib(filesSize(b, i)), mib(heapInUse()-before))
	for _, query := range []string{"w0xy", "w5xy", "wrsxy", "w0xy w1xy", `"w0xy w1xy"`, `"w5xy w6xy"`} {
		q, err := ParseQuery(query)
		if err != nil {
			b.Fatal(err)
		}
		for _, conversation := range []string{"", "big", "small8"} {
			for _, after := range []Cursor{{}, {Sequence: entries / 2}} {
				b.Run(fmt.Sprintf("%s/in %q/behind %d", query, conversation, after.Sequence), func(b *testing.B) {
					began := processor(b)
					for b.Loop() {
						if _, err := i.Search(b.Context(), "acme", conversation, q, after, 20); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(float64((processor(b)-began).Microseconds())/float64(b.N), "cpu-us/op")
				})
			}
		}
	}
	began = processor(b)
	removed := apply(b, i, i.Sequence()+1, func(b *Batch) { b.RemoveConversation("acme", "big") })
	b.Logf("%d entries removed in %v cpu", removed, processor(b)-began)
	began = processor(b)
	if err := i.Purge(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Logf("purged in %v cpu, %.1f MiB of files left", processor(b)-began, mib(filesSize(b, i)))
}

// processor is how long this process has been on the processor.
func processor(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func heapInUse() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapInuse
}

func filesSize(b *testing.B, i *Index) uint64 {
	b.Helper()
	var size uint64
	err := filepath.WalkDir(i.files, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			size += uint64(info.Size())
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return size
}

func mib(n uint64) float64 { return float64(n) / (1 << 20) }

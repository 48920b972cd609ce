package main

import (
	"math/bits"
	"time"
)

// Latencies are counted in buckets a 64th of their value wide, so a histogram
// has one size however much goes in and is off by less than 1 %.
const (
	bucketBits = 6
	perDouble  = 1 << bucketBits
	buckets    = (64-bucketBits)*perDouble + perDouble
)

// histogram counts latencies. It is not safe for concurrent use.
type histogram struct {
	counts [buckets]uint64
	total  uint64
}

// add counts a latency that n calls had.
func (h *histogram) add(d time.Duration, n int) {
	h.counts[bucketOf(d)] += uint64(n)
	h.total += uint64(n)
}

func (h *histogram) merge(other *histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
	h.total += other.total
}

// quantile is the latency that a share q of all calls did not exceed, 0 when
// there were none.
func (h *histogram) quantile(q float64) time.Duration {
	// The rank rounds up: of two latencies the second is the 99 % one.
	rank := uint64(q*float64(h.total) + 0.999999)
	seen := uint64(0)
	for i, n := range h.counts {
		if seen += n; n > 0 && seen >= rank {
			return middle(i)
		}
	}
	return 0
}

func bucketOf(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < perDouble {
		return int(v)
	}
	shift := bits.Len64(v) - bucketBits - 1
	return shift*perDouble + int(v>>shift)
}

// middle is the value that a bucket's latencies are reported as.
func middle(bucket int) time.Duration {
	if bucket < 2*perDouble {
		return time.Duration(bucket)
	}
	shift := bucket/perDouble - 1
	low := uint64(bucket-shift*perDouble) << shift
	return time.Duration(low + uint64(1)<<(shift-1))
}

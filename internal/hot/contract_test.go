package hot_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"weir/internal/fault"
	"weir/internal/hot"
	"weir/internal/journal"
	"weir/internal/meshtest"
)

// contract is what the store promises on whatever is behind it.
var contract = map[string]func(*testing.T, *server){
	"documents/what was never written is not known":       absent,
	"documents/changes in order":                          changesInOrder,
	"documents/a gap drops the document":                  gap,
	"documents/an old creation does not come back":        oldCreation,
	"documents/put replaces what is older":                put,
	"documents/some fields":                               someFields,
	"documents/any bytes":                                 anyBytes,
	"documents/unreadable bytes are kept":                 unreadableIsKept,
	"documents/what is no document is unreadable":         noDocument,
	"documents/large":                                     large,
	"documents/of another stream or service are not seen": anotherStream,
	"documents/whatever order replicas write in":          anyOrder,
	"documents/hostile ids":                               hostileIDs,
	"documents/scripts are loaded again":                  scriptsFlushed,
	"documents/shows":                                     shows,
	"lists/newest first":                                  newestFirst,
	"lists/a newer row replaces an older one":             rowsReplace,
	"lists/pages":                                         pages,
	"lists/tokens of other lists":                         foreignTokens,
	"lists/the shortest of several":                       chooses,
	"lists/oldest first":                                  oldestFirst,
	"deadlines/each is taken once":                        takenOnce,
	"deadlines/set anew by an append":                     dueMoves,
	"deadlines/postponed":                                 postponed,
	"epochs/begin and complete":                           epochs,
	"epochs/one wins":                                     epochRace,
	"epochs/a flush ends one":                             flushEndsEpoch,
	"epochs/a flush in the middle of a read":              flushInTheMiddle,
	"windows/up to the limit":                             spendToTheLimit,
	"windows/slide":                                       windowSlides,
	"windows/all or none":                                 allWindowsOrNone,
	"windows/a member is counted once":                    countedOnce,
	"windows/the row of the same member":                  rowOfTheSameMember,
	"windows/counted after a rebuild":                     countedAfterARebuild,
	"windows/nothing is counted during a rebuild":         nothingSpentWhileRebuilding,
	"windows/racing spenders":                             racingSpenders,
	"windows/of others":                                   windowsOfOthers,
	"windows/old entries leave":                           oldEntriesLeave,
	"windows/the script is loaded again":                  spendScriptFlushed,
}

func TestContract(t *testing.T) {
	for name, start := range map[string]func(*testing.T) *server{
		"redis": func(t *testing.T) *server {
			r := meshtest.StartRedis(t)
			return &server{url: r.URL(), client: client(t, false, r.Addr())}
		},
		// What a real cluster refuses, such as a script that touches two hash slots,
		// one of a single node refuses too.
		"cluster": func(t *testing.T) *server {
			r := meshtest.StartRedisCluster(t)
			return &server{url: r.URL() + "?addr=" + strings.Replace(r.Addr(), "127.0.0.1", "localhost", 1), client: client(t, true, r.Addr())}
		},
		"miniredis": func(t *testing.T) *server {
			m := miniredis.RunT(t)
			return &server{url: "redis://" + m.Addr(), client: client(t, false, m.Addr())}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			for name, test := range contract {
				t.Run(name, func(t *testing.T) {
					s.flush(t)
					test(t, s)
				})
			}
		})
	}
}

// server is one of the stores that the contract holds for.
type server struct {
	url string
	// client is the test's own way in.
	client redis.UniversalClient
}

func client(t *testing.T, cluster bool, addr string) redis.UniversalClient {
	c := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{addr}, IsClusterMode: cluster})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *server) flush(t testing.TB) {
	t.Helper()
	if err := s.client.FlushAll(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
}

// open opens the tests' part of the store, as one replica does.
func (s *server) open(t testing.TB) *hot.Store {
	t.Helper()
	return s.openAs(t, "test", "stream")
}

func (s *server) openAs(t testing.TB, service, stream string) *hot.Store {
	t.Helper()
	h, err := hot.Open(s.url, service, stream)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// keys are those in Redis, whoever made them.
func (s *server) keys(t testing.TB) []string {
	t.Helper()
	keys, err := s.client.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func key(id string) journal.Key { return journal.Key{Tenant: "acme", Kind: "thing", ID: id} }

// fields makes the content of a document, from name=value pairs.
func fields(pairs ...string) map[string][]byte {
	m := make(map[string][]byte, len(pairs))
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		m[name] = []byte(value)
	}
	return m
}

func set(pairs ...string) hot.Change { return hot.Change{Set: fields(pairs...)} }

func refreshed(t testing.TB, h *hot.Store, k journal.Key, from, to uint64, change hot.Change, row hot.Row, want hot.Applied) {
	t.Helper()
	got, err := h.Refresh(t.Context(), k, from, to, change, row)
	if err != nil {
		t.Fatalf("refresh %s to %d: %v", k, to, err)
	}
	if got != want {
		t.Fatalf("refresh %s from %d to %d gave %d, want %d", k, from, to, got, want)
	}
}

func wasPut(t testing.TB, h *hot.Store, k journal.Key, version uint64, row hot.Row, pairs ...string) {
	t.Helper()
	if err := h.Put(t.Context(), k, version, fields(pairs...), row); err != nil {
		t.Fatalf("put %s at %d: %v", k, version, err)
	}
}

// wantDocument says what the document holds; version 0 and nothing where it is
// not known.
func wantDocument(t testing.TB, h *hot.Store, k journal.Key, version uint64, pairs ...string) {
	t.Helper()
	d, err := h.Read(t.Context(), k)
	if err != nil {
		t.Fatalf("read %s: %v", k, err)
	}
	want := make(map[string]string, len(pairs))
	for name, value := range fields(pairs...) {
		want[name] = string(value)
	}
	if d.Version != version || fmt.Sprint(d.Fields) != fmt.Sprint(want) {
		t.Fatalf("%s is %v at %d, want %v at %d", k, d.Fields, d.Version, want, version)
	}
}

func wantReason(t testing.TB, err error, want fault.Reason) {
	t.Helper()
	if !fault.Is(err, want) {
		t.Fatalf("got %v, want %s", err, want)
	}
}

// in is a row that stands in lists, with its version as the score.
func in(version uint64, lists ...string) hot.Row {
	var row hot.Row
	for _, list := range lists {
		row.Entries = append(row.Entries, hot.Entry{Set: list, Score: version})
	}
	return row
}

func due(at time.Time) hot.Row { return hot.Row{HasDue: true, Due: at} }

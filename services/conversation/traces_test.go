package conversation

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	zap "github.com/blevesearch/zapx/v17"
	"github.com/nats-io/nats.go/jetstream"
)

// watched is a service whose index and logs a test can search for what was erased.
type watched struct {
	*mesh
	index string
	logs  *logs
}

func newWatched(t testing.TB) *watched {
	return &watched{mesh: newMesh(t), index: t.TempDir(), logs: &logs{}}
}

// config makes a replica write where the test looks.
func (w *watched) config(cfg *Config) {
	cfg.Index = w.index
	cfg.Serve.Logger = slog.New(slog.NewJSONHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// logs are all lines that were logged.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logs) holds(word string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), word)
}

// inStreams gives the streams of which some live message holds a word: journals and
// buckets of snapshots.
func (m *mesh) inStreams(word string) []string { return m.streams().holding(word) }

// allStreams are all live messages, by stream.
type allStreams map[string][][]byte

func (m *mesh) streams() allStreams {
	m.t.Helper()
	js, err := jetstream.New(m.nats.Connect())
	if err != nil {
		m.t.Fatal(err)
	}
	ctx := context.Background()
	all := allStreams{}
	names := js.StreamNames(ctx)
	for name := range names.Name() {
		stream, err := js.Stream(ctx, name)
		if err != nil {
			m.t.Fatal(err)
		}
		state := stream.CachedInfo().State
		for sequence := state.FirstSeq; state.Msgs > 0 && sequence <= state.LastSeq; sequence++ {
			msg, err := stream.GetMsg(ctx, sequence)
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				continue
			}
			if err != nil {
				m.t.Fatal(err)
			}
			all[name] = append(all[name], msg.Data, []byte(fmt.Sprint(msg.Subject, msg.Header)))
		}
	}
	if err := names.Err(); err != nil {
		m.t.Fatal(err)
	}
	return all
}

func (s allStreams) holding(word string) []string {
	var found []string
	for name, messages := range s {
		if slices.ContainsFunc(messages, func(data []byte) bool { return holds(data, word) }) {
			found = append(found, name)
		}
	}
	return found
}

var quoted = regexp.MustCompile(`"([A-Za-z0-9+/]{8,}={0,2})"`)

// holds says whether a message holds a word, also where it is packed as snapshots are.
func holds(data []byte, word string) bool {
	if bytes.Contains(data, []byte(word)) {
		return true
	}
	if zip, err := gzip.NewReader(bytes.NewReader(data)); err == nil {
		if data, err = io.ReadAll(zip); err == nil {
			return holds(data, word)
		}
	}
	for _, text := range quoted.FindAllSubmatch(data, -1) {
		if plain, err := base64.StdEncoding.DecodeString(string(text[1])); err == nil && bytes.Contains(plain, []byte(word)) {
			return true
		}
	}
	return false
}

// inRedis gives the keys that hold a word, in their names or in what they are.
func (m *mesh) inRedis(word string) []string {
	m.t.Helper()
	client := m.redis.Client()
	defer func() { _ = client.Close() }()
	ctx := context.Background()
	var found []string
	keys := client.Scan(ctx, 0, "", 1000).Iterator()
	for keys.Next(ctx) {
		key := keys.Val()
		var value any
		var err error
		switch kind := client.Type(ctx, key).Val(); kind {
		case "string":
			value, err = client.Get(ctx, key).Result()
		case "hash":
			value, err = client.HGetAll(ctx, key).Result()
		case "zset":
			value, err = client.ZRangeWithScores(ctx, key, 0, -1).Result()
		case "none": // it ran out
		default:
			m.t.Fatalf("key %s is a %s, which nobody looks into", key, kind)
		}
		if err != nil {
			m.t.Fatal(err)
		}
		if strings.Contains(key+fmt.Sprint(value), word) {
			found = append(found, key)
		}
	}
	if err := keys.Err(); err != nil {
		m.t.Fatal(err)
	}
	return found
}

// inFiles gives the files of a folder that hold a word.
func inFiles(t testing.TB, folder, word string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil || entry.IsDir() {
			return err
		}
		body, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if bytes.Contains(body, []byte(word)) || filepath.Ext(path) == ".zap" && inSegment(t, path, word) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// inSegment asks a segment of the search index for its words: it keeps them as paths
// through an automaton, in which no search of its bytes finds them.
func inSegment(t testing.TB, path, word string) bool {
	t.Helper()
	segment, err := (&zap.ZapPlugin{}).Open(path)
	if os.IsNotExist(err) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = segment.Close() }()
	for _, field := range segment.Fields() {
		dictionary, err := segment.Dictionary(field)
		if err != nil {
			t.Fatal(err)
		}
		words := dictionary.AutomatonIterator(nil, nil, nil)
		for {
			entry, err := words.Next()
			if err != nil {
				t.Fatal(err)
			}
			if entry == nil {
				break
			}
			if strings.Contains(entry.Term, word) {
				return true
			}
		}
	}
	return false
}

// wantFound fails unless a search that must later find nothing finds something now.
func wantFound(t testing.TB, where, word string, found []string) {
	t.Helper()
	if len(found) == 0 {
		t.Fatalf("%q is not found in %s before it is erased, so this test cannot fail", word, where)
	}
}

// wantErased fails where anything is left of words in any store or log.
func (w *watched) wantErased(words ...string) {
	w.t.Helper()
	streams := w.streams()
	for _, word := range words {
		for where, found := range map[string][]string{
			"streams": streams.holding(word), "redis": w.inRedis(word), "the search index": inFiles(w.t, w.index, word),
		} {
			if len(found) > 0 {
				w.t.Errorf("%q is in %s after the erasure: %v", word, where, found)
			}
		}
		if w.logs.holds(word) {
			w.t.Errorf("%q is in the logs", word)
		}
	}
	if !w.logs.holds("conversation") {
		w.t.Error("nothing was logged, so that nothing is found there says nothing")
	}
}

package watched

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTheLastGoodContentStaysInForce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var (
		now    = time.Now()
		logged bytes.Buffer
		other  = errors.New("the file it belongs to isn't there")
		broken error
	)
	write := func(content string) {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open := func() (*File[string], error) {
		return Open(path, slog.New(slog.NewTextHandler(&logged, nil)), func() time.Time { return now },
			func(data []byte) (string, error) { return string(data), broken })
	}
	if _, err := open(); err == nil {
		t.Fatal("opened a file that isn't there")
	}
	write("one")
	file, err := open()
	if err != nil {
		t.Fatal(err)
	}
	expect := func(step, value string, epoch uint64, lines int) {
		t.Helper()
		got := file.Get()
		if got.Value != value || got.Epoch != epoch {
			t.Errorf("%s: %q of epoch %d, want %q of %d", step, got.Value, got.Epoch, value, epoch)
		}
		if n := strings.Count(logged.String(), "\n"); n != lines {
			t.Errorf("%s: %d lines logged, want %d:\n%s", step, n, lines, &logged)
		}
	}

	expect("opened", "one", 1, 0)
	write("two, longer")
	expect("within the second", "one", 1, 0)
	now = now.Add(lookEvery)
	expect("a second later", "two, longer", 2, 0)
	now = now.Add(lookEvery)
	expect("unchanged", "two, longer", 2, 0)

	broken = other
	write("three, longer still")
	now = now.Add(lookEvery)
	expect("broken", "two, longer", 2, 1)
	now = now.Add(lookEvery)
	expect("still broken", "two, longer", 2, 1)
	broken = nil // the file itself didn't change
	now = now.Add(lookEvery)
	expect("mended elsewhere", "three, longer still", 3, 1)

	os.Remove(path)
	now = now.Add(lookEvery)
	expect("deleted", "three, longer still", 3, 2)
}

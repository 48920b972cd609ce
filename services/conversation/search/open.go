package search

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	bleve "github.com/blevesearch/bleve_index_api"
)

// format is the version of everything that decides what is in the files: the
// fields, the analyzer, what Text takes from a message. Who changes one of these
// counts it up, and every index is begun anew.
const format = "1"

// What an index says about itself is kept among scorch's internal values, which are
// written with the entries of the same batch.
var (
	identityKey = []byte("weir.identity")
	sequenceKey = []byte("weir.sequence")
)

// ErrInUse is that the folder's index is open already, in this process or another.
var ErrInUse = errors.New("search: the index is in use by another process")

// Open opens the index in a folder, or makes it. The index belongs to a stream of
// the journal, by a name that tells it from every other stream, also from one that
// was removed and made again. What is in the folder is removed, and the index
// begun anew with Sequence 0, if it is of another stream or format or is damaged;
// to know, Open reads all of it once.
func Open(folder, stream string, log *slog.Logger) (*Index, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	lock, err := lockFolder(folder)
	if err != nil {
		return nil, err
	}
	identity := format + " " + stream
	log = log.With("index", folder)
	i, err := load(folder, identity, log)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			log.Warn("the search index is begun anew", "reason", err)
		}
		i, err = create(folder, identity, log)
	}
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("search: %w", err)
	}
	i.lock = lock
	return i, nil
}

// filesIn is the part of an index's folder that is scorch's.
func filesIn(folder string) string { return filepath.Join(folder, "index") }

// lockFolder takes the folder for this process. The lock is apart from the files of
// the index, so that they can be removed while it is held, and the kernel lets go
// of it when the process ends.
func lockFolder(folder string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return lock, nil
	}
	_ = lock.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("%w: %s", ErrInUse, folder)
	}
	return nil, fmt.Errorf("search: locking %s: %w", folder, err)
}

// load opens what is there.
func load(folder, identity string, log *slog.Logger) (*Index, error) {
	if err := removeTorn(filesIn(folder)); err != nil {
		return nil, err
	}
	i, err := start(filesIn(folder), log)
	if err != nil {
		return nil, err
	}
	sequence, err := i.recall(identity)
	if err != nil {
		_ = i.stop()
		return nil, err
	}
	i.sequence.Store(sequence)
	return i, nil
}

// recall reads what the index says about itself.
func (i *Index) recall(identity string) (sequence uint64, err error) {
	reader, err := i.scorch.Reader()
	if err != nil {
		return 0, err
	}
	defer func() { _ = reader.Close() }()
	found, err := reader.GetInternal(identityKey)
	if err != nil {
		return 0, err
	}
	if string(found) != identity {
		return 0, fmt.Errorf("it is of %q, not of %q", found, identity)
	}
	stored, err := reader.GetInternal(sequenceKey)
	if err != nil {
		return 0, err
	}
	if len(stored) != 8 {
		return 0, errors.New("it does not say its sequence")
	}
	return binary.BigEndian.Uint64(stored), nil
}

// create makes an empty index in the place of whatever is there.
func create(folder, identity string, log *slog.Logger) (*Index, error) {
	if err := os.RemoveAll(filesIn(folder)); err != nil {
		return nil, err
	}
	i, err := start(filesIn(folder), log)
	if err != nil {
		return nil, err
	}
	batch := bleve.NewBatch()
	batch.SetInternal(identityKey, []byte(identity))
	batch.SetInternal(sequenceKey, binary.BigEndian.AppendUint64(nil, 0))
	if err := i.write(batch); err != nil {
		_ = i.stop()
		return nil, err
	}
	return i, nil
}

// removeTorn removes the segments whose checksum is wrong, which scorch does not
// look at: it would panic in them later, or give wrong answers. One that nothing
// refers to was left by a crash; without one that is referred to, scorch refuses
// to open.
func removeTorn(files string) error {
	segments, err := segmentFiles(files)
	if err != nil {
		return err
	}
	for _, name := range segments {
		path := filepath.Join(files, name)
		whole, err := checksumHolds(path)
		if err != nil {
			return err
		}
		if !whole {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// segmentFiles are the names of the files in which scorch keeps entries.
func segmentFiles(files string) ([]string, error) {
	entries, err := os.ReadDir(files)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), ".zap") {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// checksumHolds reads a segment through. Its last four bytes are the CRC-32 of all
// that stand before them.
func checksumHolds(path string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return false, err
	}
	body := info.Size() - crc32.Size
	if body <= 0 {
		return false, nil
	}
	sum := crc32.NewIEEE()
	if _, err := io.CopyN(sum, file, body); err != nil {
		return false, err
	}
	stored := make([]byte, crc32.Size)
	if _, err := io.ReadFull(file, stored); err != nil {
		return false, err
	}
	return binary.BigEndian.Uint32(stored) == sum.Sum32(), nil
}

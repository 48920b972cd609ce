package home

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// lock takes the folder for this process. The kernel lets go of it when the process
// ends, so nothing stale is ever left; the pid in the file is for people.
func (f Folder) lock() (unlock func(), err error) {
	file, err := os.OpenFile(f.path("lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	unlock = func() { _ = file.Close() }
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		pid, _ := io.ReadAll(io.LimitReader(file, 20))
		unlock()
		return nil, fmt.Errorf("data folder %s is in use by another weir, process %s", f, strings.TrimSpace(string(pid)))
	case err != nil:
		unlock()
		return nil, fmt.Errorf("data folder: locking %s: %w", file.Name(), err)
	}
	if err := errors.Join(file.Truncate(0), writePID(file)); err != nil {
		unlock()
		return nil, fmt.Errorf("data folder: %w", err)
	}
	return unlock, nil
}

func writePID(file *os.File) error {
	_, err := fmt.Fprintln(file, os.Getpid())
	return err
}

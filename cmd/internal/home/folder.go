// Package home is the data folder of a mesh: the key that signs tokens, tokens made
// with it, the journal, and a lock that keeps a second mesh out.
package home

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"weir/internal/identity"
)

// Folder is the path of a data folder.
//
//	key.pem           signs tokens; whoever reads it can be anybody
//	jwks.json         its public half, for the services
//	tokens/*.jwt      ready-made tokens
//	audit.key         signs checkpoints of the audit log
//	audit.pub         its public half, for auditors
//	journal/          what NATS stores, and whether grants were seeded in it
//	search/           the search index over messages, made from the journal
//	lock              held by the mesh that runs on the folder
type Folder string

// JWKS is the file of the public key.
func (f Folder) JWKS() string { return f.path("jwks.json") }

// Token is the file of a ready-made token, by its name in People and Services.
func (f Folder) Token(name string) string { return f.path("tokens", name+".jwt") }

// Journal is where NATS stores streams.
func (f Folder) Journal() string { return f.path("journal") }

// Search is where the conversation service keeps its index.
func (f Folder) Search() string { return f.path("search") }

func (f Folder) path(parts ...string) string {
	return filepath.Join(append([]string{string(f)}, parts...)...)
}

// Open makes the folder where it is missing, takes its lock, and renews its tokens.
// The lock is held until the returned function is called or the process ends, however
// it ends.
func (f Folder) Open() (unlock func(), err error) {
	if err := os.MkdirAll(string(f), 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	unlock, err = f.lock()
	if err != nil {
		return nil, err
	}
	if err := f.Renew(); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// Signer is the folder's key, for one that Open made before.
func (f Folder) Signer() (*identity.Signer, error) {
	signer, err := identity.LoadSigner(f.path("key.pem"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no signing key in %s; `weir up` and `weir keys` make one", f)
	case err != nil:
		return nil, fmt.Errorf("signing key: %w", err)
	}
	return signer, nil
}

// key is the folder's key, a new one where there is none. A key that can't be read is
// left as it is: what it signed may still be in use somewhere.
func (f Folder) key() (*identity.Signer, error) {
	path := f.path("key.pem")
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return f.Signer()
	}
	signer, err := identity.NewSigner()
	if err != nil {
		return nil, err
	}
	// Under another name until it is whole: a process killed in the middle must not
	// leave half a key for the next one to stumble over.
	half := path + ".new"
	if err := os.Remove(half); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if err := signer.WriteKey(half); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	return signer, os.Rename(half, path)
}

// seeded marks a journal in which the first grants were put. It lies beside the
// journal's own files, so that who throws the journal away throws it away too.
func (f Folder) seeded() string { return filepath.Join(f.Journal(), "seeded") }

// Seeded says whether MarkSeeded was called since the journal began.
func (f Folder) Seeded() bool {
	_, err := os.Stat(f.seeded())
	return err == nil
}

// MarkSeeded makes Seeded true from now on.
func (f Folder) MarkSeeded() error { return os.WriteFile(f.seeded(), nil, 0o600) }

package home

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/mod/sumdb/note"

	"weir/services/gate/audit"
)

// auditKeyName stands in every checkpoint that the key signs.
const auditKeyName = "weir/gate"

// AuditKey is the file of the key that signs checkpoints of the audit log. Whoever reads
// it can sign a history that never was.
func (f Folder) AuditKey() string { return f.path("audit.key") }

// AuditVerifier is the file of its public half, for auditors to take away.
func (f Folder) AuditVerifier() string { return f.path("audit.pub") }

// renewAuditKey makes the key where there is none, and puts its public half beside it. A
// key that can't be read is left as it is: checkpoints that it signed may be kept
// somewhere, and under another key they would prove nothing any more.
func (f Folder) renewAuditKey() error {
	path := f.AuditKey()
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		private, _, err := note.GenerateKey(rand.Reader, auditKeyName)
		if err != nil {
			return fmt.Errorf("audit key: %w", err)
		}
		if err := replace(path, private); err != nil {
			return fmt.Errorf("data folder: %w", err)
		}
	}
	_, verifier, err := audit.LoadSigner(path)
	if err != nil {
		return err
	}
	if err := replace(f.AuditVerifier(), verifier); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	return nil
}

package audit

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// originPrefix and the tenant are the first line of a checkpoint, so that one
// tenant's can't be passed off as another's: all are signed by the same key.
const originPrefix = "weir/gate/"

// maxCheckpoint bounds what is parsed. A checkpoint is about 250 bytes.
const maxCheckpoint = 4096

// Checkpoint is what a tree was at some time (c2sp.org/tlog-checkpoint).
type Checkpoint struct {
	Tenant string
	Size   int64
	Root   tlog.Hash
}

// Origin is the first line.
func (c Checkpoint) Origin() string { return originPrefix + c.Tenant }

// Text is what is signed.
func (c Checkpoint) Text() string {
	return fmt.Sprintf("%s\n%d\n%s\n", c.Origin(), c.Size, base64.StdEncoding.EncodeToString(c.Root[:]))
}

// Sign gives the checkpoint as a signed note.
func (c Checkpoint) Sign(signer note.Signer) (string, error) {
	signed, err := note.Sign(&note.Note{Text: c.Text()}, signer)
	return string(signed), err
}

// OpenCheckpoint reads a signed checkpoint after it has verified the signature
// by a verifier key.
func OpenCheckpoint(signed, verifierKey string) (Checkpoint, error) {
	if len(signed) > maxCheckpoint {
		return Checkpoint{}, fmt.Errorf("a checkpoint has at most %d bytes, this has %d", maxCheckpoint, len(signed))
	}
	verifier, err := note.NewVerifier(strings.TrimSpace(verifierKey))
	if err != nil {
		return Checkpoint{}, fmt.Errorf("verifier key: %w", err)
	}
	opened, err := note.Open([]byte(signed), note.VerifierList(verifier))
	var unverified *note.UnverifiedNoteError
	var invalid *note.InvalidSignatureError
	switch {
	case errors.As(err, &unverified):
		return Checkpoint{}, fmt.Errorf("the checkpoint is not signed by the key %s+%08x", verifier.Name(), verifier.KeyHash())
	case errors.As(err, &invalid):
		return Checkpoint{}, fmt.Errorf("the checkpoint's signature is wrong: its text was altered, or another key signed it")
	case err != nil:
		return Checkpoint{}, fmt.Errorf("not a signed checkpoint: %w", err)
	}
	return parseCheckpoint(opened.Text)
}

// parseCheckpoint takes only what Text writes: a second form of the same
// checkpoint would be one that nobody compared.
func parseCheckpoint(text string) (Checkpoint, error) {
	lines := strings.Split(text, "\n")
	if len(lines) != 4 || lines[3] != "" {
		return Checkpoint{}, fmt.Errorf("a checkpoint has 3 lines: origin, size and root hash")
	}
	tenant, ok := strings.CutPrefix(lines[0], originPrefix)
	if !ok || tenant == "" {
		return Checkpoint{}, fmt.Errorf("origin %q: want %s<tenant>", lines[0], originPrefix)
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil || size < 0 {
		return Checkpoint{}, fmt.Errorf("size %q: want a number from 0", lines[1])
	}
	root, err := base64.StdEncoding.DecodeString(lines[2])
	if err != nil || len(root) != tlog.HashSize {
		return Checkpoint{}, fmt.Errorf("root hash %q: want %d bytes in base64", lines[2], tlog.HashSize)
	}
	c := Checkpoint{Tenant: tenant, Size: size, Root: tlog.Hash(root)}
	if c.Text() != text {
		return Checkpoint{}, fmt.Errorf("the checkpoint is not written as this log writes it")
	}
	return c, nil
}

// LoadSigner reads a private key as note.GenerateKey writes it, and gives the
// verifier key that belongs to it. Without a path there is none: nil and "".
func LoadSigner(path string) (note.Signer, string, error) {
	if path == "" {
		return nil, "", nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, "", fmt.Errorf("audit key: %w", err)
	}
	key := strings.TrimSpace(string(content))
	signer, err := note.NewSigner(key)
	if err != nil {
		// The error of the library may not be shown: it could hold the key.
		return nil, "", fmt.Errorf("audit key: %s: not a note signer key", path)
	}
	verifierKey, err := VerifierKey(key)
	if err != nil {
		return nil, "", fmt.Errorf("audit key: %s: %w", path, err)
	}
	return signer, verifierKey, nil
}

// VerifierKey is the public half of a private note key.
func VerifierKey(signerKey string) (string, error) {
	signer, err := note.NewSigner(signerKey)
	if err != nil {
		return "", errors.New("not a note signer key")
	}
	// PRIVATE+KEY+<name>+<hash>+<base64 of the algorithm's byte and the seed>;
	// NewSigner has checked all of it. Base64 may hold a plus, names may not.
	parts := strings.SplitN(signerKey, "+", 5)
	secret, err := base64.StdEncoding.DecodeString(parts[len(parts)-1])
	if err != nil || len(secret) != 1+ed25519.SeedSize {
		return "", errors.New("not an Ed25519 key")
	}
	public, ok := ed25519.NewKeyFromSeed(secret[1:]).Public().(ed25519.PublicKey)
	if !ok {
		return "", errors.New("not an Ed25519 key")
	}
	return note.NewEd25519VerifierKey(signer.Name(), public)
}

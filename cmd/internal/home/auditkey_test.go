package home

import (
	"os"
	"strings"
	"testing"

	"weir/services/gate/audit"
)

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestAnAuditKeyIsMadeOnceAndVerifiesWhatItSigned(t *testing.T) {
	f := Folder(t.TempDir())
	if err := f.renewAuditKey(); err != nil {
		t.Fatal(err)
	}
	private, public := read(t, f.AuditKey()), read(t, f.AuditVerifier())
	info, err := os.Stat(f.AuditKey())
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("the key's mode is %v, %v", info.Mode(), err)
	}
	signer, _, err := audit.LoadSigner(f.AuditKey())
	if err != nil {
		t.Fatal(err)
	}
	want := audit.Checkpoint{Tenant: "demo", Size: 3}
	signed, err := want.Sign(signer)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := audit.OpenCheckpoint(signed, public); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}

	// The public half that got lost comes back; the key stays.
	if err := os.Remove(f.AuditVerifier()); err != nil {
		t.Fatal(err)
	}
	if err := f.renewAuditKey(); err != nil {
		t.Fatal(err)
	}
	if read(t, f.AuditKey()) != private || read(t, f.AuditVerifier()) != public {
		t.Error("the key was made anew")
	}
}

func TestAnAuditKeyThatCannotBeReadIsLeftAsItIs(t *testing.T) {
	f := Folder(t.TempDir())
	if err := os.WriteFile(f.AuditKey(), []byte("spoilt"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.renewAuditKey(); err == nil || !strings.Contains(err.Error(), f.AuditKey()) {
		t.Errorf("got %v", err)
	}
	if read(t, f.AuditKey()) != "spoilt" {
		t.Error("it was overwritten")
	}
	if _, err := os.Stat(f.AuditVerifier()); err == nil {
		t.Error("a key that cannot be read has a public half")
	}
}

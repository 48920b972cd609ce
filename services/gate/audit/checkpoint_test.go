package audit

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

type keys struct {
	signer   note.Signer
	verifier string
	private  string
}

func newKeys(t testing.TB, name string) keys {
	t.Helper()
	private, public, err := note.GenerateKey(rand.Reader, name)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	return keys{signer, public, private}
}

func signed(t testing.TB, k keys, text string) string {
	t.Helper()
	out, err := note.Sign(&note.Note{Text: text}, k.signer)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func wantError(t testing.TB, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with %q", err, want)
	}
}

func TestACheckpointReadsBackAsItWasSigned(t *testing.T) {
	k := newKeys(t, "weir/gate")
	want := Checkpoint{Tenant: "acme", Size: 42, Root: tlog.RecordHash([]byte("x"))}
	text, err := want.Sign(k.signer)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(text, "weir/gate/acme\n42\n") {
		t.Errorf("got %s", text)
	}
	if got, err := OpenCheckpoint(text, k.verifier+"\n"); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestACheckpointThatIsNotTheLogsIsRefused(t *testing.T) {
	k, other := newKeys(t, "weir/gate"), newKeys(t, "weir/gate")
	c := Checkpoint{Tenant: "acme", Size: 42, Root: tlog.RecordHash([]byte("x"))}
	good := signed(t, k, c.Text())
	root := strings.Split(c.Text(), "\n")[2]
	for name, test := range map[string]struct{ text, key, want string }{
		"another key":            {good, other.verifier, "not signed by the key"},
		"no key":                 {good, "", "verifier key"},
		"a smaller size":         {strings.Replace(good, "\n42\n", "\n41\n", 1), k.verifier, "was altered"},
		"another tenant":         {strings.Replace(good, "acme", "bell", 1), k.verifier, "was altered"},
		"no signature":           {c.Text(), k.verifier, "not a signed checkpoint"},
		"nothing":                {"", k.verifier, "not a signed checkpoint"},
		"too long":               {good + strings.Repeat("x", 5000), k.verifier, "at most"},
		"another log's":          {signed(t, k, "example.com/log\n42\n"+root+"\n"), k.verifier, "origin"},
		"no tenant":              {signed(t, k, "weir/gate/\n42\n"+root+"\n"), k.verifier, "origin"},
		"a negative size":        {signed(t, k, "weir/gate/acme\n-1\n"+root+"\n"), k.verifier, "size"},
		"no size":                {signed(t, k, "weir/gate/acme\nx\n"+root+"\n"), k.verifier, "size"},
		"another form of 42":     {signed(t, k, "weir/gate/acme\n042\n"+root+"\n"), k.verifier, "written"},
		"a short root":           {signed(t, k, "weir/gate/acme\n42\nAAAA\n"), k.verifier, "root hash"},
		"a line too many":        {signed(t, k, c.Text()+"more\n"), k.verifier, "3 lines"},
		"a line too few":         {signed(t, k, "weir/gate/acme\n42\n"), k.verifier, "3 lines"},
		"signed by another name": {signed(t, newKeys(t, "other"), c.Text()), k.verifier, "not signed by the key"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := OpenCheckpoint(test.text, test.key)
			wantError(t, err, test.want)
		})
	}
}

func TestASignerComesFromAFileWithItsVerifierKey(t *testing.T) {
	for range 20 { // base64 with and without '+'
		k := newKeys(t, "weir/gate")
		path := filepath.Join(t.TempDir(), "audit.key")
		if err := os.WriteFile(path, []byte(k.private+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		signer, verifier, err := LoadSigner(path)
		if err != nil || verifier != k.verifier || signer.KeyHash() != k.signer.KeyHash() {
			t.Fatalf("got %s, %v", verifier, err)
		}
	}
	if signer, verifier, err := LoadSigner(""); signer != nil || verifier != "" || err != nil {
		t.Errorf("no path: %v, %q, %v", signer, verifier, err)
	}
	_, _, err := LoadSigner(filepath.Join(t.TempDir(), "none"))
	wantError(t, err, "no such file")
	path := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(path, []byte("PRIVATE+KEY+secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = LoadSigner(path)
	wantError(t, err, "not a note signer key")
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error shows the key: %v", err)
	}
	_, err = VerifierKey("x")
	wantError(t, err, "not a note signer key")
}

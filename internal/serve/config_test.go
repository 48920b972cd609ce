package serve

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// gateFlags is how a service embeds the Config.
type gateFlags struct {
	Config
	NATS string
}

func parse(t *testing.T, vars kong.Vars, args ...string) (*gateFlags, error) {
	t.Helper()
	flags := &gateFlags{}
	parser, err := kong.New(flags, vars)
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(args)
	return flags, err
}

func TestFlags(t *testing.T) {
	f, err := parse(t, kong.Vars{"listen": "127.0.0.1:7071"}, "--jwks=keys.json", "--http=:9090", "--standing=s.json",
		"--log-level=warn", "--shutdown-grace=3s", "--open-reflection", "--peer-token-file=token", "--peer-plaintext",
		"--tls-cert=c", "--tls-key=k", "--tls-client-ca=ca", "--spiffe-scopes=p.json")
	if err != nil {
		t.Fatal(err)
	}
	if f.Listen != "127.0.0.1:7071" || f.JWKS != "keys.json" || f.HTTP != ":9090" || f.LogLevel != slog.LevelWarn ||
		f.ShutdownGrace != 3*time.Second || !f.OpenReflection || f.Peer.TokenFile != "token" || !f.Peer.Plaintext ||
		f.TLSClientCA != "ca" || f.SPIFFEScopes != "p.json" || f.Standing != "s.json" {
		t.Errorf("parsed %+v", f)
	}
}

// A Config built in Go works like one built from flags.
func TestDefaultsAreOne(t *testing.T) {
	f, err := parse(t, nil, "--jwks=keys.json")
	if err != nil {
		t.Fatal(err)
	}
	built := Config{}.withDefaults()
	if f.Audience != built.Audience || f.ShutdownGrace != built.ShutdownGrace || f.LogLevel != built.LogLevel {
		t.Errorf("flags give %+v, Go gives %+v", f.Config, built)
	}
	if f.Listen != "127.0.0.1:7070" || f.HTTP != "" {
		t.Errorf("listens on %q and %q", f.Listen, f.HTTP)
	}
}

func TestSettingsThatCannotWork(t *testing.T) {
	good := func() Config { return Config{Listen: "127.0.0.1:0", JWKS: "keys.json"} }
	if c := good(); c.Validate() != nil {
		t.Fatal(c.Validate())
	}
	if c := (Config{Listener: &net.TCPListener{}, Issuer: "https://example.com"}); c.Validate() != nil {
		t.Fatal(c.Validate())
	}
	for flag, change := range map[string]func(*Config){
		"--listen":         func(c *Config) { c.Listen = "7070" },
		"--http":           func(c *Config) { c.HTTP = "9090" },
		"--jwks":           func(c *Config) { c.JWKS = "" },
		"--issuer":         func(c *Config) { c.Issuer = "https://example.com" },
		"--tls-key":        func(c *Config) { c.TLSCert = "c" },
		"--tls-cert":       func(c *Config) { c.TLSKey = "k" },
		"--tls-client-ca":  func(c *Config) { c.TLSClientCA = "ca" },
		"--spiffe-scopes":  func(c *Config) { c.SPIFFEScopes = "p" },
		"--shutdown-grace": func(c *Config) { c.ShutdownGrace = -1 },
		"--peer-key":       func(c *Config) { c.Peer.Cert = "c" },
		"--peer-plaintext": func(c *Config) { c.Peer.CA, c.Peer.Plaintext = "ca", true },
	} {
		c := good()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

func TestFilesThatAreMissingKeepItFromStarting(t *testing.T) {
	jwks, _ := trusted(t)
	for flag, change := range map[string]func(*Config){
		"keys":       func(c *Config) { c.JWKS = "absent" },
		"standing":   func(c *Config) { c.Standing = "absent" },
		"--tls-cert": func(c *Config) { c.TLSCert, c.TLSKey = "absent", "absent" },
		"--listen":   func(c *Config) { c.Listen = "256.0.0.1:0" },
	} {
		c := Config{Listen: "127.0.0.1:0", JWKS: jwks, Logger: slog.New(slog.DiscardHandler)}
		change(&c)
		err := Run(t.Context(), c, Service{Name: "echo", Register: (&backend{}).register})
		if err == nil || !strings.HasPrefix(err.Error(), "echo: ") || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

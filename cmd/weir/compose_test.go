package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"

	"weir/cmd/internal/home"
	"weir/services/conversation"
	"weir/services/gate"
	"weir/services/inbox"
	"weir/services/registry"
)

// docker-compose.yml starts each service with flags that it takes, and mounts secrets that
// `weir keys` makes.
func TestComposeFile(t *testing.T) {
	text, err := os.ReadFile("../../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct{ Command []string }
		Secrets  map[string]struct{ File string }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for name, config := range map[string]any{
		"gate": &gate.Config{}, "registry": &registry.Config{}, "conversation": &conversation.Config{}, "inbox": &inbox.Config{},
	} {
		parser, err := kong.New(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(file.Services[name].Command); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}

	root := t.TempDir()
	unlock, err := home.Folder(filepath.Join(root, "secrets")).Open()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	for name, secret := range file.Secrets {
		if _, err := os.Stat(filepath.Join(root, secret.File)); err != nil {
			t.Errorf("secret %s: %v", name, err)
		}
	}
}
